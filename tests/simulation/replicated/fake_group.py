"""Servers that answer like the replicas of one tablet, with a leader that the test names.

What they agree on is one object: the rows, and the results by request id. So a test decides who
leads and when, who is believed to, and sees what was asked of whom; how replicas really agree is
shown elsewhere. A master answers where the tablet is, as the test says.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.input.convert import decode_batch, encode_batch
from stelae.core.config.settings import Settings
from stelae.core.errors import NotLeader, TabletNotHere, TooStale
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import (
    GET_TABLE,
    GetTable,
    ReplicaLocation,
    TableLocations,
    TabletLocation,
)
from stelae.core.messages.rows import (
    GET,
    GET_MANY,
    SCAN,
    WRITE,
    Get,
    GetMany,
    GetManyReply,
    GetReply,
    Scan,
    ScanReply,
    Write,
    WriteReply,
)
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.records.replication import Configuration, Peer
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation import World
from stelae.simulation.world.node import Factory

SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), ("value", pa.int64())]), ["id"]
)
MASTER = "master-1"
TABLET = TabletId("a" * 32)


@dataclass
class Group:
    """The tablet, as all its replicas together have it."""

    world: World
    names: list[str]
    tablet_id: TabletId = TABLET
    leader: str | None = None
    term: int = 1
    believed: dict[str, str] = field(default_factory=dict)
    """Whom a replica takes for the leader, where that is not `leader`."""
    here: dict[str, bool] = field(default_factory=dict)
    """False: that server has no replica."""
    age_s: dict[str, float] = field(default_factory=dict)
    """How old the state of a replica is; 0 if not named."""
    slow_s: dict[str, float] = field(default_factory=dict)
    """How long a server thinks over what is more than a question."""
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Key -> value, version."""
    lives: dict[str, int] = field(default_factory=dict)
    """How often a server has come back as another one, with no data; 0 if not named."""
    results: dict[tuple[str, int], WriteReply] = field(default_factory=dict)
    version: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(server, method) of each call that arrived; a read of no keys is a ``question``."""
    look_ups: int = 0
    listed: list[str] | None = None
    """Who has replicas, as the master says; None: ``names``."""

    def uuid(self, name: str) -> ServerUuid:
        return uuid_of(f"{name}/{self.lives.get(name, 0)}")

    def count(self, method: str, server: str = "") -> int:
        return sum(1 for s, m in self.asked if m == method and server in ("", s))

    def elect(self, name: str | None) -> None:
        self.leader, self.term = name, self.term + 1
        self.believed.clear()

    def location(self) -> TableLocations:
        """What the master says."""
        record = TableRecord(
            TableId("e" * 32), "t", SCHEMA, Partitioning(), replicas(3), TableState.RUNNING
        )
        names = self.names if self.listed is None else self.listed
        peers = tuple(Peer(self.uuid(name), self.world.address(name)) for name in names)
        tablet = TabletRecord(
            self.tablet_id,
            record.table_id,
            0,
            TabletState.RUNNING,
            0,
            ServerUuid(""),
            0,
            configuration=Configuration(OpId(0, 0), peers),
        )
        found = tuple(
            ReplicaLocation(peer.uuid, peer.address, True, name == self.leader)
            for name, peer in zip(names, peers, strict=True)
        )
        address = self.world.address(self.leader) if self.leader in names else Address("")
        return TableLocations(record, (TabletLocation(tablet, Address(address), "", found),))


def uuid_of(name: str) -> ServerUuid:
    return ServerUuid(name.encode().hex().rjust(32, "0"))


class FakeServer:
    """One tserver; what it holds survives it."""

    def __init__(self, runtime: Runtime, name: str, group: Group) -> None:
        self.tasks = Tasks()
        self._runtime = runtime
        self._name = name
        self._group = group

    async def start(self) -> None:
        handlers: Handlers = {
            WRITE: self._on_write,
            GET: self._on_get,
            GET_MANY: self._on_get_many,
            SCAN: self._on_scan,
        }
        await self._runtime.peers.listen(self._group.uuid(self._name), handlers)

    async def stop(self) -> None:
        await self.tasks.close()
        await self._runtime.peers.close()

    async def _check(self, tablet_id: TabletId, method: str, max_staleness_s: float = -1.0) -> None:
        """Refuse as a replica would, or take the time that the test wants."""
        group, name = self._group, self._name
        group.asked.append((name, method))
        if tablet_id != group.tablet_id or not group.here.get(name, True):
            raise TabletNotHere(tablet_id, name)
        if method != "question":
            await self._runtime.clock.sleep(group.slow_s.get(name, 0.0))
        if group.leader == name and group.believed.get(name, name) == name:
            return
        if max_staleness_s >= 0:
            age_s = group.age_s.get(name, 0.0)
            if age_s > max_staleness_s:
                raise TooStale(name, f"{age_s} s", max_staleness_s)
            return
        leader = group.believed.get(name, group.leader)
        hint = "" if leader is None or leader == name else group.world.address(leader)
        raise NotLeader(name, group.term, hint)

    async def _on_write(self, call: Call[Write]) -> Reply[Any]:
        body, group = call.body, self._group
        await self._check(body.tablet_id, "write")
        key = (body.request.client_id, body.request.sequence)
        if key not in group.results:
            rows = body.rows
            if call.blobs:
                batch = decode_batch(call.blobs[0])
                rows = tuple(zip(*[column.to_pylist() for column in batch.columns], strict=True))
            first = group.version + 1
            for number, value in rows:
                group.version += 1
                group.rows[number] = (value, group.version)
            group.results[key] = WriteReply(first, len(rows))
        return Reply(group.results[key])

    async def _on_get(self, call: Call[Get]) -> Reply[Any]:
        method = "get" if call.body.keys else "question"
        await self._check(call.body.tablet_id, method, call.body.max_staleness_s)
        found = [(number, self._group.rows.get(number)) for (number,) in call.body.keys]
        rows = tuple(None if hit is None else ((n, hit[0]), hit[1]) for n, hit in found)
        return Reply(GetReply(rows))

    def _batch(self, numbers: list[int], columns: tuple[str, ...]) -> pa.Buffer:
        values = [self._group.rows[number][0] for number in numbers]
        arrays = [pa.array(numbers, pa.int64()), pa.array(values, pa.int64())]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow)
        return encode_batch(batch.select(list(columns)) if columns else batch)

    async def _on_get_many(self, call: Call[GetMany]) -> Reply[Any]:
        await self._check(call.body.tablet_id, "get_many", call.body.max_staleness_s)
        keys = decode_batch(call.blobs[0]).column(0).to_pylist()
        places = [place for place, key in enumerate(keys) if key in self._group.rows]
        blob = self._batch([keys[place] for place in places], call.body.columns)
        raw = b"".join(place.to_bytes(4, "little") for place in places)
        return Reply(GetManyReply(len(places)), [blob, raw])

    async def _on_scan(self, call: Call[Scan]) -> Reply[Any]:
        """One row a piece; the cursor is how many were given."""
        await self._check(call.body.tablet_id, "scan", call.body.max_staleness_s)
        numbers = sorted(self._group.rows)
        at = int(call.body.cursor or 0)
        cursor = str(at + 1) if at + 1 < len(numbers) else ""
        return Reply(ScanReply(cursor, 1), [self._batch(numbers[at : at + 1], call.body.columns)])


class FakeMaster:
    """Answers where the tablet is."""

    def __init__(self, runtime: Runtime, group: Group) -> None:
        self.tasks = Tasks()
        self._runtime = runtime
        self._group = group

    async def start(self) -> None:
        await self._runtime.peers.listen(uuid_of(MASTER), {GET_TABLE: self._on_get_table})

    async def stop(self) -> None:
        await self.tasks.close()
        await self._runtime.peers.close()

    async def _on_get_table(self, call: Call[GetTable]) -> Reply[Any]:
        self._group.look_ups += 1
        return Reply(self._group.location())


async def start(world: World, *names: str, spare: tuple[str, ...] = ()) -> Group:
    """A group of these servers, of which the first leads; ``spare`` ones have no replica."""
    group = Group(world, list(names), leader=names[0], here={name: False for name in spare})

    def server(name: str) -> Factory:
        return lambda runtime: FakeServer(runtime, name, group)

    world.start(MASTER, lambda runtime: FakeMaster(runtime, group), kind="master")
    for name in [*names, *spare]:
        world.start(name, server(name), kind="tserver")
    await world.wait_ready()
    return group


def database(world: World, name: str = "client") -> AsyncDatabase:
    """A client of its own."""
    return AsyncDatabase(world.client(name), [world.address(MASTER)], Settings(arrow_rows=4))


async def fail_over(world: World, group: Group, to: str, after_s: float) -> None:
    """An election that takes so long: until it ends, those who remain believe in the old leader."""
    old = group.leader
    group.leader = None
    assert old is not None
    group.believed.update({name: old for name in group.names})
    await asyncio.sleep(after_s)
    group.elect(to)
