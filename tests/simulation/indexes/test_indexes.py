"""The scenario of indexes, with its seeds, and bugs that it has to find."""

from __future__ import annotations

import pytest

from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.indexes.planted_finds import BUGS

SCENARIO = load_scenario("indexes")
SEEDS = 1
BUG_SEEDS = 60


def test_look_ups_find_what_they_have_to_whatever_happens() -> None:
    """Rows by value, in every history; afterwards exactly what a scan finds."""
    run_seeds(SCENARIO, SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    """Or a scenario without failures would prove nothing."""
    outcome = find_bug(SCENARIO, bug, BUG_SEEDS)
    assert run_seed(SCENARIO, outcome.seed).failure is None
