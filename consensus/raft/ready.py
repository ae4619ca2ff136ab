"""What goes into a Raft core and what comes out: events, `Ready`, and what can be seen of it.

`Ready` is one batch of effects; the order of its fields is the order in which they must be carried
out, which is the durability rule of the system: durable first, visible second. A leader's own
entries are the one exception: its messages do not depend on them (`Raft.written`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from stelae.consensus.raft.leader import ReadReady
from stelae.consensus.raft.messages import Message
from stelae.consensus.raft.progress import PeerStatus
from stelae.core.ids import OpId, ServerUuid
from stelae.core.records.replication import Configuration, Entry, Snapshot, TermAndVote


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick has passed; ``now_us`` is the monotonic clock of this server, for the lease only.

    ``sending``: to those something large is being sent, and has neither arrived nor failed.
    """

    now_us: int
    sending: tuple[ServerUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreachable:
    """What was last sent to ``uuid`` probably did not arrive."""

    uuid: ServerUuid


Event: TypeAlias = Message | Tick | Unreachable


@dataclass(frozen=True, slots=True)
class Ready:
    """One batch of effects, to be carried out in the order of the fields.

    ``entries`` replace everything in the log from the index of their first one on. ``snapshot``
    came from the leader: it replaces the whole log and the state machine's state. ``copies`` are
    members that answer, but need entries which this leader has compacted away: their hosts are to
    copy the state (``copies_by_host``). Each is named once in a heartbeat round while that lasts.
    """

    term_and_vote: TermAndVote | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ReadReady, ...]
    failed_reads: tuple[int, ...]
    copies: tuple[ServerUuid, ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.messages
            or self.entries
            or self.committed
            or self.term_and_vote is not None
            or self.snapshot is not None
            or self.reads
            or self.failed_reads
            or self.copies
        )


@dataclass(frozen=True, slots=True)
class Status:
    """What one replica knows of itself and its group."""

    uuid: ServerUuid
    role: Role
    term: int
    voted_for: ServerUuid | None
    leader: ServerUuid | None
    last: OpId
    stable_index: int
    commit_index: int
    applied_index: int
    base: OpId
    configuration: Configuration
    match_index: dict[ServerUuid, int]
    peers: dict[ServerUuid, PeerStatus]
    """The other members; empty unless this replica leads."""
