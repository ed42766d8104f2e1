"""The main job: recipe -> plan -> graphs -> lint -> bundle. Every stage comes from the cache where nothing changed."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from specc import __version__, targets
from specc.atomic import io_errors
from specc.contracts.bundle.contents import TokenizerPart, make_manifest
from specc.contracts.bundle.manifest import CERTIFICATES, Bundle
from specc.contracts.bundle.tables import encode_calibration, encode_id_bytes
from specc.contracts.bundle.writer import check_destination, write_bundle
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.files import describe_file
from specc.contracts.plan import Plan, make_plan
from specc.contracts.precision import find_further_dialects
from specc.contracts.recipe import Recipe, Source, load_recipe
from specc.errors import JudgeError
from specc.gate.quality import describe_worst_groups, list_missed_limits
from specc.pipeline import cache, choice, draft_files
from specc.pipeline.cache import Stage, code_hash, stage, tool_versions
from specc.pipeline.checkpoint import Described, build_extra, describe
from specc.pipeline.clock import Clock, Reporter, Row, Steps
from specc.pipeline.engines import lend, ship
from specc.pipeline.ranges import ranges_stages, static_scales

TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Planned:
    """A plan and the checkpoints behind it."""

    plan: Plan
    target: Described
    draft: Described | None


@dataclass(frozen=True)
class Built:
    """What a build made."""

    bundle: Bundle
    plan: Plan
    written: bool
    rows: tuple[Row, ...]
    lint: tuple[dict[str, str], ...]
    quality: dict[str, Any]
    reasons: tuple[str, ...]
    """Why speculation is off for sure; empty where a certificate decides."""
    also: tuple[Bundle, ...] = ()
    """The same in further dialects."""


def build(
    recipe_path: Path,
    hardware: str | None = None,
    out: Path | None = None,
    reporter: Reporter | None = None,
    sensitivity: bool = False,
) -> Built:
    """Build the recipe's bundle into `out` (default: a folder of the recipe's name here).

    sensitivity: also measure what quantizing each group of layers alone costs, and keep it with the quality.
    A target may ask for the same recipe in another dialect too: that bundle stands beside it, as `OUT-ort`. Raises
    InputError, RecipeError, EnvironmentFault; nothing but the cache is left behind then.
    """
    recipe = load_recipe(recipe_path)
    place = out or Path(recipe.name)
    further = find_further_dialects(recipe, targets.load(hardware or recipe.hardware))
    places = {dialect: place.with_name(f"{place.name}-{dialect}") for dialect in further}
    for one in (place, *places.values()):
        check_destination(one)
    clock = Clock(reporter)
    main = build_one(recipe, hardware, place, clock, sensitivity)
    also = [
        build_one(replace(recipe, dialect=dialect), hardware, one, clock) for dialect, one in places.items()
    ]
    return replace(main, rows=tuple(clock.rows), also=tuple(one.bundle for one in also))


def build_one(
    recipe: Recipe, hardware: str | None, place: Path, clock: Clock, sensitivity: bool = False
) -> Built:
    """One bundle in one dialect."""
    with io_errors(f"building {recipe.name}"):
        planned = choice_stage(plan_stage(recipe, hardware, clock), clock)
        tokenizer = tokenizer_stage(planned, clock)
        ranges = ranges_stages(planned, tokenizer, clock)
        engines = export_stages(planned, ranges, clock)
        groups = partial(sensitivity_stage, planned, clock)
        check_quality(recipe, engines["target"], groups)
        if sensitivity:
            engines["target"].facts["sensitivity"] = groups()
        findings = lint_stage(engines["target"], clock, judged_engine(planned.plan))
        return pack_stage(place, planned, tokenizer, engines, findings, clock)


# ---------------------------------------------------------------------- plan


def plan_recipe(recipe: Recipe, hardware: str | None) -> Planned:
    """Join recipe, hardware and checkpoints into a plan; no weights are read for a checkpoint that is known already."""
    device = targets.load(hardware or recipe.hardware)
    with io_errors(f"planning {recipe.name}"):
        target = describe(recipe.target, recipe.folder)
        draft, part = None, recipe.draft.engine_part
        if part is not None and part.checkpoint:
            draft = describe(Source(part.checkpoint, part.revision), recipe.folder)
        head = draft_files.open_head(recipe, target.spec)
    plan = make_plan(recipe, device, target.spec, draft.spec if draft else None, head)
    planned = Planned(plan, target, draft)
    facts = choice.known(asked_of(planned)) if choice.is_asked(recipe) else None
    return planned if facts is None else chosen(planned, facts)


def asked_of(planned: Planned) -> choice.Asked:
    """A provisional plan, as something to choose from."""
    return choice.Asked(planned.plan, planned.target, planned.draft)


def chosen(planned: Planned, facts: dict[str, Any]) -> Planned:
    """The plan with K and draft as they were chosen."""
    recipe, device = choice.settled(planned.plan.recipe, facts), planned.plan.hardware
    engine = recipe.draft.engine_part
    draft = planned.draft if engine is not None and engine.checkpoint else None
    head = planned.plan.head if engine is not None and engine.head else None
    plan = make_plan(recipe, device, planned.target.spec, draft.spec if draft else None, head)
    return Planned(replace(plan, choice=facts), planned.target, draft)


def choice_stage(planned: Planned, clock: Clock) -> Planned:
    """K and draft by what the target's answers show, where the recipe leaves them open."""
    if not choice.is_asked(planned.plan.recipe) or planned.plan.choice is not None:
        return planned
    with clock.stage("choose") as hit:
        made = choice.choose(asked_of(planned), clock.steps("choose"))
        hit(made.cached)
    return chosen(planned, made.facts)


