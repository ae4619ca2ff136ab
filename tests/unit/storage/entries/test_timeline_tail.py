"""`stelae.storage.entries.timeline_tail`: a timeline's end is cut where prologues stand, or is
refused."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry as TimelineEntry
from stelae.core.records.replication import EntryKind as TimelineEntryKind
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    encode_entry,
    encode_prologue,
    encode_rows,
)
from stelae.storage.entries.timeline_tail import read_tail

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
TABLET = TabletId("a" * 32)


def prologue(segment: int, digest: Sequence[int], tablet: TabletId = TABLET) -> bytes:
    said = Prologue("t", tablet, segment, 1, tuple(digest), 1, SCHEMA, ())
    return b"".join(encode_entry(Entry(1, 0, EntryKind.PROLOGUE, 1, 0, (), encode_prologue(said))))


def rows(index: int) -> bytes:
    payload = encode_rows(b"\0", [(index,)])
    return b"".join(encode_entry(Entry(1, index, EntryKind.ROWS, index, 1, (), payload)))


def timeline(*bodies: bytes, first_lsn: int = 1) -> list[TimelineEntry]:
    """Commands with these bodies; an empty one is the entry that begins a term."""
    kinds = (TimelineEntryKind.COMMAND if body else TimelineEntryKind.NO_OP for body in bodies)
    return [
        TimelineEntry(1, first_lsn + n, kind, body)
        for n, (kind, body) in enumerate(zip(kinds, bodies, strict=True))
    ]


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5), st.integers(1, 1000))
def test_segments_are_what_stands_between_prologues(
    segments: list[list[int]], first_lsn: int
) -> None:
    """However entries were gathered: the same segments, in order, with all their entries. In a
    segment each number is an entry of the timeline with so many of the tablet's; 0: of a term."""
    bodies, expected, index = [b""], [], 0
    for number, batches in enumerate(segments, start=1):
        begin = index
        lsn = first_lsn + len(bodies)
        bodies.append(prologue(number, range(1, number + 1)))
        for count in batches:
            bodies.append(b"".join(rows(index + n + 1) for n in range(count)))
            index += count
        expected.append((number, lsn, list(range(begin + 1, index + 1))))
    tail = read_tail(timeline(*bodies, first_lsn=first_lsn), TABLET)
    found = [
        (s.segment_id, s.first_lsn, [entry.index for entry in s.entries[1:]]) for s in tail.segments
    ]
    assert found == expected
    assert tail.on_backups == ()


def test_what_was_trimmed_is_named_by_the_newest_digest() -> None:
    """An older digest may name segments that are gone since; those of the tail are not wanted."""
    tail = read_tail(timeline(prologue(5, (1, 2, 3, 5)), rows(1), prologue(6, (2, 5, 6))), TABLET)
    assert tail.on_backups == (2,)
    assert [s.size_bytes for s in tail.segments] == [
        len(prologue(5, (1, 2, 3, 5))) + len(rows(1)),
        len(prologue(6, (2, 5, 6))),
    ]


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([rows(1)], "begins before the tail"),
        ([prologue(1, (1,)), rows(1) + prologue(2, (1, 2))], "not the first"),
        ([prologue(2, (2,)), prologue(1, (1, 2))], "after a later one"),
        ([prologue(1, (1,), TabletId("b" * 32))], "a prologue of tablet b"),
        ([prologue(1, (1,))[:-8]], "cut at"),
        ([prologue(1, (1,)), rows(1)[:8] + b"\xff" + rows(1)[9:]], "entry"),
    ],
)
def test_what_no_owner_writes_is_refused(bodies: list[bytes], reason: str) -> None:
    """With the entry of the timeline that is wrong."""
    with pytest.raises(CorruptData, match=reason) as found:
        read_tail(timeline(*bodies), TABLET)
    assert f"timeline {TABLET}" in str(found.value)
