"""The HTTP API on a real Ray Serve, in front of a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.database import HttpDatabase
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import segments
from stelae.serve.gateway.tokens import make_token
from tests.cluster_fixture import CLUSTER, SECRET, local_cluster

pytestmark = [pytest.mark.ray, pytest.mark.soak]


@asynccontextmanager
async def own_ray(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A Ray of this test, whatever Rays this process has had before."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "0")  # a launch before may have set it
    import ray
    from ray.serve import context

    context._set_global_client(None)  # of another Ray of this process
    await asyncio.to_thread(
        ray.init, address="local", num_cpus=1, include_dashboard=False, log_to_driver=False
    )
    try:
        yield
    finally:
        await asyncio.to_thread(ray.shutdown)


async def status_of(url: str, token: str = "") -> int:
    """What a ``GET`` is answered with."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers) as client:
        return (await client.get(url)).status_code


async def write_and_read(url: str, token: str) -> None:
    """Many rows and single ones, by Stelae's own client and by another."""
    database = HttpDatabase(url, token)
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
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:
        row = await client.get(f"{url}/v1/tables/t/rows/7%2F%2C")
        assert row.json() == {"a": "7/,", "b": 7}
    await database.close()


async def test_serve_answers_takes_new_tokens_and_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deploy on a Ray of our own; write and read; change tokens without a restart; undeploy."""
    plain, admin = make_token("admin", Role.ADMIN)
    new_plain, new_admin = make_token("admin-2", Role.ADMIN)
    async with own_ray(monkeypatch), local_cluster(tmp_path, tservers=1) as cluster:
        from stelae.serve import deployment  # heeds the environment as it is now

        plan = deployment.GatewayPlan(CLUSTER, cluster.master_addresses, SECRET, cluster.settings)
        deployed = await asyncio.to_thread(
            lambda: deployment.deploy(plan, [admin], host="127.0.0.1", port=0)
        )
        assert deployed.started_serve
        assert await status_of(deployed.url + "/healthz") == 200
        assert await status_of(deployed.url + "/v1/tables") == 401
        await write_and_read(deployed.url, plain)

        again = await asyncio.to_thread(
            lambda: deployment.deploy(
                plan, [new_admin], host="127.0.0.1", port=0, started_serve=True
            )
        )
        assert again.url == deployed.url
        database = HttpDatabase(deployed.url, new_plain)
        assert [record.name for record in await database.tables()] == ["t"]
        await database.close()
        assert await status_of(deployed.url + "/v1/tables", plain) == 401
        await asyncio.to_thread(
            lambda: deployment.undeploy(CLUSTER, started_serve=deployed.started_serve)
        )
        assert await asyncio.to_thread(deployment.serve_address) is None
