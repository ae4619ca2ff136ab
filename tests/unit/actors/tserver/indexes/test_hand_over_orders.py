"""`stelae.actors.tserver.indexes.indexlet_hand_over`: orders name the hand-over that they are
about."""

from __future__ import annotations

import msgspec
import pytest

from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.indexlet_hand_over import HandOver, heed, make_way
from stelae.core.config.settings import Settings
from stelae.core.errors import IndexletNotReady, StaleTerm
from stelae.core.ids import Address
from stelae.core.messages.indexes import (
    CloseIndexlet,
    HandOverIndexlet,
    HandOverStage,
    IndexletLocation,
    IndexletProgress,
)
from stelae.core.schema.indexes import IndexletId
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from tests.unit.actors.tserver.indexes.test_indexlet import RECORD, TABLE


class Source:
    """An indexlet that serves, and gets orders; nothing is copied."""

    def __init__(self) -> None:
        self.runtime = World(1, Options()).client("t")
        record = msgspec.structs.replace(RECORD, succeeds=IndexletId(""))
        self.indexlet = Indexlet(self.runtime, Tasks(), "t", record, TABLE, lambda: True)
        self.indexlet.progress = IndexletProgress.SERVING

    def order(self, generation: int, *successors: str) -> None:
        """Make way for these, or for those of that hand-over no more."""
        found = tuple(
            IndexletLocation(
                msgspec.structs.replace(RECORD, indexlet_id=IndexletId(name)), Address(name)
            )
            for name in successors
        )
        order = HandOverIndexlet(RECORD.indexlet_id, 1, found, generation)
        if heed(self.indexlet, order):
            HandOver(self.runtime, Settings(), self.indexlet, order, lambda: None)

    def close(self, generation: int) -> None:
        make_way(self.indexlet, CloseIndexlet(RECORD.indexlet_id, 1, hand_over=generation))

    @property
    def hand_over(self) -> HandOver:
        found = self.indexlet.hand_over
        assert isinstance(found, HandOver)
        return found

    def is_to(self, generation: int, *successors: str) -> bool:
        """Whether it makes way so, and is not told to stop."""
        found = self.hand_over
        named = (found.generation, found.successors) == (generation, successors)
        return named and found.stage is not HandOverStage.FAILED


def test_a_later_hand_over_ends_the_one_before_and_an_earlier_one_is_refused() -> None:
    """However it is meant: to begin the earlier one, or to let it go."""
    source = Source()
    source.order(3, "a")
    first = source.hand_over
    source.order(5, "b", "c")
    assert source.is_to(5, "b", "c")
    assert first.stage is HandOverStage.FAILED
    for late in ((3, "a"), (3,), (4, "d"), (4,)):
        with pytest.raises(StaleTerm, match="hand-over of indexlet new"):
            source.order(*late)
        assert source.is_to(5, "b", "c")


def test_a_repeated_order_begins_nothing() -> None:
    """What it has begun goes on, or has ended."""
    source = Source()
    for stage in (HandOverStage.COPYING, HandOverStage.COMPLETE, HandOverStage.FAILED):
        source.order(3, "a")
        source.hand_over.stage = stage
        begun = source.hand_over
        source.order(3, "a")
        assert source.hand_over is begun
        assert begun.stage is stage


def test_what_was_let_go_is_not_begun_again() -> None:
    """Its successors were given up, or they would be filled once more."""
    source = Source()
    source.order(3, "a")
    for _ in range(2):
        source.order(3)
        assert source.indexlet.hand_over is None
        with pytest.raises(StaleTerm):
            source.order(3, "a")
    source.order(4, "b")
    assert source.is_to(4, "b")


def test_what_was_let_go_before_it_was_heard_of_is_not_begun() -> None:
    """The word that successors were given up may overtake the order to make way for them."""
    source = Source()
    source.order(3)
    with pytest.raises(StaleTerm):
        source.order(3, "a")
    assert source.indexlet.hand_over is None


def test_it_closes_for_successors_that_have_everything() -> None:
    """For those of that very hand-over, and no others."""
    source = Source()
    with pytest.raises(StaleTerm):
        source.close(3)
    source.order(3, "a")
    source.hand_over.stage = HandOverStage.COMPLETE
    source.order(4, "b")
    for generation, refusal in ((3, StaleTerm), (4, IndexletNotReady), (5, StaleTerm)):
        with pytest.raises(refusal):
            source.close(generation)
        assert source.indexlet.progress is IndexletProgress.SERVING
    source.hand_over.stage = HandOverStage.COMPLETE
    for _ in range(2):
        source.close(4)
        assert source.indexlet.progress is IndexletProgress.CLOSED
    assert source.is_to(4, "b"), "its report says for whom"


def test_masters_of_before_name_no_hand_over() -> None:
    """While servers are upgraded: what one of them begins goes on under its name, once it has one;
    after that they are heeded no more."""
    source = Source()
    source.order(0, "a")
    source.order(0)
    source.order(0, "b")
    assert source.is_to(0, "b")
    begun = source.hand_over
    source.order(4, "b")
    source.order(0, "b")
    assert source.hand_over is begun
    assert source.is_to(4, "b")
    for late in ((0,), (0, "a")):
        with pytest.raises(StaleTerm):
            source.order(*late)
    with pytest.raises(StaleTerm):
        source.close(0)
