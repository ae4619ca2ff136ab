"""Recoveries by a Spark engine that fails in every way it can; and planted bugs."""

from __future__ import annotations

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.engines import BUGS

FAST_SEEDS = 6
SEEDS = 24
BUG_SEEDS = 60
SCENARIOS = ("engines", "offers")
FOUND_BY = {
    "another log is offered": "offers",
    "first piece counts": "offers",
    "owners wait for ever": "engines",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_row_and_no_index_entry_is_lost_whatever_becomes_of_the_engine(name: str) -> None:
    """A few seeds of each test run."""
    outcomes = run_seeds(load_scenario(name), FAST_SEEDS, budget_s=60.0)
    assert len(outcomes) >= 3


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_seeds_of_engines_that_fail(name: str) -> None:
    """The same, with others for each commit."""
    outcomes = run_seeds(load_scenario(name), SEEDS, budget_s=300.0, with_kept=False)
    assert len(outcomes) >= SEEDS * 3 // 4


@pytest.mark.slow
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
