"""The ``tables`` scenario: a cluster's tables under load and every kind of fault.

No acknowledged write may be lost, doubled or out of order; deletes stay deleted; versions only
grow; and once the faults end, every tablet is served again with every segment at full strength.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.errors import (
    OutcomeUnknown,
    Rejected,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation.checkers import require_rows, unread_keys
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History, Operation
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.tables.log_watch import LogWatch
from tests.simulation.tables.planted import planted
from tests.simulation.tables.strikes import KINDS, Strikes

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
TABLE = "rows"
TABLETS = 2
REPLICAS = 2
CALL_TIMEOUTS_S = (2.0, 8.0)
"""A client has one of these; the impatient soon ask anew where a silent server's tablets are."""
HEAL_TIMEOUT_S = 120.0
FAULTS_S = 25.0
READER_RATE = 0.4
"""So many clients beyond the first only read: nothing but its lease can keep a zombie from them."""
REST_RATE = 0.2
"""So often a client rests: its operations come in bursts, and last as long as the faults do."""


class Client:
    """One client: a random mix of operations, each recorded with what came of it."""

    faults_s = FAULTS_S
    """For so long the operations are to last."""
    schema = SCHEMA
    """Of the table that it works on."""

    def __init__(
        self, name: str, world: World, database: AsyncDatabase, history: History, rng: random.Random
    ) -> None:
        self.name = name
        self._world = world
        self._database = database
        self._history = history
        self._rng = rng
        self.only_reads = False
        self.timeout_s = rng.choice(CALL_TIMEOUTS_S)
        self._count = 0
        self._seen: dict[int, int] = {}

    async def run(self, until_s: float) -> None:
        """Work until ``until_s`` of the loop's time or until the operations are used up."""
        work = self._world.options.workload
        table = await self.table()
        for _ in range(work.operations):
            if self._world.loop.time() >= until_s:
                return
            await self._one(table)
            pause_s = work.think_s
            if self._rng.random() < REST_RATE:
                pause_s += self.faults_s / work.operations / REST_RATE
            await self._database.runtime.clock.sleep(self._rng.expovariate(1.0) * pause_s)

    async def table(self) -> AsyncTable:
        """The table, however long the masters take to say where it is."""
        while True:
            try:
                return await self._database.table(TABLE)
            except (OutcomeUnknown, RetryLater):
                await self._database.runtime.clock.sleep(0.1)

    async def _one(self, table: AsyncTable) -> None:
        work = self._world.options.workload
        writes = [self._write, self._write_many, self._delete, self._burst]
        shares = [work.write_share, 0.1, work.delete_share, 0.1]
        if self.only_reads:
            shares = [0.0] * len(writes)
        kinds = [*writes, self._read, self._read_many]
        shares += [work.read_share, 0.05]
        await self._rng.choices(kinds, shares)[0](table)

    def _value(self) -> str:
        self._count += 1
        filler = "x" * self._rng.randrange(self._world.options.workload.value_bytes)
        return f"{self.name}-{self._count}-{filler}"

    def _key(self) -> int:
        return self._rng.randrange(self._world.options.workload.keys)

    async def _write(self, table: AsyncTable) -> None:
        key, value = self._key(), self._value()
        expected = self._seen.get(key) if self._rng.random() < 0.2 else None
        operation = self._history.begin(self.name, "write", str(key), value, expected=expected)
        row = self.row(table, key, value)
        try:
            versions = await table.upsert(row, if_version=expected, timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._seen[key] = int(versions[0])
            self._history.ok(operation, version=int(versions[0]))

    async def _write_many(self, table: AsyncTable) -> None:
        """One call with several keys, in Arrow if there are enough: parts may end differently."""
        keys = sorted({self._key() for _ in range(self._rng.randrange(2, 9))})
        values = [self._value() for _ in keys]
        operations = [
            self._history.begin(self.name, "write", str(key), value)
            for key, value in zip(keys, values, strict=True)
        ]
        rows = [self.row(table, key, value) for key, value in zip(keys, values, strict=True)]
        try:
            versions = await table.upsert(rows, timeout=self.timeout_s)
        except (RetryLater, RetryElsewhere, OutcomeUnknown):
            for operation in operations:
                self._history.unknown(operation)
        else:
            for operation, version in zip(operations, versions.tolist(), strict=True):
                self._history.ok(operation, version=version)

    async def _burst(self, table: AsyncTable) -> None:
        """Several calls at the same time, also of one key: they may travel together."""
        calls = [
            self._delete if self._rng.random() < 0.2 else self._write
            for _ in range(self._rng.randrange(2, 9))
        ]
        await asyncio.gather(*[call(table) for call in calls])

    async def _delete(self, table: AsyncTable) -> None:
        key = self._key()
        operation = self._history.begin(self.name, "delete", str(key))
        try:
            versions = await table.delete(key, timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._history.ok(operation, version=int(versions[0]))

    async def _read(self, table: AsyncTable) -> None:
        key = self._key()
        await self.read(table, key, self.timeout_s)

    async def read(self, table: AsyncTable, key: int, timeout_s: float) -> None:
        """Read one key and record what was seen."""
        operation = self._history.begin(self.name, "read", str(key))
        try:
            row = await table.get(key, with_version=True, timeout=timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
            return
        if row is None:
            self._history.ok(operation)
        else:
            self._seen[key] = row["_version"]
            self._history.ok(operation, version=row["_version"], value=self.value(table, row))

    async def _read_many(self, table: AsyncTable) -> None:
        """A scan or a multi-get: a read of every key that it could have returned."""
        keys = range(self._world.options.workload.keys)
        operations = [self._history.begin(self.name, "read", str(key)) for key in keys]
        try:
            if self._rng.random() < 0.5:
                found = await table.scan(with_versions=True, timeout=self.timeout_s)
            else:
                wanted = list(keys)
                found = await table.get_many(wanted, with_versions=True, timeout=self.timeout_s)
        except StelaeError as error:
            for operation in operations:
                self._failed(operation, error)
            return
        rows = {row["id"]: row for row in found.to_pylist()}
        assert len(rows) == found.num_rows, "a key came twice"
        for key, operation in zip(keys, operations, strict=True):
            row = rows.get(key)
            if row is None:
                self._history.ok(operation)
            else:
                self._history.ok(operation, version=row["_version"], value=self.value(table, row))

    def row(self, table: AsyncTable, key: int, value: str) -> dict[str, Any]:
        """What is written; ``value`` is what reads of the key are held to."""
        return {"id": key, "value": value}

    def value(self, table: AsyncTable, row: dict[str, Any]) -> str:
        """What was read, of what `row` wrote."""
        value: str = row["value"]
        return value

    def _failed(self, operation: Operation, error: StelaeError) -> None:
        if isinstance(error, Rejected | RetryLater | RetryElsewhere):
            self._history.failed(operation)
        else:
            assert isinstance(error, OutcomeUnknown), f"unexpected: {error!r}"
            self._history.unknown(operation)


def may_lose(cluster: SimCluster, name: str, replicas: int = REPLICAS) -> bool:
    """Whether segments(disk, disk) covers the loss of this backup's disk right now."""
    world = cluster.world
    if not cluster.is_whole(count_tablets(cluster), replicas) or has_heirs(cluster):
        return False
    return all(world.server(other) is not None for other in cluster.backups if other != name)


def _newest(cluster: SimCluster) -> Catalog | None:
    leader = cluster.leader()
    server = None if leader is None else cluster.world.server(leader)
    return None if server is None else server.catalog


def count_tablets(cluster: SimCluster) -> int:
    """How many the table has by now: some may have been split; -1: nobody leads."""
    catalog = _newest(cluster)
    return -1 if catalog is None else sum(1 for _ in catalog.live_tablets())


def has_heirs(cluster: SimCluster) -> bool:
    """Whether some tablet's rows may be in the log of one that was split; or nobody leads."""
    catalog = _newest(cluster)
    return catalog is None or any(t.inherits is not None for t in catalog.live_tablets())


async def run(world: World, bug: str = "") -> None:
    """Start a cluster, let clients work under faults, end the faults, and judge."""
    with planted(bug):
        await run_tables(world, KINDS if world.options.lost_disk_every_s else (), longest_gap_s=4.0)


async def run_struck(world: World, bug: str = "") -> None:
    """The same, with few kinds of strikes, which come one upon the other."""
    rng = world.rng("kinds of strikes")
    with planted(bug):
        await run_tables(world, rng.sample(KINDS, rng.randrange(1, 3)), longest_gap_s=1.5)


class Beside(Protocol):
    """What else goes on in a run, and how that is judged."""

    async def run(self, until_s: float) -> None:
        """Go on until ``until_s`` of the loop's time."""

    async def judge(self, history: History) -> None:
        """Raise AssertionError if, once all is healed, something is not as it should be."""


async def run_tables(
    world: World,
    strikes: Sequence[str],
    *,
    longest_gap_s: float,
    make_client: type[Client] = Client,
    make_beside: Callable[[SimCluster, AsyncDatabase], Beside] | None = None,
    media: tuple[str, ...] = ("disk", "disk"),
    cluster: SimCluster | None = None,
    fillable: Sequence[str] = (),
    indexes: Sequence[str] = (),
    **settings: Any,
) -> None:
    """``settings``: of the servers, that differ."""
    cluster = cluster or SimCluster(world, **{**cleaning_of(world), **settings})
    replicas = len(media)
    await cluster.start()
    history = History(world.loop.time)
    admin = cluster.database("admin")
    await admin.create_table(
        TABLE,
        make_client.schema,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=segments(*media),
        indexes=indexes,
        timeout=60.0,
    )
    clients = _make_clients(world, cluster, history, make_client)
    world.may_lose_disk = lambda name: may_lose(cluster, name, replicas)
    nemesis = Nemesis.begin(world, FAULTS_S, losable=("backup",), fillable=fillable)
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    if strikes:
        faults = Strikes(
            cluster,
            world.rng("strikes"),
            world.may_lose_disk,
            [client.name for client in clients if not client.only_reads],
            kinds=strikes,
            longest_gap_s=longest_gap_s,
        )
        tasks.append(world.spawn("admin", faults.run(until_s)))
    beside = None if make_beside is None else make_beside(cluster, admin)
    if beside is not None:
        tasks.append(world.spawn("admin", beside.run(until_s)))
    watch = LogWatch(cluster, admin, replicas)
    tasks.append(world.spawn("admin", watch.run(until_s)))
    await world.wait_until(lambda: all(t.done() for t in tasks), 600.0, "the clients to end")
    for task in tasks:
        task.result()
    await nemesis.finish()
    await world.wait_until(
        lambda: cluster.is_whole(count_tablets(cluster), replicas), HEAL_TIMEOUT_S, "full strength"
    )
    await world.wait_until(lambda: not has_heirs(cluster), HEAL_TIMEOUT_S, "nothing is inherited")
    await _read_all(world, cluster, history, make_client)
    require_rows(history)
    if beside is not None:
        await beside.judge(history)


def _make_clients(
    world: World, cluster: SimCluster, history: History, make_client: type[Client]
) -> list[Client]:
    """As many as the options say; some only read."""
    clients = [
        make_client(f"c{n}", world, cluster.database(f"c{n}"), history, world.rng(f"client/{n}"))
        for n in range(world.options.workload.clients)
    ]
    readers = world.rng("readers")
    for client in clients[1:]:
        client.only_reads = readers.random() < READER_RATE
    return clients


def cleaning_of(world: World) -> dict[str, Any]:
    """Settings by which dead rows go early, or late: most seeds clean all the time."""
    rng = world.rng("cleaning")
    return {
        "clean_memory_share": rng.choice([0.0, 0.0, 0.9]),
        "clean_log_factor": rng.choice([1.0, 1.0, 2.0]),
        "clean_period_s": rng.choice([0.05, 0.5]),
        "clean_roll_after_s": rng.choice([0.1, 1.0]),
    }


def counts_of(world: World) -> Counter[str]:
    """Of all servers' metrics, whatever their labels."""
    counts: Counter[str] = Counter()
    for metrics in world.metrics.values():
        for name, value in metrics.counts.items():
            counts[name.partition("{")[0]] += int(value)
    return counts


async def _read_all(
    world: World, cluster: SimCluster, history: History, make_client: type[Client]
) -> None:
    """Read every key once more, now that nothing fails."""
    reader = make_client("reader", world, cluster.database("reader"), history, world.rng("reader"))
    table = await reader.table()
    since = len(history.operations) and max(o.invoked for o in history.operations)
    for key in range(world.options.workload.keys):
        await reader.read(table, key, HEAL_TIMEOUT_S)
    assert not unread_keys(history, since), "a key could not be read in a healed cluster"


def options(seed: int) -> Options:
    """What the servers promise to survive: two replicas of each segment."""
    drawn = Options.draw(seed)
    return drawn.but(full_disk_every_s=0.0, restart_mean_s=min(drawn.restart_mean_s, 1.0))


def spare_options(seed: int) -> Options:
    """Backups enough to spare one, and little to do, in many small segments."""
    drawn = options(seed)
    work = drawn.workload
    busy = replace(
        work,
        clients=max(2, min(4, work.clients)),
        keys=max(3, min(20, work.keys)),
        operations=max(60, min(120, work.operations)),
    )
    return drawn.but(
        workload=busy,
        limits=replace(drawn.limits, segment_size_bytes=2048),
        servers=Servers(masters=drawn.servers.masters, tservers=2, backups=4 + seed % 2),
    )


def struck_options(seed: int) -> Options:
    """Enough load that each strike meets some, and mostly no faults but strikes."""
    drawn, rng = options(seed), random.Random(f"{seed}/struck")
    clients, keys = max(4, drawn.workload.clients), min(10, drawn.workload.keys)
    struck = drawn.but(workload=replace(drawn.workload, clients=clients, keys=keys, operations=150))
    ends = [end for end in ("_every_s", "_rate") if rng.random() < 0.7]
    off = [field.name for field in fields(struck) if field.name.endswith(tuple(ends))]
    return struck.but(**dict.fromkeys(off, 0.0))


SCENARIO = Scenario("tables", run, options)
STRUCK = Scenario("strikes", run_struck, struck_options)
