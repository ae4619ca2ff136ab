"""What proposers, safekeepers and the controller of a timeline say to each other.

Between proposer and safekeeper all messages are one-way, an answer is a message of its own, and the
transport may lose, double and reorder them. What a proposer sends to one safekeeper belongs to a
*session*, opened by a greeting with sequence 0; the safekeeper takes the messages of a session
once and in order, those of an older one never. A lost message ends the session: the proposer
greets again. Every message names the sender's term and generation. Neon RFC 035, "Compute <->
safekeeper protocol changes"; sessions stand in for its TCP connections.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import (
    NOBODY,
    LogPosition,
    ProposerId,
    SafekeeperId,
    TermHistory,
    TermStart,
    TimelineConfiguration,
    check_configuration,
    check_history,
)
from stelae.core.rpc import Body, Empty, Method

BESIDE_BYTES = 4 << 10
"""Bodies from this size on can travel beside their mail."""


class WalHeader(msgspec.Struct, frozen=True, array_like=True):
    """Fields that every message starts with.

    ``term`` and ``generation`` are the sender's (a generation of 0: it has established none).
    ``session`` and ``sequence`` are the proposer's; an answer repeats those of what it answers.
    """

    timeline_id: TabletId
    proposer: ProposerId
    safekeeper: SafekeeperId
    term: int
    generation: int
    session: int
    sequence: int


# ---- from the proposer --------------------------------------------------------------------------


class ProposerGreeting(WalHeader, frozen=True, array_like=True, tag="greeting"):
    """Opens a session. The configuration is that which the proposer has established, if any."""

    configuration: TimelineConfiguration | None


class WalVoteRequest(WalHeader, frozen=True, array_like=True, tag="vote"):
    """Asks for the vote in ``term``."""


class ProposerElected(WalHeader, frozen=True, array_like=True, tag="elected"):
    """The proposer has won ``term``. ``history`` is that of its log, its own term being the last:
    the safekeeper cuts its log where they part, and says where that is.

    Entries up to ``horizon_lsn`` are committed, and needed no more: a log that parts before it
    goes on after it, without them.
    """

    history: TermHistory
    horizon_lsn: int


class WalAppendRequest(WalHeader, frozen=True, array_like=True, tag="append"):
    """Entries that follow ``previous``, the last entry of the safekeeper's log; none: a heartbeat.

    The answer repeats ``round``, which confirms the term after that round began.
    """

    previous: OpId
    entries: tuple[Entry, ...]
    commit_lsn: int
    horizon_lsn: int
    """Entries up to here are needed no more."""
    round: int


# ---- from the safekeeper ------------------------------------------------------------------------


class AcceptorGreeting(WalHeader, frozen=True, array_like=True, tag="greeted"):
    configuration: TimelineConfiguration


class WalVoteResponse(WalHeader, frozen=True, array_like=True, tag="voted"):
    """The vote in ``term`` is granted (what is not is a `Refusal`); all of the log is durable."""

    history: TermHistory
    flush_lsn: int
    commit_lsn: int
    horizon_lsn: int

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.history[-1].term if self.history else 0, self.flush_lsn)


class WalAppendResponse(WalHeader, frozen=True, array_like=True, tag="appended"):
    """The log is durable, and equal to the proposer's, up to ``flush_lsn``, where it ends.

    It answers `ProposerElected` too, and says by that where to go on.
    """

    flush_lsn: int
    commit_lsn: int
    horizon_lsn: int
    round: int


class RefusalReason(enum.IntEnum):
    """Why a safekeeper did nothing; what the proposer does about it."""

    GENERATION = 0
    """Ours is another: the lower one of both has to learn the other's configuration."""
    NOT_MEMBER = 1
    """This safekeeper is in no set of that configuration."""
    TERM = 2
    """Ours is higher, or our vote in it went to another."""
    SESSION = 3
    """That session is not known (any more), or something in it went wrong: greet again."""
    DIVERGED = 4
    """The log would have to be cut below what is committed: somebody broke the protocol."""


class Refusal(WalHeader, frozen=True, array_like=True, tag="refused"):
    """Nothing was done; ``configuration`` is the safekeeper's."""

    reason: RefusalReason
    configuration: TimelineConfiguration


ToAcceptor: TypeAlias = ProposerGreeting | WalVoteRequest | ProposerElected | WalAppendRequest
ToProposer: TypeAlias = AcceptorGreeting | WalVoteResponse | WalAppendResponse | Refusal


