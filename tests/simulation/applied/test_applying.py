"""Operators apply specs under every fault: nothing is lost, and the last spec comes true."""

from __future__ import annotations

import pytest

from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.applied.planted_applying import PLANTED

SEEDS = 3
BUG_SEEDS = 60


def test_specs_come_true_under_faults_and_nothing_is_lost() -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario("applied"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_applying_is_found(bug: str) -> None:
    """The scenario can see it; the same seed is fine without it."""
    scenario = load_scenario("applied")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert _is_judgement(outcome.failure.error), outcome.failure.error
    assert run_seed(scenario, outcome.seed).failure is None


def _is_judgement(error: BaseException) -> bool:
    """Whether a judge has found something, in whatever task group."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_judgement(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
