"""`stelae.coordinator.catalog.timelines`: every record is kept, and the newest are at hand."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from stelae.coordinator.catalog.timelines import (
    PACK_SIZE,
    RECENT,
    Older,
    TimelineCatalog,
    TimelineState,
)
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import StoredRecord, TimelineId, TimelineRecord
from tests.unit.coordinator.timelines.timeline_world import A, configuration, ids, stored


def again(timelines: TimelineCatalog) -> TimelineCatalog:
    """From a snapshot."""
    encoded = msgspec.msgpack.encode(timelines.state())
    return TimelineCatalog(msgspec.msgpack.decode(encoded, type=TimelineState))


def test_the_store_keeps_all_that_was_ever_written() -> None:
    """Of each timeline, also of one that is removed for good; a snapshot has it too."""
    timelines = TimelineCatalog()
    record = TimelineRecord(A, configuration(1, 1, 2, 3))
    written = [stored(record, 1)]
    for revision in range(2, 4 * RECENT, 2):
        joint = record.joint_with(
            ids(*((2, 3, 4) if 1 in record.configuration.sk_set else (1, 2, 3)))
        )
        record = joint.switched()
        written += [stored(joint, revision), stored(record, revision + 1)]
    timelines.commit((), written)
    assert timelines.history(A) == written
    assert timelines.current(A) == written[-1]
    removed = record.removed()
    done = msgspec.structs.replace(
        removed,
        departed=(),
        notified_generation=removed.generation,
        delivered_generation=removed.generation,
    )
    end = [stored(removed, len(written) + 1), stored(done, len(written) + 2)]
    for row in end:
        timelines = again(timelines)
        assert timelines.history(A) == written
        timelines.commit((), (row,))
        written.append(row)
    assert again(timelines).history(A) == written
    assert timelines.current(A) == written[-1]


def test_what_is_over_is_packed_away_found_by_id_and_listed_no_more() -> None:
    """However many there are, in a snapshot too; and nobody can begin it anew."""
    timelines, last, written = TimelineCatalog(), {}, {}
    for number in range(3 * PACK_SIZE - 5):
        timeline = TimelineId(TableId("T"), TabletId(f"{number:05}"))
        record = TimelineRecord(timeline, configuration(1, 1, 2, 3))
        timelines.commit((), (stored(record, 1),))
        if number % 7:
            removed = record.removed()
            timelines.commit((), (stored(removed, 2),))
            done = msgspec.structs.replace(
                removed, departed=(), notified_generation=removed.generation
            )
            last[timeline] = stored(done, 3)
            timelines.commit((), (last[timeline],))
            written[timeline] = [stored(record, 1), stored(removed, 2), last[timeline]]
        else:
            last[timeline] = stored(record, 1)
    for each in (timelines, again(timelines)):
        assert {timeline: each.current(timeline) for timeline in last} == last
        some = list(written)[::50]
        assert all(each.history(timeline) == written[timeline] for timeline in some)
        live = [row for row in last.values() if not row.record.deleted]
        assert each.page(None, None, 10_000) == live == list(each.all())
        gone = next(timeline for timeline, row in last.items() if row.record.deleted)
        anew = stored(TimelineRecord(gone, configuration(1, 1, 2, 3)), 4)
        assert "cannot be stored" in each.refusal((), (anew,))


def moved_often(times: int) -> list[StoredRecord]:
    """All records of a timeline that goes to and fro."""
    record = TimelineRecord(A, configuration(1, 1, 2, 3))
    written = [stored(record, 1)]
    for number in range(times):
        joint = record.joint_with(ids(1, 2, 3) if number % 2 else ids(2, 3, 4))
        record = joint.switched()
        for each in (joint, record):
            written.append(stored(each, len(written) + 1))
    return written


def test_what_is_recent_is_found_without_opening_what_is_older() -> None:
    """Here nobody could: the older records are spoiled. A write compares with the newest one."""
    timelines, written = TimelineCatalog(), moved_often(3 * RECENT)
    timelines.commit((), written)
    whole = timelines.state()
    (older,) = whole.older
    assert len(older.packs) > 2
    spoiled = [b"spoiled" for _ in older.packs]
    blind = TimelineCatalog(msgspec.structs.replace(whole, older=[Older(A, spoiled)]))
    count = len(blind.recent(A))
    assert RECENT <= count < 2 * RECENT
    assert blind.recent(A) == written[-count:]
    assert blind.history(A, len(written) - count) == written[-count:]
    assert [blind.at(A, row.revision) for row in written[-count:]] == written[-count:]
    assert blind.at(A, len(written) + 1) is None
    assert blind.current(A) == written[-1]
    with pytest.raises(zlib.error):
        blind.at(A, len(written) - count)
    half = [*spoiled[:-1], older.packs[-1]]
    blind = TimelineCatalog(msgspec.structs.replace(whole, older=[Older(A, half)]))
    after = len(written) - count - RECENT
    assert blind.history(A, after) == written[after:]


@pytest.mark.parametrize("over", [0, 1, PACK_SIZE])
def test_a_record_is_found_by_its_revision_wherever_it_is(over: int) -> None:
    """Of a timeline that goes on, one that is over, and one that is packed away with others."""
    timelines, written = TimelineCatalog(), moved_often(2 * RECENT)
    timelines.commit((), written)
    if over:
        removed = written[-1].record.removed()
        done = msgspec.structs.replace(removed, departed=(), notified_generation=removed.generation)
        written += [stored(removed, len(written) + 1), stored(done, len(written) + 2)]
        timelines.commit((), written[-2:])
    for number in range(over - 1):
        timeline = TimelineId(TableId("T"), TabletId(f"{number:05}"))
        gone = TimelineRecord(timeline, configuration(1, 1, 2, 3), 1, 1, (), True)
        timelines.commit((), (stored(gone, 1),))
    nowhere = (0, len(written) + 1)
    for each in (timelines, again(timelines)):
        assert (each.page(None, None, 1) == []) is (over > 0)
        assert [each.at(A, revision) for revision in range(1, len(written) + 1)] == written
        assert [each.at(A, revision) for revision in nowhere] == [None, None]
        for after in range(len(written) + 1):
            assert each.history(A, after) == written[after:]
