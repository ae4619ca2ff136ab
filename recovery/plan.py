"""The plan of a tablet's recovery: which segments make its log, and where each can be read.

Input is what the catalog says of the tablet and what the backups that answered hold of its log.
The result is the whole log or `SegmentsMissing`, naming what is not there; never a shorter log.

The order rules that writers keep (design §9; RAMCloud, `ReplicaManager::allocateHead`): a new head,
with its digest, is durable on all its backups before the old one is closed; nothing is acknowledged
out of the new head before that close is durable on all replicas; a replica of the open head is
replaced under a higher epoch, which the catalog has before anything more is acknowledged; sealing
follows closing. Hence:

- an open replica below the catalog's (valid_segment, valid_epoch) may be short: it is ignored, and
  so is its digest;
- of a segment that has a closed or sealed replica anywhere, the content is final: it is not open;
- the lowest open segment ends the log. Where the next head is open too, the close of the former was
  not yet durable everywhere, so nothing was acknowledged out of the later one;
- of the head only replicas of the highest epoch count, and each of those holds everything that was
  acknowledged; they differ at most in a tail that no client was told of. The longest is named
  first: it keeps most of what clients with an unknown outcome may have written;
- the head's digest names the log: of each other segment in it there must be a final replica.

Backups that do not answer are harmless. A missing replica of the head can only make the head
missing (an error), or leave an older segment as the lowest open one; but the older one is open
somewhere only as long as nothing was acknowledged out of the newer. A replica that shows a segment
closed may be out of reach while an open one is at hand: then the close was not durable on all, and
the same holds. And the old owner cannot go on: to acknowledge it needs every replica of its head,
of which the plan has found at least one, on a backup that is fenced; to do without that one it
needs the catalog's word (`RAISE_EPOCH`), which refuses its term.

Of one segment there may be final replicas with different content: two recoveries may have converted
different open replicas of an old head, of which only the later one was put into service. Writers
avoid it by making such segments under an id of their own term; besides, only replicas that agree
with the one of the highest term are named here.

An open replica on a medium that does not sync appends may have lost its end with its machine, and
says so (``may_be_short``). One that says no such thing is taken before it, also of a lower epoch:
as long as the catalog does not know the higher one, nothing was acknowledged in that. If there is
none, those are taken only if all replicas of their head are at hand: then no other has more, and
what is lost is what that medium does not promise.

Where an operator has accepted that something is lost (`stelae.recovery.losses`), the plan is what
the tablet's record says is kept, and nothing else; or the whole log without what it says is given
up, if the tablet was served without that.

Of a ``wal`` tablet the end of the log is a timeline on safekeepers, and backups hold nothing but
sealed segments: `plan_sealed`.

Source: RAMCloud, `Recovery::buildReplicaMap` and `findLogDigest`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import segment_name
from stelae.core.messages.backups import LogInventory, ReplicaInfo, ReplicaState
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import KeptLog, KeptSegment
from stelae.core.records.records import ServerInfo, TabletRecord

MAX_NAMED = 8
"""Missing segments named one by one in an error; more are counted."""


class Held(NamedTuple):
    """A replica and the backup that holds it."""

    backup: ServerInfo
    replica: ReplicaInfo


def plan_recovery(
    tablet: TabletRecord, media_count: int, inventories: Mapping[ServerInfo, LogInventory]
) -> tuple[SegmentSource, ...]:
    """Say where each segment of the tablet's log can be read, in order of segment ids.

    ``inventories`` are the answers of those backups that were reached, fenced in ``tablet.term``;
    ``media_count`` is the number of replicas that the durability names. With none, the rows died
    with their server: the log is empty.

    Raises:
        SegmentsMissing: the log's end, or a segment that its digest names, is on none of them.
    """
    if media_count == 0:
        return ()
    by_segment = segments_of(inventories)
    final = {s: held for s, held in by_segment.items() if is_final(held)}
    if tablet.kept is not None and tablet.kept.is_list:
        return plan_kept(tablet, tablet.kept, by_segment)
    replicas = find_head(tablet, media_count, by_segment)
    if not replicas:
        raise SegmentsMissing(tablet.tablet_id, "the open segment that ends its log")
    head = replicas[0].replica.segment_id
    before = [s for s in wanted_of(tablet, replicas[0].replica.digest) if s != head]
    missing = [s for s in before if s not in final]
    if missing:
        raise SegmentsMissing(tablet.tablet_id, names_of(missing))
    sources = [final_source(s, final[s]) for s in before]
    sources.append(source_of(replicas, sealed=False, is_head=True))
    return tuple(sources)


def find_head(
    tablet: TabletRecord, media_count: int, by_segment: Mapping[int, Sequence[Held]]
) -> list[Held]:
    """The replicas of the open segment that ends the log, the best first; empty: there is none."""
    heads = [
        segment
        for segment, held in by_segment.items()
        if not is_final(held) and _valid_open(tablet, held)
    ]
    if not heads:
        return []
    valid = _valid_open(tablet, by_segment[min(heads)])
    whole = [held for held in valid if not held.replica.may_be_short]
    replicas = _head_replicas(whole or valid)
    return replicas if whole or len(replicas) >= media_count else []


def wanted_of(tablet: TabletRecord, digest: Iterable[int]) -> list[int]:
    """The segments that a head names, ascending, without those that were given up."""
    given_up = tablet.kept.given_up if tablet.kept is not None else ()
    return [segment for segment in sorted(digest) if segment not in given_up]


def plan_kept(
    tablet: TabletRecord, kept: KeptLog, by_segment: Mapping[int, Sequence[Held]]
) -> tuple[SegmentSource, ...]:
    """What is left of an incomplete log, as it was when its loss was accepted."""
    sources: list[SegmentSource] = []
    missing: list[int] = []
    for each in kept.segments:
        replicas = kept_replicas(each, by_segment.get(each.segment_id, ()))
        if not replicas:
            missing.append(each.segment_id)
        elif each.epoch < 0:
            sources.append(final_source(each.segment_id, replicas))
        else:
            sources.append(source_of(replicas, sealed=False, is_head=True))
    if missing:
        raise SegmentsMissing(tablet.tablet_id, names_of(missing))
    return tuple(sources)


def kept_replicas(kept: KeptSegment, held: Sequence[Held]) -> list[Held]:
    """Those that a kept segment may be read from, the best first."""
    if kept.epoch < 0:
        return [h for h in held if h.replica.state is not ReplicaState.OPEN]
    same = [
        h for h in held if h.replica.state is ReplicaState.OPEN and h.replica.epoch == kept.epoch
    ]
    return sorted(same, key=lambda h: -h.replica.length)


def plan_sealed(inventories: Mapping[ServerInfo, LogInventory]) -> tuple[SegmentSource, ...]:
    """Where each segment of a ``wal`` tablet that is on backups can be read, in order of ids.

    Which of them make up the log, and whether all are there, says the digest in the timeline, which
    its proposer reads: it raises `SegmentsMissing`. The rest it has freed.
    """
    by_segment = segments_of(inventories)
    final = {s: [h for h in held if _is_final(h)] for s, held in by_segment.items()}
    return tuple(final_source(s, final[s]) for s in sorted(final) if final[s])


def segments_of(inventories: Mapping[ServerInfo, LogInventory]) -> dict[int, list[Held]]:
    """All replicas of each segment, in order of the backups' UUIDs."""
    found: dict[int, list[Held]] = {}
    for backup in sorted(inventories, key=lambda server: server.uuid):
        for replica in inventories[backup].replicas:
            found.setdefault(replica.segment_id, []).append(Held(backup, replica))
    return found


