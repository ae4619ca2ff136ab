"""The loop of one replica: events in, effects out, in an order that nothing may change.

One loop owns the core. A turn takes what has arrived (messages, one tick, all proposals and reads),
then carries out the `Ready`: durable first, then sent, then applied, in `ReplicaLoop._execute`;
only a leader's own entries are written beside that. All proposals of a turn share one append, and
all turns during one sync the next one. A failure of disk or state machine ends the loop's task.

What needs nothing durable or applied (ticks, heartbeats and their answers) is dealt with where it
arrives, between two turns, without waking a task. Design §7, §8, §13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from stelae.actors.raft.host import RaftHost
from stelae.actors.raft.links import ReplicaLinks
from stelae.actors.raft.log_writer import FollowerAppend, LogWriter
from stelae.actors.raft.members import MemberCare
from stelae.actors.raft.requests import ReplicaRequests, transfer
from stelae.actors.raft.snapshots import CopyNeeds, OwnSnapshots, ReplicaFlushes
from stelae.actors.raft.storage import ReplicaStorage
from stelae.actors.raft.types import (
    ReplicaSettings,
    RoleChange,
    RoleNews,
    SnapshotStore,
    StateMachine,
)
from stelae.consensus.raft.messages import (
    Message,
    RaftMessages,
    SnapshotRequest,
    check_message,
    replaces,
)
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Role, Tick, Unreachable
from stelae.core.config.settings import GATHER_BYTES
from stelae.core.errors import InvalidArgument, NotLeader, StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    configuration_of,
    first_configuration,
)
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks


class ReplicaLoop:
    """What `stelae.actors.raft.replica.Replica` is made of."""

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
        snapshots: SnapshotStore | None = None,
        vote_floor: OpId | None = None,
        host: RaftHost | None = None,
    ) -> None:
        """``peers`` are all first members with this one; ``folder`` is inside the data directory.

        Without peers it waits until a group adds it. What is on disk goes before both. ``names`` is
        how people call the first members; ``snapshots`` where the snapshot lies, if not in a file
        of its own; ``vote_floor`` what a tombstone here had kept. A ``host`` is shared.
        """
        self.group_id = group_id
        self.uuid = self_uuid
        self._runtime = runtime
        self._tasks = tasks
        self._state_machine = state_machine
        self._settings = settings
        self._storage = ReplicaStorage(
            runtime.disk,
            folder,
            group_id,
            log_file_bytes=settings.log_file_bytes,
            log_ahead_bytes=settings.log_ahead_bytes,
            snapshots=snapshots,
        )
        self._writer = LogWriter(self._storage, self._on_written)
        self.flushes = ReplicaFlushes(self._storage, settings.keep_bytes)
        """Where hosts copy state; a copy session pins the log here."""
        self._own_snapshots = OwnSnapshots(self._storage, settings, state_machine)
        self.copies = CopyNeeds(runtime)
        self._vote_floor = vote_floor
        self._first = first_configuration(peers, names)
        self._care = MemberCare(int(settings.abandon_member_s * 1_000_000))
        self._host = host or RaftHost(runtime, tasks, settings.tick_s)
        self._owns_host = host is None
        self._links = ReplicaLinks(
            runtime, tasks, group_id, self_uuid, peers, self._lost, self._is_absent, self._host
        )
        self._links.take = self.take_mail
        self._requests = ReplicaRequests(group_id, self_uuid, settings.queue_bytes)
        self._core: Raft | None = None
        self._own: list[asyncio.Task[None]] = []
        self._news = RoleNews()
        self._begun = FollowerAppend(self._storage, self._links)
        self._begin_events()

    def _begin_events(self) -> None:
        """What waits for the loop."""
        self._wake = asyncio.Event()
        self._inbox: list[Message] = []
        self._unreachable: dict[ServerUuid, None] = {}
        self._transfers: list[tuple[ServerUuid | None, asyncio.Future[None]]] = []
        self._tick_due: Tick | None = None
        self._written: OpId | None = None
        self._in_turn = False
        """Whether the core is in the midst of something, and may not be stepped."""
        self._is_busy = False
        """Whether the loop waits for the disk, perhaps."""
        self._is_stopped = False

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
            vote_floor=self._vote_floor,
        )
        self._links.learn(self._core.configuration)
        name = f"replica {self.group_id}"
        works = ((self._run, ""), (self._writer.run, " writes"), (self._note, " notes"))
        for work, of in works:
            self._own.append(self._tasks.spawn(self._for_ever(work), f"{name}{of}"))
        self._host.join(self.group_id, self)

    async def stop(self) -> None:
        """End without answering what is pending; a durable log needs no farewell."""
        own, self._own = self._own, []
        self._is_stopped = True
        if own:
            self._host.leave(self.group_id, self)
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        await self._links.stop()
        if self._owns_host:
            await self._host.stop()
        self._storage.close()
        self._requests.close()
        self.flushes.close()
        for _, future in self._transfers:
            if not future.done():
                future.set_exception(self._not_leader())
        self._news.wake()

    # ---- what can be seen ------------------------------------------------------------------

    @property
    def core(self) -> Raft:
        """The protocol core; to look at, never to step. Only after `start`."""
        assert self._core is not None, "replica not started"
        return self._core

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

    @property
    def members(self) -> Configuration:
        """The last committed configuration that is known here."""
        return self.core.log.committed_configuration

    # ---- events ----------------------------------------------------------------------------

    def receive(self, envelope: RaftMessages) -> tuple[Message, ...]:
        """Take messages; beyond the limit they are lost, which Raft allows for.

        Returns what a follower answers, if it could make durable at once what that needs.
        Otherwise the loop sends it. Raises InvalidArgument.
        """
        for message in envelope.messages:
            self._check(message)
        core = self._free_core()
        if core is not None and not self._is_busy and envelope.messages and self._writer.is_idle:
            return self._receive_now(core, envelope)
        for message in envelope.messages:
            self._queue(message, envelope.address)
        self._wake.set()
        return ()

    def _receive_now(self, core: Raft, envelope: RaftMessages) -> tuple[Message, ...]:
        """Step the core; a plain follower's turn is begun, as far as it goes without a wait."""
        role = core.role
        for message in envelope.messages:
            if self._is_for_us(message, envelope.address):
                self.copies.heard(message)
                core.step(message)
        if core.leader is not None or not core.is_plain:
            self._go_on(core, role)
            return ()
        answers = self._begun.begin(core, envelope.messages[0].source)
        if answers is None:
            return ()
        self._is_stopped = self._begun.has_failed
        self._wake.set()
        return answers

    def take_mail(self, message: Message, address: Address) -> None:
        """Deal with a small message at once, if that needs neither the disk nor the state machine.

        Raises InvalidArgument.
        """
        self._check(message)
        core = self._free_core()
        if core is None:
            self._queue(message, address)
            self._wake.set()
        elif self._is_for_us(message, address):
            role = core.role
            self.copies.heard(message)
            core.step(message)
            self._go_on(core, role)

    def _answer_while_busy(self, message: Message) -> bool:
        """Tell a leader whose heartbeat has to wait for this replica's disk that it is followed."""
        if self._core is None or not self._is_busy or self._is_stopped:
            return False
        answer = self._core.answer_while_busy(message)
        if answer is not None:
            self._links.send([answer])
        return answer is not None

    def tick(self, tick: Tick) -> None:
        """The clock of the host has ticked. Ticks missed during a slow turn count as one."""
        core = self._free_core()
        if core is None:
            self._tick_due = tick
            self._wake.set()
        else:
            role = core.role
            self._step_tick(core, tick)
            self._go_on(core, role)

    def _step_tick(self, core: Raft, tick: Tick) -> None:
        if core.leader is None:
            core.step(tick)
            return
        if sending := self._links.sending():
            tick = Tick(tick.now_us, sending)
        before = core.changes_taken_back
        core.step(tick)
        if core.changes_taken_back != before:
            self._runtime.metrics.count("member_changes_taken_back")
        if not self._care.change(core, tick.now_us):
            self._runtime.metrics.count("member_changes_put_off")

    def spread_commit(self) -> None:
        """A follower waits to hear how far all is committed."""
        leader = self.core.leader
        if leader is not None:
            leader.spread_commit()
            if leader.is_stirred:
                self._wake.set()

    def _free_core(self) -> Raft | None:
        """The core, if no turn of the loop is under way or due, so that this may be one."""
        if self._in_turn or self._is_stopped or self._wake.is_set():
            return None
        return self._core

    def _check(self, message: Message) -> None:
        check_message(message)
        if self._settings.raft.copies_by_host and isinstance(message, SnapshotRequest):
            raise InvalidArgument(f"tablet {self.group_id} takes no snapshots in messages")

    def _is_for_us(self, message: Message, address: Address) -> bool:
        self._links.update_address(message.source, address)
        return message.destination == self.uuid and message.group_id == self.group_id

    def _queue(self, message: Message, address: Address) -> None:
        if not self._is_for_us(message, address):
            return
        if self._answer_while_busy(message) and self._inbox and replaces(message, self._inbox[-1]):
            self._inbox[-1] = message
        elif len(self._inbox) < self._settings.inbox_messages_max:
            self._inbox.append(message)
        else:
            self._runtime.metrics.count("raft_messages_dropped")

    def _go_on(self, core: Raft, role: Role) -> None:
        """After a step: a light turn, one in which nothing has to be durable or applied; the loop
        takes what is more. ``role``: that before the step."""
        if core.role is role and not core.is_stirred:
            return
        while core.is_stirred:
            messages = core.take_light()
            if messages is not None:  # as nearly always
                self._links.learn(core.configuration)
                self._links.send(messages)
                break
            if not core.is_light or not (ready := core.take_ready()):
                self._wake.set()
                break
            self._links.learn(core.configuration)
            self._links.send(ready.messages)
            self._finish(core, ready)
        self._tell(core)

    # ---- the loop --------------------------------------------------------------------------

    async def _run(self) -> None:
        core = self.core
        self._tell(core)
        while True:
            self._in_turn = self._is_busy = False
            await self._wake.wait()
            begun, is_sent = self._begun.take()
            if self._is_stopped:
                return
            self._wake.clear()
            self._in_turn = self._is_busy = True
            if begun is not None:
                await self._execute(core, begun, is_sent=is_sent)
            self._take_events(core)
            while ready := core.take_ready():
                await self._execute(core, ready)
                if core.log.applied_index < core.log.commit_index:
                    await asyncio.sleep(0)  # a long log: the server has others to serve
            self.copies.tell_absent(core)
            self._in_turn = False  # nothing is half done: heartbeats go on while files are written
            await self.flushes.trim(core)
            await self._own_snapshots.after_turn(core)
            self._tell(core)
            if self._requests.has_queued and self._has_room(core):
                self._wake.set()

    def _take_events(self, core: Raft) -> None:
        """Step the core by what has arrived."""
        if self._written is not None:
            written, self._written = self._written, None
            core.written(written)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for message in inbox:
                self.copies.heard(message)
                core.step(message)
        if self._unreachable:
            unreachable, self._unreachable = self._unreachable, {}
            for uuid in unreachable:
                core.step(Unreachable(uuid))
        if self._tick_due is not None:
            tick, self._tick_due = self._tick_due, None
            self._step_tick(core, tick)
        self._take_requests(core)
        transfers, self._transfers = self._transfers, []
        for target, future in transfers:
            transfer(core, target, future, self._not_leader)

    def _take_requests(self, core: Raft) -> None:
        """Proposals wait while this leader's disk, or the others, are too far behind; a few small
        ones also for what is under way, to share one append and one sync of each replica."""
        if self._has_room(core):
            self._requests.propose_all(core, self._not_leader)
        for request in self._requests.take_reads():
            try:
                core.read(request.number, request.leaving)
            except StelaeError as error:
                told = self._not_leader() if isinstance(error, NotLeader) else error
                self._requests.fail_read(request.number, told)

    def _has_room(self, core: Raft) -> bool:
        log, requests = core.log, self._requests
        if core.leader is None or requests.has_change:
            return True
        if log.last.index > log.commit_index and requests.queued_bytes < GATHER_BYTES:
            return False
        waiting_bytes = log.bytes_after(log.applied_index)
        return not self._writer.is_full and waiting_bytes < self._settings.queue_bytes

    async def _execute(self, core: Raft, ready: Ready, *, is_sent: bool = False) -> None:
        """Carry out one Ready, in this order: durable, then sent, then applied.

        But a leader whose term and vote are durable does not wait for its own entries
        (`LogWriter`): nothing that it says to others depends on them.
        """
        if is_sent:  # by a turn that was begun
            self._apply(core, ready.committed)
            self._finish(core, ready)
            return
        self._links.learn(core.configuration)
        leads = core.leader is not None and ready.term_and_vote is None
        if not leads and (ready.entries or ready.term_and_vote is not None or ready.snapshot):
            await self._writer.drained()
            await self._storage.save(ready.term_and_vote, ready.snapshot, ready.entries)
        self._links.send(ready.messages)
        if leads and ready.entries:  # after the messages: it may hold up the loop for a sync
            self._writer.write(ready.entries)
        if ready.snapshot is not None:
            self._state_machine.restore(ready.snapshot.data)
            self._requests.installed(ready.snapshot.last.index)
            self._own_snapshots.restored()
        self._apply(core, ready.committed)
        self._finish(core, ready, is_written=not leads)

    def _apply(self, core: Raft, committed: Sequence[Entry]) -> None:
        for entry in committed:
            result: object = None
            if entry.kind is EntryKind.COMMAND:
                result = self._state_machine.apply(entry.index, entry.term, entry.body)
            elif entry.kind is EntryKind.CONFIGURATION:
                result = configuration_of(entry)
            if self._requests.awaits(entry.index):
                self._requests.applied(entry.op_id, result, self._not_leader)
            self._own_snapshots.applied(entry)
        if committed:
            core.applied(committed[-1].index)
            self._requests.release_reads(committed[-1].index)

    def _finish(self, core: Raft, ready: Ready, *, is_written: bool = True) -> None:
        """All is durable, sent and applied: go on, and answer what waited for that."""
        core.advance(ready, is_written=is_written)
        for request in ready.failed_reads:
            self._requests.fail_read(request, self._not_leader())
        for read in ready.reads:
            self._requests.read_index(read.request, read.index)
        self._requests.release_reads(core.log.applied_index)
        self.copies.tell(ready.copies)

    async def _note(self) -> None:
        await self._storage.note_for_ever(self._runtime.clock)

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        """A failure of the disk ends everything here at once, also answers to heartbeats."""
        try:
            await work()
        finally:
            self._is_stopped = True

    def _on_written(self, op_id: OpId) -> None:
        self._written = op_id
        self._wake.set()

    # ---- helpers ---------------------------------------------------------------------------

    def _tell(self, core: Raft) -> None:
        """Tell the watchers what is new."""
        log, leader, address = core.log, core.leader_uuid, self.leader_address
        made_of = core.role, core.term, leader, address, log.applied_index, log.commit_index
        if self._news.may_be_new(made_of):
            ready, members = self.leader_ready, self.members.op_id
            self._news.tell(RoleChange(core.role, core.term, leader, address, ready, members))

    def _is_absent(self, uuid: ServerUuid, state: DataState) -> None:
        self.copies.is_absent(uuid, state)
        self._wake.set()

    def _not_leader(self) -> NotLeader:
        if self._core is None or self._is_stopped:
            return NotLeader(self.uuid, self._core.term if self._core is not None else 0, "")
        return NotLeader(self.uuid, self._core.term, self.leader_address or "")

    def _lost(self, uuid: ServerUuid) -> None:
        core = self._free_core()
        if core is None:
            self._unreachable[uuid] = None
            self._wake.set()
        else:
            role = core.role
            core.step(Unreachable(uuid))
            self._go_on(core, role)

    def _now_us(self) -> int:
        return int(self._runtime.clock.monotonic() * 1_000_000)
