"""What a replica's host gives it and hears from it: state machine, settings, changes of role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stelae.consensus.raft.ready import Role
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.records.replication import Snapshot


class StateMachine(Protocol):
    """What the log drives. All three are called by the replica's loop, one at a time.

    Where hosts copy state (``RaftSettings.copies_by_host``), a snapshot only says where the state
    lies, and the host makes it (`Replica.flushed`): `snapshot` is never called, and `restore` once
    by `Replica.start`, when the host has opened what the snapshot in its store names.
    """

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Apply a committed command; must depend on nothing but earlier commands."""
        ...

    def snapshot(self) -> bytes:
        """The whole state after the last command applied."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the whole state by that of a snapshot; empty bytes are never given."""
        ...


class Part(Protocol):
    """A small command, or a few, that can share an entry of the log with its like.

    What the state machine gives for an entry of several is a tuple: of each what it came to.
    """

    @property
    def count(self) -> int:
        """Of how many commands this is."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how much of the log it takes."""
        ...

    def fits(self, other: Part) -> bool:
        """Whether the two can be in one entry."""
        ...

    def joined(self, others: Sequence[Part]) -> bytes:
        """The command of this one and those after it, all of which it `fits`."""
        ...


class SnapshotStore(Protocol):
    """Where a replica's snapshot lies."""

    async def load(self) -> Snapshot | None:
        """The last one that was made durable. Raises CorruptData."""
        ...

    async def replace(self, snapshot: Snapshot) -> None:
        """Make it durable in place of the last one, atomically. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a replica behaves. Keep ``raft.lease_duration_us`` below ``(election_ticks-2)`` ticks."""

    raft: RaftSettings = field(default_factory=RaftSettings)
    tick_s: float = 0.05
    log_file_bytes: int = 8 << 20
    log_ahead_bytes: int = 1 << 20  # reserved in a log file that grows; 0: nothing
    snapshot_entries: int = 2000  # applied since the last snapshot, or
    snapshot_bytes: int = 16 << 20  # bytes of commands applied since then
    keep_entries: int = 500  # kept behind a snapshot for followers that lag
    keep_bytes: int = 16 << 20  # instead, where hosts copy state: at most, of what members need
    queue_bytes: int = 64 << 20  # commands not yet answered
    inbox_messages_max: int = 4096
    abandon_member_s: float = 60.0  # without progress, before a non-voter is let go; 0: never


@dataclass(frozen=True, slots=True)
class RoleChange:
    """``ready``: this replica leads, and has applied all that was committed before its term.

    ``members`` names the last committed configuration that is known here.
    """

    role: Role
    term: int
    leader: ServerUuid | None
    leader_address: Address | None
    ready: bool
    members: OpId