def plan_stage(recipe: Recipe, hardware: str | None, clock: Clock) -> Planned:
    """The plan, and the proof that both models mean the same strings by their ids."""
    with clock.stage("plan") as hit:
        planned = plan_recipe(recipe, hardware)
        if planned.draft is not None:
            compare_tokenizers(planned.target, planned.draft)
        hit(planned.target.cached)
    return planned


def compare_tokenizers(target: Described, draft: Described) -> list[str]:
    """Notes on harmless differences. Raises InputError where an id means another string or text is read otherwise."""

    def make(_: Path) -> dict[str, Any]:
        with build_extra():
            from specc.exporter.checkpoint.tokenizer import compare_tokenizers as compare

            return {"notes": [str(note) for note in compare(target.open().tokens, draft.open().tokens)]}

    pair = [[item.spec.id_map_sha256, item.spec.weights_sha256] for item in (target, draft)]
    inputs = {"pair": pair, "code": code_hash("specc.exporter")}
    return [str(note) for note in stage("tokenizers", inputs, make).facts["notes"]]


# ---------------------------------------------------------------------- tokenizer and calibration


def tokenizer_stage(planned: Planned, clock: Clock) -> Stage:
    """tokenizer.json, id_bytes.bin, chat_template.jinja and calibration.bin."""
    from specc.calib.tokens import calibration_key

    recipe, target = planned.plan.recipe, planned.target
    with clock.stage("tokenizer") as hit:
        path = recipe.folder / recipe.calibration_text if recipe.calibration_text else None
        spec = target.spec
        inputs = {
            "model": [spec.weights_sha256, spec.id_map_sha256, spec.token_ids],
            "calibration": calibration_key(path),
            "code": [code_hash("specc.exporter"), code_hash("specc.calib")],
            "tools": tool_versions(),
        }
        made = stage("tokenizer", inputs, partial(write_tokenizer, target, path))
        hit(made.cached)
    return made


