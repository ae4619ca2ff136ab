"""What counts as replicated of a segment: each condition by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pytest

from stelae.actors.tserver.segments.replica import LogContext
from stelae.actors.tserver.segments.rereplication import AFTER_ALL
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import Certified

LENGTH = 10
PROLOGUE = 4


def head() -> ReplicatedSegment:
    """An open head whose two replicas have all of it, in an epoch that the catalog knows."""
    segment = ReplicatedSegment(cast(LogContext, None), 1, ("disk", "ram"))
    segment.append([b"x" * PROLOGUE], Certified(PROLOGUE, 1))
    segment.append([b"x" * (LENGTH - PROLOGUE)], Certified(LENGTH, 2))
    segment.may_open = segment.may_fill = True
    segment.epoch = segment.epoch_registered = 1
    for number, replica in enumerate(segment.replicas):
        replica.backup = ServerUuid(f"b{number}")
        replica.length = replica.certified = LENGTH
        replica.epoch, replica.created = 1, True
    return segment


def is_everywhere(segment: ReplicatedSegment) -> bool:
    """Asked anew each time."""
    return segment.epoch_is_everywhere


def stands(segment: ReplicatedSegment) -> bool:
    return segment.stands_without_strays


def not_filled(segment: ReplicatedSegment) -> None:
    segment.may_fill = False


def not_registered(segment: ReplicatedSegment) -> None:
    segment.epoch_registered = 0


def of_an_older_epoch(segment: ReplicatedSegment) -> None:
    segment.replicas[1].epoch = 0


def not_certified(segment: ReplicatedSegment) -> None:
    segment.replicas[1].certified = PROLOGUE


@pytest.mark.parametrize(
    ("change", "length"),
    [(not_filled, 0), (not_registered, 0), (of_an_older_epoch, 0), (not_certified, PROLOGUE)],
)
def test_bytes_count_once_every_replica_has_them_certified_in_an_epoch_that_counts(
    change: Callable[[ReplicatedSegment], None], length: int
) -> None:
    """A head that may not be filled yet acknowledges nothing: the one before it is still open, and
    a recovery may end the log there."""
    segment = head()
    assert segment.committed_length == LENGTH
    change(segment)
    assert segment.committed_length == length


def test_a_replica_that_is_closed_keeps_its_epoch_and_counts() -> None:
    """Nothing is appended to it any more, so no write can be missing there."""
    segment = head()
    of_an_older_epoch(segment)
    segment.replicas[1].closed = True
    assert segment.committed_length == LENGTH
    assert stands(segment)


def test_of_a_columnar_segment_all_counts() -> None:
    """It was complete before it was sealed; its rows have no length any more."""
    segment = head()
    segment.was_closed = True
    segment.set_image(pa.py_buffer(b"image"))
    not_registered(segment)
    assert segment.committed_length == segment.length == 0
    segment.epoch_registered = 1
    assert segment.committed_length == 0, "what replicas had in row form is no measure"


def test_an_epoch_is_everywhere_once_each_replica_has_it_or_is_sealed() -> None:
    """And the prologue is durable on all of them."""
    segment = head()
    assert is_everywhere(segment)
    of_an_older_epoch(segment)
    assert not is_everywhere(segment)
    segment.replicas[1].sealed = True
    assert is_everywhere(segment)
    segment.replicas[0].certified = PROLOGUE - 1
    assert not is_everywhere(segment)


def test_strays_are_needed_while_a_recovery_may_go_by_them() -> None:
    """Until each replica has the epoch, and the catalog too, what was replaced may be the only
    copy."""
    segment = head()
    assert stands(segment)
    not_registered(segment)
    assert not stands(segment)
    segment = head()
    of_an_older_epoch(segment)
    assert not stands(segment)
    segment.replicas[1].sealed = True
    assert stands(segment)


def test_a_holder_has_everything_in_the_present_epoch() -> None:
    """Or is closed or sealed."""
    segment = head()
    first, second = (replica.backup for replica in segment.replicas)
    assert segment.holders == [first, second]
    for change in (of_an_older_epoch, not_certified):
        segment = head()
        change(segment)
        assert segment.holders == [first]
        segment.replicas[1].closed = True
        assert segment.holders == [first, second]
    segment.replicas[1].backup = None
    assert segment.holders == [first]


def test_what_has_lost_more_is_made_anew_first() -> None:
    """What moves waits for all else, and so does what nobody had the image of; a survivor, whose
    parents are there, is never the most urgent."""
    segment = head()
    one, other = segment.replicas
    assert segment.left_beside(other) == 0
    one.sealed = True
    assert segment.left_beside(other) == 1
    one.sealed, segment.is_survivor = False, True
    assert segment.left_beside(other) == 1
    other.was_in_vain = True
    assert segment.left_beside(other) == AFTER_ALL
    segment.image = pa.py_buffer(b"image")
    assert segment.left_beside(other) == 1
    other.replaces = one
    assert segment.left_beside(other) == AFTER_ALL
