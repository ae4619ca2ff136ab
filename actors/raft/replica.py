"""One replica of a Raft group on a server: the shell around `stelae.consensus.raft.raft`.

What others ask of it is here; how it works is in `stelae.actors.raft.loop`. Design §7, §8,
§13.

Where hosts copy state (``RaftSettings.copies_by_host``), the host flushes (`Replica.flushed`), and
is told of members that need a copy, or answer that they have no such tablet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stelae.actors.raft.handlers import raft_handlers
from stelae.actors.raft.loop import ReplicaLoop
from stelae.actors.raft.snapshots import snapshot_at
from stelae.actors.raft.types import Part, ReplicaSettings, RoleChange, StateMachine
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.ready import Role, Status
from stelae.core.errors import DeadlineExpired, TabletNotReady
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.messages.replicas import TRANSFER_ATTEMPT
from stelae.core.records.replication import Configuration, Snapshot
from stelae.core.rpc import Handlers

__all__ = ["Replica", "ReplicaSettings", "RoleChange", "StateMachine", "raft_handlers"]


class Replica(ReplicaLoop):
    """A replica of one group on one server. `start` it once the server listens, and `stop` it."""

    def handlers(self) -> Handlers:
        """What the host must serve for this replica; of several, `raft_handlers` of all."""
        return raft_handlers({self.group_id: self})

    # ---- what can be seen ------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """False before `start`, and once this is stopped, or its disk has failed."""
        leads = self._core is not None and self._core.role is Role.LEADER
        return leads and not self._is_stopped

    @property
    def term(self) -> int:
        return self.core.term

    def lease_valid(self) -> bool:
        """True if surely nobody else leads now. Needs ``raft.lease_duration_us``."""
        return self.core.lease_read_index(self._now_us()) is not None

    def status(self) -> Status:
        return self.core.status()

    def on_role_change(self, watcher: Callable[[RoleChange], None]) -> None:
        """Call ``watcher`` from the loop at each change of role, term, leader or readiness."""
        self._news.watchers.append(watcher)

    def on_copy_needed(self, watcher: Callable[[ServerUuid], None]) -> None:
        """Call ``watcher`` from the loop, again and again, while a member needs a copy.

        Only while this replica leads: that member's log is too old, or its server has no data.
        """
        self.copies.watchers.append(watcher)

    def copy_advanced(self, uuid: ServerUuid, size_bytes: int) -> None:
        """So much of a copy to that member is there: while it grows, the member is not let go."""
        self._care.copy_advanced(uuid, size_bytes)

    def peer_address(self, uuid: ServerUuid) -> Address | None:
        """Where that member was last heard of."""
        return self._links.address(uuid)

    def update_address(self, uuid: ServerUuid, address: Address) -> None:
        """A member was started again elsewhere. Members also tell it with every message."""
        self._links.update_address(uuid, address)

    # ---- requests --------------------------------------------------------------------------

    async def propose(self, command: bytes | Part, timeout_s: float) -> object:
        """Replicate a command, and return what the state machine gave for it.

        One that is a `Part` may share its entry of the log with others of this moment.

        Raises:
            NotLeader: surely not done.
            Overloaded, TabletNotReady: surely not done.
            TooLarge: no replica ever takes so much at once.
            OutcomeUnknown: still not decided after ``timeout_s``; it may be done later.
        """
        if not self.is_leader:
            raise self._not_leader()
        proposal = self._requests.queue_proposal(command, timeout_s)
        self._wake.set()
        return await self._requests.decided(proposal)

    async def change_configuration(
        self, change: MemberChange, *, expected: OpId | None, timeout_s: float
    ) -> Configuration:
        """Change the members by one; returns once that is committed, with the members then.

        A member that is added does not vote until this or a later leader has seen it catch up,
        and is removed again if it shows no progress. A leader that is removed leads no more.
        ``expected`` is the OpId of the committed configuration that the caller saw, if it matters.

        Raises:
            NotLeader, TabletNotReady: surely not done.
            ConfigurationMismatch, InvalidArgument: not as things are.
            OutcomeUnknown: still not decided after ``timeout_s``; it may be done later.
        """
        if not self.is_leader:
            raise self._not_leader()
        if change.kind is ChangeKind.REMOVE and change.uuid in self.core.configuration.voters:
            began_us = self._now_us()
            await self._hear_without(change.uuid, timeout_s)
            timeout_s = max(0.0, timeout_s - (self._now_us() - began_us) / 1e6)
            if not self.is_leader:
                raise self._not_leader()
        proposal = self._requests.queue_change(change, expected, timeout_s)
        self._wake.set()
        result = await self._requests.decided(proposal)
        assert isinstance(result, Configuration)
        return result

    async def _hear_without(self, leaving: ServerUuid, timeout_s: float) -> None:
        """Wait until those who would stay have answered. Raises NotLeader, TabletNotReady."""
        request = self._requests.queue_read(None, leaving)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await request.future
        except TimeoutError:
            self._requests.forget_read(request)
            state = f"waiting for a majority of its voters without {leaving} to answer"
            raise TabletNotReady(self.group_id, state) from None

    async def read_barrier(self, timeout_s: float) -> int:
        """Wait until a read here sees everything acknowledged before this call began.

        Returns the index that has been applied. Raises NotLeader, Overloaded, DeadlineExpired.
        """
        if not self.is_leader:
            raise self._not_leader()
        index = self.core.lease_read_index(self._now_us())
        if index is not None and index <= self.core.log.applied_index:
            return index
        request = self._requests.queue_read(index)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await request.future
        except TimeoutError:
            self._requests.forget_read(request)
            raise DeadlineExpired("read_barrier", "a majority of the replicas") from None

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """Wait until this replica, leading or not, has applied it. Raises DeadlineExpired, and
        NotLeader once this is stopped."""
        if index <= self.core.log.applied_index:
            return
        if self._is_stopped:
            raise self._not_leader()
        request = self._requests.queue_read(index)
        try:
            async with asyncio.timeout(timeout_s):
                await request.future
        except TimeoutError:
            self._requests.forget_read(request)
            raise DeadlineExpired("wait_applied", f"entry {index}") from None

    def snapshot_at(self, index: int, data: bytes) -> Snapshot:
        """The snapshot to hand to `flushed`: ``data`` names all state up to ``index``, applied."""
        return snapshot_at(self.core, index, data)

    async def flushed(self, snapshot: Snapshot) -> None:
        """The host has made durable what ``snapshot`` names; it counts, and the log is shortened.

        One at a time, and each at or after the one before. Raises OSError: the server must stop.
        """
        trimmed = await self.flushes.save(snapshot)
        self._wake.set()
        await trimmed

    async def transfer_leadership(self, target: ServerUuid | None, timeout_s: float) -> None:
        """Hand leadership to ``target``, or to whoever has most; return once not leading any more.

        Raises NotLeader, InvalidArgument, TabletNotReady, and DeadlineExpired if it still leads.
        """
        if not self.is_leader:
            raise self._not_leader()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transfers.append((target, future))
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await future
                while self.is_leader:
                    await self._news.wait()
        except TimeoutError:
            raise DeadlineExpired(TRANSFER_ATTEMPT, f"{target} to catch up") from None
