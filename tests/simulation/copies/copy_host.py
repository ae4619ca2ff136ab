"""A small tserver for tests of tablet copies: real replicas, state machines, store and copies.

It does what a host does for tablets with ``replicas(n)``, and no more: start what the disk has,
flush, let tombstones vote, change members, delete. A put writes its key, and a row of its own
value, so that images stay and copies get longer and longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stelae.actors.raft.handlers import raft_handlers
from stelae.actors.raft.replica import Replica, ReplicaSettings
from stelae.actors.raft.tombstone import Tombstone
from stelae.actors.tserver.tablet_copy.receiver import CopyJobs
from stelae.actors.tserver.tablet_copy.source import CopySources
from stelae.actors.tserver.tablet_copy.starter import CopyStarter
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    NoSpace,
    NotLeader,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.replication import Configuration, Peer, Snapshot, TermAndVote
from stelae.core.rpc import EMPTY, Call, Empty, Handler, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation import World
from stelae.storage.entries.outcomes import answer
from stelae.storage.files.superblock import StoredFile
from stelae.storage.replicated.commands import Stamp, encode_alter, encode_write
from stelae.storage.replicated.manifest import decode_manifest, open_image
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.simulation.world.registers import GET, PUT, TICK_S, Get, Put, Row

FOUNDERS = ("s1", "s2", "s3")
SPARE = "s4"
EVERYONE = (*FOUNDERS, SPARE)
TABLET = TabletId("a" * 32)
OTHER = TabletId("b" * 32)
ELECTION_TICKS = 10
SCHEMA = TableSchema.of(
    pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]),
    key=["key"],
)
TABLE = TableRecord(
    TableId("t" * 32), "rows", SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING
)
STAMP = Stamp(0.0, -1.0)
COPY_SETTINGS = Settings(
    call_timeout_s=0.3,
    copies_max=2,
    copy_piece_bytes=600,
    copy_idle_s=2.0,
    copy_pause_s=0.05,
)


class Change(msgspec.Struct, frozen=True):
    """To a leader: add or remove a server."""

    kind: str
    name: str
    address: Address


class Drop(msgspec.Struct, frozen=True):
    """Delete what is here of a tablet."""

    tablet_id: TabletId
    forever: bool


CHANGE: Method[Change, Empty] = Method("change", Change, Empty)
DROP: Method[Drop, Empty] = Method("drop", Drop, Empty)


def uuid_of(name: str) -> ServerUuid:
    return ServerUuid(f"uuid-{name}")


def tablet_of(key: str) -> TabletId:
    """Keys with a prefix are of the other tablet."""
    return OTHER if key.startswith("other/") else TABLET


def files_of(snapshot: Snapshot) -> Sequence[StoredFile]:
    """The images that a snapshot needs; of which tablet it is, its bytes tell."""
    named = [tablet_id for tablet_id in (TABLET, OTHER) if tablet_id.encode() in snapshot.data]
    if len(named) != 1:
        raise CorruptData("a snapshot", 0, "is of no tablet of these tests")
    manifest = decode_manifest("a snapshot", named[0], snapshot.data)
    return [StoredFile(file.name, file.size_bytes, file.crc) for file in manifest.images]


@dataclass(eq=False)
class HostedTablet:
    """A replica that runs, with its rows. ``starter`` is told of members that need a copy."""

    replica: Replica
    machine: TabletStateMachine
    tasks: Tasks


class CopyHostServer:
    """One server."""

    def __init__(
        self,
        runtime: Runtime,
        world: World,
        name: str,
        settings: Settings = COPY_SETTINGS,
        *,
        tablets: Sequence[TabletId] = (TABLET,),
        flush_every_s: float = 0.2,
        keep_bytes: int = 0,
    ) -> None:
        self.tasks = Tasks()
        self.runtime, self.world, self.name = runtime, world, name
        self.uuid = uuid_of(name)
        self.created = tablets if name in FOUNDERS else ()
        self.flush_every_s = flush_every_s
        options = world.options
        self.replica_settings = ReplicaSettings(
            raft=RaftSettings(
                election_ticks=ELECTION_TICKS,
                batch_entries_max=options.limits.batch_operations,
                inflight_max=4,
                copies_by_host=True,
            ),
            tick_s=TICK_S,
            log_file_bytes=600,
            keep_bytes=keep_bytes,
            abandon_member_s=20.0,
        )
        self.store = TabletStore(
            runtime.disk, self.tasks, self.uuid, files_of, offload=runtime.offload
        )
        self.sources = CopySources(
            runtime, settings, self.tasks, self.store, self, self.found_corrupt
        )
        self.jobs = CopyJobs(runtime, settings, self.tasks, self.store, self)
        self.starter = CopyStarter(runtime, settings, self.tasks, self)
        self.tablets: dict[TabletId, HostedTablet] = {}
        self.members: dict[TabletId, Replica] = {}
        self.tombstones: dict[TabletId, Tombstone] = {}
        self.corrupt: list[TabletId] = []
        self.is_loaded = False
        self._locks: dict[TabletId, asyncio.Lock] = {}

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        handlers: Handlers = {
            **raft_handlers(self.members, self.tombstones, self.settled),
            **self.sources.handlers(),
            **{method: self.loaded(h) for method, h in self.jobs.handlers().items()},
            PUT: self.put,
            GET: self.get,
            CHANGE: self.change,
            DROP: self.drop,
        }
        loaded = await self.store.load_all()
        for error in loaded.failed.values():
            if isinstance(error.__cause__, OSError):
                raise error.__cause__  # its disk failed under it: this life ends
        assert not loaded.failed, loaded.failed
        await self.runtime.peers.listen(self.uuid, handlers)
        peers = [Peer(uuid_of(name), self.world.address(name)) for name in FOUNDERS]
        for tablet_id in self.created:
            if self.store.superblock(tablet_id) is None:
                await self.store.create(tablet_id, TABLE, Configuration(OpId(0, 0), tuple(peers)))
        for tablet_id, superblock in list(self.store.superblocks.items()):
            if superblock.state is DataState.READY:
                async with self.lock(tablet_id):
                    await self._open(tablet_id)
            else:
                await self.settle(tablet_id)
        self.is_loaded = True
        self.tasks.spawn(self._flush_for_ever(), "flushes")

    async def stop(self) -> None:
        for tablet_id in list(self.tablets):
            await self._stop(tablet_id)
        await self.tasks.close()

    def lock(self, tablet_id: TabletId) -> asyncio.Lock:
        return self._locks.setdefault(tablet_id, asyncio.Lock())

    async def _open(self, tablet_id: TabletId) -> None:
        superblock = self.store.require(tablet_id, DataState.READY)
        assert superblock.table is not None
        machine = TabletStateMachine(tablet_id, superblock.table)
        snapshot = superblock.snapshot
        if snapshot is not None:
            images = []
            for file in decode_manifest("a snapshot", tablet_id, snapshot.data).images:
                stored = StoredFile(file.name, file.size_bytes, file.crc)
                data = await self.store.read_image(tablet_id, stored)
                images.append(open_image(file, tablet_id, pa.py_buffer(data), file.name))
            machine.load(snapshot.data, images)
        tasks = Tasks(self.tasks)
        replica = Replica(
            self.runtime,
            tasks,
            tablet_id,
            self.uuid,
            {},
            machine,
            self.replica_settings,
            snapshots=self.store.snapshots(tablet_id),
        )
        replica.on_copy_needed(lambda uuid: self.starter.needed(tablet_id, uuid))
        await replica.start()
        self.tablets[tablet_id] = HostedTablet(replica, machine, tasks)
        self.members[tablet_id] = replica

    async def _stop(self, tablet_id: TabletId) -> OpId | None:
        tablet = self.tablets.pop(tablet_id, None)
        if tablet is None:
            return None
        del self.members[tablet_id]
        await tablet.replica.stop()
        return tablet.replica.core.end_of_log

    async def _flush_for_ever(self) -> None:
        while True:
            await self.runtime.clock.sleep(self.flush_every_s)
            for tablet_id in list(self.tablets):
                async with self.lock(tablet_id):
                    if tablet_id in self.tablets:
                        await self._flush(tablet_id, self.tablets[tablet_id])

    async def _flush(self, tablet_id: TabletId, tablet: HostedTablet) -> None:
        machine, replica = tablet.machine, tablet.replica
        log = replica.core.log
        index = log.applied_index
        if log.snapshot is not None and index <= log.snapshot.last.index:
            return
        term = log.term_at(index)
        if term is None or index == 0:
            return
        flush = machine.begin_flush(OpId(term, index))
        for slot in flush.unsealed:
            sealed = machine.seal(flush, slot)
            await self.store.write_image(tablet_id, sealed.file.name, sealed.content)
            machine.installed(sealed)
        await replica.flushed(replica.snapshot_at(index, machine.manifest(flush)))
        machine.flushed(flush)

    # ---- the host of copies -------------------------------------------------------------------

    def tablet(self, tablet_id: TabletId) -> HostedTablet | None:
        return self.tablets.get(tablet_id)

    def data_state(self, tablet_id: TabletId) -> DataState:
        superblock = self.store.superblock(tablet_id)
        return DataState.ABSENT if superblock is None else superblock.state

    def last_op_id(self, tablet_id: TabletId) -> OpId | None:
        if tablet_id in self.tablets:
            return self.tablets[tablet_id].replica.core.end_of_log
        superblock = self.store.superblock(tablet_id)
        return superblock.tombstone if superblock is not None else None

    def term(self, tablet_id: TabletId) -> int:
        if tablet_id in self.tablets:
            return self.tablets[tablet_id].replica.term
        tombstone = self.tombstones.get(tablet_id)
        return tombstone.term if tombstone is not None else 0

    async def stop_for_copy(self, tablet_id: TabletId) -> None:
        async with self.lock(tablet_id):
            self.world.note(self.name, "stops its replica for a copy")
            await self._stop(tablet_id)

    async def settle(self, tablet_id: TabletId) -> None:
        async with self.lock(tablet_id):
            superblock = self.store.superblock(tablet_id)
            if superblock is None or superblock.state is DataState.READY:
                return
            if tablet_id in self.tombstones:
                return
            metadata = await self.store.metadata(tablet_id)

            async def save(vote: TermAndVote) -> None:
                await self.store.save_vote(tablet_id, vote)

            self.tombstones[tablet_id] = Tombstone(
                self.runtime,
                self.tasks,
                tablet_id,
                self.uuid,
                metadata.term_and_vote,
                superblock.tombstone,
                save=save,
                quiet_s=ELECTION_TICKS * TICK_S,
            )

    async def start_copied(self, tablet_id: TabletId) -> None:
        async with self.lock(tablet_id):
            tombstone = self.tombstones.pop(tablet_id, None)
            if tombstone is not None:
                await tombstone.stop()
            await self._open(tablet_id)
            superblock = self.store.require(tablet_id, DataState.READY)
            last = superblock.snapshot.last if superblock.snapshot is not None else None
            self.world.note(self.name, f"is a copy up to {last}")

    def disk_failed(self, tablet_id: TabletId, error: OSError) -> None:
        async def fail() -> None:
            raise error

        self.tasks.spawn(fail(), "a failed disk")

    def found_corrupt(self, tablet_id: TabletId, error: CorruptData) -> None:
        self.corrupt.append(tablet_id)

    # ---- calls --------------------------------------------------------------------------------

    def loaded(self, handler: Handler) -> Handler:
        async def handle(call: Call[msgspec.Struct]) -> Reply[msgspec.Struct]:
            if not self.is_loaded:
                raise TabletNotReady(TABLET, "being opened")
            return await handler(call)

        return handle

    async def settled(self, tablet_id: TabletId) -> None:
        """What is between two states is not told to leaders as absent."""
        known = tablet_id in self.members or tablet_id in self.tombstones
        if not known and (not self.is_loaded or self.store.superblock(tablet_id) is not None):
            raise TabletNotReady(tablet_id, "between two states")

    def _led(self, tablet_id: TabletId) -> HostedTablet:
        tablet = self.tablets.get(tablet_id)
        if tablet is None:
            raise TabletNotHere(tablet_id, self.name)
        replica = tablet.replica
        if not replica.leader_ready:
            raise NotLeader(self.uuid, 0, replica.leader_address or "")
        return tablet

    async def put(self, call: Call[Put]) -> Reply[Row]:
        key, value = call.body.key, call.body.value
        tablet = self._led(tablet_of(key))
        machine, replica = tablet.machine, tablet.replica
        if not machine.is_founded:
            await replica.propose(encode_alter(TABLE, STAMP), call.timeout_s)
        client, _, number = value.rpartition("-")
        request = RequestId(ClientId(client), int(number) + 1, 1)
        rows = ((key, value), (f"of {value}", value * 20))
        write = Write(tablet_of(key), 0, WriteOp.UPSERT, request, rows, ("key", "value"))
        command = encode_write(write, rows, None, schema_version=SCHEMA.version, stamp=STAMP)
        outcome = await replica.propose(command, call.timeout_s)
        assert isinstance(outcome, bytes)
        return Reply(Row(answer(outcome).first_version, value))

    async def get(self, call: Call[Get]) -> Reply[Row]:
        tablet = self._led(tablet_of(call.body.key))
        await tablet.replica.read_barrier(call.timeout_s)
        found = tablet.machine.memory.get((call.body.key,))
        if found is None:
            return Reply(Row(0, None))
        value = found.row[1]
        assert isinstance(value, str)
        return Reply(Row(found.version, value))

    async def change(self, call: Call[Change]) -> Reply[Empty]:
        body = call.body
        if body.kind == "add":
            change = MemberChange(ChangeKind.ADD, uuid_of(body.name), body.address, body.name)
        else:
            change = MemberChange(ChangeKind.REMOVE, uuid_of(body.name))
        replica = self._led(TABLET).replica
        await replica.change_configuration(change, expected=None, timeout_s=call.timeout_s)
        return EMPTY

    async def drop(self, call: Call[Drop]) -> Reply[Empty]:
        """As a master orders it: never of a replica that is a member, unless for ever."""
        tablet_id, forever = call.body.tablet_id, call.body.forever
        async with self.lock(tablet_id):
            tablet = self.tablets.get(tablet_id)
            if not forever:
                if tablet is None:
                    raise TabletNotReady(tablet_id, "being copied")
                if tablet.replica.members.peer(self.uuid) is not None:
                    raise TabletNotReady(tablet_id, "a member")
            last = await self._stop(tablet_id)
            try:
                await self.store.tombstone(tablet_id, last, forever=forever)
            except NoSpace:
                if self.data_state(tablet_id) is DataState.READY:
                    await self._open(tablet_id)
                raise
        await self.settle(tablet_id)
        self.world.note(self.name, f"has deleted {tablet_id}")
        return EMPTY


def checksums(world: World, tablet_id: TabletId = TABLET) -> dict[str, object]:
    """Of all replicas that run: how far they have applied their logs, and what they hold."""
    found: dict[str, object] = {}
    for name in EVERYONE:
        server = world.server(name) if name in world.nodes else None
        tablet = server.tablets.get(tablet_id) if server is not None else None
        if tablet is not None:
            source = tablet.machine.checksum(tablet.machine.applied_index)
            assert source is not None
            checksum = source.compute()
            applied = tablet.replica.core.log.applied_index
            found[name] = (applied, checksum.row_count, checksum.rows, checksum.rest)
    return found


def leading(world: World, tablet_id: TabletId = TABLET) -> str | None:
    """The name of a server whose replica leads and is ready; the one of the highest term."""
    best: tuple[int, str] | None = None
    for name in EVERYONE:
        server = world.server(name) if name in world.nodes else None
        tablet = server.tablets.get(tablet_id) if server is not None else None
        if tablet is not None and tablet.replica.leader_ready:
            best = max(best or (0, ""), (tablet.replica.term, name))
    return best[1] if best is not None else None
