"""Changes of a Raft group's members in the simulated world: seeds, and planted bugs found."""

from __future__ import annotations

import pytest

from stelae.simulation.runner import derive_seeds, find_bug, kept_seeds, replay_command, run_seed
from stelae.simulation.scenarios import Scenario
from tests.simulation.raft.members import FIERCE, SCENARIO

SEEDS = 20


@pytest.mark.parametrize(
    "seed", kept_seeds("members") + derive_seeds("members", SEEDS), ids=lambda seed: f"seed{seed}"
)
def test_members_come_and_go_under_faults_and_nothing_is_lost(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command('members', seed)}\n{outcome.failure}"


@pytest.mark.parametrize("seed", derive_seeds("fierce members", SEEDS), ids=lambda s: f"seed{s}")
def test_members_come_and_go_while_the_group_is_split(seed: int) -> None:
    """The same with a partition at almost any time."""
    outcome = run_seed(FIERCE, seed)
    assert outcome.failure is None, f"{replay_command(FIERCE.name, seed)}\n{outcome.failure}"


@pytest.mark.parametrize(
    ("bug", "scenario"),
    [
        ("two changes at once", FIERCE),
        ("non-voters count", FIERCE),
        ("a removed leader counts itself", FIERCE),
        ("promoted before it has caught up", SCENARIO),
    ],
)
def test_a_planted_bug_of_membership_is_found(bug: str, scenario: Scenario) -> None:
    """Each of these mistakes breaks a promise; for a change too early, see the golden histories."""
    outcome = find_bug(scenario, bug, 200)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError)