class ProposerMail(Body, frozen=True):
    """Messages of one proposer to one safekeeper. ``address`` is where it wants its answers.

    `packed` makes one whose large bodies travel beside it, and `unpacked` takes it apart.
    """

    timeline_id: TabletId
    address: Address
    messages: tuple[ToAcceptor, ...]
    takes_replies: bool = False
    """Whether answers that do not take long may be in the reply to this."""
    beside: tuple[int, ...] = ()
    """Which entries, all messages' counted as one row, are without their bodies here."""


def packed(mail: ProposerMail) -> tuple[ProposerMail, list[bytes]]:
    """The same with the bodies of large entries beside it: there they are not copied."""
    beside: list[int] = []
    bodies: list[bytes] = []

    def emptied(number: int, entry: Entry) -> Entry:
        if len(entry.body) < BESIDE_BYTES:
            return entry
        beside.append(number)
        bodies.append(entry.body)
        return Entry(entry.term, entry.index, entry.kind, b"")

    messages = _each_entry(mail.messages, emptied)
    return replace(mail, messages=messages, beside=tuple(beside)), bodies


def unpacked(mail: ProposerMail, bodies: Sequence[memoryview]) -> tuple[ToAcceptor, ...]:
    """The messages of a mail, whole. Raises InvalidArgument: those are not its bodies."""
    if not mail.beside and not bodies:
        return mail.messages
    found = dict(zip(mail.beside, bodies, strict=False))
    refusal = InvalidArgument(f"mail with {len(bodies)} bodies beside it, of {mail.beside[:10]}")
    ascend = all(before < after for before, after in pairwise((-1, *mail.beside)))
    if not ascend or len(mail.beside) != len(bodies):
        raise refusal

    def filled(number: int, entry: Entry) -> Entry:
        body = found.pop(number, None)
        if body is None:
            return entry
        if entry.body:
            raise refusal
        return Entry(entry.term, entry.index, entry.kind, bytes(body))

    messages = _each_entry(mail.messages, filled)
    if found:
        raise refusal
    return messages


def _each_entry(
    messages: Sequence[ToAcceptor], change: Callable[[int, Entry], Entry]
) -> tuple[ToAcceptor, ...]:
    """The messages with their entries changed, which are counted as one row."""
    changed: list[ToAcceptor] = []
    number = 0
    for message in messages:
        if isinstance(message, WalAppendRequest):
            entries = tuple([change(n, entry) for n, entry in enumerate(message.entries, number)])
            number += len(entries)
            changed.append(replace(message, entries=entries))
        else:
            changed.append(message)
    return tuple(changed)


class AcceptorMail(Body, frozen=True):
    """Messages of one safekeeper to one proposer."""

    timeline_id: TabletId
    proposer: ProposerId
    messages: tuple[ToProposer, ...]


class AcceptorReply(Body, frozen=True):
    """The answers of a safekeeper that did not take long; what it says later comes as mail."""

    messages: tuple[ToProposer, ...] = ()


WAL_TO_ACCEPTOR: Method[ProposerMail, AcceptorReply] = Method(
    "wal.to_acceptor", ProposerMail, AcceptorReply
)
"""Raises TabletNotFound, TabletTombstoned: this safekeeper has no such timeline."""
WAL_TO_PROPOSER: Method[AcceptorMail, Empty] = Method(
    "wal.to_proposer", AcceptorMail, Empty, "names the life of a proposer, which is on one server"
)


# ---- reading and control ------------------------------------------------------------------------


class FetchEntries(Body, frozen=True):
    """Asks a safekeeper for entries of its log, as many from the first on as it likes to send.

    What is not known there to be committed is only served for its current term.
    """

    timeline_id: TabletId
    term: int
    generation: int
    first_lsn: int
    last_lsn: int
    size_max_bytes: int


class FetchedEntries(Body, frozen=True):
    """None, if that may not be served: ``term`` and ``configuration`` say why, or it is trimmed."""

    entries: tuple[Entry, ...]
    term: int
    configuration: TimelineConfiguration
    horizon_lsn: int


class SwitchConfiguration(Body, frozen=True):
    """PUT configuration: adopt it if it is higher, and in the same write raise the term to
    ``min_term``, if the generation is that of the configuration by then."""

    timeline_id: TabletId
    configuration: TimelineConfiguration
    min_term: int = 0


class BumpTerm(Body, frozen=True):
    """Raise the term, so that none up to ``term`` is won with this safekeeper's help any more."""

    timeline_id: TabletId
    generation: int
    term: int


