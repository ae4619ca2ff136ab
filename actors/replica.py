"""One replica of a Raft group on a server: the shell around `stelae.consensus.raft`.

One loop owns the core. A turn takes what has arrived (messages, one tick, all proposals and reads),
then carries out the `Ready`: durable first, then sent, then applied, in `_execute` and nowhere
else. All proposals of a turn share one append and one sync. A failure of the disk or of the state
machine ends the loop's task, and by that the server. Design §7, §8, §13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stelae.actors.replica_links import ReplicaLinks
from stelae.actors.replica_members import MemberCare
from stelae.actors.replica_requests import Proposal, ReplicaRequests
from stelae.actors.replica_storage import ReplicaStorage
from stelae.actors.replica_types import ReplicaSettings, RoleChange, StateMachine
from stelae.consensus.membership import MemberChange
from stelae.consensus.messages import RAFT_MESSAGE, Message, RaftMessages, check_message
from stelae.consensus.raft import Raft
from stelae.consensus.ready import Ready, Role, Status, Tick, Unreachable
from stelae.core.errors import (
    DeadlineExpired,
    NotLeader,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.replication import (
    Configuration,
    EntryKind,
    Snapshot,
    configuration_of,
    first_configuration,
)
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

__all__ = ["Replica", "ReplicaSettings", "RoleChange", "StateMachine", "raft_handlers"]


class Replica:
    """A replica of one group on one server. `start` it once the server listens, and `stop` it."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        group_id: TabletId,
        self_uuid: ServerUuid,
        peers: Mapping[ServerUuid, Address],
        state_machine: StateMachine,
        settings: ReplicaSettings,
        folder: str = "",
        names: Mapping[ServerUuid, str] | None = None,
    ) -> None:
        """``peers`` are all first members with this one; ``folder`` is inside the data directory.

        Without peers the replica waits until a group adds it. What is on disk goes before both.
        ``names`` is how people call the first members.
        """
        self.group_id = group_id
        self.uuid = self_uuid
        self._runtime = runtime
        self._tasks = tasks
        self._state_machine = state_machine
        self._settings = settings
        self._storage = ReplicaStorage(
            runtime.disk, folder, group_id, log_file_bytes=settings.log_file_bytes
        )
        self._first = first_configuration(peers, names)
        self._care = MemberCare(int(settings.abandon_member_s * 1_000_000))
        self._links = ReplicaLinks(runtime, tasks, group_id, self_uuid, peers, self._lost)
        self._requests = ReplicaRequests(group_id, self_uuid, settings.queue_bytes)
        self._core: Raft | None = None
        self._own: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._inbox: list[Message] = []
        self._unreachable: dict[ServerUuid, None] = {}
        self._transfers: list[tuple[ServerUuid | None, asyncio.Future[None]]] = []
        self._tick_due = False
        self._applied_entries = 0  # since the last snapshot
        self._applied_bytes = 0
        self._watchers: list[Callable[[RoleChange], None]] = []
        self._told: RoleChange | None = None
        self._changed = asyncio.Event()  # replaced at each change of role

    # ---- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the disk, restore the state machine, and begin. Raises CorruptData, OSError."""
        loaded = await self._storage.load(self._first)
        if loaded.snapshot is not None:
            self._state_machine.restore(loaded.snapshot.data)
        self._core = Raft(
            group_id=self.group_id,
            uuid=self.uuid,
            configuration=loaded.configuration,
            term_and_vote=loaded.term_and_vote,
            snapshot=loaded.snapshot,
            entries=loaded.entries,
            settings=self._settings.raft,
            rng=self._runtime.rng,
        )
        self._links.learn(self._core.configuration)
        name = f"replica {self.group_id}"
        self._own.append(self._tasks.spawn(self._run(), name))
        self._own.append(self._tasks.spawn(self._tick(), f"{name} ticks"))

    async def stop(self) -> None:
        """End without answering what is pending; a durable log needs no farewell."""
        own, self._own = self._own, []
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        await self._links.stop()
        self._storage.close()
        self._requests.close()
        for _, future in self._transfers:
            future.cancel()

    def handlers(self) -> Handlers:
        """What the host must serve for this replica; for several of them, see `raft_handlers`."""
        return raft_handlers({self.group_id: self})

    # ---- what can be seen ------------------------------------------------------------------

    @property
    def core(self) -> Raft:
        """The protocol core; to look at, never to step. Only after `start`."""
        assert self._core is not None, "replica not started"
        return self._core

    @property
    def is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader_address(self) -> Address | None:
        """Where the leader listens, as far as is known here."""
        leader = self.core.leader_uuid
        return self._links.address(leader) if leader is not None else None

    @property
    def leader_ready(self) -> bool:
        """True if this replica leads and has applied all that was committed before its term."""
        core = self.core
        return core.leader is not None and core.log.term_at(core.log.applied_index) == core.term

    def lease_valid(self) -> bool:
        """True if surely nobody else leads now. Needs ``raft.lease_duration_us``."""
        return self.core.lease_read_index(self._now_us()) is not None

    @property
    def members(self) -> Configuration:
        """The last committed configuration that is known here."""
        return self.core.log.committed_configuration

    def status(self) -> Status:
        return self.core.status()

    def on_role_change(self, watcher: Callable[[RoleChange], None]) -> None:
        """Call ``watcher`` from the loop at each change of role, term, leader or readiness."""
        self._watchers.append(watcher)

    def update_address(self, uuid: ServerUuid, address: Address) -> None:
        """A member was started again elsewhere. Members also tell it with every message."""
        self._links.update_address(uuid, address)

    # ---- requests --------------------------------------------------------------------------

    async def propose(self, command: bytes, timeout_s: float) -> object:
        """Replicate a command, and return what the state machine gave for it.

        Raises:
            NotLeader: surely not done.
            Overloaded, TabletNotReady: surely not done.
            OutcomeUnknown: still not decided after ``timeout_s``; it may be done later.
        """
        if not self.is_leader:
            raise self._not_leader()
        proposal = self._requests.queue_proposal(command)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await proposal.future
        except TimeoutError:
            raise self._requests.give_up(proposal, timeout_s) from None

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
        proposal = self._requests.queue_change(change, expected)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                result = await proposal.future
        except TimeoutError:
            raise self._requests.give_up(proposal, timeout_s) from None
        assert isinstance(result, Configuration)
        return result

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

    async def wait_leader_ready(self, timeout_s: float) -> int:
        """Wait until `leader_ready`; return the term. Raises DeadlineExpired."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.leader_ready:
                    await self._changed.wait()
                return self.term
        except TimeoutError:
            raise DeadlineExpired("wait_leader_ready", "an election") from None

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
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineExpired("transfer_leadership", f"{target} to catch up") from None

    def receive(self, envelope: RaftMessages) -> None:
        """Queue messages for the loop; beyond the limit they are lost, which Raft allows for.

        Raises InvalidArgument.
        """
        for message in envelope.messages:
            check_message(message)
        for message in envelope.messages:
            self._links.update_address(message.source, envelope.address)
            if message.destination != self.uuid or message.group_id != self.group_id:
                continue
            if len(self._inbox) < self._settings.inbox_messages_max:
                self._inbox.append(message)
            else:
                self._runtime.metrics.count("raft_messages_dropped")
        self._wake.set()

    # ---- the loop --------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.tick_s)
            self._tick_due = True
            self._wake.set()

    async def _run(self) -> None:
        core = self.core
        self._tell(core)
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._take_events(core)
            while ready := core.take_ready():
                await self._execute(core, ready)
            await self._maybe_snapshot(core)
            self._tell(core)

    def _take_events(self, core: Raft) -> None:
        """Step the core by what has arrived. Ticks missed during a slow turn count as one."""
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            core.step(message)
        unreachable, self._unreachable = self._unreachable, {}
        for uuid in unreachable:
            core.step(Unreachable(uuid))
        if self._tick_due:
            self._tick_due = False
            core.step(Tick(self._now_us()))
            self._care_for_members(core)
        for proposal in self._requests.take_proposals():
            self._propose(core, proposal)
        for request in self._requests.take_reads():
            try:
                core.read(request)
            except NotLeader:
                self._requests.fail_read(request, self._not_leader())
            except StelaeError as error:
                self._requests.fail_read(request, error)
        transfers, self._transfers = self._transfers, []
        for target, future in transfers:
            self._transfer(core, target, future)

    def _propose(self, core: Raft, proposal: Proposal) -> None:
        try:
            if proposal.change is not None:
                op_id = core.change_members(proposal.change, proposal.expected)
            else:
                op_id = core.propose(proposal.command)
        except NotLeader:
            self._requests.refuse(proposal, self._not_leader())
        except StelaeError as error:
            self._requests.refuse(proposal, error)
        else:
            self._requests.appended(proposal, op_id)

    def _care_for_members(self, core: Raft) -> None:
        change = self._care.due(core, self._now_us())
        if change is None:
            return
        try:
            core.change_members(change)
        except TabletNotReady:  # too few would be reachable: looked at again with the next tick
            self._runtime.metrics.count("member_changes_put_off", kind=change.kind.value)

    def _transfer(
        self, core: Raft, target: ServerUuid | None, future: asyncio.Future[None]
    ) -> None:
        if future.done():
            return
        try:
            core.transfer(target)
        except NotLeader:
            future.set_exception(self._not_leader())
        except StelaeError as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    async def _execute(self, core: Raft, ready: Ready) -> None:
        """Carry out one Ready, in this order: durable, then sent, then applied."""
        await self._storage.save(ready.term_and_vote, ready.snapshot, ready.entries)
        self._links.learn(core.configuration)
        self._links.send(ready.messages)
        if ready.snapshot is not None:
            self._state_machine.restore(ready.snapshot.data)
            self._requests.installed(ready.snapshot.last.index)
            self._applied_entries = self._applied_bytes = 0
        for entry in ready.committed:
            result: object = None
            if entry.kind is EntryKind.COMMAND:
                result = self._state_machine.apply(entry.index, entry.term, entry.body)
            elif entry.kind is EntryKind.CONFIGURATION:
                result = configuration_of(entry)
            self._requests.applied(entry.op_id, result, self._not_leader)
            self._applied_entries += 1
            self._applied_bytes += len(entry.body)
        core.advance(ready)
        for request in ready.failed_reads:
            self._requests.fail_read(request, self._not_leader())
        for read in ready.reads:
            self._requests.read_index(read.request, read.index)
        self._requests.release_reads(core.log.applied_index)

    async def _maybe_snapshot(self, core: Raft) -> None:
        """Shorten the log once enough was applied."""
        settings = self._settings
        few = self._applied_entries < settings.snapshot_entries
        if few and self._applied_bytes < settings.snapshot_bytes:
            return
        index = core.log.applied_index
        term = core.log.term_at(index)
        assert term is not None
        state = self._state_machine.snapshot()
        snapshot = Snapshot(OpId(term, index), core.log.configuration_at(index), state)
        await self._storage.save_snapshot(snapshot, index - settings.keep_entries + 1)
        core.compact(snapshot, settings.keep_entries)
        self._applied_entries = self._applied_bytes = 0

    # ---- helpers ---------------------------------------------------------------------------

    def _tell(self, core: Raft) -> None:
        """Tell the watchers what is new."""
        change = RoleChange(
            core.role,
            core.term,
            core.leader_uuid,
            self.leader_address,
            self.leader_ready,
            self.members.op_id,
        )
        if change == self._told:
            return
        self._told = change
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for watcher in self._watchers:
            watcher(change)

    def _not_leader(self) -> NotLeader:
        return NotLeader(self.uuid, self.core.term, self.leader_address or "")

    def _lost(self, uuid: ServerUuid) -> None:
        self._unreachable[uuid] = None
        self._wake.set()

    def _now_us(self) -> int:
        return int(self._runtime.clock.monotonic() * 1_000_000)


def raft_handlers(replicas: Mapping[TabletId, Replica]) -> Handlers:
    """Serve the messages of all ``replicas`` of one server; the mapping may change meanwhile."""

    async def receive(call: Call[RaftMessages]) -> Reply[Empty]:
        replica = replicas.get(call.body.group_id)
        if replica is None:
            raise TabletNotHere(call.body.group_id, "this server")
        replica.receive(call.body)
        return EMPTY

    return {RAFT_MESSAGE: receive}
