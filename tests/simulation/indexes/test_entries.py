"""Indexes and rows of whole clusters under every kind of fault, many seeds; and planted bugs."""

from __future__ import annotations

import pytest

from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.indexes.planted_indexes import BUGS, STORIES

SEEDS = 1
BUG_SEEDS = 20


def test_indexes_never_lack_a_row_and_end_as_the_rows_say() -> None:
    """A few seeds of each test run: nothing is missing at any look, and no garbage stays."""
    run_seeds(load_scenario("entries"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(set(BUGS) - set(STORIES)))
def test_a_planted_bug_of_indexes_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("entries")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert run_seed(scenario, outcome.seed).failure is None
