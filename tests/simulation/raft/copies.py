"""A Raft group whose hosts keep the state: flushes, copies, tombstones that vote, under faults.

A small host of its own kind, over the same shells that tablets use: the state lies in a file beside
the replica; a flush writes it, and then the snapshot that names it. A replica whose log is too old
is deleted and copied from the leader, over calls that fail. What clients saw must be linearizable,
reads at any replica no older than asked for, and at the end all hold the same rows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from stelae.actors.raft.handlers import raft_handlers
from stelae.actors.raft.replica import Replica, ReplicaSettings
from stelae.actors.raft.staleness import Freshness
from stelae.actors.raft.storage import SnapshotFile
from stelae.actors.raft.tombstone import Tombstone
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    NotLeader,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.records.replication import Snapshot, TermAndVote
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    encode_consensus_metadata,
)
from tests.simulation.world.registers import (
    GET,
    GROUP,
    NAMES,
    PUT,
    TICK_S,
    Get,
    Put,
    Registers,
    Row,
    call_leader,
    work,
)

ELECTION_TICKS = 10
WORK_S = 8.0
META = f"consensus-meta/{GROUP}"
BLOCK = f"tablet-meta/{GROUP}"


class Block(msgspec.Struct):
    """The superblock of this test: what is here, and what a log that was here had reached."""

    is_ready: bool
    last: OpId | None


class Copy(msgspec.Struct, frozen=True):
    """A leader's order: be as this, if your log lacks it."""

    term: int
    snapshot: Snapshot
    image: bytes


class Stale(msgspec.Struct, frozen=True):
    key: str
    max_staleness_s: float


COPY: Method[Copy, Empty] = Method("copy", Copy, Empty)
STALE_GET: Method[Stale, Row] = Method("stale_get", Stale, Row)