def is_final(held: Sequence[Held]) -> bool:
    """Whether a segment's content is: some replica of it is closed."""
    return any(_is_final(each) for each in held)


def _is_final(held: Held) -> bool:
    return held.replica.state is not ReplicaState.OPEN


def _valid_open(tablet: TabletRecord, held: Sequence[Held]) -> list[Held]:
    """The open replicas that hold everything acknowledged, as far as the catalog can tell."""
    mark = (tablet.valid_segment, tablet.valid_epoch)
    return [
        h
        for h in held
        if h.replica.state is ReplicaState.OPEN and (h.replica.segment_id, h.replica.epoch) >= mark
    ]


def _head_replicas(held: Sequence[Held]) -> list[Held]:
    """Those of the highest term and epoch, the longest first."""
    newest = max((h.replica.term, h.replica.epoch) for h in held)
    kept = [h for h in held if (h.replica.term, h.replica.epoch) == newest]
    return sorted(kept, key=lambda h: -h.replica.length)


def final_source(segment_id: int, held: Sequence[Held]) -> SegmentSource:
    """A closed segment: sealed (columnar) replicas if there are any, else those in row form."""
    final = [h for h in held if _is_final(h)]
    latest = max(h.replica.term for h in final)
    sealed = [h for h in final if h.replica.state is ReplicaState.SEALED]
    # An older sealed form than the newest closed one may be another recovery's (see above).
    use = sealed if sealed and max(h.replica.term for h in sealed) == latest else final
    newest = max(
        (h for h in use if h.replica.term == latest),
        key=lambda h: h.replica.state is ReplicaState.SEALED,
    ).replica
    same = [
        h
        for h in use
        if (h.replica.state, h.replica.length, h.replica.crc)
        == (newest.state, newest.length, newest.crc)
    ]
    return source_of(same, sealed=newest.state is ReplicaState.SEALED, is_head=False)


def source_of(held: Sequence[Held], *, sealed: bool, is_head: bool) -> SegmentSource:
    first = held[0].replica
    return SegmentSource(
        segment_id=first.segment_id,
        sealed=sealed,
        length=first.length,
        replicas=tuple((h.backup.uuid, h.backup.address, h.replica.medium) for h in held),
        is_head=is_head,
        epoch=first.epoch,
        may_be_short=is_head and first.may_be_short,
    )


def names_of(segments: Collection[int]) -> str:
    named = ", ".join(segment_name(segment) for segment in sorted(segments)[:MAX_NAMED])
    more = f" and {len(segments) - MAX_NAMED} more" if len(segments) > MAX_NAMED else ""
    return f"segment{'s' if len(segments) > 1 else ''} {named}{more}"
