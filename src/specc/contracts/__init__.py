"""What recipes, plans and bundles are; imports neither torch nor the runtime.

Reading order, which is also the order of imports (each module imports only ones above it):

    files         files by path, size and hash
    scheme        how weights are stored
    chat_template rendering of chat templates
    model_spec    what a checkpoint says about itself
    draft_kinds   one record a kind of drafter, and a recipe's drafter
    recipe        a recipe file, checked
    draft_head    header of a trained draft head's file
    draft_table   header of a static n-gram table's file
    engine_plan   one engine: layers, widths, cache capacity
    precision     which precisions a hardware target has
    draft_engine  the engine of the drafter
    costs         bytes and bandwidth time of engines
    plan          every number of a build
    fit           what to change where a plan does not fit
    bundle/       tables, manifest, contents, writer: the folder that ships
    reasons       why speculation is on or off, in a sentence

Below lie specc.errors, specc.atomic, specc.yaml_table and specc.targets.
"""
