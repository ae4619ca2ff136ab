"""What an incomplete log lacks, and what of it can be kept. Pure.

Asked where `stelae.recovery.plan` finds no whole log. The newest head that any backup holds, stale
or not, says which segments made up the log, and what was in them. Kept are

- of these, all that have a final replica, and final ones that are younger than that head;
- of an open one without a whole replica, the beginning that the best stale replica holds;
- where no head is left at all, every final segment: nothing says which of them the log had.

A head that backups know to be closed for good (``heads_from``) is none: what it names may have been
freed. Where final segments are younger than the newest head that is left, it may be as old, and
nobody was told: its digest does not count as known, and names nothing that is missing.

Of a ``wal`` tablet the timeline says which segments make up the log, and only its owner reads that:
what is missing is what the owner could not find, and no backup holds. So it is of any tablet that
is served while rows of it are elsewhere, as its log is being written. A part of a split tablet has
two logs, which are looked at as one.

The rest is lost. This is for people to look at and to accept or not; nothing is done by it.

Source: design §9, §13 (what is missing is said, never guessed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stelae.core.messages.backups import LogInventory
from stelae.core.records.losses import Assessment, KeptSegment, LostSegment, SegmentFacts
from stelae.core.records.records import ServerInfo, TabletRecord
from stelae.recovery.inherited import joined, kept_end, pinned_end, was_handed_over
from stelae.recovery.plan import (
    Held,
    find_head,
    is_final,
    kept_replicas,
    plan_sealed,
    segments_of,
    wanted_of,
)


def assess(
    tablet: TabletRecord, media_count: int, inventories: Mapping[ServerInfo, LogInventory]
) -> Assessment | None:
    """What the tablet's log lacks, by what these backups hold; None: nothing."""
    if media_count == 0:
        return None
    by_segment = segments_of(inventories)
    if tablet.kept is not None and tablet.kept.is_list:
        return _assess_kept(tablet.kept.segments, tablet.kept.skips_versions, by_segment)
    head = find_head(tablet, media_count, by_segment)
    return _assess(tablet, head, by_segment, _heads_from(inventories))


def assess_part(
    tablet: TabletRecord,
    media_count: int,
    own: Mapping[ServerInfo, LogInventory],
    inherited: Mapping[ServerInfo, LogInventory],
) -> Assessment | None:
    """The same of a part of a split tablet, which is recovered from two logs. Figures of what it
    inherits are of whole segments, of which it has a share."""
    assert tablet.inherits is not None, "else it has one log"
    of_own, of_split = segments_of(own), segments_of(inherited)
    is_ours = was_handed_over(tablet)
    by_segment = joined(tablet, of_own, of_split) if is_ours else of_split
    if (kept := tablet.kept) is not None and kept.is_list:
        end = kept_end(tablet.inherits, kept.segments, of_split, by_segment)
        return _assess_kept(kept.segments, kept.skips_versions, by_segment, end)
    pinned = [] if is_ours else pinned_end(tablet.inherits, of_split)
    found = pinned or find_head(tablet, media_count, of_own if is_ours else of_split)
    return _assess(tablet, found, by_segment, max(_heads_from(own), _heads_from(inherited)))


def _heads_from(inventories: Mapping[ServerInfo, LogInventory]) -> int:
    return max((each.heads_from for each in inventories.values()), default=0)


def _assess(
    tablet: TabletRecord,
    valid: Sequence[Held],
    by_segment: Mapping[int, Sequence[Held]],
    heads_from: int,
) -> Assessment | None:
    """``valid``: the head that ends the log, if it is there."""
    head = valid or _newest_open(by_segment, heads_from)
    is_known = bool(head)
    ids: list[int] = []
    facts: dict[int, SegmentFacts] = {}
    if head:
        newest = head[0].replica
        ids = [s for s in newest.digest if s != newest.segment_id]
        facts = {each.segment_id: each for each in newest.facts}
    if not valid:
        after = head[0].replica.segment_id if head else -1
        younger = [s for s, held in by_segment.items() if s > after and is_final(held)]
        ids += younger
        is_known = is_known and not younger
    kept, missing, kept_bytes = [], [], 0
    for segment_id in wanted_of(tablet, ids):
        held = by_segment.get(segment_id, ())
        found = _keep(segment_id, held)
        if found is not None:
            kept.append(found)
            kept_bytes += _length(found, held)
        if (found is None and is_known) or (found is not None and found.epoch >= 0):
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
    return Assessment(tuple(missing), not valid, is_known, tuple(kept), kept_bytes)


def assess_sealed(
    lacks: Sequence[SegmentFacts], *logs: Mapping[ServerInfo, LogInventory]
) -> Assessment | None:
    """What a log lacks whose owner says what it could not find: what these backups do not hold
    either, in any of ``logs``; None: nothing. The rest is on backups, and the end is not lost."""
    there = {source.segment_id: source for held in logs for source in plan_sealed(held)}
    missing = [_lost(f.segment_id, f, None, ()) for f in lacks if f.segment_id not in there]
    if not missing:
        return None
    kept = tuple([KeptSegment(segment_id) for segment_id in sorted(there)])
    size = sum(source.length for source in there.values())
    return Assessment(tuple(missing), False, True, kept, size)


def _assess_kept(
    wanted: Sequence[KeptSegment],
    is_end_lost: bool,
    by_segment: Mapping[int, Sequence[Held]],
    pinned: Sequence[Held] = (),
) -> Assessment | None:
    """More of a log is lost than what was accepted before. ``pinned``: what the end of an inherited
    log is read from, whatever its epoch."""
    there = {}
    for each in wanted:
        is_pinned = bool(pinned) and each.segment_id == pinned[0].replica.segment_id
        held = pinned if is_pinned else kept_replicas(each, by_segment.get(each.segment_id, ()))
        if held:
            there[each] = max(one.replica.length for one in held)
    kept = list(there)
    gone = [each for each in wanted if each not in there]
    if not gone:
        return None
    size = sum(there.values())
    # The end of a log is in its last segment, which is open: without it, who knows.
    lost_end = is_end_lost or any(each.epoch >= 0 for each in gone)
    missing = tuple(LostSegment(each.segment_id) for each in gone)
    return Assessment(missing, lost_end, True, tuple(kept), size)


def _newest_open(by_segment: Mapping[int, Sequence[Held]], heads_from: int) -> list[Held]:
    """Of the open segments that may be heads, all stale, the newest: its best replica first."""
    found = [
        held
        for segment, replicas in by_segment.items()
        if segment >= heads_from and not is_final(replicas)
        for held in replicas
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
