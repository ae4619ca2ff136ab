"""Logs that a cleaner passes over, and a world in which it passes by itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.core.messages.backups import FreeReplicas
from stelae.core.schema.durability import Durability, segments, wal
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Limits, Servers
from tests.unit.actors.tserver.owned_tablet.tablet_world import SCHEMA, TabletWorld

BIG = "x" * 700
NEVER_S = 1e6


async def close_heads(here: TabletWorld, count: int, first: int = 0) -> None:
    """Overwrite a few rows until so many heads were closed and sealed."""
    tablet = here.tablet
    until = tablet.log.digest[-1] + count
    n = first
    while tablet.log.digest[-1] < until:
        await here.write((n % 3, BIG))
        n += 1
    await all_sealed(here)


async def all_sealed(here: TabletWorld) -> None:
    tablet = here.tablet
    await here.until(lambda: len(tablet.memory.statistics()) - 1 == sealed_count(tablet), "seals")
    sealed = [s.segment_id for s in tablet.memory.statistics() if s.sealed]
    await here.until(lambda: all(map(tablet.log.may_clean, sealed)), "all replicas sealed")


def sealed_count(tablet: Tablet) -> int:
    return sum(each.sealed for each in tablet.memory.statistics())


def freed_segments(here: TabletWorld) -> list[tuple[int, set[int]]]:
    """(place among all events, numbers of segments) of each call that frees."""
    return [
        (place, {segment & 0xFFFFFFFF for segment in event.body.segments})
        for place, event in enumerate(here.events)
        if event.what == "sent" and isinstance(event.body, FreeReplicas)
    ]


class Calm:
    """One master, two tservers, four backups; nothing is cleaned but what the test cleans."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        settings = {"clean_memory_share": 1.0, "clean_period_s": NEVER_S, **changes}
        self.cluster = SimCluster(world, **settings)

    async def start(self, durability: Durability) -> None:
        await self.cluster.start()
        database = self.cluster.database("client")
        self.table = await database.create_table(
            "rows", SCHEMA.arrow, key="id", durability=durability, timeout=60.0
        )

    @property
    def server(self) -> Any:
        """The tserver with the only tablet."""
        servers = [self.world.server(name) for name in self.cluster.tservers]
        return next(each for each in servers if each is not None and each._tablets)

    @property
    def tablet(self) -> Tablet:
        (tablet,) = self.server._tablets.values()
        assert isinstance(tablet, Tablet)
        return tablet

    async def overwrite(self, count: int, keys: int = 4) -> dict[int, str]:
        """Write rows over and over; what they are then."""
        rows: dict[int, str] = {}
        for n in range(count):
            rows[n % keys] = f"{n}-{BIG}"
            await self.table.upsert({"id": n % keys, "value": rows[n % keys]})
        return rows

    async def settled(self) -> None:
        def is_settled() -> bool:
            closed = [each for each in self.tablet.memory.statistics() if each.closed]
            return all(self.tablet.log.may_clean(each.segment_id) for each in closed)

        await self.world.wait_until(is_settled, 60.0, "all segments to be sealed")


def run_calm(
    scenario: Callable[[Calm], Coroutine[Any, Any, None]], durability: Durability, **changes: Any
) -> None:
    limits = Limits(segment_size_bytes=4096)
    servers = Servers(masters=1, tservers=2, backups=4, safekeepers=3)
    world = World(5, Options(servers=servers, limits=limits))

    async def main() -> None:
        here = Calm(world, **changes)
        await here.start(durability)
        await scenario(here)

    world.run(main())


LOGS: list[Durability] = [segments("disk", "disk"), wal(3, ("disk", "disk"))]
