"""What an incomplete log lacks, and what of it can be kept. Pure.

Asked where `stelae.recovery.plan` finds no whole log. The newest head that any backup holds, stale
or not, says which segments made up the log, and what was in them. Kept are

- of these, all that have a final replica, and final ones that are younger than that head;
- of an open one without a whole replica, the beginning that the best stale replica holds;
- where no head is left at all, every final segment: nothing says which of them the log had.

Of a ``wal`` tablet the timeline says which segments make up the log, and only its owner reads that:
what is missing is what the owner could not find, and no backup holds.

The rest is lost. This is for people to look at and to accept or not; nothing is done by it.

Source: design §9, §13 (what is missing is said, never guessed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stelae.core.losses import Assessment, KeptSegment, LostSegment, SegmentFacts
from stelae.core.messages import LogInventory
from stelae.core.records import ServerInfo, TabletRecord
from stelae.recovery.plan import (
    Held,
    find_head,
    is_final,
    kept_replicas,
    plan_sealed,
    segments_of,
)


def assess(
    tablet: TabletRecord, media_count: int, inventories: Mapping[ServerInfo, LogInventory]
) -> Assessment | None:
    """What the tablet's log lacks, by what these backups hold; None: nothing."""
    if media_count == 0:
        return None
    by_segment = segments_of(inventories)
    if tablet.kept is not None:
        return _assess_kept(tablet.kept.segments, tablet.kept.skips_versions, by_segment)
    valid = find_head(tablet, media_count, by_segment)
    head = valid or _newest_open(by_segment)
    ids: list[int] = []
    facts: dict[int, SegmentFacts] = {}
    if head:
        newest = head[0].replica
        ids = [s for s in newest.digest if s != newest.segment_id]
        facts = {each.segment_id: each for each in newest.facts}
    if not valid:
        after = head[0].replica.segment_id if head else -1
        ids += [s for s, held in by_segment.items() if s > after and is_final(held)]
    kept, missing, kept_bytes = [], [], 0
    for segment_id in sorted(ids):
        held = by_segment.get(segment_id, ())
        found = _keep(segment_id, held)
        if found is not None:
            kept.append(found)
            kept_bytes += _length(found, held)
        if found is None or found.epoch >= 0:
            missing.append(_lost(segment_id, facts.get(segment_id), found, held))
    if head:
        replica = head[0].replica
        last = KeptSegment(replica.segment_id, replica.epoch)
        kept.append(last)
        kept_bytes += replica.length
        if not valid:
            held = by_segment[replica.segment_id]
            missing.append(_lost(replica.segment_id, None, last, held))
    if valid and not missing:
        return None
    return Assessment(tuple(missing), not valid, bool(head), tuple(kept), kept_bytes)


def assess_sealed(
    lacks: Sequence[SegmentFacts], inventories: Mapping[ServerInfo, LogInventory]
) -> Assessment | None:
    """What the log of a ``wal`` tablet lacks: of what its owner could not find, what these backups
    do not hold either; None: nothing. The rest is on backups, and the end in its timeline."""
    there = plan_sealed(inventories)
    held = {source.segment_id for source in there}
    missing = [_lost(f.segment_id, f, None, ()) for f in lacks if f.segment_id not in held]
    if not missing:
        return None
    kept = tuple([KeptSegment(source.segment_id) for source in there])
    size = sum(source.length for source in there)
    return Assessment(tuple(missing), False, True, kept, size)


def _assess_kept(
    wanted: Sequence[KeptSegment], is_end_lost: bool, by_segment: Mapping[int, Sequence[Held]]
) -> Assessment | None:
    """More of a log is lost than what was accepted before."""
    kept = [each for each in wanted if kept_replicas(each, by_segment.get(each.segment_id, ()))]
    gone = [each for each in wanted if each not in kept]
    if not gone:
        return None
    size = sum(_length(each, by_segment[each.segment_id]) for each in kept)
    # The end of a log is in its last segment, which is open: without it, who knows.
    lost_end = is_end_lost or any(each.epoch >= 0 for each in gone)
    missing = tuple(LostSegment(each.segment_id) for each in gone)
    return Assessment(missing, lost_end, True, tuple(kept), size)


def _newest_open(by_segment: Mapping[int, Sequence[Held]]) -> list[Held]:
    """Of the open segments, all stale, the newest: its best replica first."""
    found = [
        held for replicas in by_segment.values() if not is_final(replicas) for held in replicas
    ]
    found.sort(key=lambda h: (h.replica.segment_id, h.replica.epoch, h.replica.length))
    return found[::-1]


def _keep(segment_id: int, held: Sequence[Held]) -> KeptSegment | None:
    """What can be had of a segment that is not the head."""
    if is_final(held):
        return KeptSegment(segment_id)
    if not held:
        return None
    best = max(held, key=lambda h: (h.replica.epoch, h.replica.length))
    return KeptSegment(segment_id, best.replica.epoch)


def _length(kept: KeptSegment, held: Sequence[Held]) -> int:
    return max(h.replica.length for h in kept_replicas(kept, held))


def _lost(
    segment_id: int, facts: SegmentFacts | None, kept: KeptSegment | None, held: Sequence[Held]
) -> LostSegment:
    kept_bytes = 0 if kept is None else _length(kept, held)
    if facts is None:
        return LostSegment(segment_id, kept_bytes=kept_bytes)
    return LostSegment(segment_id, facts.rows, facts.size_bytes, facts.next_version, kept_bytes)
