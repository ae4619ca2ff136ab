"""The control file of a timeline: round trips, flipped bytes, and what no step may do."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import (
    NOTHING,
    AcceptorState,
    LogCut,
    LogPosition,
    ProposerId,
    SafekeeperId,
    TermStart,
    TimelineConfiguration,
    TimelineSnapshot,
    WalFile,
)
from stelae.storage.files.timeline_control import (
    FOREVER,
    EvictedLog,
    OffloadedFile,
    Presence,
    TimelineControl,
    TimelineTombstone,
    blobs_forgotten,
    brought_back,
    created,
    decode_control,
    deleted,
    encode_control,
    evicted,
    history_problem,
    is_newer,
    log_cut,
    merged_acceptor,
    offloading,
    pulled,
    pulling,
    saved,
    trimmed,
    unknown,
)

TABLET = TabletId("t1")


def members(generation: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, (SafekeeperId(1), SafekeeperId(2)))


STATE = AcceptorState(
    members(3), 7, ProposerId("p"), (TermStart(2, 1), TermStart(5, 4)), commit_lsn=8, horizon_lsn=6
)
NEW = created(unknown(TABLET), members(1), 1)
LIVE = saved(NEW, STATE)
AWAY = EvictedLog(STATE.term_history, OpId(5, 9), (OffloadedFile(WalFile("w", 3, 4), "1/t1/4/w"),))
GONE = deleted(LIVE, 4)
ALL = {
    "being pulled": pulling(unknown(TABLET)),
    "new": NEW,
    "live": LIVE,
    "cut": log_cut(LIVE, 9),
    "trimmed": trimmed(LIVE, 5),
    "being offloaded": offloading(LIVE, ("1/t1/4/w",)),
    "evicted": evicted(offloading(LIVE, ("1/t1/4/w",)), AWAY),
    "deleted": GONE,
    "back": created(GONE, members(5), 2),
}


@pytest.mark.parametrize("control", ALL.values(), ids=list(ALL))
def test_a_control_file_reads_back_as_written(control: TimelineControl) -> None:
    """Encode and decode are inverse, for every state of a timeline."""
    assert decode_control("c", TABLET, encode_control(control)) == control
    with pytest.raises(CorruptData, match="belongs to"):
        decode_control("c", TabletId("t2"), encode_control(control))


@given(data=st.data())
def test_a_control_file_with_a_wrong_byte_is_corrupt(data: st.DataObject) -> None:
    """Nothing is believed of it; and of a part of it neither."""
    content = bytearray(encode_control(ALL["evicted"]))
    at = data.draw(st.integers(0, len(content) - 1))
    cut = bytes(content[:at])
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(content), cut):
        with pytest.raises(CorruptData):
            decode_control("c", TABLET, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(LIVE, acceptor=None),
        msgspec.structs.replace(LIVE, presence=Presence.EVICTED),
        msgspec.structs.replace(LIVE, base_lsn=7),
        msgspec.structs.replace(LIVE, tombstone=TimelineTombstone(3, 1)),
        msgspec.structs.replace(GONE, tombstone=None),
    ],
)
def test_a_control_file_that_no_step_made_is_corrupt(wrong: TimelineControl) -> None:
    """Also if its checksum is right."""
    with pytest.raises(CorruptData):
        decode_control("c", TABLET, encode_control(wrong))


COPY = TimelineSnapshot(TABLET, STATE, 2, OpId(5, 9), LogCut(3, 5), ())
"""Of generation 3."""


@pytest.mark.parametrize(
    "step",
    [
        lambda: saved(LIVE, msgspec.structs.replace(STATE, term=6)),
        lambda: saved(LIVE, msgspec.structs.replace(STATE, voted_for=ProposerId("q"))),
        lambda: saved(LIVE, msgspec.structs.replace(STATE, configuration=members(2))),
        lambda: saved(LIVE, msgspec.structs.replace(STATE, commit_lsn=7)),
        lambda: saved(LIVE, msgspec.structs.replace(STATE, horizon_lsn=9)),
        lambda: log_cut(LIVE, 8),
        lambda: trimmed(LIVE, 7),
        lambda: created(LIVE, members(9), 2),
        lambda: created(GONE, members(4), 2),
        lambda: created(deleted(LIVE, FOREVER), members(1 << 40), 2),
        lambda: pulled(deleted(LIVE, 3), COPY, STATE, 2),
    ],
)
def test_steps_that_would_break_a_promise_are_bugs(step: Callable[[], object]) -> None:
    """Terms, votes, generations, commits and tombstones only grow; what is committed stays."""
    with pytest.raises(AssertionError):
        step()


def test_blobs_are_known_from_before_they_are_written_until_they_are_gone() -> None:
    """In every state each blob either counts or is to be deleted."""
    begun = offloading(LIVE, ("1/t1/4/w", "1/t1/4/v"))
    away = evicted(begun, AWAY)
    assert away.stale_blobs == ("1/t1/4/v",)
    assert deleted(away, 4).stale_blobs == ("1/t1/4/v", "1/t1/4/w")
    back = brought_back(away, 2)
    assert back.stale_blobs == ("1/t1/4/v", "1/t1/4/w")
    assert blobs_forgotten(back, ("1/t1/4/w",)).stale_blobs == ("1/t1/4/v",)


def test_a_tombstone_keeps_the_highest_generation_and_term() -> None:
    """However often, and in which order, it is deleted."""
    again = deleted(saved(created(GONE, members(5), 2), AcceptorState(members(5), 9)), 5)
    assert again.tombstone == TimelineTombstone(5, 9)
    assert deleted(again, 2).tombstone == TimelineTombstone(5, 9)


@pytest.mark.parametrize(("pulled_term", "term", "vote"), [(6, 7, "p"), (7, 7, "p"), (8, 8, "")])
def test_a_pull_keeps_the_own_vote_unless_the_term_rises(
    pulled_term: int, term: int, vote: str
) -> None:
    """In a term that comes with the copy nobody got this safekeeper's vote."""
    theirs = AcceptorState(members(4), pulled_term, ProposerId("x"), STATE.term_history, 9, 2)
    merged = merged_acceptor(LIVE, theirs, members(5))
    assert (merged.term, merged.voted_for) == (term, vote)
    assert (merged.commit_lsn, merged.horizon_lsn) == (9, 6)
    assert merged.configuration == members(5)
    assert merged_acceptor(GONE, AcceptorState(members(4)), members(5)).term == 7


