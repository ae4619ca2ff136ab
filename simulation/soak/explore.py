"""Explore fresh seeds of the scenarios for a while: `python -m stelae.simulation soak`.

The gate runs few seeds of each commit and stops at the first failure. A soak runs for hours, goes
on after failures, and reports them all.

1. Scenarios get equal shares of the wall time: a free worker takes the next seed of the scenario
   with the least time spent, running seeds included. After a long seed the other scenarios run
   until they have had as much time.
2. A soak can be repeated: the seeds of a scenario are `derive_seeds(scenario, n, base)` in order,
   and the base is printed and stands in the JSON file. How many run depends on the machine.
3. The figures survive the end of the soak: the JSON file is written while it runs, and SIGINT and
   SIGTERM end it with the table. At the end of its time, running seeds finish.
4. A soak changes no tracked file unless it is asked to (``--keep``).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stelae.simulation.runner import KEPT_SEEDS, derive_seeds, keep_seed
from stelae.simulation.scenarios import SCENARIOS
from stelae.simulation.soak.display import Display, open_display
from stelae.simulation.soak.report import SoakReport
from stelae.simulation.soak.workers import SeedResult, SoakStartError, WorkerPool

LOOK_S = 0.5
"""Upper bound of the time in which a signal, the deadline or a hanging seed is noticed."""
WRITE_EVERY_S = 10.0
"""Age at which the JSON file is written again; it is written at each failure as well."""
SEEDS_DERIVED_TOGETHER = 256

EXAMPLES = """\
examples:
  python -m stelae.simulation soak                      an hour over all scenarios, on all cores
  python -m stelae.simulation soak wal replicas --minutes 600
                                                        a night over two of them
  python -m stelae.simulation soak --base 1f2e3d --seeds 50 --minutes 600
                                                        the first 50 seeds of each, of an old base
  python -m stelae.simulation soak --keep               failing seeds join the kept list, which
                                                        the gate runs first