def write_tokenizer(target: Described, calibration: Path | None, folder: Path) -> dict[str, Any]:
    """Write the tokenizer's files and the calibration ids into `folder`."""
    from specc.calib.tokens import calibration_ids, calibration_text
    from specc.generate.template import load_tokenizer

    checkpoint = target.open()
    checkpoint.save_tokenizer(folder)
    (folder / "id_bytes.bin").write_bytes(encode_id_bytes(checkpoint.id_bytes()))
    if checkpoint.chat_template:
        (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")
    text, tokenizer = calibration_text(calibration), load_tokenizer(folder / "tokenizer.json")
    ids = calibration_ids(lambda part: tokenizer.encode(part, add_special_tokens=False).ids, text)
    (folder / "calibration.bin").write_bytes(encode_calibration(ids))
    return {
        "strip_leading_space": bool(checkpoint.strip_leading_space),
        "has_chat_template": bool(checkpoint.chat_template),
        "calibration": {"text": text.origin, "sha256": text.sha256, "ids": len(ids)},
    }


# ---------------------------------------------------------------------- engines


def export_stages(planned: Planned, ranges: Mapping[str, Stage], clock: Clock) -> dict[str, Stage]:
    """One stage an engine: trace, fuse, quantize, check against transformers, save."""
    stages: dict[str, Stage] = {}
    for engine in planned.plan.engines:
        with clock.stage(f"export {engine.name}") as hit:
            if engine.name == "draft" and planned.plan.head is not None:
                steps = clock.steps("export draft")
                stages["draft"] = draft_files.head_stage(
                    planned.plan, planned.target, steps, stages["target"]
                )
                hit(stages["draft"].cached)
                continue
            origin = planned.draft if engine.name == "draft" and planned.draft else planned.target
            shared = stages["target"] if engine.shares else None
            steps = clock.steps(f"export {engine.name}")
            norm = draft_files.norm_of(planned.plan) if engine.name == "draft" else None
            stages[engine.name] = export_stage(origin, engine, shared, steps, ranges.get(engine.name), norm)
            hit(stages[engine.name].cached)
    return stages


def export_stage(
    origin: Described,
    engine: EnginePlan,
    shared: Stage | None,
    steps: Steps,
    ranges: Stage | None = None,
    norm: Path | None = None,
) -> Stage:
    """The engine's files; `shared` is the stage whose weight file it reads too, `ranges` that of its static scales.

    `norm`: a file with the final norm of an early exit.
    """
    inputs = {
        "engine": asdict(engine),
        "shared": shared.key if shared else None,
        **({"ranges": ranges.key} if ranges else {}),
        **({"norm": describe_file(norm.parent, norm.name).sha256} if norm else {}),
        "code": code_hash("specc.exporter"),
        "tools": tool_versions(),
    }
    return stage("engine", inputs, partial(write_engine, origin, engine, shared, steps, ranges, norm))


def write_engine(
    origin: Described,
    engine: EnginePlan,
    shared: Stage | None,
    steps: Steps,
    ranges: Stage | None,
    norm: Path | None,
    folder: Path,
) -> dict[str, Any]:
    """Export into `folder`; files of the shared stage lie there meanwhile, so that they can be referred to."""
    with build_extra():
        from specc.exporter.export import export_graph

        lent = lend(shared, folder) if shared else []
        further: dict[str, Any] = static_scales(ranges)
        if norm is not None:
            from specc.exporter.draft_heads.file import load_exit_norm

            further["prepare"] = load_exit_norm(norm)
        exported = export_graph(origin.open(), engine, folder, steps, **further)
        for path in lent:
            path.unlink()
    errors = {name: float(error) for name, error in exported.stage_errors.items()}
    quality = dict(exported.quality)
    facts = {
        "nodes": exported.node_count,
        "stage_errors": errors,
        "quality": quality,
        "notes": list(exported.notes),
    }
    return {**facts, "range_errors": ranges.facts["errors"]} if ranges else facts


# ---------------------------------------------------------------------- quality, lint and pack


def check_quality(recipe: Recipe, engine: Stage, groups: Callable[[], list[dict[str, Any]]]) -> None:
    """Hold the target's quality against the recipe's limits. Raises JudgeError, so that no bundle is written.

    `groups` measures what each group of layers costs alone; it is asked only to name the worst ones of a failure.
    """
    limits = {name: getattr(recipe.gate, name) for name in ("kl_max", "top1_min", "perplexity_max")}
    wrong = list_missed_limits(engine.facts["quality"], **limits)
    if wrong:
        advice = "use a scheme with more bits, or other limits under 'gate'"
        why = f"{'; '.join(wrong)}; worst alone are {describe_worst_groups(groups())}"
        raise JudgeError(f"{recipe.file}: the quantized target is not good enough: {why}; {advice}")


def sensitivity_stage(planned: Planned, clock: Clock) -> list[dict[str, Any]]:
    """KL of each group of the target's layers when it alone is quantized."""
    engine = next(engine for engine in planned.plan.engines if engine.name == "target")

    def make(_: Path) -> dict[str, Any]:
        with build_extra():
            from specc.exporter.check.sensitivity import measure_sensitivity

            return {"groups": measure_sensitivity(planned.target.open(), engine, clock.steps("sensitivity"))}

    inputs = {"engine": asdict(engine), "code": code_hash("specc.exporter"), "tools": tool_versions()}
    with clock.stage("sensitivity") as hit:
        made = stage("sensitivity", inputs, make)
        hit(made.cached)
    return list(made.facts["groups"])


def judged_engine(plan: Plan) -> str:
    """The engine that the lint judges the graph for."""
    if plan.hardware.gpu is None:
        return "auto"
    return "tensorrt" if plan.target.dialect == "onnx24" else "cuda"


def lint_stage(engine: Stage, clock: Clock, kind: str) -> list[dict[str, str]]:
    """Findings of the lint judge on the target's graph, as the manifest keeps them."""

    def make(_: Path) -> dict[str, Any]:
        from specc.gate.lint import lint_file

        findings = lint_file(engine.folder / "target.onnx", kind)
        return {
            "findings": [
                {key: str(getattr(f, key)) for key in ("node", "op", "why", "fix")} for f in findings
            ]
        }

    with clock.stage("lint") as hit:
        made = stage("lint", {"engine": engine.key, "kind": kind, "code": code_hash("specc.gate.lint")}, make)
        hit(made.cached)
    return list(made.facts["findings"])


def pack_stage(
    place: Path,
    planned: Planned,
    tokenizer: Stage,
    engines: Mapping[str, Stage],
    lint: Sequence[dict[str, str]],
    clock: Clock,
) -> Built:
    """Write the bundle."""
    shipped = ship(planned.plan, engines, clock)
    with clock.stage("pack") as hit:
        stages = [*shipped.stages, tokenizer, *draft_files.file_stages(planned.plan)]
        sources = {path: entry for item in stages for path, entry in item.sources().items()}
        files = [file for _, file in sources.values()]
        quality = {name: item.facts for name, item in engines.items()}
        provenance = provenance_of(planned, tokenizer)
        part = tokenizer_facts(planned, tokenizer)
        manifest = make_manifest(
            planned.plan, files, shipped.paths, part, lint, quality, provenance, shipped.parts
        )
        bundle, written = write_bundle(place, manifest, sources)
        hit(not written)
    return Built(
        bundle, planned.plan, written, tuple(clock.rows), tuple(lint), quality, reasons_of(bundle, lint)
    )


def tokenizer_facts(planned: Planned, tokenizer: Stage) -> TokenizerPart:
    """The manifest's view of the tokenizer."""
    spec, facts = planned.target.spec, tokenizer.facts
    has_template = bool(facts["has_chat_template"])
    return TokenizerPart(
        spec.token_ids, spec.id_map_sha256, facts["strip_leading_space"], spec.eos, spec.bos, has_template
    )


def provenance_of(planned: Planned, tokenizer: Stage) -> dict[str, Any]:
    """Where everything comes from; no times, so that the same build gives the same digest."""
    recipe = planned.plan.recipe
    return {
        "specc": __version__,
        "recipe": {"name": Path(recipe.file).name, "text": recipe.text, "sha256": recipe.sha256},
        "target": origin_of(planned.target),
        "draft": origin_of(planned.draft) if planned.draft else draft_files.origin(planned.plan),
        "calibration": tokenizer.facts["calibration"],
        "tools": tool_versions(),
        "host": {
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
    }


def origin_of(item: Described) -> dict[str, Any]:
    """A checkpoint's name as the recipe writes it, its hash, revision and licence."""
    spec = item.spec
    return {
        **item.provenance,
        "checkpoint": item.source.checkpoint,
        "revision": spec.revision,
        "weights_sha256": spec.weights_sha256,
        "licence": spec.licence,
        "parameters": spec.parameters,
    }


def reasons_of(bundle: Bundle, lint: Sequence[object]) -> tuple[str, ...]:
    """Why speculation is off without looking at the device: lint said no, or no certificate is there at all."""
    if lint:
        return ("lint",)
    found = map(is_certificate, (bundle.folder / CERTIFICATES).glob("*.json"))
    return () if any(found) else ("uncertified-device",)


def is_certificate(path: Path) -> bool:
    """Whether a file's name is that of a certificate, not of the gate's report beside it."""
    return not path.name.endswith(".report.json")


def summary(built: Built) -> dict[str, Any]:
    """What `specc build --json` prints."""
    return {
        "bundle": str(built.bundle.folder),
        "digest": built.bundle.digest,
        "written": built.written,
        "also": [str(bundle.folder) for bundle in built.also],
        "stages": [asdict(row) for row in built.rows],
        "files": [asdict(file) for file in built.bundle.files],
        "bytes": sum(file.bytes for file in built.bundle.files),
        "plan": built.bundle.manifest["plan"],
        "speculation": {"enabled": None if not built.reasons else False, "reasons": list(built.reasons)},
        "lint": list(built.lint),
        "cache": str(cache.root()),
    }