def test_a_pulled_copy_takes_the_place_of_what_was_here() -> None:
    """Its blobs are to go, its files have a folder of their own."""
    away = evicted(offloading(LIVE, ("1/t1/4/w",)), AWAY)
    snapshot = TimelineSnapshot(TABLET, STATE, 2, OpId(5, 9), LogCut(3, 5), ())
    after = pulled(away, snapshot, STATE, 2)
    assert (after.presence, after.incarnation) == (Presence.RESIDENT, 2)
    assert (after.base_lsn, after.cut, after.evicted) == (2, LogCut(3, 5), None)
    assert after.stale_blobs == ("1/t1/4/w",)


def test_positions_compare_by_the_last_term_first() -> None:
    """A longer log of an older leader is not ahead."""
    assert is_newer(LogPosition(3, 5), LogPosition(2, 9))
    assert not is_newer(LogPosition(2, 9), LogPosition(2, 9))
    assert not is_newer(LogPosition(2, 8), LogPosition(2, 9))


@pytest.mark.parametrize(
    "changes",
    [
        {"base_lsn": 7},
        {"last": OpId(5, 7)},
        {"last": OpId(4, 9)},
        {"last": NOTHING},
        {"acceptor": msgspec.structs.replace(STATE, term=4)},
        {"acceptor": msgspec.structs.replace(STATE, term_history=())},
    ],
)
def test_a_manifest_must_agree_with_itself(changes: dict[str, object]) -> None:
    """Base, horizon, commit, end and history of a log follow one another."""
    good = TimelineSnapshot(TABLET, STATE, 2, OpId(5, 9), LogCut(0, 0), ())
    assert history_problem(good) == ""
    assert history_problem(msgspec.structs.replace(good, **changes)) != ""