class FlushedRegisters(Registers):
    """A state machine whose snapshots only name a file that its host has opened."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 0
        self.images: dict[str, bytes] = {}

    def apply(self, index: int, term: int, command: bytes) -> Row:
        self.index = index
        return super().apply(index, term, command)

    def image(self) -> bytes:
        return super().snapshot()

    def snapshot(self) -> bytes:
        raise AssertionError("the host makes the snapshots")

    def restore(self, data: bytes) -> None:
        super().restore(self.images[data.decode()])


class CopyingServer:
    """One server with one replica, or its tombstone."""

    def __init__(self, runtime: Runtime, world: World, name: str, bug: str) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.world = world
        self.name = name
        self.bug = bug
        self.uuid = ServerUuid(f"uuid-{name}")
        options = world.options
        self.settings = ReplicaSettings(
            raft=RaftSettings(
                election_ticks=ELECTION_TICKS,
                batch_entries_max=options.limits.batch_operations,
                inflight_max=4,
                lease_duration_us=int(TICK_S * 6 * 1e6) if options.shuffle else 0,
                copies_by_host=True,
            ),
            tick_s=TICK_S,
            log_file_bytes=600,
            keep_bytes=world.rng("keep").choice([0, 0, 400]),
        )
        self.flush_every_s = world.rng("flush").choice([0.1, 0.3])
        self.replicas: dict[TabletId, Replica] = {}
        self.tombstones: dict[TabletId, Tombstone] = {}
        self.registers = FlushedRegisters()
        self.freshness: Freshness | None = None
        self._changing = asyncio.Lock()
        self._copying: dict[ServerUuid, asyncio.Task[None]] = {}

    # ---- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        block = await self._read_block()
        if block.is_ready:
            await self._start_replica(block)
        else:
            await self._start_tombstone(block)
        handlers: Handlers = {
            **raft_handlers(self.replicas, self.tombstones),
            PUT: self.put,
            GET: self.get,
            STALE_GET: self.stale_get,
            COPY: self.copy,
        }
        async with self._changing:
            await self.runtime.peers.listen(self.uuid, handlers)
            for replica in self.replicas.values():
                await replica.start()
        self.tasks.spawn(self._flush_for_ever(), "flushes")

    async def stop(self) -> None:
        for replica in self.replicas.values():
            await replica.stop()
        await self.tasks.close()

    async def _read_block(self) -> Block:
        try:
            return msgspec.msgpack.decode(await self.runtime.disk.read(BLOCK), type=Block)
        except FileNotFoundError:
            return Block(True, None)

    async def _write_block(self, block: Block) -> None:
        await self.runtime.disk.replace(BLOCK, msgspec.msgpack.encode(block))

    async def _start_replica(self, block: Block) -> None:
        """Make the replica, with what its snapshot names in memory."""
        disk = self.runtime.disk
        self.registers = FlushedRegisters()
        store = SnapshotFile(disk, "", GROUP)
        snapshot = await store.load()
        if snapshot is not None:
            name = snapshot.data.decode()
            self.registers.images = {name: await disk.read(f"data/{name}")}
        peers = {ServerUuid(f"uuid-{name}"): self.world.address(name) for name in NAMES}
        replica = Replica(
            self.runtime,
            self.tasks,
            GROUP,
            self.uuid,
            peers,
            self.registers,
            self.settings,
            snapshots=store,
            vote_floor=block.last,
        )
        replica.on_copy_needed(self._copy_needed)
        self.freshness = Freshness(self.runtime, Settings(), replica)
        self.replicas[GROUP] = replica

    async def _start_tombstone(self, block: Block) -> None:
        """What the superblock says counts: the log goes, if that was not done before a crash."""
        for folder in (f"wals/{GROUP}", "data", "snapshots"):
            for name in await self.runtime.disk.list(folder):
                await self.runtime.disk.remove(f"{folder}/{name}")
        metadata = await self._metadata()
        kept = metadata.term_and_vote
        if self.bug == "a tombstone forgets its vote":
            kept = TermAndVote(kept.term, None)
        last = OpId(0, 0) if self.bug == "a tombstone votes for any log" else block.last
        self.tombstones[GROUP] = Tombstone(
            self.runtime,
            self.tasks,
            GROUP,
            self.uuid,
            kept,
            last,
            save=self._save_vote,
            quiet_s=ELECTION_TICKS * TICK_S,
        )

    async def _metadata(self) -> ConsensusMetadata:
        data = await self.runtime.disk.read(META)
        return decode_consensus_metadata(META, GROUP, data)

    async def _save_vote(self, vote: TermAndVote) -> None:
        metadata = ConsensusMetadata(GROUP, vote, (await self._metadata()).configuration)
        await self.runtime.disk.replace(META, encode_consensus_metadata(metadata))

    # ---- flushes ---------------------------------------------------------------------------

    async def _flush_for_ever(self) -> None:
        while True:
            await self.runtime.clock.sleep(self.flush_every_s)
            async with self._changing:
                if GROUP in self.replicas:
                    await self._flush(self.replicas[GROUP])

    async def _flush(self, replica: Replica) -> None:
        """Image, then snapshot, then the log; images that do not count any more last."""
        index = self.registers.index
        core = replica.core
        before = core.log.snapshot
        if index <= (before.last.index if before is not None else 0):
            return
        name, image = f"image-{index}", self.registers.image()
        snapshot = replica.snapshot_at(index, name.encode())
        await self.runtime.disk.replace(f"data/{name}", image)
        await replica.flushed(snapshot)
        for old in await self.runtime.disk.list("data"):
            if old != name:
                await self.runtime.disk.remove(f"data/{old}")

    # ---- copies ----------------------------------------------------------------------------

    def _copy_needed(self, uuid: ServerUuid) -> None:
        if uuid not in self._copying:
            task = self.tasks.spawn(self._order_copy(uuid), f"copy to {uuid}")
            self._copying[uuid] = task
            task.add_done_callback(lambda _: self._copying.pop(uuid, None))

    async def _order_copy(self, uuid: ServerUuid) -> None:
        self.world.note(self.name, f"orders a copy to {uuid}")
        async with self._changing:
            replica = self.replicas.get(GROUP)
            if replica is None or not replica.is_leader:
                return
            await self._flush(replica)
            snapshot = replica.core.log.snapshot
            if snapshot is None:
                return
            image = await self.runtime.disk.read(f"data/{snapshot.data.decode()}")
            pin = replica.flushes.pin(snapshot.last.index + 1)
        peer = replica.core.configuration.peer(uuid)
        assert peer is not None
        try:
            order = Copy(replica.term, snapshot, image)
            await self.runtime.peers.call(
                peer.address, COPY, order, timeout_s=2.0, destination=uuid
            )
            await self.runtime.clock.sleep(0.1)
        except StelaeError:
            await self.runtime.clock.sleep(0.1)
        finally:
            replica.flushes.unpin(pin)

    async def copy(self, call: Call[Copy]) -> Reply[Empty]:
        """Delete what is here, unless it is as good; then become what the leader is."""
        order = call.body
        async with self._changing:
            await self._delete(order)
            tombstone = self.tombstones[GROUP]
            if order.term < tombstone.term:
                raise TabletNotReady(GROUP, "further")
            disk = self.runtime.disk
            await disk.replace(f"data/{order.snapshot.data.decode()}", order.image)
            await self.runtime.clock.sleep(self.world.rng("copy").choice([0.01, 0.2]))
            await tombstone.stop()
            metadata = await self._metadata()
            vote = metadata.term_and_vote
            if order.term > vote.term:
                vote = TermAndVote(order.term, None)
            merged = ConsensusMetadata(GROUP, vote, metadata.configuration)
            await disk.replace(META, encode_consensus_metadata(merged))
            await SnapshotFile(disk, "", GROUP).replace(order.snapshot)
            block = Block(True, tombstone.last)
            await self._write_block(block)
            del self.tombstones[GROUP]
            await self._start_replica(block)
            await self.replicas[GROUP].start()
            self.world.note(self.name, f"is a copy up to {order.snapshot.last}")
        return EMPTY

    async def _delete(self, order: Copy) -> None:
        replica = self.replicas.get(GROUP)
        if replica is None:
            return
        if order.term < replica.term or not replica.core.log.lacks(order.snapshot.last):
            raise TabletNotReady(GROUP, "as good as that")
        del self.replicas[GROUP]
        self.freshness = None
        await replica.stop()
        block = Block(False, replica.core.end_of_log)
        await self._write_block(block)
        await self._start_tombstone(block)

    # ---- clients ---------------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        replica = self.replicas.get(GROUP)
        if replica is None or replica._core is None:
            raise NotLeader(self.uuid, 0, "")
        return replica

    async def put(self, call: Call[Put]) -> Reply[Row]:
        row = await self.replica.propose(msgspec.msgpack.encode(call.body), call.timeout_s)
        assert isinstance(row, Row)
        return Reply(row)

    async def get(self, call: Call[Get]) -> Reply[Row]:
        await self.replica.read_barrier(call.timeout_s)
        return Reply(self.registers.rows.get(call.body.key, Row(0, None)))

    async def stale_get(self, call: Call[Stale]) -> Reply[Row]:
        _ = self.replica
        freshness = self.freshness
        assert freshness is not None
        if self.bug != "no proof of freshness":
            await freshness.prove(call.body.max_staleness_s, call.timeout_s)
        if freshness is not self.freshness:
            raise NotLeader(self.uuid, 0, "")
        return Reply(self.registers.rows.get(call.body.key, Row(0, None)))


def leading(world: World) -> str | None:
    """The name of a server whose replica leads and is ready."""
    for name in NAMES:
        server = world.server(name)
        if server is None or not world.nodes[name].ready:
            continue
        replica = server.replicas.get(GROUP)
        if replica is not None and replica._core is not None and replica.leader_ready:
            return name
    return None


def agree(world: World) -> bool:
    """True once all servers hold a replica, and the same rows."""
    servers = [world.server(name) for name in NAMES]
    if None in servers:
        return False  # one's disk has failed since
    rows = [server.registers.rows for server in servers]
    ready = all(GROUP in server.replicas for server in servers)
    return ready and all(other == rows[0] for other in rows)


async def read_stale(world: World, history: History, until_s: float) -> int:
    """Ask any replica; what was acknowledged before the bound is in its answer."""
    client, rng = world.client("stale"), world.rng("stale")
    answered = 0
    while world.loop.time() < until_s:
        key, allowed_s = f"k{rng.randrange(4)}", rng.choice([0.1, 0.5, 2.0])
        began = world.loop.time()
        try:
            reply = await client.peers.call(
                world.address(rng.choice(NAMES)), STALE_GET, Stale(key, allowed_s), timeout_s=0.5
            )
        except (RetryElsewhere, RetryLater, OutcomeUnknown):
            await asyncio.sleep(0.05)
            continue
        answered += 1
        for operation in history.operations:
            ended_s = operation.returned_s
            is_known = ended_s is not None and ended_s <= began - allowed_s * 1.01
            if operation.key == key and is_known and operation.version is not None:
                assert operation.version <= reply.body.version, f"older than {allowed_s} s"
        await asyncio.sleep(rng.expovariate(20.0))
    return answered


async def run(world: World, bug: str = "") -> None:
    """Clients work under faults; then all is healed, and must be in order."""
    history = History(world.loop.time)
    for name in NAMES:
        world.start(
            name,
            partial(CopyingServer, world=world, name=name, bug=bug),
            kind="master",
        )
    world.leader_hint = lambda: leading(world)
    await world.wait_until(lambda: leading(world) is not None, 60.0, "a first leader")
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    clients = [work(world, history, f"c{i}", 40) for i in range(3)]
    answered, *_ = await asyncio.gather(read_stale(world, history, WORK_S), *clients)
    await nemesis.finish()
    await world.wait_until(lambda: leading(world) is not None, 60.0, "a leader after healing")
    reader: Any = world.client("reader")
    for key in ("k0", "k1", "k2", "k3"):
        operation = history.begin("reader", "read", key)
        row = await call_leader(world, reader, GET, Get(key), 0)
        assert row is not None, "no answer after all faults ended"
        version = row.version if row.value is not None else None
        history.ok(operation, version=version, value=row.value)
    require_rows(history)
    await world.wait_until(lambda: agree(world), 60.0, "all hold a replica, and the same rows")
    world.note("world", f"{answered} stale reads")


def draw(seed: int) -> Options:
    """No disk lost: that makes another server."""
    return Options.draw(seed).but(lost_disk_every_s=0.0)


SCENARIO = Scenario("tests/simulation/raft/copies.py:SCENARIO", run, draw, limit_s=300.0)
