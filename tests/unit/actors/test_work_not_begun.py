"""Work whose task is cancelled before its first step: none of it is left, and nobody waits for it.

A leader that resigns, or a store that is closed, cancels tasks that it started a moment ago.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from stelae.actors.master.leader.coordinator import Coordinator
from stelae.actors.server.uncancellable import carry_through
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
OWNER = ServerInfo(
    ServerKind.TSERVER,
    "tserver-1",
    ServerUuid("o" * 32),
    1,
    Address("tserver-1:7000"),
    ProcessIdentity("n", 1, 0),
)


@contextmanager
def nothing_forgotten() -> Iterator[None]:
    """No coroutine is made and then never awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in caught] == []


def catalog_with_a_tablet_to_open() -> Catalog:
    catalog = Catalog()
    table = TableRecord(
        TableId("t"), "t", SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING
    )
    tablet = TabletRecord(
        TabletId("a"), table.table_id, 0, TabletState.CREATING, 1, OWNER.uuid, OWNER.incarnation
    )
    catalog.apply(1, 1, CatalogBatch((table,), (tablet,)).encode())
    return catalog


def test_a_leader_that_resigns_leaves_nothing_that_it_was_about_to_begin() -> None:
    """Orders are made when their task begins, not before: there are none of who leads no more."""
    world = World(1, Options())

    async def main() -> int:
        runtime, tasks, liveness = world.client("master"), Tasks(), Liveness(Settings())

        async def replicate(_: bytes) -> object:
            return None

        coordinator = Coordinator(
            runtime,
            Settings(),
            tasks,
            catalog_with_a_tablet_to_open(),
            liveness,
            replicate,
            policy="native",
            spark_engine=lambda: None,
        )
        now = runtime.clock.monotonic()
        liveness.lead(now)
        liveness.heartbeat(Heartbeat(OWNER, now, ()), now)
        coordinator._step()
        begun = len(coordinator._busy)
        coordinator.stop()
        await runtime.clock.sleep(0.0)
        await tasks.close()
        return begun

    with nothing_forgotten():
        assert world.run(main()) >= 1


def test_who_waits_for_a_change_hears_that_it_was_never_begun() -> None:
    """Its tasks were closed in the very turn in which it was asked for."""
    ran: list[str] = []

    async def change() -> None:
        ran.append("change")

    async def main() -> None:
        tasks = Tasks()
        waiting = asyncio.create_task(carry_through(tasks, change(), "a change"))
        closing = asyncio.create_task(tasks.close())  # its turn comes before the change's
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 5.0)
        await closing

    with nothing_forgotten():
        asyncio.run(main())
    assert ran == []
