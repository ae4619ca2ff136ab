"""Logs that are cleaned all the time, under crashes at every step of a pass; and planted bugs."""

from __future__ import annotations

from collections import Counter

from stelae.core.errors import StelaeError
from stelae.simulation.runner import derive_seeds, find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.world import World
from tests.simulation.tables.tables import counts_of

SEEDS = 2
COUNTED_SEEDS = 4
BUG_SEEDS = 30


def test_a_server_that_dies_in_the_middle_of_cleaning_loses_nothing() -> None:
    """A few seeds: rows, versions and deletes stay; backups end with the logs and nothing else."""
    run_seeds(load_scenario("cleaning"), SEEDS)


def test_in_these_worlds_logs_are_cleaned() -> None:
    """In memory and on backups. One world by itself may have too much trouble for it."""
    scenario, counts = load_scenario("cleaning"), Counter[str]()
    for seed in derive_seeds("cleaned", COUNTED_SEEDS):
        world = World(seed, scenario.options(seed))
        world.run(scenario.run(world, ""), limit_s=scenario.limit_s)
        counts += counts_of(world)
    assert counts["segments_cleaned"] >= COUNTED_SEEDS, counts
    assert counts["segments_compacted"] >= COUNTED_SEEDS, counts


def test_what_is_freed_before_the_barrier_is_missed() -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("cleaning")
    outcome = find_bug(scenario, "freed_before_barrier", BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
