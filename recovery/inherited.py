"""The plan of the recovery of a part of a split tablet, which inherits the log of that one.

Taken together, the inherited log and the part's own are one log whose later owners wrote under
another id: terms of the part are above all terms of the split tablet, and so are the ids of its
segments. What `stelae.recovery.plan` says of logs holds for it:

- before the part was ever handed over, the log is the inherited one. Its end is the open head that
  the split entry names, read as far as that entry says, by all parts alike. Where no backup that
  answered has that much of it, the end is found among what there is, as in any recovery (`_end`);
- from then on its own newest head ends it, whose digest names segments of both. A segment that its
  own log has whole is read from there: its content is the same.

What is missing of it can be given up like any loss (`stelae.recovery.losses`), by each part for
itself: shares have no key in common, so what one goes on without is nothing to the others.

Source: `docs/decisions.md`, §41.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import TabletId
from stelae.core.messages.backups import LogInventory, ReplicaState
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import KeptLog, KeptSegment
from stelae.core.records.records import Inheritance, ServerInfo, TabletRecord
from stelae.recovery.plan import (
    Held,
    final_source,
    find_head,
    is_final,
    names_of,
    plan_kept,
    plan_recovery,
    segments_of,
    source_of,
    wanted_of,
)


def end_of(
    tablet: TabletRecord, media_count: int, inventories: Mapping[ServerInfo, LogInventory]
) -> Inheritance | None:
    """Where the log of a tablet that is to be split ends, from its last owner's open head.

    The shortest of the replicas at hand says so: each has all that was acknowledged, and all have
    its bytes. None: what there is may have lost its end, and only the longest counts.
    """
    held = find_head(tablet, media_count, segments_of(inventories))
    if not held or any(each.replica.may_be_short for each in held):
        return None
    end = held[-1].replica
    return Inheritance(tablet.tablet_id, tablet.term + 1, end.segment_id, end.length, end.crc)


def logs_of(tablets: Sequence[TabletRecord]) -> dict[TabletId, int]:
    """The logs that these tablets are recovered from, and in which terms they are to be fenced."""
    logs = {tablet.tablet_id: tablet.term for tablet in tablets}
    logs |= {t.inherits.log: t.inherits.term for t in tablets if t.inherits is not None}
    return logs


def plan_of(
    tablet: TabletRecord,
    media_count: int,
    inventories: Mapping[TabletId, Mapping[ServerInfo, LogInventory]],
    *,
    are_all_in: bool = True,
) -> tuple[SegmentSource, ...]:
    """Where each segment of the tablet's log can be read; raises as `plan_recovery` does.

    ``inventories`` have all `logs_of` it; ``are_all_in``: no backup has yet to answer.
    """
    own = inventories[tablet.tablet_id]
    if tablet.inherits is None or not media_count:
        return plan_recovery(tablet, media_count, own)
    inherited = inventories[tablet.inherits.log]
    return plan_inherited(tablet, media_count, own, inherited, are_all_in=are_all_in)


def plan_inherited(
    tablet: TabletRecord,
    media_count: int,
    own: Mapping[ServerInfo, LogInventory],
    inherited: Mapping[ServerInfo, LogInventory],
    *,
    are_all_in: bool = True,
) -> tuple[SegmentSource, ...]:
    """Where each segment of the log of a part can be read, in order of segment ids.

    ``own`` and ``inherited`` are what the backups that were reached hold of both logs, fenced.

    Raises:
        SegmentsMissing: as `plan_recovery` does.
    """
    assert tablet.inherits is not None, "else it has one log"
    of_own, of_split = segments_of(own), segments_of(inherited)
    if tablet.kept is not None and tablet.kept.is_list:
        return _plan_kept(tablet, tablet.kept, of_own, of_split)
    if not was_handed_over(tablet):
        head, digest = _end(tablet, media_count, of_split, are_all_in=are_all_in)
    else:
        replicas = find_head(tablet, media_count, of_own)
        if not replicas:
            raise SegmentsMissing(tablet.tablet_id, "the open segment that ends its log")
        head, digest = source_of(replicas, sealed=False, is_head=True), replicas[0].replica.digest
    sources: list[SegmentSource] = []
    missing: list[int] = []
    for segment in wanted_of(tablet, digest):
        if segment == head.segment_id:
            continue
        if is_final(of_own.get(segment, [])):
            sources.append(final_source(segment, of_own[segment]))
        elif is_final(of_split.get(segment, [])):
            source = final_source(segment, of_split[segment])
            sources.append(msgspec.structs.replace(source, log=tablet.inherits.log))
        else:
            missing.append(segment)
    if missing:
        raise SegmentsMissing(tablet.tablet_id, names_of(missing))
    return (*sources, head)


def joined(
    tablet: TabletRecord,
    of_own: Mapping[int, Sequence[Held]],
    of_split: Mapping[int, Sequence[Held]],
) -> dict[int, Sequence[Held]]:
    """The segments of both logs of a part. What was inherited ends with the head that the split
    entry names; a segment that both have is read from the part's own log if it is whole there."""
    assert tablet.inherits is not None, "else it has one log"
    found = {s: held for s, held in of_split.items() if s <= tablet.inherits.head}
    return found | {s: held for s, held in of_own.items() if s not in found or is_final(held)}


