"""specc: exact speculative decoding for small devices, compiled into one bundle.

The public names, in the order in which a program meets them:

    load_recipe, Recipe                 what to build
    build, Built                        recipe -> bundle; needs the extra `build`
    gate                                certify a bundle on this device
    read_bundle, verify_bundle, Bundle  what is inside
    Prompter                            text or messages -> token ids, by the bundle's tokenizer and template
    Model, Session                      open a bundle and generate; the session owns the KV cache
    Request, Options                    what may be asked of one generation
    Event, Result, Info, Certificate    what comes back
    Drafter, DraftContext, Node         a drafter of one's own
    Progress                            the callback of everything that takes long
    SpeccError and its kinds            every error is one of them, one sentence each

Each is imported when it is first used, so that `import specc` loads nothing.

>>> from specc import Model
>>> with Model.open("bundle") as model, model.session() as session:
...     events = session.generate([72, 101, 108, 108, 111], temperature=0, max_new_tokens=8)
...     text = "".join(event.text for event in events)
"""

from __future__ import annotations

from importlib import import_module

from specc.version import __version__ as __version__

TYPE_CHECKING = False
"""True for type checkers, which know the name; the module `typing` alone takes longer to import than all of
this.
"""

if TYPE_CHECKING:
    from typing import Any

    from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
    from specc.contracts.recipe import Recipe, load_recipe
    from specc.errors import (
        EnvironmentFault,
        InputError,
        JudgeError,
        RecipeError,
        RuntimeFault,
        SpeccError,
    )
    from specc.gate.bundle import gate_bundle as gate
    from specc.generate.template import Prompter
    from specc.pipeline.build import Built, build
    from specc.progress import Progress
    from specc.runtime import (
        Certificate,
        DraftContext,
        Drafter,
        Event,
        Info,
        Model,
        Node,
        Options,
        Request,
        Result,
        Session,
    )

__all__ = [
    "Built",
    "Bundle",
    "Certificate",
    "DraftContext",
    "Drafter",
    "EnvironmentFault",
    "Event",
    "Info",
    "InputError",
    "JudgeError",
    "Model",
    "Node",
    "Options",
    "Progress",
    "Prompter",
    "Recipe",
    "RecipeError",
    "Request",
    "Result",
    "RuntimeFault",
    "Session",
    "SpeccError",
    "build",
    "gate",
    "load_recipe",
    "read_bundle",
    "verify_bundle",
]

_HOMES = {
    "specc.contracts.recipe": ("Recipe", "load_recipe"),
    "specc.pipeline.build": ("Built", "build"),
    "specc.contracts.bundle.manifest": ("Bundle", "read_bundle", "verify_bundle"),
    "specc.generate.template": ("Prompter",),
    "specc.runtime": (
        "Certificate",
        "DraftContext",
        "Drafter",
        "Event",
        "Info",
        "Model",
        "Node",
        "Options",
        "Request",
        "Result",
        "Session",
    ),
    "specc.progress": ("Progress",),
    "specc.errors": (
        "EnvironmentFault",
        "InputError",
        "JudgeError",
        "RecipeError",
        "RuntimeFault",
        "SpeccError",
    ),
}
"""Module -> the public names that it defines. `gate` is the package `specc.gate`, which can be called."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, imported on first use (PEP 562)."""
    if name == "gate":
        return import_module("specc.gate")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'specc' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *__all__})
