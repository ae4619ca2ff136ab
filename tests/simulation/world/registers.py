"""A group of three replicas with a register for each key: servers, clients, and what must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from stelae.actors.raft.replica import Replica, ReplicaSettings
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.errors import (
    NotLeader,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
)
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.rpc import Call, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.world.world import World

GROUP = TabletId("00000000000000000000000000000001")
NAMES = ("m1", "m2", "m3")
TICK_S = 0.02


class Put(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: str


class Get(msgspec.Struct, frozen=True, array_like=True):
    key: str


class Row(msgspec.Struct, frozen=True, array_like=True):
    version: int
    value: str | None


PUT: Method[Put, Row] = Method("put", Put, Row)
GET: Method[Get, Row] = Method("get", Get, Row)


class Registers:
    """A state machine: the last value of each key, versioned by log index; a value is put once."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.done: dict[str, int] = {}

    def apply(self, index: int, term: int, command: bytes) -> Row:
        put = msgspec.msgpack.decode(command, type=Put)
        if put.value not in self.done:
            self.done[put.value] = index
            self.rows[put.key] = Row(index, put.value)
        return Row(self.done[put.value], put.value)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.rows, self.done))

    def restore(self, data: bytes) -> None:
        self.rows, self.done = msgspec.msgpack.decode(
            data, type=tuple[dict[str, Row], dict[str, int]]
        )


class RegisterServer:
    """One server with one replica."""

    def __init__(
        self,
        runtime: Runtime,
        world: World,
        name: str,
        bug: str,
        uuid: str = "",
        founders: Sequence[str] = NAMES,
    ) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.bug = bug
        self.name = name
        self.uuid = ServerUuid(uuid or f"uuid-{name}")
        self.registers = Registers()
        options = world.options
        raft = RaftSettings(
            batch_entries_max=options.limits.batch_operations,
            inflight_max=4,
            snapshot_chunk_bytes=200,
            lease_duration_us=int(TICK_S * 6 * 1e6) if options.shuffle else 0,
        )
        settings = ReplicaSettings(
            raft=raft,
            tick_s=TICK_S,
            log_file_bytes=600,
            log_ahead_bytes=200,
            snapshot_entries=options.limits.snapshot_entries,
            keep_entries=options.limits.snapshot_entries // 2,
            abandon_member_s=3.0,
        )
        peers = {ServerUuid(f"uuid-{peer}"): world.address(peer) for peer in founders}
        self.replica = Replica(
            runtime, self.tasks, GROUP, self.uuid, peers, self.registers, settings
        )
        plant(self.replica, bug)
        self.replica.on_role_change(lambda change: world.note(name, str(change)))

    async def start(self) -> None:
        handlers: Handlers = {**self.replica.handlers(), PUT: self.put, GET: self.get}
        await self.runtime.peers.listen(self.uuid, handlers)
        await self.replica.start()

    async def stop(self) -> None:
        await self.replica.stop()
        await self.tasks.close()

    async def put(self, call: Call[Put]) -> Reply[Row]:
        if self.replica._core is None:
            raise NotLeader(self.uuid, 0, "")
        row = await self.replica.propose(msgspec.msgpack.encode(call.body), call.timeout_s)
        assert isinstance(row, Row)
        return Reply(row)

    async def get(self, call: Call[Get]) -> Reply[Row]:
        if self.replica._core is None:
            raise NotLeader(self.uuid, 0, "")
        if self.bug != "no read barrier":
            await self.replica.read_barrier(call.timeout_s)
        elif not self.replica.is_leader:
            raise NotLeader(self.uuid, 0, "")
        return Reply(self.registers.rows.get(call.body.key, Row(0, None)))


