"""Whether the shipped runtime samples from the law that it promises, tested on table models.

In reading order: `noise` and `reference` are the random numbers and the sampling options in plain numpy;
`exact` computes the law of a round; `case` and `grid` are what is tested; `rounds` and `independence` are the
tests; `judge` sets their levels and runs the negative controls; `selftest` measures how often all of this is
right.
"""

from specc.gate.law.case import (
    CONTEXT,
    PROMPT,
    Case,
    LawTest,
    Rounds,
    make_model,
    make_process,
    make_tables,
    run_trials,
)
from specc.gate.law.grid import OPTIONS, PENALTIES, make_full_grid, make_short_grid
from specc.gate.law.judge import (
    CHAINED,
    CONTROLS,
    FAMILY_ERROR,
    POWER,
    SMALLEST_TV,
    judge_case,
    judge_controls,
    judge_law,
    run_control,
    trials_for,
)

__all__ = [
    "CHAINED",
    "CONTEXT",
    "CONTROLS",
    "FAMILY_ERROR",
    "OPTIONS",
    "PENALTIES",
    "POWER",
    "PROMPT",
    "SMALLEST_TV",
    "Case",
    "LawTest",
    "Rounds",
    "judge_case",
    "judge_controls",
    "judge_law",
    "make_full_grid",
    "make_model",
    "make_process",
    "make_short_grid",
    "make_tables",
    "run_control",
    "run_trials",
    "trials_for",
]
