"""What replicas of one group say to each other, and the remote methods that carry it.

All messages are one-way: an answer is a message of its own, though it may travel back with the
reply to the call that brought the question (`RaftAnswers`). The core tolerates loss, duplication
and reordering, so the transport promises nothing. Every message names group, source, destination
and the sender's term (for a pre-vote: the term asked for). Raft §5, §7; pre-vote: Raft thesis §9.6.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import Configuration, Entry, EntryKind, configuration_of
from stelae.core.rpc import Method


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Fields that every message starts with."""

    group_id: TabletId
    source: ServerUuid
    destination: ServerUuid
    term: int


class VoteRequest(Header, frozen=True, array_like=True, tag="vote"):
    """``pre`` asks what the answer would be, and changes nothing at the voter.

    ``transfer``: the leader of the preceding term gave up and asked for this election, so that
    voters need not wait until they have not heard of it for a while.

    ``taken_back``: the source led that term, has not committed that entry, nor any later one of the
    term, and will not: voters need not find them in its log. So a change of members ends that
    cannot be committed by those whom it made members.
    """

    last: OpId
    pre: bool
    transfer: bool
    taken_back: OpId | None = None


class VoteResponse(Header, frozen=True, array_like=True, tag="voted"):
    """A granted pre-vote carries the term asked for; every other answer the voter's own term."""

    pre: bool
    granted: bool


class AppendRequest(Header, frozen=True, array_like=True, tag="append"):
    """Entries that follow ``previous``; without entries it is a heartbeat or a probe.

    ``round`` counts the leader's heartbeat rounds in this term; the answer repeats it, which
    confirms that the follower still followed after that round began. ``needed_from`` is the first
    entry that some member may lack, so that all keep what they need; 0: not said.
    """

    previous: OpId
    entries: tuple[Entry, ...]
    commit_index: int
    round: int
    needed_from: int = 0


class AppendResponse(Header, frozen=True, array_like=True, tag="appended"):
    """``accepted``: the log equals the leader's up to ``index``, durably.

    Otherwise ``index`` is that of the refused ``previous`` and ``hint`` the last entry which
    may still match the leader's log.
    """

    accepted: bool
    index: int
    hint: OpId
    round: int
    memory_over: tuple[int, int] | None = None
    """(used, limit) in bytes, if the sender's server has no memory left for more rows."""


class SnapshotRequest(Header, frozen=True, array_like=True, tag="snapshot"):
    """One chunk of a snapshot of ``size_bytes``, which reaches up to the entry ``last``."""

    last: OpId
    configuration: Configuration
    size_bytes: int
    offset: int
    chunk: bytes
    round: int


class SnapshotResponse(Header, frozen=True, array_like=True, tag="snapshotted"):
    """The follower has ``next_offset`` bytes of that snapshot; a full one gets `AppendResponse`."""

    last: OpId
    next_offset: int
    round: int


class TimeoutNow(Header, frozen=True, array_like=True, tag="timeout_now"):
    """The leader of ``term`` has stepped down and asks the destination to be elected at once."""


Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | SnapshotRequest
    | SnapshotResponse
    | TimeoutNow
)


class RaftMessages(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one group between two servers. ``address`` is where the source listens now."""

    group_id: TabletId
    address: Address
    messages: tuple[Message, ...]


class RaftMail(msgspec.Struct, frozen=True, array_like=True):
    """Small messages of any groups between two servers: no entries, no chunks.

    ``address`` is where the source listens now. Each is taken as if it had come alone.
    """

    address: Address
    messages: tuple[Message, ...]


class Undelivered(msgspec.Struct, frozen=True, array_like=True):
    """What this mail said to one group was not taken. ``state``: what the server surely has of the
    tablet, if that is why (absent, or its tombstone); None: nothing is known."""

    group_id: TabletId
    state: DataState | None


class MailTaken(msgspec.Struct, frozen=True, array_like=True):
    """All but this was handed to its group."""

    undelivered: tuple[Undelivered, ...] = ()


class ReadIndexOf(msgspec.Struct, frozen=True, array_like=True):
    """A question to the leader of a group."""

    group_id: TabletId


class ReadIndex(msgspec.Struct, frozen=True, array_like=True):
    """Everything acknowledged before the question lies at or below this index of the log."""

    index: int


class RaftAnswers(msgspec.Struct, frozen=True, array_like=True):
    """What the receiver of messages has for their sender at once; the rest comes by itself."""

    messages: tuple[Message, ...] = ()


READ_INDEX: Method[ReadIndexOf, ReadIndex] = Method("raft.read_index", ReadIndexOf, ReadIndex)
"""The leader answers, after a read barrier. Raises NotLeader, Overloaded, DeadlineExpired."""
RAFT_MESSAGE: Method[RaftMessages, RaftAnswers] = Method("raft.message", RaftMessages, RaftAnswers)
RAFT_MAIL: Method[RaftMail, MailTaken] = Method("raft.mail", RaftMail, MailTaken)


def is_small(message: Message) -> bool:
    """Whether it carries neither entries nor a piece of a snapshot, and so may go as mail."""
    if isinstance(message, AppendRequest):
        return not message.entries
    return not isinstance(message, SnapshotRequest)


def replaces(newer: Message, older: Message) -> bool:
    """Whether both are heartbeats of one leader, of which the newer one says all."""
    beats = [m for m in (newer, older) if isinstance(m, AppendRequest) and not m.entries]
    return len(beats) == 2 and (older.source, older.term) == (newer.source, newer.term)


def check_message(message: Message) -> None:
    """Refuse what no correct peer sends. Raises InvalidArgument."""
    if message.term < 0 or message.source == message.destination:
        raise InvalidArgument(f"malformed {type(message).__name__} from {message.source}")
    gone = message.taken_back if isinstance(message, VoteRequest) else None
    if gone is not None and gone.term >= message.term:
        raise InvalidArgument(f"{message.source} takes back what it cannot have led to yet")
    if isinstance(message, AppendRequest):
        term, index = message.previous.term, message.previous.index
        for entry in message.entries:
            if entry.index != index + 1 or not term <= entry.term <= message.term:
                raise InvalidArgument(f"entry {entry.op_id} cannot follow {OpId(term, index)}")
            term, index = entry.term, entry.index
            if entry.kind is EntryKind.CONFIGURATION:
                _check_configuration(entry)
    if isinstance(message, SnapshotRequest):
        end = message.offset + len(message.chunk)
        if not 0 <= message.offset <= end <= message.size_bytes:
            raise InvalidArgument(f"snapshot chunk {message.offset}..{end} of {message.size_bytes}")


def _check_configuration(entry: Entry) -> None:
    try:
        configuration = configuration_of(entry)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"entry {entry.op_id} is no configuration: {error}") from None
    if not configuration.voters:
        raise InvalidArgument(f"entry {entry.op_id} would leave the group without voters")
