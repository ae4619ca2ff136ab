"""The HTTP API over a real cluster (real servers, TCP and files; no Ray), in one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.durabilities import ONE_OF_EACH_KIND
from tests.front.http_world import World, http_world


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ONE_OF_EACH_KIND, ids=str)
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with http_world(tmp_path_factory.mktemp("http"), request.param) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """An admin's client, and no table left behind."""
    async with world.client() as client:
        yield client
        for info in (await client.get("/v1/tables")).json()["tables"]:
            name = info["name"]
            await client.delete(f"/v1/tables/{quote(name)}", params={"confirm": name})
