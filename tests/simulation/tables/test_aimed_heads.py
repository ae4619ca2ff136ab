"""What makes an entry of a head count: a certificate on every replica, in an epoch that counts."""

from __future__ import annotations

import pytest

from stelae.simulation.world.node import SimulationFailure
from tests.simulation.tables.aimed_heads import (
    Story,
    dies_before_its_epoch_counts,
    dies_between_pieces,
    play,
)
from tests.simulation.tables.planted import AIMED_AT_HEADS

STORIES = {"pieces": dies_between_pieces, "epochs": dies_before_its_epoch_counts}
PLANTED = {"pieces_count_uncertified": "pieces", "epochs_count_unregistered": "epochs"}
SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_a_recovery_could_not_see_is_not_acknowledged(story: Story, seed: int) -> None:
    """An owner that dies in that moment has told nobody."""
    play(story, seed)


@pytest.mark.parametrize("bug", sorted(AIMED_AT_HEADS))
def test_a_server_that_acknowledges_it_is_found(bug: str) -> None:
    """The stories see it; chance rarely does, as servers have to die in just that moment."""
    with AIMED_AT_HEADS[bug](), pytest.raises(SimulationFailure, match="are gone"):
        play(STORIES[PLANTED[bug]])
