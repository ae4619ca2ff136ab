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
) -> list[Outcome]:
    """Run the kept seeds and then ``seeds`` (or so many derived ones), within ``budget_s``.

    Args:
        budget_s: of wall time; kept seeds always run, new ones while there is time.
        kept: the list of seeds that failed once.

    Returns:
        The outcomes, all good; at least one seed has run.

    Raises:
        AssertionError: a seed failed; the text has the replay command and the evidence.
    """
    chosen = derive_seeds(scenario.name, seeds) if isinstance(seeds, int) else list(seeds)
    old = kept_seeds(scenario.name, kept)
    end_s = time.monotonic() + budget_s
    outcomes: list[Outcome] = []
    for number, seed in enumerate(old + chosen):
        if number >= max(1, len(old)) and time.monotonic() > end_s:
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
    scenario: Scenario, bug: str, max_seeds: int = 100, *, base: str = "planted"
) -> Outcome:
    """Run seeds with a planted bug until one fails: proof that the simulator can see it.

    Raises:
        AssertionError: no seed of ``max_seeds`` found it.
    """
    for seed in derive_seeds(scenario.name, max_seeds, base):
        outcome = run_seed(scenario, seed, bug=bug)
        if outcome.failure is not None:
            return outcome
    raise AssertionError(f"bug {bug!r} of {scenario.name} was not found in {max_seeds} seeds")


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
