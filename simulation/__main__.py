"""Replay a seed: ``python -m stelae.simulation SEED [--scenario NAME] [--trace FILE] [--shrink]``,
and with ``--timelines FILE`` the trace of timelines, for scenarios that record one.
``python -m stelae.simulation soak`` explores fresh seeds of all scenarios: see its ``--help``.

Exit code 0 if every rule held, 1 if one was broken, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from stelae.core.errors import InvalidArgument
from stelae.simulation.runner import run_seed, shrink_failure
from stelae.simulation.scenarios import SCENARIOS, load_scenario
from stelae.simulation.soak import explore as soak


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["soak"]:
        return soak.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m stelae.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--scenario", default="tables", help=f"{', '.join(SCENARIOS)}, or file.py:ATTRIBUTE"
    )
    parser.add_argument("--bug", default="", help="run with this planted bug of the scenario")
    parser.add_argument("--trace", type=Path, help="write every event to this file")
    parser.add_argument("--timelines", type=Path, help="write the trace of timelines to this file")
    parser.add_argument("--shrink", action="store_true", help="find the faults that are needed")
    chosen = parser.parse_args(arguments)
    try:
        scenario = load_scenario(chosen.scenario)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    with ExitStack() as files:
        trace = chosen.trace and files.enter_context(chosen.trace.open("w"))
        timelines = chosen.timelines and files.enter_context(chosen.timelines.open("wb"))
        outcome = run_seed(scenario, chosen.seed, bug=chosen.bug, trace=trace, timelines=timelines)
    print(f"options  {scenario.options(chosen.seed)}")
    print(f"digest   {outcome.digest}")
    print(f"ran      {outcome.steps} callbacks in {outcome.virtual_s:.1f} simulated seconds")
    schedule = list(outcome.schedule)
    if outcome.failure is not None and chosen.shrink:
        schedule = shrink_failure(scenario, outcome, bug=chosen.bug)
        print(f"schedule, shrunk from {len(outcome.schedule)} faults to {len(schedule)}")
    for action in schedule:
        print(f"  {action}")
    print("every rule held" if outcome.failure is None else f"FAILED\n{outcome.failure}")
    return 0 if outcome.failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
