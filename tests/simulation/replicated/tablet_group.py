"""One tablet with ``replicas(n)`` on tablet servers in the simulated world, without masters.

The servers are real, and so are the calls; what masters would order is ordered by hand. Clients try
the servers in turn, follow hints, and repeat a write under its request id until they are answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.server import TabletServer
from stelae.core.config.settings import Settings
from stelae.core.errors import NotLeader, OutcomeUnknown, RetryElsewhere, RetryLater
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import LINEARIZABLE
from stelae.core.messages.replicas import CREATE_REPLICA, CreateReplica
from stelae.core.messages.rows import GET, WRITE, Get, Write, WriteOp, WriteReply
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.replication import Configuration, Peer
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.simulation import World
from stelae.simulation.history import History
from stelae.storage.replicated.checksum import Checksum

TABLET = TabletId("a" * 32)
SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())]), ["id"]
)
TABLE = TableRecord(
    TableId("b" * 32), "rows", SCHEMA, Partitioning(), replicas(3), TableState.RUNNING
)
SETTINGS = Settings(segment_bytes=1500, call_timeout_s=2.0, arrow_rows=4, raft_tick_s=0.02)
NOBODY = Address("no-master:7000")
MEMORY_LIMIT_BYTES = 64 << 20


class Group:
    """Some tservers, of which the first ``count`` are to have a replica of one tablet."""

    def __init__(
        self,
        world: World,
        *,
        servers: int = 3,
        count: int = 3,
        settings: Settings = SETTINGS,
        fixed_ports: bool = True,
    ) -> None:
        self.world = world
        self.settings = settings
        self.fixed_ports = fixed_ports
        self.names = [f"t{n}" for n in range(1, servers + 1)]
        self.first = self.names[:count]
        self.driver = world.client("driver")
        self.configuration = Configuration(OpId(0, 0), ())

    async def start(self) -> None:
        """Start the servers, and make the tablet on the first of them."""
        for name in self.names:
            self.world.start(name, self._factory(name), kind="tserver", fixed_port=self.fixed_ports)
        self.world.leader_hint = self.leader
        await self.world.wait_ready(*self.names)
        peers = [Peer(self.uuid(name), self.world.address(name), True, name) for name in self.first]
        ordered = tuple(sorted(peers, key=lambda peer: peer.uuid))
        self.configuration = Configuration(OpId(0, 0), ordered)
        for name in self.first:
            await self.insist(name, CREATE_REPLICA, self.creation())

    def creation(self) -> CreateReplica:
        return CreateReplica(TABLET, TABLE, self.configuration)

    def _factory(self, name: str) -> Any:
        def make(runtime: Runtime) -> TabletServer:
            return TabletServer(
                runtime,
                name=name,
                cluster="simulated",
                masters=[NOBODY],
                settings=self.settings,
                memory_limit_bytes=MEMORY_LIMIT_BYTES,
            )

        return make

    async def order(self, name: str, method: Any, request: Any, timeout_s: float = 5.0) -> Any:
        """One call of a master's; the body of the answer."""
        reply = await self.driver.peers.call(
            self.world.address(name), method, request, timeout_s=timeout_s
        )
        return reply.body

    async def insist(self, name: str, method: Any, request: Any) -> Any:
        """An idempotent order, until it is answered."""
        for _ in range(60):
            try:
                return await self.order(name, method, request, timeout_s=1.0)
            except (OutcomeUnknown, RetryLater):
                await asyncio.sleep(0.1)
        raise AssertionError(f"{name} does not answer {method.name}")

    # ---- to look at -------------------------------------------------------------------------

    def server(self, name: str) -> TabletServer | None:
        """The server, once it has started."""
        server = self.world.server(name)
        assert server is None or isinstance(server, TabletServer)
        return server if server is not None and self.world.nodes[name].ready else None

    def uuid(self, name: str) -> ServerUuid:
        server = self.server(name)
        assert server is not None
        return server.info.uuid

    def tablet(self, name: str) -> ReplicatedTablet | None:
        """The replica on a server, if it runs."""
        server = self.server(name)
        return None if server is None else server.replicas.tablet(TABLET)

    def leader(self) -> str | None:
        """The name of a server whose replica leads and is ready."""
        for name in self.names:
            tablet = self.tablet(name)
            if tablet is not None and tablet.replica.leader_ready:
                return name
        return None

    async def wait_leader(self, timeout_s: float = 60.0) -> str:
        await self.world.wait_until(lambda: self.leader() is not None, timeout_s, "a leader")
        name = self.leader()
        assert name is not None
        return name

    def state(self, name: str) -> tuple[int, Checksum] | None:
        """(applied index, checksum) of a replica; equal for equal rows, versions and results."""
        tablet = self.tablet(name)
        if tablet is None or not tablet.machine.applied_index:
            return None
        machine = tablet.machine
        source = machine.checksum(machine.applied_index)
        assert source is not None
        return machine.applied_index, source.compute()

    async def wait_agreement(self, names: Sequence[str], timeout_s: float = 60.0) -> None:
        """Wait until these replicas hold the same."""

        def agree() -> bool:
            states = [self.state(name) for name in names]
            return None not in states and len(dict.fromkeys(states)) == 1

        await self.world.wait_until(agree, timeout_s, "all replicas hold the same rows")


