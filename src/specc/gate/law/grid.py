"""The cases of the law tests: K, rule, drafter and sampling options."""

from __future__ import annotations

from specc.gate.law.case import Case
from specc.runtime import Options

OPTIONS: dict[str, Options] = {
    "greedy": Options(temperature=0.0),
    "T=0.7": Options(temperature=0.7),
    "T=1": Options(),
    "T=2": Options(temperature=2.0),
    "top_k": Options(top_k=3),
    "top_p": Options(top_p=0.8),
    "min_p": Options(min_p=0.25),
    "all filters": Options(temperature=0.8, top_k=3, top_p=0.9, min_p=0.1, logit_bias={0: -1.0, 3: 0.5}),
}
PENALTIES = Options(temperature=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.6)
RULES = ("rejection", "coupled")


def make_full_grid() -> list[Case]:
    """Every K, rule, drafter and set of options; then penalties, a larger vocabulary and a hierarchy of
    drafters.
    """
    cases = [
        Case(f"K={k} {rule} {drafter} {name}", k, rule, drafter, options)
        for k in (1, 2, 4, 8)
        for rule in RULES
        for drafter in ("model", "self", "ngram")
        for name, options in OPTIONS.items()
    ]
    return cases + make_penalty_cases() + make_large_cases() + make_hierarchy_cases()


def make_penalty_cases() -> list[Case]:
    """Penalties, which depend on the round's own tokens."""
    return [
        Case(f"K={k} {rule} model penalties", k, rule, "model", PENALTIES) for k in (2, 4) for rule in RULES
    ]


def make_large_cases() -> list[Case]:
    """Sixteen ids, a table of order 1."""
    return [
        Case(f"K=4 {rule} model 16 ids", 4, rule, "model", OPTIONS["all filters"], n=16, order=1)
        for rule in RULES
    ]


def make_hierarchy_cases() -> list[Case]:
    """Lookup speeds up the draft table; all tokens of a round must still follow the draft's q."""
    return [Case(f"K=4 {rule} hierarchy T=1", 4, rule, "hierarchy", OPTIONS["T=1"]) for rule in RULES]


def make_short_grid() -> list[Case]:
    """The gate's own selection: every rule, drafter and option once, at K = 1, 4 and 8."""
    wanted = [(4, rule, "model", name) for rule in RULES for name in OPTIONS]
    wanted += [
        (k, "rejection", drafter, "all filters") for k in (1, 8) for drafter in ("model", "self", "ngram")
    ]
    wanted += [
        (4, "coupled", "ngram", "T=1"),
        (4, "rejection", "ngram", "T=1"),
        (4, "rejection", "self", "T=0.7"),
    ]
    by_name = {case.name: case for case in make_full_grid()}
    cases = [by_name[f"K={k} {rule} {drafter} {name}"] for k, rule, drafter, name in wanted]
    return cases + make_penalty_cases()[2:] + make_hierarchy_cases()[:1]