A failure prints the command that replays it. The exit code is 0 if every rule held, 1 if a seed
failed, 2 if the soak could not start.
"""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """The scenarios of a soak, its duration, and the files of its results."""

    scenarios: tuple[str, ...]
    base: str
    minutes: float = 60.0
    jobs: int = 1
    """Number of worker processes."""
    seeds_max: int | None = None
    """Maximum number of seeds of each scenario; None: as many as there is time for."""
    seed_limit_s: float = 600.0
    """Wall time after which a seed counts as hanging, and fails."""
    seeds_per_process: int = 100
    """Number of seeds after which a worker process is replaced, which bounds its memory."""
    json: Path = Path("build/soak.json")
    keep: Path | None = None
    """The kept list that failing seeds join; None: they do not."""


@dataclass(slots=True)
class FairSeeds:
    """Chooses the next seed: of the scenario with the least time spent, its seeds in order."""

    scenarios: Sequence[str]
    base: str
    seeds_max: int | None = None
    begun: dict[str, int] = field(default_factory=dict)
    """Number of seeds chosen so far, by scenario."""
    _derived: dict[str, list[int]] = field(default_factory=dict)

    def next(self, spent_s: Mapping[str, float]) -> tuple[str, int] | None:
        """Return the scenario and the seed to begin now, None if there is no seed left.

        Args:
            spent_s: wall time spent on each scenario so far, running seeds included.
        """
        limit = self.seeds_max
        open_ones = [s for s in self.scenarios if limit is None or self.begun.get(s, 0) < limit]
        if not open_ones:
            return None
        # The second member gives each worker another scenario at the start, when no time is spent.
        chosen = min(open_ones, key=lambda s: (spent_s.get(s, 0.0), self.begun.get(s, 0)))
        number = self.begun.get(chosen, 0)
        self.begun[chosen] = number + 1
        derived = self._derived.setdefault(chosen, [])
        if number >= len(derived):
            count = max(SEEDS_DERIVED_TOGETHER, 2 * number)
            self._derived[chosen] = derived = derive_seeds(chosen, count, self.base)
        return chosen, derived[number]


class Soak:
    """One soak: hands seeds to workers until the time is over, and reports their results."""

    def __init__(self, plan: SoakPlan, display: Display) -> None:
        self.plan = plan
        self.is_stopped = False
        """Set by a signal: running seeds are abandoned."""
        self._display = display
        self._seeds = FairSeeds(plan.scenarios, plan.base, plan.seeds_max)
        facts = {
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "minutes": plan.minutes,
            "jobs": plan.jobs,
        }
        self.report = SoakReport(plan.scenarios, plan.base, commit_of_checkout(), facts)
        self._written_s = float("-inf")

    def run(self) -> SoakReport:
        """Run the soak to its end; return the report, which is in the JSON file as well.

        Raises:
            SoakStartError: the workers cannot load the scenarios.
        """
        plan = self.plan
        pool = WorkerPool(plan.scenarios, plan.jobs, plan.seed_limit_s, plan.seeds_per_process)
        try:
            finished = self._run(pool)
        finally:
            pool.close()
        self.report.state = "done" if finished else "interrupted"
        self.report.write(plan.json)
        return self.report

    def _run(self, pool: WorkerPool) -> bool:
        """Return True at the end of the time or of the seeds, False when a signal ended it."""
        began_s: float | None = None
        is_over = False
        while not self.is_stopped:
            # The time begins with the first worker: a short soak must run a seed.
            if began_s is None and pool.has_room:
                began_s = pool.clock.now()
            if began_s is not None:
                self.report.elapsed_s = pool.clock.now() - began_s
                is_over = is_over or self.report.elapsed_s > 60.0 * self.plan.minutes
            while not is_over and pool.has_room:
                chosen = self._seeds.next(self._spent_s(pool))
                if chosen is None:
                    is_over = True
                else:
                    pool.submit(*chosen)
            if is_over and not pool.running:
                return True
            for result in pool.wait(LOOK_S):
                self._take(result)
            self._tell(pool)
        return False

    def _spent_s(self, pool: WorkerPool) -> dict[str, float]:
        now_s = pool.clock.now()
        spent_s = {name: figures.wall_s for name, figures in self.report.figures.items()}
        for running in pool.running:
            spent_s[running.scenario] += now_s - running.began_s
        return spent_s

    def _take(self, result: SeedResult) -> None:
        self.report.add(result)
        if result.error:
            if self.plan.keep is not None:
                keep_seed(result.scenario, result.seed, result.error[:120], self.plan.keep)
            self._write()
            self._display.fail(result)

    def _write(self) -> None:
        self._written_s = time.monotonic()
        self.report.write(self.plan.json)

    def _tell(self, pool: WorkerPool) -> None:
        if time.monotonic() - self._written_s > WRITE_EVERY_S:
            self._write()
        self._display.update(self.report, sorted(running.scenario for running in pool.running))


@contextlib.contextmanager
def _signals_stop(soak: Soak) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the soak with its table, not with a traceback."""

    def stop(*_: object) -> None:
        soak.is_stopped = True

    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def commit_of_checkout() -> str:
    """Return the commit that the working directory has checked out, "" if there is none."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=30.0, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def run_soak(plan: SoakPlan) -> int:
    """Run a soak, show its progress and its table, and return the exit code."""
    with open_display(60.0 * plan.minutes) as display:
        display.say(
            f"soak: {len(plan.scenarios)} scenarios, {plan.minutes:g} minutes, {plan.jobs} "
            f"workers; to repeat its seeds: --base {plan.base}"
        )
        soak = Soak(plan, display)
        try:
            with _signals_stop(soak):
                report = soak.run()
        except SoakStartError as error:
            print(f"the soak cannot start: {error}", file=sys.stderr)
            return 2
    display.finish(report, plan.json)
    return 1 if report.failures else 0


def parser_of_soaks() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m stelae.simulation soak",
        description="Run fresh seeds of scenarios for a while, in equal shares of the wall time. "
        "Failures do not stop it; the table and a JSON file say what ran and what failed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help=f"default: all, which are {', '.join(sorted(SCENARIOS))}; or file.py:ATTRIBUTE",
    )
    add("--minutes", type=_positive, default=60.0, help="wall time; running seeds finish (60)")
    add("--jobs", type=_count, default=len(os.sched_getaffinity(0)), help="workers (all cores)")
    add("--base", help="what the seeds are derived from (fresh each time; printed)")
    add("--seeds", type=_count, help="maximum number of seeds of each scenario (no maximum)")
    add("--json", type=Path, default=Path("build/soak.json"), help="the figures (build/soak.json)")
    add("--keep", action="store_true", help=f"add failing seeds to {KEPT_SEEDS}")
    add("--kept", type=Path, default=KEPT_SEEDS, metavar="FILE", help="another kept list")
    add(
        "--seed-limit",
        type=_positive,
        default=600.0,
        metavar="SECONDS",
        help="wall time after which a seed counts as hanging, and fails (600)",
    )
    add(
        "--seeds-per-process",
        type=_count,
        default=100,
        metavar="N",
        help="replace a worker process after this number of seeds, which bounds its memory (100)",
    )
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    chosen = parser_of_soaks().parse_intermixed_args(arguments)
    plan = SoakPlan(
        scenarios=tuple(dict.fromkeys(chosen.scenarios)) or tuple(SCENARIOS),
        base=chosen.base if chosen.base is not None else os.urandom(6).hex(),
        minutes=chosen.minutes,
        jobs=chosen.jobs,
        seeds_max=chosen.seeds,
        seed_limit_s=chosen.seed_limit,
        seeds_per_process=chosen.seeds_per_process,
        json=chosen.json,
        keep=chosen.kept if chosen.keep else None,
    )
    return run_soak(plan)
