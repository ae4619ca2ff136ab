"""What a replica's host gives it and hears from it: state machine, settings, changes of role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stelae.consensus.raft.ready import Role
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.config.settings import Settings
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


def catalog_replica_settings(settings: Settings) -> ReplicaSettings:
    """How the catalog's group runs, with a leader lease so that reads need no round of messages."""
    refuse_votes_s = (settings.raft_election_ticks - 2) * settings.raft_tick_s
    return ReplicaSettings(
        raft=RaftSettings(
            election_ticks=settings.raft_election_ticks,
            heartbeat_ticks=settings.raft_heartbeat_ticks,
            lease_duration_us=int(refuse_votes_s * 0.8 * 1_000_000),
        ),
        tick_s=settings.raft_tick_s,
        snapshot_entries=settings.raft_snapshot_entries,
    )


def tablet_replica_settings(settings: Settings) -> ReplicaSettings:
    """How the group of a tablet runs: with a lease, and with hosts that copy the state."""
    tick_s = settings.group_tick_s
    refuse_votes_s = (settings.tablet_election_ticks - 2) * tick_s
    return ReplicaSettings(
        raft=RaftSettings(
            election_ticks=settings.tablet_election_ticks,
            heartbeat_ticks=settings.raft_heartbeat_ticks,
            lease_duration_us=int(refuse_votes_s * 0.8 * 1_000_000),
            copies_by_host=True,
        ),
        tick_s=tick_s,
        log_file_bytes=settings.segment_bytes,
        keep_bytes=settings.raft_keep_bytes,
        queue_bytes=settings.queue_bytes,
        abandon_member_s=settings.abandon_member_s,
    )


class RoleNews:
    """Who is told of one replica's role, term, leader and readiness when something of it is new."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[RoleChange], None]] = []
        self._told: RoleChange | None = None
        self._made_of: tuple[object, ...] = ()
        self._changed = asyncio.Event()  # replaced at each change

    async def wait(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def may_be_new(self, made_of: tuple[object, ...]) -> bool:
        """Whether what a change would be made of differs from the last time; nearly never."""
        is_same = made_of == self._made_of
        self._made_of = made_of
        return not is_same

    def tell(self, change: RoleChange) -> None:
        """Tell the watchers, if it is new."""
        if change == self._told:
            return
        self._told = change
        self.wake()
        for watcher in self.watchers:
            watcher(change)

    def wake(self) -> None:
        """Whoever waits looks again: something is new, or nothing will be any more."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
