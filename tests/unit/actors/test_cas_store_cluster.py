"""Whole clusters, on real files and TCP, whose timelines are kept by a configuration store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stelae.actors.master import safekeeper_requests as master_safekeepers
from stelae.client.database import AsyncDatabase
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import TimelineView
from stelae.core.records.timelines import SafekeeperId
from stelae.core.schema.durability import wal
from stelae.core.schema.partition import hash_partition
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.postgres import Postgres, needed_binaries
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres(needed_binaries())
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite:///cas.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url


async def look(
    database: AsyncDatabase, tablet_id: TabletId, until: Callable[[TimelineView], object]
) -> TimelineView:
    """What is known of a timeline, once it is as wished."""

    async def wished() -> TimelineView | None:
        view = await database.locate_timeline(tablet_id)
        return view if until(view) else None

    return await until_async(wished, LIMIT_S, "the timeline is as wished", poll_s=0.02)


async def store_state(cluster: LocalCluster, wanted: str) -> None:
    """Wait until the status has one configuration store, in this state."""

    async def is_so() -> bool:
        servers = (await cluster.database.status())["servers"]
        found = [each["state"] for each in servers if each["kind"] == "cas_store"]
        assert len(found) == 1, "its folder makes it the same server at each start"
        return found == [wanted]

    await until_async(is_so, LIMIT_S, f"the store is {wanted}", poll_s=0.02)


async def test_without_its_store_a_cluster_writes_and_moves_nothing(
    tmp_path: Path, url: str
) -> None:
    """The store has every configuration, and the catalog none of its own; while it is away rows
    are written, and a move that was asked for waits; when it is back, elsewhere, with all it had,
    the move ends."""
    async with local_cluster(tmp_path, safekeepers=4, cas_store_url=url) as cluster:
        database, catalog = cluster.database, cluster.masters[0].catalog
        table = await database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=1),
            durability=wal(3, ("disk", "disk")),
        )
        (tablet,) = catalog.live_tablets()
        first = await look(database, tablet.tablet_id, lambda view: not view.running)
        assert first.history[0].record.generation == 1
        assert not catalog.timelines.state().timelines, "the catalog is not the store here"
        await table.upsert({"id": 0, "text": "before"})

        await cluster.stop_cas_store()
        await store_state(cluster, "dead")
        members = first.configuration.members
        (other,) = (n for n in range(1, 5) if SafekeeperId(n) not in members)
        desired = (*members[:2], SafekeeperId(other))
        await database.migrate_timeline(tablet.tablet_id, desired)
        await table.upsert({"id": 1, "text": "without"})
        view = await look(database, tablet.tablet_id, lambda view: view.store_problem)
        assert (view.configuration, view.history) == (first.configuration, ())
        assert view.running is not None

        await cluster.start_cas_store()
        await store_state(cluster, "live")
        moved = await database.wait_migrated(tablet.tablet_id, desired, timeout=LIMIT_S)
        assert moved.configuration.generation == 3
        assert moved.history[: len(first.history)] == first.history
        assert {stored.record.generation for stored in moved.history} == {1, 2, 3}
        await table.upsert({"id": 2, "text": "after"})
        rows = (await table.scan()).sort_by("id").column("text").to_pylist()
        assert rows == ["before", "without", "after"]
    if url.startswith("sqlite"):
        with sqlite3.connect(tmp_path / "cas_store-1" / "cas.db") as file:
            newest = file.execute("SELECT max(generation) FROM configurations").fetchone()
        assert newest == (3,), "in the file of the server's own folder"


async def test_a_view_ends_with_the_newest_record_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that has moved often only the last records are told: never the first alone."""
    monkeypatch.setattr(master_safekeepers, "HISTORY_SHOWN", 3)
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        database, catalog = cluster.database, cluster.masters[0].catalog
        await database.create_table("t", SCHEMA, key=["id"], durability=wal(3, ("disk",)))
        (tablet,) = catalog.live_tablets()
        for desired in ((1, 2, 3), (2, 3, 4)):
            await look(database, tablet.tablet_id, lambda view: not view.running)
            await database.migrate_timeline(tablet.tablet_id, desired)
            await database.wait_migrated(tablet.tablet_id, desired, timeout=LIMIT_S)
        view = await look(
            database, tablet.tablet_id, lambda view: view.history[-1].record.is_finished
        )
        assert view.history[-1].record.configuration == view.configuration
        revisions = [stored.revision for stored in view.history]
        assert revisions == [*range(revisions[-1] - 2, revisions[-1] + 1)]
        assert revisions[-1] > 3
