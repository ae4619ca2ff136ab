"""Recoveries by a Spark engine that fails in every way it can; and planted bugs."""

from __future__ import annotations

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.recovery.engines import BUGS

SEEDS = 1
BUG_SEEDS = 60
SCENARIOS = ("engines", "offers")
FOUND_BY = {
    "another log is offered": "offers",
    "first piece counts": "offers",
    "owners wait for ever": "engines",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_row_and_no_index_entry_is_lost_whatever_becomes_of_the_engine(name: str) -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario(name), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(FOUND_BY))
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    assert FOUND_BY.keys() == BUGS.keys()
    scenario = load_scenario(FOUND_BY[bug])
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
