"""Lost indexlets are filled by the job that merges the tablets' logs: real tasks, backups, tservers
and masters over real TCP, without Spark around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stelae.actors.tserver.server import TabletServer
from stelae.core.errors import IndexletNotHere, StaleTerm
from stelae.core.messages.index_offers import OFFER_ENTRIES, OfferEntries
from stelae.core.messages.indexes import IndexletProgress, TabletStamp, epoch_of
from stelae.core.schema.indexes import IndexletId
from stelae.core.schema.partition import hash_partition
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.unit.recovery.spark_jobs import SETTINGS, FailingEngine, TaskEngine

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("colour", pa.string()),
        ("n", pa.int32()),
        ("text", pa.string()),
    ]
)
COLOURS = ["red", "green", "blue", None]


@asynccontextmanager
async def indexed(root: Path, **options: Any) -> AsyncIterator[LocalCluster]:
    """A cluster with a table of several segments and two indexes."""
    async with local_cluster(root, settings=SETTINGS, **options) as cluster:
        table = await cluster.database.create_table(
            "things",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 4),
            indexes=["colour", "n"],
        )
        for start in range(0, 4000, 500):
            ids = np.arange(start, start + 1500)
            await table.upsert(rows(ids, start))
        await table.delete(list(range(100, 200)))
        yield cluster


def rows(ids: Any, salt: int) -> pa.Table:
    colours = [COLOURS[(int(i) + salt) % 4] for i in ids]
    numbers = pa.array((ids * 7 + salt) % 50, pa.int32())
    return pa.table(
        {"id": ids, "colour": colours, "n": numbers, "text": [f"{i} {salt}" * 9 for i in ids]},
        schema=SCHEMA,
    )


async def expected(cluster: LocalCluster) -> dict[Any, list[int]]:
    """The ids of each colour, and of each n, in order, out of a scan."""
    table = await cluster.database.table("things")
    found: dict[Any, list[int]] = {}
    for row in (await table.scan()).to_pylist():
        found.setdefault(("colour", row["colour"]), []).append(row["id"])
        found.setdefault(("n", row["n"]), []).append(row["id"])
    return {value: sorted(ids) for value, ids in found.items()}


async def check(cluster: LocalCluster, wanted: dict[Any, list[int]]) -> None:
    """Look-ups find these, in the order of their keys, and nothing else."""
    table = await cluster.database.table("things")
    for (column, value), ids in wanted.items():
        found = await table.find(column, value, timeout=20.0)
        assert found["id"].to_pylist() == ids, (column, value)


def with_indexlets(cluster: LocalCluster) -> TabletServer:
    return max(cluster.tservers, key=lambda tserver: len(tserver.indexlets.reports()))


async def test_tablets_and_indexlets_of_a_dead_server_come_back_by_one_job(tmp_path: Path) -> None:
    """Each task gives lost indexlets what its tablets have for them; look-ups then find all rows,
    also those written since; an indexlet that was elsewhere goes on as before."""
    async with indexed(tmp_path, engine="spark", tservers=2) as cluster:
        engine = TaskEngine(cluster)
        cluster.masters[0].spark_engine = engine
        wanted = await expected(cluster)
        await check(cluster, wanted)
        victim = with_indexlets(cluster)
        lost = len(victim.indexlets.reports())
        mine = len(victim.reports())
        assert lost
        assert mine
        await victim.stop()
        await check(cluster, wanted)
        table = await cluster.database.table("things")
        await table.upsert(rows(np.arange(150, 160), 3))
        await check(cluster, await expected(cluster))
        assert engine.calls == 1
        assert [one.indexes.problem for one in engine.outcomes] == [""] * mine
        assert [one.indexes.indexlets for one in engine.outcomes] == [lost] * mine
        assert all(one.indexes.entry_count for one in engine.outcomes)
        (survivor,) = [tserver for tserver in cluster.tservers if tserver is not victim]
        reports = survivor.indexlets.reports()
        assert {report.progress for report in reports} == {IndexletProgress.SERVING}
        assert len(reports) == 2


async def test_without_spark_the_tablets_tell_what_they_have(tmp_path: Path) -> None:
    """A promise that is not kept holds nothing up for long, and nothing is missed."""
    async with indexed(tmp_path, engine="spark", tservers=2) as cluster:
        cluster.masters[0].spark_engine = FailingEngine(cluster)
        wanted = await expected(cluster)
        await with_indexlets(cluster).stop()
        await check(cluster, wanted)


async def test_a_late_offer_changes_nothing(tmp_path: Path) -> None:
    """To an indexlet that serves it says nothing new; one for an earlier term is refused."""
    async with indexed(tmp_path, tservers=2) as cluster:
        wanted = await expected(cluster)
        peers = cluster.client_runtime("task").peers
        server = with_indexlets(cluster)
        report = server.indexlets.reports()[0]
        stamp = TabletStamp(0, epoch_of(0, 99), 0)
        late = OfferEntries(report.indexlet_id, report.term, stamp, 0, 1)
        to: dict[str, Any] = {"timeout_s": 5.0, "destination": server.info.uuid}
        address = server.info.address
        await peers.call(address, OFFER_ENTRIES, late, blobs=[b""], **to)
        stale = OfferEntries(report.indexlet_id, report.term - 1, stamp, 0, 1)
        with pytest.raises(StaleTerm):
            await peers.call(address, OFFER_ENTRIES, stale, blobs=[b""], **to)
        await asyncio.sleep(0)
        await check(cluster, wanted)
        other = OfferEntries(IndexletId("0" * 32), 1, stamp, 0, 1)
        with pytest.raises(IndexletNotHere):
            await peers.call(address, OFFER_ENTRIES, other, blobs=[b""], **to)
