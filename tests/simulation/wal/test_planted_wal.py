"""Planted bugs on the masters' side of timelines: the scenario ``wal`` sees each of them."""

from __future__ import annotations

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import derive_seeds, find_bug, run_seed
from stelae.simulation.scenarios import load_scenario
from tests.simulation.wal.planted_wal import BUGS, GRAY_BUGS

BUG_SEEDS = 120
PLAIN_SEEDS = 4
"""Number of seeds, besides the one that finds it, in which plain faults do not show a gray bug."""


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


@pytest.mark.parametrize("bug", sorted(GRAY_BUGS))
def test_a_planted_bug_is_found_under_gray_faults_alone(bug: str) -> None:
    """The same seed is fine without the bug, and with it where no fault is gray."""
    gray, plain = load_scenario("gray_wal"), load_scenario("wal")
    outcome = find_bug(gray, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert "not in order" in str(outcome.failure.error), "it does not heal"
    assert run_seed(gray, outcome.seed).failure is None
    for seed in (outcome.seed, *derive_seeds("wal", PLAIN_SEEDS)):
        assert run_seed(plain, seed, bug=bug).failure is None
