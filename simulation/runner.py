"""Runs seeds: one, many within a budget, or until a planted bug is found.

Seeds come from a kept list (every seed that ever failed) and from ``STELAE_SEED_BASE``, which CI
sets to the commit hash, so that each run tries others. A failing seed prints the command that
replays it and joins the kept list.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from stelae.simulation.nemesis import Action, shrink
from stelae.simulation.node import SimulationFailure
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world import World

SEED_BASE_VARIABLE = "STELAE_SEED_BASE"
KEPT_SEEDS = Path("tests/simulation/seeds.txt")
"""Relative to the root of the checkout: lines ``scenario seed  # cause``."""
FINDS = Path("tests/simulation/finds.txt")
"""The same of planted bugs: lines ``scenario seed bug``, of which the last one holds."""
SEARCH_SEEDS = 3
"""A find that took more than so many seeds is remembered."""


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


def derive_seeds(scenario: str, count: int, base: str | None = None) -> list[int]:
    """``count`` seeds of a scenario from ``base``, by default that of the environment."""
    if base is None:
        base = os.environ.get(SEED_BASE_VARIABLE, "0")
    return [
        int.from_bytes(hashlib.sha256(f"{base}/{scenario}/{number}".encode()).digest()[:5], "big")
        for number in range(count)
    ]


def kept_seeds(scenario: str, path: Path = KEPT_SEEDS) -> list[int]:
    """The seeds of a scenario that failed once, in the order of the list."""
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
    scenario: Scenario,
    seeds: Iterable[int] | int = 20,
    *,
    budget_s: float = 60.0,
    kept: Path = KEPT_SEEDS,
    part: tuple[int, int] = (0, 1),
    with_kept: bool = True,
) -> list[Outcome]:
    """Run the kept seeds and then ``seeds`` (or so many derived ones), within ``budget_s``.

    Args:
        budget_s: of this process's CPU time, so that a busy machine runs no fewer; kept seeds
            always run, new ones while there is time.
        part: (number, parts): every so-manieth of all these seeds, from that one on. All parts
            together run what one run without parts does; each may have a process of its own.
        kept: the list of seeds that failed once.
        with_kept: False where another test runs them, on the same commit.

    Returns:
        The outcomes, all good; at least one seed has run.

    Raises:
        AssertionError: a seed failed; the text has the replay command and the evidence.
        ValueError: there is no seed to run; that would be a success of nothing.
    """
    number_of_part, parts = part
    assert 0 <= number_of_part < parts
    chosen = derive_seeds(scenario.name, seeds) if isinstance(seeds, int) else list(seeds)
    chosen = chosen[number_of_part::parts]
    old = kept_seeds(scenario.name, kept)[number_of_part::parts] if with_kept else []
    if not old + chosen:
        raise ValueError(f"part {number_of_part} of {parts} of {scenario.name!r} has no seed")
    end_s = time.process_time() + budget_s
    outcomes: list[Outcome] = []
    for number, seed in enumerate(old + chosen):
        if number >= max(1, len(old)) and time.process_time() > end_s:
            break
        outcome = run_seed(scenario, seed)
        outcomes.append(outcome)
        if outcome.failure is not None:
            error = outcome.failure.error
            cause = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            keep_seed(scenario.name, seed, cause, kept)
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

    The one of these seeds that found it last is the first, as a search may take minutes.

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
                remember_find(scenario.name, seed, bug, finds)
            return outcome
    raise AssertionError(f"bug {bug!r} of {scenario.name} was not found in {max_seeds} seeds")


def last_find(scenario: str, bug: str, path: Path = FINDS) -> int | None:
    """The seed that found a planted bug the last time that it took long."""
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split(maxsplit=2) for line in lines]
    found = [int(line[1]) for line in words if line[::2] == [scenario, bug]]
    return found[-1] if found else None


def remember_find(scenario: str, seed: int, bug: str, path: Path = FINDS) -> None:
    """Let the next search begin with ``seed``; nothing happens where there is no checkout."""
    if path.parent.is_dir():
        with path.open("a") as finds:
            finds.write(f"{scenario} {seed} {bug}\n")


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
