"""The masters under faults: clients create, delete, look up and list tables; everything is real.

While it runs: what a client was told stays true for it (its tables are its own, so it knows what
must be), every table is whole whenever it is seen, no two tservers may serve one tablet at once. At
the end, all faults healed: the masters' catalogs are equal and say what the acknowledged operations
imply, every tablet is served by its owner and nobody else, and nothing is left of deleted tables.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa

from stelae.client.masters import MastersClient
from stelae.core.catalog_messages import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    LIST_TABLES,
    CreateTable,
    DeleteTable,
    GetTable,
    ListTables,
)
from stelae.core.durability import segments
from stelae.core.errors import (
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    TableExists,
    TableNotFound,
)
from stelae.core.ids import ClientId, RequestId, TableId, TabletId
from stelae.core.messages import TabletProgress
from stelae.core.partition import hash_partition
from stelae.core.records import TableState, TabletState
from stelae.core.schema import TableSchema
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
WORK_S = 12.0
MEDIA = ((), ("disk",), ("disk", "disk"))
AGAIN = (RetryLater, RetryElsewhere, OutcomeUnknown)


class DdlClient:
    """One client, with tables of its own, and a name that all clients want."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        self.name = name
        self.tables: dict[str, TableId] = {}
        """What must exist: name -> table id."""
        self.buckets: dict[str, int] = {}
        self.shared: list[TableId] = []
        """Tables made under the shared name."""
        self._rng: random.Random = world.rng(f"ddl/{name}")
        self._masters = MastersClient(world.client(name), list(cluster.addresses.values()))
        self._sequence = 0

    async def _call(self, method: Any, request: Any) -> Any:
        """Repeat one request, with its id, until it has an answer."""
        while True:
            try:
                return await self._masters.call(method, request, timeout_s=5.0)
            except AGAIN:
                await asyncio.sleep(0.05)

    def _request(self) -> RequestId:
        self._sequence += 1
        return RequestId(ClientId(self.name), self._sequence, self._sequence)

    async def create(self, name: str) -> TableId | None:
        """Create a table; None if there is one of that name."""
        buckets = self._rng.randint(1, 4)
        order = CreateTable(
            self._request(),
            name,
            SCHEMA,
            hash_partition("id", buckets=buckets),
            segments(*self._rng.choice(MEDIA)),
        )
        try:
            reply = await self._call(CREATE_TABLE, order)
        except TableExists:
            return None
        self.buckets[name] = buckets
        return TableId(reply.table.table_id)

    async def delete(self, name: str) -> None:
        """Delete a table that must be there."""
        await self._call(DELETE_TABLE, DeleteTable(self._request(), name))

    async def look(self, name: str) -> TableId | None:
        """Look a table up; it is there with all its tablets, or not at all."""
        try:
            found = await self._call(GET_TABLE, GetTable(name))
        except TableNotFound:
            return None
        numbers = [location.tablet.number for location in found.tablets]
        count = found.table.partitioning.tablet_count
        assert numbers == list(range(count)), f"half a table {name}: {numbers} of {count}"
        return TableId(found.table.table_id)

    async def work(self, until_s: float) -> None:
        """Do this and that, and see that the masters remember."""
        while asyncio.get_running_loop().time() < until_s:
            name = f"{self.name}-{self._rng.randint(0, 2)}"
            kind = self._rng.choice(("change", "change", "look", "list", "share"))
            expected = self.tables.get(name)
            if kind == "look":
                found = await self.look(name)
                assert found == expected, f"{name} is {found}, and must be {expected}"
            elif kind == "list":
                await self._list()
            elif kind == "share":
                made = await self.create("shared")
                if made is not None:
                    self.shared.append(made)
            elif expected is None:
                made = await self.create(name)
                assert made is not None, f"{name} was deleted, and is said to exist"
                self.tables[name] = made
            else:
                await self.delete(name)
                del self.tables[name]
            await asyncio.sleep(self._rng.expovariate(1 / 0.2))

    async def _list(self) -> None:
        listed = (await self._call(LIST_TABLES, ListTables())).tables
        own = {t.name: t.table_id for t in listed if t.name.startswith(f"{self.name}-")}
        assert own == self.tables, f"listed {own}, expected {self.tables}"


async def watch_service(world: World, cluster: SimCluster) -> None:
    """At every moment, of each tablet at most one tserver may serve, by its lease and its state."""
    while True:
        serving: dict[TabletId, str] = {}
        for name in cluster.tservers:
            server = world.server(name)
            if server is None or not server._lease.is_valid:
                continue
            for report in server.reports():
                if report.progress is TabletProgress.SERVING:
                    other = serving.setdefault(report.tablet_id, name)
                    assert other == name, f"{other} and {name} both serve {report.tablet_id}"
        await asyncio.sleep(0.01)


async def run(world: World, bug: str = "") -> None:
    """Clients work under faults; then all is healed, and must be in order."""
    cluster = SimCluster(world)
    await cluster.start()
    names = [f"c{number}" for number in range(world.options.workload.clients)]
    clients = [DdlClient(world, cluster, name) for name in names]
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    watcher = asyncio.get_running_loop().create_task(watch_service(world, cluster))
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.work(WORK_S))
    await nemesis.finish()
    await finish(world, cluster, clients)
    if watcher.done():
        watcher.result()
    watcher.cancel()


async def finish(world: World, cluster: SimCluster, clients: list[DdlClient]) -> None:
    """Everything healed: the cluster comes to rest in the one right state."""
    for client in clients:
        await client._list()
    shared = [made for client in clients for made in client.shared]
    assert len(shared) <= 1, f"one name, created {len(shared)} times: {shared}"
    await world.wait_until(lambda: in_order(world, cluster), 120.0, "a cluster in order")
    expected = {name: made for client in clients for name, made in client.tables.items()}
    if shared:
        expected["shared"] = shared[0]
    for name in cluster.masters:
        tables = {t.name: t.table_id for t in world.server(name).catalog.live_tables()}
        assert tables == expected, f"{name} has {tables}, expected {expected}"


def in_order(world: World, cluster: SimCluster) -> bool:
    """Equal catalogs; every tablet served by its owner alone; nothing left of what was deleted."""
    masters = [world.server(name) for name in cluster.masters]
    if any(master is None for master in masters) or cluster.leader() is None:
        return False
    catalog = masters[0].catalog
    if any(master.catalog.snapshot() != catalog.snapshot() for master in masters):
        return False
    live = {t.tablet_id: t for t in catalog.live_tablets()}
    held: dict[TabletId, str] = {}
    for name in cluster.tservers:
        server = world.server(name)
        if server is None:
            return False
        for report in server.reports():
            tablet = live.get(report.tablet_id)
            if tablet is None or report.progress is not TabletProgress.SERVING:
                return False
            if (tablet.owner, tablet.term) != (server.info.uuid, report.term):
                return False
            held[report.tablet_id] = name
    if sorted(held) != sorted(live):
        return False
    if any(tablet.state is not TabletState.RUNNING for tablet in live.values()):
        return False
    assert all(
        catalog.tables[tablet.table_id].state is TableState.RUNNING for tablet in live.values()
    )
    return True


def draw(seed: int) -> Options:
    """Swarm options. Lost disks are another scenario's: here no promise covers them."""
    return replace(Options.draw(seed), lost_disk_every_s=0.0)


SCENARIO = Scenario("masters", run, draw, limit_s=300.0)
