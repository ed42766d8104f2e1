"""The law judge judged: how often its negative controls are found, how often it is wrong, what it can see.

python -m specc.gate.selftest --seeds 20      # slow: controls, false alarms, power
"""

from __future__ import annotations

import argparse
import json

from specc.gate.law import (
    CONTROL_LIMIT,
    CONTROL_TRIALS,
    CONTROLS,
    FAMILY_ERROR,
    SMALLEST_TV,
    Case,
    control,
    full_grid,
    judge_all,
    make_model,
    make_process,
    run_trials,
    short_grid,
    slots,
    trials_for,
)
from specc.runtime import Library, controls

TESTS = 600  # p-values of the gate's own law tests, rounded up


def self_test(library: Library, seeds: int, trials: int = CONTROL_TRIALS) -> dict[str, int]:
    """How often each negative control is found over so many seeds; all of them must be, each time."""
    named = {case.name: case for case in full_grid()}
    return {
        fault: sum(
            control(named[name], fault, trials, seed, library) < CONTROL_LIMIT for seed in range(seeds)
        )
        for fault, name in CONTROLS.items()
    }


def false_alarms(seeds: int, trials: int, library: Library | None = None) -> int:
    """Seeds, of so many, at which the gate's own grid fails on a correct library."""
    grid = short_grid()
    return sum(
        not all(check.passed for check in judge_all(grid, trials, seed << 40, library))
        for seed in range(seeds)
    )


def power_runs(
    case: Case, tv: float, runs: int, trials: int, limit: float, library: Library | None = None
) -> int:
    """How many of so many runs of the shipped library find that its target is off by total variation tv.

    The runtime runs on a table whose row at the prompt gives tv of its mass from the most to the least probable token;
    it is judged by the law of the table as it should be.
    """
    process = make_process(case, ())
    with make_model(case, library, tv) as model, model.session() as session:
        found = 0
        for run in range(runs):
            rounds = run_trials(session, case, trials, run * trials)
            p = next(f.p for f in slots(process, rounds) if f.name == "emitted 0")
            found += p < limit
    return found


def main() -> None:
    """Runs all three and prints one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--correct-seeds", type=int, default=50)
    parser.add_argument("--correct-trials", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=100)
    asked = parser.parse_args()
    case = next(case for case in full_grid() if case.name == "K=4 rejection model T=1")
    trials = trials_for(TESTS)
    found = power_runs(case, SMALLEST_TV, asked.runs, trials, FAMILY_ERROR / TESTS)
    print(
        json.dumps(
            {
                "seeds": asked.seeds,
                "controls found": self_test(controls(), asked.seeds),
                "correct seeds": asked.correct_seeds,
                "false alarms": false_alarms(asked.correct_seeds, asked.correct_trials),
                "power": {"tv": SMALLEST_TV, "trials": trials, "runs": asked.runs, "found": found},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
