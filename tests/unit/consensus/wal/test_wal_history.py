"""Where logs part by their histories; sessions, messages and the proposer's log against models."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.consensus.wal.history import last_common_lsn
from stelae.consensus.wal.log import ProposerLog
from stelae.consensus.wal.messages import (
    AcceptorGreeting,
    AcceptorMail,
    ProposerElected,
    ProposerGreeting,
    ProposerMail,
    Refusal,
    RefusalReason,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
    check_message,
)
from stelae.consensus.wal.sessions import Session
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    NOBODY,
    ProposerId,
    SafekeeperId,
    TermStart,
    TimelineConfiguration,
    cut_history,
    extended_history,
    history_of,
    joined_history,
    term_at,
)

TIMELINE = TabletId("timeline")
FIRST = TimelineConfiguration(1, (SafekeeperId(1), SafekeeperId(2)))
HEAD = (TIMELINE, ProposerId("p"), SafekeeperId(1), 5, 1, 1, 3)
OPENING = (TIMELINE, ProposerId("p"), SafekeeperId(1), 5, 1, 1, 0)


def entries_of(terms: list[int], first: int = 1) -> list[Entry]:
    return [Entry(term, lsn, EntryKind.COMMAND, b"x") for lsn, term in enumerate(terms, first)]


@st.composite
def grown_logs(draw: st.DrawFn) -> list[list[int]]:
    """Terms of logs as leaders make them: each term's leader extends a prefix of some log, and
    others have prefixes of its log."""
    logs: list[list[int]] = [[]]
    for term in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(logs))
        kept = base[: draw(st.integers(0, len(base)))]
        # The first entry of a term lies at one place only: the leader had it before others.
        log = [*kept, *[term] * draw(st.integers(1, 3))]
        logs += [log, log[: draw(st.integers(0, len(log)))]]
    return logs


@given(grown_logs(), st.data())
def test_histories_tell_where_logs_part(logs: list[list[int]], data: st.DataObject) -> None:
    """The last common entry by histories is that by comparing entry for entry."""
    ours, theirs = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    found = last_common_lsn(
        history_of(entries_of(ours)), len(ours), history_of(entries_of(theirs)), len(theirs)
    )
    assert found == common


def test_a_leader_has_all_of_its_own_term() -> None:
    """A log that ends in the term of its leader is kept whole; contradictions are noticed."""
    ours = (TermStart(1, 1), TermStart(4, 3))
    assert last_common_lsn(ours, None, ours, 9) == 9
    assert last_common_lsn(ours, None, (TermStart(1, 1),), 7) == 2
    assert last_common_lsn(ours, None, (), 0) == 0
    assert last_common_lsn(ours, None, (TermStart(1, 1), TermStart(4, 5)), 9) is None
    assert last_common_lsn((TermStart(2, 1),), 4, (TermStart(1, 1),), 3) == 0


@given(st.lists(st.integers(1, 4), max_size=12).map(sorted), st.data())
def test_a_history_is_put_together_again(terms: list[int], data: st.DataObject) -> None:
    """From what was kept when a part was trimmed, and what is read back from the rest."""
    entries = entries_of(terms)
    whole = history_of(entries)
    base_lsn = data.draw(st.integers(0, len(terms)))
    kept_lsn = data.draw(st.integers(base_lsn, len(terms)))
    kept = history_of(entries[:kept_lsn])
    assert joined_history(kept, base_lsn, history_of(entries[base_lsn:])) == whole
    assert extended_history(history_of(entries[:base_lsn]), entries[base_lsn:]) == whole
    assert cut_history(whole, base_lsn) == history_of(entries[:base_lsn])
    assert [term_at(whole, entry.index) for entry in entries] == terms


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
def test_a_session_gives_each_message_once_and_in_order(
    order: list[int], doubled: list[int]
) -> None:
    """Whatever the order of arrival, and however often."""
    session = Session(1)
    taken: list[int] = []
    for sequence in [*order, *doubled]:
        message = WalVoteRequest(*HEAD[:-1], sequence)
        taken += [each.sequence for each in session.arrivals(message)]
    assert taken == list(range(1, 9))
    assert (session.waiting, session.waiting_bytes) == ({}, 0)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.data())
def test_the_proposers_log_is_a_window_of_a_list(sizes: list[int], data: st.DataObject) -> None:
    """Slices, cuts, commits and drops do to it what they do to a plain list."""
    log = ProposerLog(OpId(0, 0))
    log.found(())
    model = [
        Entry(1, lsn, EntryKind.COMMAND, b"x" * size) for lsn, size in enumerate(sizes, start=1)
    ]
    log.extend(model)
    commit = log.commit_lsn = data.draw(st.integers(0, len(model)))
    last = data.draw(st.integers(commit, len(model)))
    log.cut(last)
    model = model[:last]
    count, size = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 40))
    handed = log.unapplied(count, size)
    log.applied_lsn += len(handed)
    assert list(handed) == model[: len(handed)]
    assert len(handed) <= min(count, commit)
    assert len(handed) == 1 or sum(len(each.body) for each in handed) <= size
    log.drop(data.draw(st.integers(0, last)), data.draw(st.integers(0, 40)))
    assert log.base.index <= log.applied_lsn
    assert log.size_bytes == sum(len(each.body) for each in model[log.base.index :])
    assert log.uncommitted_bytes == sum(len(each.body) for each in model[commit:])
    if log.last.index > log.base.index:
        first = data.draw(st.integers(log.base.index + 1, last))
        found = log.slice(first, count, size)
        assert list(found) == model[first - 1 : first - 1 + len(found)]
        assert found
    log.check_invariants()


GOOD = [
    ProposerGreeting(TIMELINE, ProposerId("p"), SafekeeperId(1), 0, 0, 1, 0, None),
    ProposerGreeting(*OPENING, FIRST),
    WalVoteRequest(*HEAD),
    ProposerElected(*HEAD, (TermStart(2, 1), TermStart(5, 4)), 3),
    WalAppendRequest(*HEAD, OpId(4, 2), tuple(entries_of([4, 5], 3)), 2, 1, 7),
    AcceptorGreeting(*OPENING, FIRST),
    WalVoteResponse(*HEAD, (TermStart(2, 1),), 3, 2, 1),
    WalAppendResponse(*HEAD, 3, 2, 1, 7),
    Refusal(*HEAD, RefusalReason.TERM, FIRST),
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Any) -> None:
    """What is sent is what arrives, and it passes the check."""
    check_message(message)
    kind = type(message).__name__
    to_proposer = kind.endswith("Response") or kind in ("AcceptorGreeting", "Refusal")
    mail: Any = AcceptorMail(TIMELINE, ProposerId("p"), (message,))
    if not to_proposer:
        mail = ProposerMail(TIMELINE, Address("host:1"), (message,))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mail), type=type(mail)) == mail


BAD = [
    WalVoteRequest(*HEAD[:-1], 0),
    WalVoteRequest(*HEAD[:3], 0, *HEAD[4:]),
    WalVoteRequest(*HEAD[:-2], 0, 1),
    WalVoteRequest(TIMELINE, NOBODY, *HEAD[2:]),
    ProposerGreeting(*HEAD, FIRST),
    ProposerGreeting(*OPENING, None),
    ProposerGreeting(*OPENING, TimelineConfiguration(1, ())),
    ProposerGreeting(*OPENING, TimelineConfiguration(2, FIRST.sk_set)),
    AcceptorGreeting(*OPENING, TimelineConfiguration(1, (SafekeeperId(1), SafekeeperId(1)))),
    ProposerElected(*HEAD, (), 0),
    ProposerElected(*HEAD, (TermStart(5, 4), TermStart(5, 5)), 0),
    ProposerElected(*HEAD, (TermStart(4, 1),), 0),
    ProposerElected(*HEAD, (TermStart(5, 1),), -1),
    WalAppendRequest(*HEAD, OpId(4, 2), tuple(entries_of([4], 4)), 0, 0, 0),
    WalAppendRequest(*HEAD, OpId(4, 2), tuple(entries_of([3], 3)), 0, 0, 0),
    WalAppendRequest(*HEAD, OpId(4, 2), tuple(entries_of([6], 3)), 0, 0, 0),
    WalAppendRequest(*HEAD, OpId(4, 2), (), 1, 2, 0),
    WalVoteResponse(*HEAD, (), 3, 0, 0),
    WalVoteResponse(*HEAD, (TermStart(2, 4),), 3, 0, 0),
    WalVoteResponse(*HEAD, (TermStart(6, 1),), 3, 0, 0),
    WalAppendResponse(*HEAD, 3, 4, 0, 0),
]


@pytest.mark.parametrize("message", BAD, ids=lambda message: type(message).__name__)
def test_what_no_correct_peer_sends_is_refused(message: Any) -> None:
    """Each of these breaks one rule of the protocol."""
    with pytest.raises(InvalidArgument):
        check_message(message)