def _plan_kept(
    tablet: TabletRecord,
    kept: KeptLog,
    of_own: Mapping[int, Sequence[Held]],
    of_split: Mapping[int, Sequence[Held]],
) -> tuple[SegmentSource, ...]:
    """What is left of both logs, as it was when its loss was accepted.

    Of the inherited head no more than the split entry says, if there is that much, in whatever
    epoch: what is beyond has versions that the part may have given anew.
    """
    end = tablet.inherits
    assert end is not None, "it is a part that inherits"
    both = joined(tablet, of_own, of_split) if was_handed_over(tablet) else of_split
    pinned = kept_end(end, kept.segments, of_split, both)
    rest = tuple([each for each in kept.segments if not pinned or each.segment_id != end.head])
    found: dict[int, SegmentSource] = {}
    for source in plan_kept(tablet, msgspec.structs.replace(kept, segments=rest), both):
        segment = source.segment_id
        is_own = both[segment] is of_own.get(segment)
        found[segment] = source if is_own else msgspec.structs.replace(source, log=end.log)
    if pinned:
        found[end.head] = _pinned(end, pinned)
    return tuple([found[each.segment_id] for each in kept.segments])


def kept_end(
    end: Inheritance,
    kept: Sequence[KeptSegment],
    of_split: Mapping[int, Sequence[Held]],
    both: Mapping[int, Sequence[Held]],
) -> list[Held]:
    """`pinned_end`, if the inherited head is kept, as an open one, and read from there."""
    is_kept = any(each.segment_id == end.head and each.epoch >= 0 for each in kept)
    is_there = end.head in both and both[end.head] is of_split.get(end.head)
    return pinned_end(end, of_split) if is_kept and is_there else []


def was_handed_over(part: TabletRecord) -> bool:
    """Whether a part has ever run: then the marks are those of its own log."""
    assert part.inherits is not None, "it is a part that inherits"
    return part.valid_segment > part.inherits.head


def pinned_end(end: Inheritance, of_split: Mapping[int, Sequence[Held]]) -> list[Held]:
    """The replicas of the inherited head that have as much of it as the split entry says.

    Its writer is fenced, and wrote one content under one id: every replica that is long enough
    begins with the same bytes, whatever its epoch, and the checksum shows it.
    """
    return [
        each
        for each in of_split.get(end.head, ())
        if each.replica.state is ReplicaState.OPEN and each.replica.length >= end.length
    ]


def _end(
    tablet: TabletRecord,
    media_count: int,
    of_split: Mapping[int, Sequence[Held]],
    *,
    are_all_in: bool,
) -> tuple[SegmentSource, tuple[int, ...]]:
    """The open head that ends the inherited log, and its digest: as far as all parts read it, if
    some backup has that much.

    Else as any recovery finds it. The entry goes by backups that were at hand then, and if these
    are gone, others may have a shorter replica, or the next head, with all that was acknowledged.
    That is safe, as it is for the tablet before it was split:

    - The part's mark is the split tablet's last one: that one's term is over, so the masters refuse
      its owner any other epoch. So a replica at or above the mark has all that was acknowledged,
      and stale ones are below it. Its log is fenced, and nobody makes anything of it anew.
    - What this part reads now and did not before, or the other way round, nobody has seen: it was
      never handed over. From then on the end is in its own log, and this is not looked for again.
    - Siblings may have read more. That is of writes that nobody was told of, and shares have no key
      in common. Of a repeated write each tablet that knows an answer gives that, and the others do
      their cut of it: once for each row (`stelae.client.routing.part.versions_in`).
    """
    end = tablet.inherits
    assert end is not None, "it is a part that inherits"
    if pinned := pinned_end(end, of_split):
        return _pinned(end, pinned), pinned[0].replica.digest
    # (Who is late may have what all parts read: it is only worth a short wait.)
    found = find_head(tablet, media_count, of_split) if are_all_in else []
    if not found:
        raise SegmentsMissing(tablet.tablet_id, "the open segment that ends what it inherits")
    source = source_of(found, sealed=False, is_head=True)
    return msgspec.structs.replace(source, log=end.log), found[0].replica.digest


def _pinned(end: Inheritance, held: Sequence[Held]) -> SegmentSource:
    """As much as the split entry says."""
    source = source_of(held, sealed=False, is_head=True)
    return msgspec.structs.replace(source, length=end.length, crc=end.crc, epoch=0, log=end.log)
