"""Run seeds of a scenario: one, a fixed list, or until a planted bug is found.

Tests run the kept seeds (every seed that failed once) and a fixed number of seeds derived from
`GATE_BASE`. Nothing here depends on the clock, the environment or the commit, and nothing here
writes into the checkout unless `keep_seed` is called: the same code passes or fails every time.
Fresh seeds are what ``make soak`` is for.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from stelae.simulation.nemesis import Action, shrink
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.node import SimulationFailure
from stelae.simulation.world.world import World

GATE_BASE = "gate"
"""Base of the seeds that tests run; never changed without a reason, so that runs compare."""
KEPT_SEEDS = Path("tests/simulation/seeds.txt")
"""Kept seeds, relative to the root of the checkout: lines ``scenario seed  # cause``."""
FINDS = Path("tests/simulation/finds.txt")
"""Seeds that find planted bugs: lines ``scenario seed bug``; the last line of a bug holds."""
SEARCH_SEEDS = 3
"""Number of seeds from which on a search asks for a line in `FINDS`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. ``failure`` is None if every rule held."""

    seed: int
    digest: str
    steps: int
    virtual_s: float
    schedule: tuple[Action, ...]
    failure: SimulationFailure | None


def run_seed(
    scenario: Scenario,
    seed: int,
    *,
    bug: str = "",
    schedule: Sequence[Action] | None = None,
    trace: TextIO | None = None,
    timelines: BinaryIO | None = None,
) -> Outcome:
    """Run one seed to its end; with ``schedule``, under those faults instead of the drawn ones.

    ``trace`` receives every event, and ``timelines`` the trace of timelines, if one is recorded.
    """
    world = World(seed, scenario.options(seed), schedule=schedule, trace=trace)
    failure: SimulationFailure | None = None
    try:
        world.run(scenario.run(world, bug), limit_s=scenario.limit_s)
    except SimulationFailure as error:
        failure = error
    if timelines is not None:
        timelines.write(world.timelines())
    return Outcome(
        seed=seed,
        digest=world.digest(),
        steps=world.loop.steps,
        virtual_s=world.loop.time(),
        schedule=tuple(world.schedule or ()),
        failure=failure,
    )


def derive_seeds(scenario: str, count: int, base: str = GATE_BASE) -> list[int]:
    """Return the first ``count`` seeds of a scenario that ``base`` gives."""
    return [
        int.from_bytes(hashlib.sha256(f"{base}/{scenario}/{number}".encode()).digest()[:5], "big")
        for number in range(count)
    ]


def kept_seeds(scenario: str, path: Path = KEPT_SEEDS) -> list[int]:
    """Return the seeds of a scenario that failed once, in the order of the list."""
    if not path.exists():
        return []
    words = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    return [int(line[1]) for line in words if len(line) == 2 and line[0] == scenario]


def keep_seed(scenario: str, seed: int, cause: str, path: Path = KEPT_SEEDS) -> None:
    """Add a seed to the kept list, once; nothing happens where there is no checkout."""
    if path.parent.is_dir() and seed not in kept_seeds(scenario, path):
        with path.open("a") as kept:
            kept.write(f"{scenario} {seed}  # {cause}\n")


def replay_command(scenario: str, seed: int) -> str:
    return f"python -m stelae.simulation {seed} --scenario {scenario}"


def run_seeds(
    scenario: Scenario, seeds: Iterable[int] | int = 20, *, kept: Path = KEPT_SEEDS
) -> list[Outcome]:
    """Run the kept seeds of a scenario and then ``seeds``: a list, or a number of derived ones.

    Args:
        kept: the list of seeds that failed once.

    Returns:
        The outcomes, all good; at least one seed has run.

    Raises:
        AssertionError: a seed failed; the text has the replay command and the evidence.
        ValueError: there is no seed to run; that would be a success of nothing.
    """
    chosen = derive_seeds(scenario.name, seeds) if isinstance(seeds, int) else list(seeds)
    chosen = kept_seeds(scenario.name, kept) + chosen
    if not chosen:
        raise ValueError(f"{scenario.name!r} has no seed to run")
    outcomes: list[Outcome] = []
    for seed in chosen:
        outcome = run_seed(scenario, seed)
        outcomes.append(outcome)
        if outcome.failure is not None:
            command = replay_command(scenario.name, seed)
            print(f"FAILED; to replay: {command}", file=sys.stderr)
            raise AssertionError(f"replay: {command}\n{outcome.failure}") from outcome.failure
    return outcomes


def find_bug(
    scenario: Scenario,
    bug: str,
    max_seeds: int = 100,
    *,
    base: str = "planted",
    finds: Path = FINDS,
) -> Outcome:
    """Run seeds with a planted bug until one fails: proof that the simulator can see it.

    The seed that `FINDS` names for the bug runs first, as a search may take minutes. A search that
    takes more than `SEARCH_SEEDS` seeds warns with the line that belongs into `FINDS`.

    Raises:
        AssertionError: no seed of ``max_seeds`` found it.
    """
    seeds = derive_seeds(scenario.name, max_seeds, base)
    last = last_find(scenario.name, bug, finds)
    seeds.sort(key=lambda seed: seed != last)  # stable: all others in their order
    for number, seed in enumerate(seeds, 1):
        outcome = run_seed(scenario, seed, bug=bug)
        if outcome.failure is not None:
            if number > SEARCH_SEEDS:
                line = f"{scenario.name} {seed} {bug}"
                warnings.warn(
                    f"found by seed number {number}; add to {finds}: {line}", stacklevel=2
                )
            return outcome
    raise AssertionError(f"bug {bug!r} of {scenario.name} was not found in {max_seeds} seeds")


def last_find(scenario: str, bug: str, path: Path = FINDS) -> int | None:
    """Return the seed that found a planted bug the last time that a search took long."""
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split(maxsplit=2) for line in lines]
    found = [int(line[1]) for line in words if line[::2] == [scenario, bug]]
    return found[-1] if found else None


def shrink_failure(
    scenario: Scenario, outcome: Outcome, *, bug: str = "", runs_max: int = 100
) -> list[Action]:
    """The least part of a failing run's schedule that still fails with the same kind of error."""
    assert outcome.failure is not None
    wanted = type(outcome.failure.error)

    def fails(part: Sequence[Action]) -> bool:
        again = run_seed(scenario, outcome.seed, bug=bug, schedule=part).failure
        return again is not None and type(again.error) is wanted

    return shrink(outcome.schedule, fails, runs_max)
