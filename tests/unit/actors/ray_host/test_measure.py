"""Servers tell the metrics how they are when their host asks them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from stelae.actors.ray_host.host import Measured
from stelae.core.metric_catalogue import CLUSTER_METRICS, METRICS, MetricKind
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Wal
from stelae.runtime.real import CountingMetrics
from tests.cluster_fixture import local_cluster
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("note", pa.string())])
LIMIT_S, PAUSE_S = 20.0, 0.1


def gauges_of(runtime: Runtime) -> dict[str, float]:
    """By name; of several labels the sum."""
    assert isinstance(runtime.metrics, CountingMetrics)
    found: dict[str, float] = {}
    for (name, _), value in runtime.metrics.gauges.items():
        found[name] = found.get(name, 0.0) + value
    return found


def measured(server: Any) -> dict[str, float]:
    runtime = server._runtime
    assert isinstance(server, Measured)
    server.measure()
    return gauges_of(runtime)


async def test_each_server_tells_all_of_its_gauges(tmp_path: Path) -> None:
    """Rows, tablets, media; a safekeeper that is gone is silent, and lags by nothing."""
    async with local_cluster(tmp_path, masters=3, safekeepers=3) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key="id", durability=Wal(3, ("disk",))
        )
        await table.upsert([{"id": i, "note": "x"} for i in range(50)])
        (leader,) = [master for master in cluster.masters if master.is_leader]
        found = measured(leader)
        assert set(CLUSTER_METRICS) < set(found)
        assert found["master_leads"] == 1
        assert found["master_commit_index"] >= found["master_applied_index"] > 0
        assert found["cluster_tables"] == 1
        assert found["cluster_tablets_offline"] == 0
        follower = next(master for master in cluster.masters if not master.is_leader)
        told = measured(follower)
        assert not any(told[name] for name in CLUSTER_METRICS)
        assert told["master_leads"] == 0
        tablets = [measured(tserver) for tserver in cluster.tservers]
        assert sum(each["tserver_rows"] for each in tablets) == 50
        assert sum(each["tserver_tablets"] for each in tablets) >= 1
        assert not any(each["wal_members_silent"] for each in tablets)
        backup = measured(cluster.backups[0])
        assert backup["backup_free_bytes"] > 0
        names = {*found, *told, *backup, *(name for each in tablets for name in each)}
        assert all(METRICS[name].kind is MetricKind.GAUGE for name in names)

        await cluster.safekeepers[0].stop()
        await until_async(
            lambda: sum(measured(t)["wal_members_silent"] for t in cluster.tservers) == 1,
            LIMIT_S,
            "one owner misses the safekeeper",
            poll_s=PAUSE_S,
        )
        await table.upsert([{"id": 1, "note": "y"}])
        assert max(measured(each)["wal_lag_entries"] for each in cluster.tservers) <= 1
