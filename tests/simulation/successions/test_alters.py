"""Alters under load and every kind of fault, many seeds; and planted bugs."""

from __future__ import annotations

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.successions.alters import BUGS

SEEDS = 1
BUG_SEEDS = 100


def test_clients_of_all_schemas_go_on_through_alters_and_faults() -> None:
    """A few seeds: no row is lost, no dropped value comes back, and every tablet follows."""
    run_seeds(load_scenario("alters"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_of_alters_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("alters")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    # ValueError: a row with another number of values than the schema that it is taken to be of.
    expected = AssertionError | StelaeError | ValueError
    assert isinstance(found, expected), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