@dataclass
class Caller:
    """A client of the tablet's group."""

    group: Group
    name: str
    attempt_s: float = 1.0

    def __post_init__(self) -> None:
        self.runtime = self.group.world.client(self.name)
        self.sequence = 0
        self.turn = 0

    async def write(
        self,
        op: WriteOp,
        rows: Sequence[tuple[Any, ...]],
        *,
        if_versions: Sequence[int] = (),
        attempts: int = 60,
    ) -> WriteReply:
        """Exactly once. Raises OutcomeUnknown after that many attempts, and what refuses it."""
        self.sequence += 1
        request = RequestId(ClientId(self.name), self.sequence, self.sequence)
        call = Write(TABLET, 0, op, request, tuple(rows), if_versions=tuple(if_versions))
        reply = await self.call(WRITE, call, attempts=attempts)
        assert isinstance(reply, WriteReply)
        return reply

    async def upsert(self, key: int, value: str) -> int:
        """The row's version."""
        reply = await self.write(WriteOp.UPSERT, [(key, value)])
        return reply.first_version

    async def get(
        self, key: int, *, max_staleness_s: float = LINEARIZABLE, attempts: int = 200
    ) -> tuple[Any, int] | None:
        """(value, version) of a row."""
        call = Get(TABLET, ((key,),), max_staleness_s=max_staleness_s)
        reply = await self.call(GET, call, attempts=attempts)
        found = reply.rows[0]
        return None if found is None else (found[0][1], found[1])

    async def call(self, method: Any, request: Any, *, attempts: int) -> Any:
        """Ask until answered: the body."""
        address: Address | None = None
        names, tried = self.group.names, False
        for _ in range(attempts):
            target = address or self.group.world.address(names[self.turn % len(names)])
            self.turn += address is None
            address = None
            try:
                reply = await self.runtime.peers.call(
                    target, method, request, timeout_s=self.attempt_s
                )
            except NotLeader as error:
                address = Address(error.leader) if error.leader else None
                await asyncio.sleep(0.01)
            except (RetryLater, RetryElsewhere):
                await asyncio.sleep(0.03)
            except OutcomeUnknown:
                tried = True
            else:
                return reply.body
        if method is WRITE or tried:
            raise OutcomeUnknown(TABLET, method.name, attempts * self.attempt_s)
        raise RetryLater("no replica answered")


async def work(
    caller: Caller, history: History, rng: random.Random, *, keys: int, operations: int
) -> None:
    """A mix of operations on few keys, recorded."""
    for number in range(operations):
        key, dice = rng.randrange(keys), rng.random()
        try:
            if dice < 0.5:
                value = f"{caller.name}-{number}" + "x" * rng.randrange(60)
                operation = history.begin(caller.name, "write", str(key), value)
                history.ok(operation, version=await caller.upsert(key, value))
            elif dice < 0.6:
                operation = history.begin(caller.name, "delete", str(key))
                reply = await caller.write(WriteOp.DELETE, [(key,)])
                history.ok(operation, version=reply.first_version)
            else:
                operation = history.begin(caller.name, "read", str(key))
                found = await caller.get(key)
                value_read, version = found if found is not None else (None, None)
                history.ok(operation, version=version, value=value_read)
        except OutcomeUnknown:
            history.unknown(operation)
        except RetryLater:
            history.failed(operation)
        await asyncio.sleep(rng.expovariate(20.0))