class UnsyncedFile:
    """The planted bug: a file that says it is durable when it is not."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def sync(self) -> None:
        return None

    def sync_at_once(self) -> bool:
        return True


def plant(replica: Replica, bug: str) -> None:
    """Break the shell."""
    storage = replica._storage
    save = storage.save
    if bug == "no sync":
        disk = storage._disk
        real_open = disk.open

        class Lying:
            def __getattr__(self, name: str) -> Any:
                return getattr(disk, name)

            async def open(self, path: str) -> Any:
                return UnsyncedFile(await real_open(path))

        storage._disk = Lying()
    elif bug == "sent before saved":

        async def hasty(term_and_vote: Any, snapshot: Any, entries: Any) -> None:
            taken = replica.core._taken
            replica._links.send(taken.messages if taken is not None else ())
            await save(term_and_vote, snapshot, entries)

        storage.save = hasty  # type: ignore[method-assign]
        # All goes that way; that what is saved at once is durable is shown by "no sync".
        storage.save_at_once = lambda entries: False  # type: ignore[method-assign]


async def call_leader(
    world: World,
    client: Runtime,
    method: Any,
    request: Any,
    start: int,
    names: Sequence[str] = NAMES,
) -> Any:
    """One operation: try the servers until one surely did it, or it is unknown."""
    address: Address | None = None
    turn = start
    for _ in range(40):
        target = address or world.address(names[turn % len(names)])
        turn += address is None  # a hint, which may be old, does not take anybody's turn
        address = None
        try:
            reply = await client.peers.call(target, method, request, timeout_s=1.0)
        except NotLeader as error:
            address = Address(error.leader) if error.leader else None
            await asyncio.sleep(0.02)
        except (RetryLater, RetryElsewhere):
            await asyncio.sleep(0.05)
        except OutcomeUnknown:
            if method is not GET:
                raise
        else:
            return reply.body
    return None


async def work(
    world: World, history: History, name: str, operations: int, names: Sequence[str] = NAMES
) -> None:
    client = world.client(name)
    rng = world.rng(f"workload/{name}")
    for number in range(operations):
        key = f"k{rng.randrange(4)}"
        write = rng.random() < 0.5
        value = f"{name}-{number}" if write else None
        operation = history.begin(name, "write" if write else "read", key, value)
        request = Put(key, value) if value is not None else Get(key)
        method: Any = PUT if write else GET
        try:
            row = await call_leader(world, client, method, request, rng.randrange(3), names)
        except OutcomeUnknown:
            history.unknown(operation)
        else:
            if row is None and write and world.options.duplicate_rate > 0.0:
                history.unknown(operation)  # one of two was refused, the other may have come later
            elif row is None:
                history.failed(operation)
            else:
                version = row.version if row.value is not None else None
                history.ok(operation, version=version, value=row.value)
        await asyncio.sleep(rng.expovariate(20.0))


def ready_leader(world: World, names: Sequence[str] = NAMES) -> str | None:
    """The name of a server whose replica leads and is ready."""
    for name in names:
        server = world.server(name)
        if server is not None and world.nodes[name].ready and server.replica.leader_ready:
            return name
    return None


def replicas_agree(world: World) -> bool:
    """True once all servers hold the same rows."""
    servers = [world.server(name) for name in NAMES]
    assert None not in servers, "a server is down after all faults ended"
    rows = [server.registers.rows for server in servers]
    return all(other == rows[0] for other in rows)


async def scenario(world: World, bug: str = "", duration_s: float = 8.0) -> History:
    """Clients work under faults; then all is healed, and everything is read once more."""
    history = History(world.loop.time)
    for name in NAMES:
        world.start(
            name,
            partial(RegisterServer, world=world, name=name, bug=bug),
            kind="master",
        )
    world.leader_hint = lambda: ready_leader(world)
    await world.wait_ready()
    await world.wait_until(lambda: ready_leader(world) is not None, 60.0, "a first leader")
    nemesis = Nemesis.begin(world, duration_s=duration_s)
    await asyncio.gather(*(work(world, history, f"c{i}", 25) for i in range(3)))
    await nemesis.finish()
    await world.wait_until(lambda: ready_leader(world) is not None, 60.0, "a leader after healing")
    reader = world.client("reader")
    for key in ("k0", "k1", "k2", "k3"):
        operation = history.begin("reader", "read", key)
        row = await call_leader(world, reader, GET, Get(key), 0)
        assert row is not None, "no answer after all faults ended"
        version = row.version if row.value is not None else None
        history.ok(operation, version=version, value=row.value)
    require_rows(history)
    await world.wait_until(lambda: replicas_agree(world), 60.0, "replicas agree")
    return history
