"""Measures the law judge itself: power on the negative controls, false alarms, power on a known total
variation.

python -m specc.gate.law.selftest --seeds 20      # slow
"""

from __future__ import annotations

import argparse
import json

from specc.gate.law.case import Case, make_model, make_process, run_trials
from specc.gate.law.grid import make_full_grid, make_short_grid
from specc.gate.law.judge import (
    CONTROL_LIMIT,
    CONTROL_TRIALS,
    CONTROLS,
    FAMILY_ERROR,
    SMALLEST_TV,
    judge_law,
    run_control,
    trials_for,
)
from specc.gate.law.rounds import fit_slots
from specc.runtime import Library, controls

TESTS = 600
"""p-values of the gate's own law tests, rounded up."""


def count_found_controls(library: Library, seeds: int, trials: int = CONTROL_TRIALS) -> dict[str, int]:
    """How often each negative control is found over so many seeds; all of them must be, each time."""
    by_name = {case.name: case for case in make_full_grid()}
    return {
        fault: sum(
            run_control(by_name[name], fault, trials, seed, library) < CONTROL_LIMIT for seed in range(seeds)
        )
        for fault, name in CONTROLS.items()
    }


def count_false_alarms(seeds: int, trials: int, library: Library | None = None) -> int:
    """Seeds, of so many, at which the gate's own grid fails on a correct library."""
    grid = make_short_grid()
    return sum(
        not all(check.passed for check in judge_law(grid, trials, seed << 40, library))
        for seed in range(seeds)
    )


def count_detections(
    case: Case, tv: float, runs: int, trials: int, limit: float, library: Library | None = None
) -> int:
    """How many of so many runs of the shipped library find that its target is off by total variation tv.

    The runtime runs on a table whose row at the prompt gives tv of its mass from the most to the least
    probable token; it is judged by the law of the table as it should be.
    """
    process = make_process(case, ())
    with make_model(case, library, tv) as model, model.session() as session:
        found = 0
        for run in range(runs):
            rounds = run_trials(session, case, trials, run * trials)
            p = next(test.p for test in fit_slots(process, rounds) if test.name == "emitted 0")
            found += p < limit
    return found


def main() -> None:
    """Runs all three and prints one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--correct-seeds", type=int, default=50)
    parser.add_argument("--correct-trials", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    case = next(case for case in make_full_grid() if case.name == "K=4 rejection model T=1")
    trials = trials_for(TESTS)
    found = count_detections(case, SMALLEST_TV, arguments.runs, trials, FAMILY_ERROR / TESTS)
    print(
        json.dumps(
            {
                "seeds": arguments.seeds,
                "controls found": count_found_controls(controls(), arguments.seeds),
                "correct seeds": arguments.correct_seeds,
                "false alarms": count_false_alarms(arguments.correct_seeds, arguments.correct_trials),
                "power": {"tv": SMALLEST_TV, "trials": trials, "runs": arguments.runs, "found": found},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
