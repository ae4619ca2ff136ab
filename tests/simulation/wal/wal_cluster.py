"""A whole cluster for stories of tables with ``wal(n, …)``, and what they ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa

from stelae.client.routing.masters import MastersClient
from stelae.client.table.table import AsyncTable
from stelae.core.errors import MigrationUnderWay
from stelae.core.ids import TabletId
from stelae.core.records.configurations import TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from stelae.core.schema.durability import wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.world.options import Servers
from tests.simulation.world.cluster_fixture import SimClusterFixture

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


class WalFixture(SimClusterFixture):
    """A cluster in a world, and what stories ask of it."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"segment_bytes": 2000, **options})

    async def create(self, name: str = "t", count: int = 3, buckets: int = 2) -> AsyncTable:
        return await self.database.create_table(
            name,
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=buckets),
            durability=wal(count, ("disk", "disk")),
            timeout=30.0,
        )

    def owners(self) -> list[str]:
        """Names of tservers that own tablets."""
        tablets = self.leader.catalog.live_tablets()
        return sorted({self.name_of(tablet.owner) for tablet in tablets})

    def keeper(self, number: int) -> str:
        """The name of a safekeeper."""
        name: str = self.leader.catalog.timelines.safekeepers[number].name
        return name

    async def until_registered(self, count: int) -> None:
        """So many safekeepers have their ids, and are heard under them."""

        def are_there() -> bool:
            statuses = self.leader.timelines.statuses
            return sum(status is SafekeeperStatus.ACTIVE for status in statuses.values()) == count

        await self.until(are_there, f"{count} safekeepers")

    def held(self) -> dict[str, list[TabletId]]:
        """Which timelines each running safekeeper has."""
        return {
            name: sorted(server.timelines.held)
            for name in self.cluster.safekeepers
            if (server := self.world.server(name)) is not None
        }


def tell(
    story: Callable[[WalFixture], Awaitable[None]],
    seed: int = 1,
    safekeepers: int = 3,
    masters: int = 3,
    **options: Any,
) -> World:
    world = World(seed, Options(servers=Servers(masters=masters, safekeepers=safekeepers)))
    here = WalFixture(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world


async def write(table: AsyncTable, first: int, count: int) -> None:
    for number in range(first, first + count):
        await table.upsert({"id": number, "text": text(number)}, timeout=20.0)


def text(number: int) -> str:
    return f"{number}:" + "x" * 100


async def read_all(table: AsyncTable, count: int) -> None:
    """Each row is there, as it was written, by key and by scan."""
    for number in range(count):
        row = await table.get(number, timeout=20.0)
        assert row is not None, f"row {number} was acknowledged"
        assert row["text"] == text(number), number
    found = await table.scan(timeout=20.0)
    assert sorted(found.column("id").to_pylist()) == list(range(count))


async def ask(here: WalFixture, method: Any, body: Any, timeout_s: float = 10.0) -> Any:
    """A call of an operator's to whichever master leads."""
    masters = MastersClient(here.database.runtime, list(here.cluster.addresses.values()))
    return await masters.call(method, body, timeout_s=timeout_s)


async def move(here: WalFixture, tablet_id: TabletId, desired: tuple[SafekeeperId, ...]) -> None:
    """Order a migration, once the one before has put everything away."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                await here.database.migrate_timeline(tablet_id, desired)
            except MigrationUnderWay:
                await asyncio.sleep(0.2)
            else:
                return


def timelines(here: WalFixture) -> dict[TabletId, TimelineConfiguration]:
    """Of all live tablets, as the catalog was told."""
    tablets = here.leader.catalog.live_tablets()
    return {t.tablet_id: t.timeline for t in tablets if t.timeline is not None}


def records(here: WalFixture) -> list[TimelineRecord]:
    """What the configuration store has, if that is the catalog."""
    return [stored.record for stored in here.leader.catalog.timelines.all()]


def placed(here: WalFixture) -> dict[str, list[TabletId]]:
    """Where timelines should be, by the catalog."""
    wanted: dict[str, list[TabletId]] = {name: [] for name in here.cluster.safekeepers}
    for tablet_id, configuration in timelines(here).items():
        for member in configuration.members:
            wanted[here.keeper(member)].append(tablet_id)
    return {name: sorted(held) for name, held in wanted.items()}


async def until_at_rest(here: WalFixture, limit_s: float = 90.0) -> None:
    """Nothing is left to be done, and each safekeeper that runs has what it should have."""

    def is_at_rest() -> bool:
        if here.cluster.leader() is None or here.leader.catalog.timelines.orders:
            return False
        if not all(r.is_finished for r in records(here)):
            return False
        return placed(here) == here.held()

    await here.until(is_at_rest, "all timelines at rest", limit_s)
