"""Replicas whose hosts keep the state, in the simulated world: seeds, and a planted bug found."""

from __future__ import annotations

import pytest

from stelae.simulation import World
from stelae.simulation.runner import derive_seeds, find_bug, replay_command, run_seed
from tests.simulation.raft.copies import SCENARIO, draw, run

SEEDS = 16


@pytest.mark.parametrize("seed", derive_seeds("copies", SEEDS), ids=lambda seed: f"seed{seed}")
def test_flushes_and_copies_under_faults_lose_nothing_and_show_nothing_old(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command(SCENARIO.name, seed)}\n{outcome.failure}"


def test_in_some_worlds_replicas_are_copied_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seeds above are not idle: logs are too short for those who were away."""
    notes: list[str] = []
    monkeypatch.setattr(World, "note", lambda self, node, text: notes.append(text))
    for seed in (0, 6, 10, 14):
        world = World(seed, draw(seed))
        world.run(run(world), limit_s=300.0)
    assert sum(note.startswith("is a copy up to") for note in notes) > 8


def test_reads_without_proof_of_freshness_are_found() -> None:
    """The check of stale reads sees a replica that takes itself to be fresh."""
    outcome = find_bug(SCENARIO, "no proof of freshness", 100)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError)