class Exclude(Body, frozen=True):
    """Delete the timeline on a safekeeper that is no member of ``configuration``, unless that
    safekeeper knows of a higher one."""

    timeline_id: TabletId
    configuration: TimelineConfiguration


class ExcludeReply(Body, frozen=True):
    """``configuration`` is that which the safekeeper had."""

    excluded: bool
    configuration: TimelineConfiguration


class TimelineStatusOf(Body, frozen=True):
    timeline_id: TabletId


class TimelineStatus(Body, frozen=True):
    """What a safekeeper has of a timeline, taken at one point, all of it durable."""

    configuration: TimelineConfiguration
    term: int
    voted_for: ProposerId
    history: TermHistory
    flush_lsn: int
    commit_lsn: int
    horizon_lsn: int
    proposer: ProposerId = NOBODY
    """Who appends in ``term``, as far as was heard since the start."""

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.history[-1].term if self.history else 0, self.flush_lsn)


WAL_FETCH: Method[FetchEntries, FetchedEntries] = Method("wal.fetch", FetchEntries, FetchedEntries)
WAL_STATUS: Method[TimelineStatusOf, TimelineStatus] = Method(
    "wal.status", TimelineStatusOf, TimelineStatus
)


def check_message(message: ToAcceptor | ToProposer) -> None:
    """Refuse what no correct peer sends. Raises InvalidArgument."""
    _check_header(message)
    match message:
        case ProposerGreeting() | AcceptorGreeting() | Refusal():
            _check_greeting(message)
        case ProposerElected():
            check_history(message.history)
            if not message.history or message.history[-1].term != message.term:
                raise InvalidArgument("ProposerElected whose history does not end in its term")
            if message.horizon_lsn < 0:
                raise InvalidArgument(f"ProposerElected with horizon {message.horizon_lsn}")
        case WalAppendRequest():
            _check_entries(message)
        case WalVoteResponse():
            _check_extent(message)
            _check_vote(message)
        case WalAppendResponse():
            _check_extent(message)
        case WalVoteRequest():
            pass


def _check_header(message: ToAcceptor | ToProposer) -> None:
    kind = type(message).__name__
    if min(message.term, message.generation, message.sequence) < 0 or message.session < 1:
        raise InvalidArgument(f"malformed {kind}")
    if message.proposer == NOBODY:
        raise InvalidArgument(f"{kind} of nobody")
    opens = isinstance(message, ProposerGreeting | AcceptorGreeting)
    if opens != (message.sequence == 0) and not isinstance(message, Refusal):
        raise InvalidArgument(f"{kind} with sequence {message.sequence}")
    names_both = not isinstance(message, ProposerGreeting | AcceptorGreeting | Refusal)
    if names_both and min(message.term, message.generation) < 1:
        raise InvalidArgument(f"{kind} of no term or generation")


def _check_greeting(message: ProposerGreeting | AcceptorGreeting | Refusal) -> None:
    configuration = message.configuration
    if configuration is not None:
        check_configuration(configuration)
    if message.generation != (configuration.generation if configuration is not None else 0):
        raise InvalidArgument(f"{type(message).__name__} with another generation's configuration")


def _check_vote(message: WalVoteResponse) -> None:
    check_history(message.history)
    end = message.history[-1] if message.history else TermStart(0, 0)
    if (end.term == 0) != (message.flush_lsn == 0):
        raise InvalidArgument("a vote whose history does not fit its log")
    if end.start_lsn > message.flush_lsn or end.term > message.term:
        raise InvalidArgument("a vote whose history goes beyond its log")


def _check_extent(message: WalVoteResponse | WalAppendResponse) -> None:
    if not 0 <= message.horizon_lsn <= message.commit_lsn <= message.flush_lsn:
        raise InvalidArgument(f"{type(message).__name__} of an impossible log")


def _check_entries(message: WalAppendRequest) -> None:
    before = message.previous
    if min(before.term, before.index, message.round) < 0 or before.term > message.term:
        raise InvalidArgument(f"entries after {before}")
    if not 0 <= message.horizon_lsn <= message.commit_lsn:
        raise InvalidArgument(f"horizon {message.horizon_lsn} above commit {message.commit_lsn}")
    for entry in message.entries:
        if entry.index != before.index + 1 or not before.term <= entry.term <= message.term:
            raise InvalidArgument(f"entry {entry.op_id} cannot follow {before}")
        before = entry.op_id
