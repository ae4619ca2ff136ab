"""`stelae.recovery.losses`: what a log lacks and what of it is kept; and replicas that may be
short."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import segment_id
from stelae.core.messages.backups import LogInventory, ReplicaInfo, ReplicaState
from stelae.core.records.losses import Assessment, KeptLog, KeptSegment, LostSegment, SegmentFacts
from stelae.core.records.records import ServerInfo
from stelae.recovery.losses import assess, assess_sealed
from stelae.recovery.plan import plan_recovery

_SPEC = importlib.util.spec_from_file_location(
    "recovery_log_model_2", Path(__file__).with_name("log_model.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
model = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = model
_SPEC.loader.exec_module(model)

OPEN, CLOSED, SEALED = ReplicaState.OPEN, ReplicaState.CLOSED, ReplicaState.SEALED
A, B, C = (model.backup_info(number) for number in (1, 2, 3))
FACTS = {n: SegmentFacts(segment_id(1, n), 10 * n, 100 * n, 1000 * n) for n in range(1, 6)}


def replica(
    number: int,
    state: ReplicaState = SEALED,
    *,
    digest: tuple[int, ...] = (),
    length: int = 10,
    epoch: int = 0,
    short: bool = False,
) -> ReplicaInfo:
    """Segment ``number`` of term 1, as a backup tells it."""
    ids = tuple(segment_id(1, n) for n in digest)
    facts = tuple(FACTS[n] for n in digest if n != number)
    return ReplicaInfo(segment_id(1, number), 1, epoch, state, "disk", length, 0, ids, facts, short)


def head(number: int, digest: tuple[int, ...], **facts: Any) -> ReplicaInfo:
    return replica(number, OPEN, digest=digest, **facts)


def held(by: dict[ServerInfo, list[ReplicaInfo]]) -> dict[ServerInfo, LogInventory]:
    return {b: LogInventory(model.TABLET, 2, tuple(found)) for b, found in by.items()}


def tablet(valid: tuple[int, int] = (0, 0), kept: KeptLog | None = None) -> Any:
    """A record whose mark is segment ``valid[0]`` of term 1, epoch ``valid[1]``."""
    log = model.LogModel(random.Random(0), 1, 1)
    log.mark = (segment_id(1, valid[0]) if valid[0] else 0, valid[1])
    return msgspec.structs.replace(log.tablet, kept=kept)


def lost(number: int, kept_bytes: int = 0, *, known: bool = True) -> LostSegment:
    if not known:
        return LostSegment(segment_id(1, number), kept_bytes=kept_bytes)
    facts = FACTS[number]
    return LostSegment(
        facts.segment_id, facts.rows, facts.size_bytes, facts.next_version, kept_bytes
    )


def kept(*numbers: int, end: tuple[int, int] | None = None) -> tuple[KeptSegment, ...]:
    found = [KeptSegment(segment_id(1, number)) for number in numbers]
    if end is not None:
        found.append(KeptSegment(segment_id(1, end[0]), end[1]))
    return tuple(found)


WHOLE = [replica(1), replica(2), head(3, (1, 2, 3))]
CASES: dict[str, tuple[Any, dict[ServerInfo, list[ReplicaInfo]], Assessment | None]] = {
    "nothing is lost": (tablet(), {A: WHOLE}, None),
    "a sealed segment, with what it held": (
        tablet(),
        {A: [replica(1), head(3, (1, 2, 3))]},
        Assessment((lost(2),), False, True, kept(1, end=(3, 0)), 20),
    ),
    "all replicas of the head, and the newest digest is an old one": (
        tablet((3, 1)),
        {A: [replica(1), replica(2), head(3, (1, 2, 3), length=7)]},
        Assessment((lost(3, 7, known=False),), True, True, kept(1, 2, end=(3, 0)), 27),
    ),
    "the head and a segment that only it would name": (
        tablet(),
        {A: [replica(1), replica(2)]},
        Assessment((), True, False, kept(1, 2), 20),
    ),
    "everything": (tablet(), {A: []}, Assessment((), True, False, (), 0)),
    "a segment of which a stale beginning is left": (
        tablet((2, 1)),
        {A: [replica(1), replica(2, OPEN, length=4), head(3, (1, 2, 3))]},
        Assessment((lost(2, 4),), False, True, (*kept(1, end=(2, 0)), *kept(end=(3, 0))), 24),
    ),
    "final segments younger than the newest head that is left": (
        tablet((9, 0)),
        {A: [replica(1), head(2, (1, 2), length=5), replica(4), replica(5)]},
        Assessment(
            (lost(2, 5, known=False),), True, False, (*kept(1, 4, 5), *kept(end=(2, 0))), 35
        ),
    ),
    "what such a head names may have been freed": (
        tablet((9, 0)),
        {A: [head(2, (1, 2), length=5), replica(4)]},
        Assessment((lost(2, 5, known=False),), True, False, (*kept(4), *kept(end=(2, 0))), 15),
    ),
    "more, after a loss was accepted": (
        tablet(kept=KeptLog(1, kept(1, 2, end=(3, 0)))),
        {A: [replica(1), head(3, (1, 2, 3))]},
        Assessment((lost(2, known=False),), False, True, kept(1, end=(3, 0)), 20),
    ),
    "nothing more, after a loss was accepted": (
        tablet(kept=KeptLog(1, kept(1, end=(3, 0)))),
        {A: [replica(1), head(3, (1, 2, 3))]},
        None,
    ),
    "nothing more than a tablet that was served has given up": (
        tablet(kept=KeptLog(1, (), given_up=(segment_id(1, 2),))),
        {A: [replica(1), head(3, (1, 2, 3))]},
        None,
    ),
    "more than a tablet that was served has given up": (
        tablet(kept=KeptLog(1, (), given_up=(segment_id(1, 2),))),
        {A: [replica(2), head(3, (1, 2, 3))]},
        Assessment((lost(1),), False, True, kept(end=(3, 0)), 10),
    ),
    "its end as well, after a loss was accepted": (
        tablet(kept=KeptLog(1, kept(1, end=(3, 0)))),
        {A: [replica(1)]},
        Assessment((lost(3, known=False),), True, True, kept(1), 10),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_and_what_is_kept(case: str) -> None:
    """Each case by itself; a plan is possible exactly where nothing is lost."""
    record, found, expected = CASES[case]
    assert assess(record, 2, held(found)) == expected
    if expected is None:
        assert plan_recovery(record, 2, held(found))
    else:
        with pytest.raises(SegmentsMissing):
            plan_recovery(record, 2, held(found))


@pytest.mark.parametrize("case", [case for case, (_, _, found) in CASES.items() if found])
def test_what_is_kept_can_be_read_and_nothing_else_is(case: str) -> None:
    """Accepted, the plan has just these segments, also once all others have come back."""
    record, found, expected = CASES[case]
    assert expected is not None
    accepted = msgspec.structs.replace(record, kept=KeptLog(1, expected.kept))
    back = {**found, B: [replica(1), replica(2), head(3, (1, 2, 3), epoch=9), replica(4)]}
    for inventories in (found, back):
        sources = plan_recovery(accepted, 2, held(inventories))
        assert [s.segment_id for s in sources] == [each.segment_id for each in expected.kept]
        for source, each in zip(sources, expected.kept, strict=True):
            assert each.epoch < 0 or source.epoch == each.epoch


def test_a_head_that_may_be_short_is_taken_only_if_there_is_no_other_to_wait_for() -> None:
    """Of two replicas: never while the other may be whole; the longest, if both say the same."""
    short, whole = head(1, (1,), length=5, short=True), head(1, (1,), length=9)
    (source,) = plan_recovery(tablet(), 2, held({A: [short], B: [whole]}))
    assert [backup for backup, _, _ in source.replicas] == [B.uuid]
    with pytest.raises(SegmentsMissing):
        plan_recovery(tablet(), 2, held({A: [short]}))
    longer = head(1, (1,), length=8, short=True)
    (source,) = plan_recovery(tablet(), 2, held({A: [short], B: [longer]}))
    assert [backup for backup, _, _ in source.replicas] == [B.uuid, A.uuid]
    found = assess(tablet(), 2, held({A: [short]}))
    assert found is not None
    assert found.is_end_lost
    assert found.kept == kept(end=(1, 0))


def test_a_whole_head_of_an_epoch_before_is_taken_where_those_of_the_newest_may_be_short() -> None:
    """The catalog does not know the newest epoch: nothing was acknowledged in it."""
    short, whole = head(1, (1,), length=9, epoch=5, short=True), head(1, (1,), length=9, epoch=2)
    (source,) = plan_recovery(tablet(), 3, held({A: [short], B: [whole]}))
    assert [backup for backup, _, _ in source.replicas] == [B.uuid]
    with pytest.raises(SegmentsMissing):
        plan_recovery(tablet((1, 3)), 3, held({A: [short], B: [whole]}))


def test_of_a_timelines_tablet_is_missing_what_its_owner_lacks_and_no_backup_holds() -> None:
    """Open replicas count for nothing: what is not sealed is in the timeline."""
    lacks = (FACTS[1], FACTS[2], FACTS[3])
    inventories = held({A: [replica(1), replica(4)], B: [head(2, (2,))]})
    found = assess_sealed(lacks, inventories)
    assert found == Assessment((lost(2), lost(3)), False, True, kept(1, 4), 20)
    assert assess_sealed((FACTS[1],), inventories) is None
    assert assess_sealed((), inventories) is None
    other = held({C: [replica(2)]})
    assert assess_sealed(lacks, inventories, other) == Assessment(
        (lost(3),), False, True, kept(1, 2, 4), 30
    )


def test_what_a_served_tablet_has_given_up_is_not_read_though_it_is_there() -> None:
    """All else of its log is, also what was written since the loss was looked at."""
    record = tablet(kept=KeptLog(1, (), given_up=(segment_id(1, 2),)))
    later = {A: [replica(1), replica(2), replica(3), head(4, (1, 2, 3, 4))]}
    sources = plan_recovery(record, 2, held(later))
    assert [each.segment_id for each in sources] == [segment_id(1, n) for n in (1, 3, 4)]


def test_a_head_that_is_known_to_be_closed_for_good_is_not_read_again() -> None:
    """Its backup was away when it was cleaned; another one that freed some of it says so."""
    found = held({A: [head(2, (1, 2), length=5)], B: [replica(4)]})
    found[B] = msgspec.structs.replace(found[B], heads_from=segment_id(1, 3))
    assessed = assess(tablet((9, 0)), 2, found)
    assert assessed == Assessment((), True, False, kept(4), 10)
    found[B] = msgspec.structs.replace(found[B], heads_from=segment_id(1, 2))
    again = assess(tablet((9, 0)), 2, found)
    assert again is not None
    assert again.kept == (*kept(4), *kept(end=(2, 0)))
