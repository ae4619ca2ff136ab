"""The end of a tablet's log as a timeline has it: entries that are cut into segments by prologues.

An entry of a timeline that is a command holds one or more whole entries of the tablet's log; a
prologue is always the first in its own. So a segment is a range of the timeline, from its prologue
to where the next one begins: the same for whoever reads it, once the next one is committed. What
the timeline was trimmed of are whole segments, which backups hold. Pure; design §10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.records.losses import SegmentFacts
from stelae.core.records.replication import Entry as TimelineEntry
from stelae.core.records.replication import EntryKind as TimelineEntryKind
from stelae.storage.entries.entry import Entry, EntryKind, decode_prologue, read_entries


@dataclass(frozen=True, slots=True)
class TailSegment:
    """A segment all of whose entries are in the timeline."""

    segment_id: int
    digest: tuple[int, ...]
    facts: tuple[SegmentFacts, ...]
    """Of the other segments of the digest, as far as they were known."""
    first_lsn: int
    entries: list[Entry] = field(default_factory=list)
    """Its prologue is the first."""
    sizes: list[int] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Tail:
    """All of a timeline after its horizon, oldest segment first; none if it is new."""

    segments: tuple[TailSegment, ...]

    @property
    def of_log(self) -> tuple[TailSegment, ...]:
        """Those that the newest digest names: others were cleaned, and not trimmed yet."""
        digest = set(self.segments[-1].digest) if self.segments else set()
        return tuple([segment for segment in self.segments if segment.segment_id in digest])

    @property
    def on_backups(self) -> tuple[int, ...]:
        """The segments before the tail that make up the log with it, by the newest digest."""
        if not self.segments:
            return ()
        here = {segment.segment_id for segment in self.segments}
        return tuple(sorted(s for s in self.segments[-1].digest if s not in here))

    def facts_of(self, segments: Sequence[int]) -> tuple[SegmentFacts, ...]:
        """What the newest prologue says of them; figures that it does not have are -1."""
        known = {f.segment_id: f for segment in self.segments[-1:] for f in segment.facts}
        return tuple([known.get(s) or SegmentFacts(s, -1, -1, -1) for s in segments])


def read_tail(entries: Iterable[TimelineEntry], tablet_id: TabletId) -> Tail:
    """Cut committed entries, the first of which follows the horizon, into segments.

    Raises:
        CorruptData: no owner of the tablet has written this.
    """
    segments: list[TailSegment] = []
    for entry in entries:
        if entry.kind is TimelineEntryKind.NO_OP:
            continue
        where = f"entry {entry.index} of timeline {tablet_id}"
        for place, found in enumerate(read_entries(entry.body, None, where)):
            if found.kind is EntryKind.PROLOGUE:
                if place:
                    raise CorruptData(where, 0, "a prologue that is not the first")
                segments.append(_opened(found, entry.index, tablet_id, segments, where))
            if not segments:
                raise CorruptData(where, 0, "the segment that it belongs to begins before the tail")
            segments[-1].entries.append(found)
        if segments:
            segments[-1].sizes.append(len(entry.body))
    return Tail(tuple(segments))


def _opened(
    entry: Entry, lsn: int, tablet_id: TabletId, before: list[TailSegment], where: str
) -> TailSegment:
    prologue = decode_prologue(entry.payload, where)
    if prologue.tablet_id != tablet_id:
        raise CorruptData(where, 0, f"a prologue of tablet {prologue.tablet_id}")
    if before and prologue.segment_id <= before[-1].segment_id:
        raise CorruptData(where, 0, f"segment {prologue.segment_id} after a later one")
    return TailSegment(prologue.segment_id, prologue.digest, prologue.facts, lsn)
