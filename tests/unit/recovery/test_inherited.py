"""`stelae.recovery.inherited`: a part of a split tablet has two logs, which are one."""

from __future__ import annotations

import msgspec
import pytest

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import Address, ServerUuid, TableId, TabletId, segment_id
from stelae.core.messages.backups import LogInventory, ReplicaInfo, ReplicaState
from stelae.core.records.losses import Assessment, KeptLog
from stelae.core.records.records import (
    Inheritance,
    ServerInfo,
    ServerKind,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.recovery.inherited import end_of, logs_of, plan_of
from stelae.recovery.losses import assess_part

OPEN, SEALED = ReplicaState.OPEN, ReplicaState.SEALED
SPLIT, PART = TabletId("split"), TabletId("part")
OLD, NEW = 1, 3
"""Terms: of the split tablet's last owner, and of the part's first one."""


def backup(name: str) -> ServerInfo:
    process = ProcessIdentity("n", 1, 0)
    return ServerInfo(ServerKind.BACKUP, name, ServerUuid(name), 1, Address(f"{name}:1"), process)


A, B = backup("a"), backup("b")


def replica(
    term: int,
    number: int,
    state: ReplicaState,
    *,
    length: int = 10,
    digest: tuple[int, ...] = (),
    epoch: int = 0,
    may_be_short: bool = False,
) -> ReplicaInfo:
    segment = segment_id(term, number)
    return ReplicaInfo(
        segment, term, epoch, state, "disk", length, length + 1, digest, (), may_be_short
    )


def held(log: TabletId, by: dict[ServerInfo, list[ReplicaInfo]]) -> dict[ServerInfo, LogInventory]:
    return {b: LogInventory(log, NEW, tuple(found)) for b, found in by.items()}


def record(valid: int = 0, inherits: Inheritance | None = None) -> TabletRecord:
    return TabletRecord(
        PART if inherits else SPLIT,
        TableId("t"),
        1,
        TabletState.RECOVERING,
        NEW if inherits else NEW - 1,
        ServerUuid("x"),
        1,
        valid_segment=valid,
        inherits=inherits,
    )


HEAD = segment_id(OLD, 2)
OLD_DIGEST = (segment_id(OLD, 1), HEAD)
INHERITS = Inheritance(SPLIT, NEW, HEAD, 20, 21)
SEALED_1 = replica(OLD, 1, SEALED)


def old_head(length: int = 20) -> ReplicaInfo:
    return replica(OLD, 2, OPEN, length=length, digest=OLD_DIGEST)


def plan(
    tablet: TabletRecord,
    own: dict[ServerInfo, list[ReplicaInfo]],
    inherited: dict[ServerInfo, list[ReplicaInfo]],
) -> list[tuple[int, str, list[str]]]:
    """(segment, log, backups) of each source."""
    inventories = {PART: held(PART, own), SPLIT: held(SPLIT, inherited)}
    sources = plan_of(tablet, 2, inventories)
    return [(s.segment_id, s.log, [uuid for uuid, _, _ in s.replicas]) for s in sources]


def test_a_split_tablets_log_ends_where_its_shortest_head_ends() -> None:
    """That much all replicas have, and all that was acknowledged is in it."""
    found = held(SPLIT, {A: [SEALED_1, old_head(30)], B: [SEALED_1, old_head(20)]})
    assert end_of(record(), 2, found) == INHERITS


def test_a_tablet_whose_head_may_be_short_has_no_certain_end() -> None:
    """Of such replicas the longest counts, which may be any."""
    short = msgspec.structs.replace(old_head(), may_be_short=True)
    assert end_of(record(), 2, held(SPLIT, {A: [short], B: [short]})) is None
    assert end_of(record(), 2, {}) is None


def test_a_part_is_fenced_and_planned_by_both_logs() -> None:
    """The inherited one in the term that the split entry says, which never rises again."""
    part = msgspec.structs.replace(record(inherits=INHERITS), term=NEW + 4)
    assert logs_of([part, record()]) == {PART: NEW + 4, SPLIT: NEW}


def test_a_part_that_never_ran_has_the_log_that_it_inherits() -> None:
    """As long as the entry says, whatever a former attempt has left in its own log."""
    attempt = replica(NEW, 1, OPEN, digest=(*OLD_DIGEST, segment_id(NEW, 1)))
    inherited = {A: [SEALED_1, old_head(30)], B: [old_head(20)]}
    part = record(HEAD, INHERITS)
    assert plan(part, {A: [attempt]}, inherited) == [
        (segment_id(OLD, 1), SPLIT, ["a"]),
        (HEAD, SPLIT, ["a", "b"]),
    ]
    inventories = {PART: held(PART, {}), SPLIT: held(SPLIT, inherited)}
    end = plan_of(part, 2, inventories)[-1]
    assert (end.length, end.crc) == (20, 21)


def ends(
    mark: tuple[int, int], inherited: dict[ServerInfo, list[ReplicaInfo]], *, are_all_in: bool
) -> tuple[int, int, int, int | None]:
    """Segment, length, epoch and checksum of the end of the log of a part that never ran."""
    part = msgspec.structs.replace(record(mark[0], INHERITS), valid_epoch=mark[1])
    inventories = {PART: held(PART, {}), SPLIT: held(SPLIT, inherited)}
    end = plan_of(part, 2, inventories, are_all_in=are_all_in)[-1]
    assert end.log == SPLIT
    return end.segment_id, end.length, end.epoch, end.crc


def test_a_shorter_end_is_taken_only_if_nobody_may_have_the_one_that_all_parts_read() -> None:
    """It was not at hand when the tablet was split, and has all that was acknowledged. Who has yet
    to answer may have the other one."""
    inherited = {A: [SEALED_1, old_head(19)]}
    with pytest.raises(SegmentsMissing, match="open segment"):
        ends((HEAD, 0), inherited, are_all_in=False)
    assert ends((HEAD, 0), inherited, are_all_in=True) == (HEAD, 19, 0, None)
    inherited[B] = [old_head(30)]
    assert ends((HEAD, 0), inherited, are_all_in=True) == (HEAD, 20, 0, 21)


def test_a_stale_head_is_no_end_of_what_is_inherited() -> None:
    """The split tablet's last mark is the part's first: replicas below it may lack what was
    acknowledged; of those that are not, the highest epoch counts."""
    stale = msgspec.structs.replace(old_head(19), epoch=1)
    later = msgspec.structs.replace(old_head(17), epoch=3)
    with pytest.raises(SegmentsMissing, match="open segment"):
        ends((HEAD, 2), {A: [SEALED_1, stale]}, are_all_in=True)
    found = ends((HEAD, 2), {A: [SEALED_1, stale], B: [later]}, are_all_in=True)
    assert found == (HEAD, 17, 3, None)


def test_a_head_that_was_closed_on_who_was_away_is_no_end() -> None:
    """Nothing was acknowledged out of the next one, which ends the log then."""
    third = segment_id(OLD, 3)
    closed = msgspec.structs.replace(old_head(40), state=ReplicaState.CLOSED)
    next_head = replica(OLD, 3, OPEN, digest=(*OLD_DIGEST, third))
    inherited = {A: [SEALED_1, closed], B: [next_head]}
    assert ends((HEAD, 0), inherited, are_all_in=True)[0] == third


def test_a_part_that_ran_goes_by_its_own_head() -> None:
    """Its digest names inherited segments; the inherited end counts no more. What its own log has
    is read there."""
    new = segment_id(NEW, 2)
    rewritten, copied = replica(NEW, 1, SEALED), msgspec.structs.replace(SEALED_1, term=NEW)
    digest = (segment_id(OLD, 1), segment_id(NEW, 1), new)
    own = {A: [rewritten, replica(NEW, 2, OPEN, digest=digest)]}
    inherited = {A: [old_head()], B: [SEALED_1, old_head()]}
    part = record(new, INHERITS)
    assert plan(part, own, inherited) == [
        (segment_id(OLD, 1), SPLIT, ["b"]),
        (segment_id(NEW, 1), "", ["a"]),
        (new, "", ["a"]),
    ]
    own[B] = [copied]
    assert plan(part, own, {})[0] == (segment_id(OLD, 1), "", ["b"])


def test_what_neither_log_has_is_missing() -> None:
    """By name; also the own head, however whole the inherited log is."""
    new = segment_id(NEW, 1)
    own = {A: [replica(NEW, 1, OPEN, digest=(segment_id(OLD, 1), new))]}
    with pytest.raises(SegmentsMissing, match=r"segment 1\.1"):
        plan(record(new, INHERITS), own, {A: [old_head()]})
    with pytest.raises(SegmentsMissing, match="open segment"):
        plan(record(new, INHERITS), {}, {A: [SEALED_1, old_head()]})


def given_up(
    part: TabletRecord,
    own: dict[ServerInfo, list[ReplicaInfo]],
    inherited: dict[ServerInfo, list[ReplicaInfo]],
) -> tuple[Assessment, list[tuple[int, str, int]]]:
    """What it lacks; and (segment, log, length) of what it is recovered from once that is given
    up, of which nothing is missing any more."""
    of_own, of_split = held(PART, own), held(SPLIT, inherited)
    found = assess_part(part, 2, of_own, of_split)
    assert found is not None, "something is missing"
    kept = KeptLog(1, found.kept, skips_versions=found.is_end_lost)
    part = msgspec.structs.replace(part, kept=kept, term=part.term + 1)
    assert assess_part(part, 2, of_own, of_split) is None
    sources = plan_of(part, 2, {PART: of_own, SPLIT: of_split})
    return found, [(s.segment_id, s.log, s.length) for s in sources]


def test_of_what_is_inherited_a_segment_is_given_up() -> None:
    """Before the part has run: its end is as the split entry says, whatever replicas have."""
    part = record(HEAD, INHERITS)
    found, sources = given_up(part, {}, {A: [old_head(30)]})
    assert [lost.segment_id for lost in found.missing] == [segment_id(OLD, 1)]
    assert not found.is_end_lost
    assert sources == [(HEAD, SPLIT, 20)]


def test_of_a_part_that_ran_what_neither_log_has_is_given_up() -> None:
    """By its own head's digest; the rest is read where it is."""
    new = segment_id(NEW, 2)
    digest = (segment_id(OLD, 1), segment_id(OLD, 3), segment_id(NEW, 1), new)
    own = {A: [replica(NEW, 1, SEALED), replica(NEW, 2, OPEN, digest=digest, length=5)]}
    part = record(new, msgspec.structs.replace(INHERITS, head=segment_id(OLD, 4)))
    found, sources = given_up(part, own, {B: [SEALED_1]})
    assert [lost.segment_id for lost in found.missing] == [segment_id(OLD, 3)]
    assert sources == [(segment_id(OLD, 1), SPLIT, 10), (segment_id(NEW, 1), "", 10), (new, "", 5)]


def test_a_part_whose_own_head_is_lost_goes_on_from_the_inherited_one() -> None:
    """And from what its own log has whole. Versions beyond the end that the entry says it may have
    given anew: that tail is not read, and they go on far above."""
    own = {A: [replica(NEW, 1, SEALED)]}
    late = replica(OLD, 3, OPEN, digest=(*OLD_DIGEST, segment_id(OLD, 3)))
    part = record(segment_id(NEW, 2), INHERITS)
    found, sources = given_up(part, own, {B: [SEALED_1, old_head(30), late]})
    assert found.is_end_lost
    assert sorted(sources) == [
        (segment_id(OLD, 1), SPLIT, 10),
        (HEAD, SPLIT, 20),
        (segment_id(NEW, 1), "", 10),
    ]


def test_the_end_that_all_parts_read_is_kept_in_whatever_epoch_it_is() -> None:
    """The replica that was seen when the loss was accepted may be away: the other one begins with
    the same bytes. One that is too short does not count."""
    part = record(HEAD, INHERITS)
    later = msgspec.structs.replace(old_head(25), epoch=2)
    found, _ = given_up(part, {}, {A: [old_head(30)], B: [later]})
    part = msgspec.structs.replace(part, kept=KeptLog(1, found.kept), term=part.term + 1)
    for left in (later, old_head(30)):
        of_split = held(SPLIT, {B: [left]})
        assert assess_part(part, 2, {}, of_split) is None
        (end,) = plan_of(part, 2, {PART: {}, SPLIT: of_split})
        assert (end.segment_id, end.log, end.length, end.crc) == (HEAD, SPLIT, 20, 21)
    short = held(SPLIT, {B: [msgspec.structs.replace(old_head(19), epoch=2)]})
    lost = assess_part(part, 2, {}, short)
    assert lost is not None
    assert lost.is_end_lost
    with pytest.raises(SegmentsMissing):
        plan_of(part, 2, {PART: {}, SPLIT: short})


def test_of_a_part_that_ran_the_inherited_end_is_kept_as_well() -> None:
    """In its place among the segments; what else is gone is said, and the end is not."""
    own = {A: [replica(NEW, 1, SEALED)]}
    part = record(segment_id(NEW, 2), INHERITS)
    found, _ = given_up(part, own, {B: [SEALED_1, old_head(30)]})
    part = msgspec.structs.replace(part, kept=KeptLog(1, found.kept), term=part.term + 1)
    later = msgspec.structs.replace(old_head(25), epoch=2)
    sources = plan(part, own, {B: [SEALED_1, later]})
    assert [source[0] for source in sources] == [each.segment_id for each in found.kept]
    lost = assess_part(part, 2, held(PART, own), held(SPLIT, {B: [later]}))
    assert lost is not None
    assert [each.segment_id for each in lost.missing] == [segment_id(OLD, 1)]
    assert lost.kept_bytes == 35
