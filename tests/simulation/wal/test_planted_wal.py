"""Planted bugs on the masters' side of timelines: the scenario ``wal`` sees each of them."""

from __future__ import annotations

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import find_bug, run_seed
from stelae.simulation.scenarios import load_scenario
from tests.simulation.wal.planted_wal import BUGS

BUG_SEEDS = 120


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("wal")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
