"""Seeds of clusters whose tables get other durabilities, and bugs that these must find."""

from __future__ import annotations

import pytest

from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.successions.planted_durabilities import BUGS
from tests.simulation.successions.planted_successions import BY_CHANCE

SEEDS = 1
BUG_SEEDS = 60
STORIES = (
    "fence_not_in_the_log",
    "old_records_mislead",
    "old_word_counts",
    "reads_go_on",
    "uncommitted",
)
"""Found by stories above: by chance they take too many seeds."""


def test_tables_get_other_durabilities_under_faults() -> None:
    """A few seeds: no acknowledged write is lost or doubled, reads are linearizable."""
    run_seeds(load_scenario("durabilities"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted({*BUGS, *BY_CHANCE} - {*STORIES}))
def test_a_planted_bug_of_durabilities_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("durabilities")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert run_seed(scenario, outcome.seed).failure is None
