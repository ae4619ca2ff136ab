"""The HTTP API on a real Ray Serve, in front of a real cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster_fixture import CLUSTER, SECRET, local_cluster

from stelae.client.http import HttpDatabase
from stelae.core.durability import segments

pytestmark = [pytest.mark.ray, pytest.mark.slow]


async def test_serve_answers_takes_new_tokens_and_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deploy on a Ray of our own; write and read; change tokens without a restart; undeploy."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    from stelae.serve import deployment
    from stelae.serve.tokens import Role, make_token

    plain, admin = make_token("admin", Role.ADMIN)
    new_plain, new_admin = make_token("admin-2", Role.ADMIN)
    await asyncio.to_thread(
        ray.init, address="local", num_cpus=1, include_dashboard=False, log_to_driver=False
    )
    try:
        async with local_cluster(tmp_path, tservers=1) as cluster:
            plan = deployment.GatewayPlan(
                CLUSTER, cluster.master_addresses, SECRET, cluster.settings
            )
            deployed = await asyncio.to_thread(
                lambda: deployment.deploy(plan, [admin], host="127.0.0.1", port=0)
            )
            assert deployed.started_serve
            async with httpx.AsyncClient() as client:
                assert (await client.get(deployed.url + "/healthz")).status_code == 200
                assert (await client.get(deployed.url + "/v1/tables")).status_code == 401
            database = HttpDatabase(deployed.url, plain)
            table = await database.create_table(
                "t",
                pa.schema([("a", pa.string()), ("b", pa.int64())]),
                key="a",
                durability=segments("ram", "ram"),
            )
            rows = [{"a": f"{i}/,", "b": i} for i in range(20_000)]
            assert len(await table.upsert(rows)) == 20_000
            assert await table.get("7/,") == {"a": "7/,", "b": 7}
            assert (await table.scan()).num_rows == 20_000
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {plain}"}) as client:
                row = await client.get(f"{deployed.url}/v1/tables/t/rows/7%2F%2C")
                assert row.json() == {"a": "7/,", "b": 7}
            await database.close()
            again = await asyncio.to_thread(
                lambda: deployment.deploy(
                    plan, [new_admin], host="127.0.0.1", port=0, started_serve=True
                )
            )
            assert again.url == deployed.url
            database = HttpDatabase(deployed.url, new_plain)
            assert [record.name for record in await database.tables()] == ["t"]
            await database.close()
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {plain}"}) as client:
                assert (await client.get(f"{deployed.url}/v1/tables")).status_code == 401
            await asyncio.to_thread(
                lambda: deployment.undeploy(CLUSTER, started_serve=deployed.started_serve)
            )
            assert await asyncio.to_thread(deployment.serve_address) is None
    finally:
        await asyncio.to_thread(ray.shutdown)
