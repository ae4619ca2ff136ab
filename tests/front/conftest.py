"""HTTP and the command line over a real cluster (real servers, TCP and files; no Ray)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from stelae.database.api import Database
from tests.durabilities import ONE_OF_EACH_KIND
from tests.front.cli_here import Run, runner
from tests.front.http_world import World, http_world
from tests.served import served


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


@pytest.fixture(scope="module")
def small_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A blocking client of a cluster in another thread."""
    with served(tmp_path_factory.mktemp("cluster")) as here, here.database() as found:
        yield found


@pytest.fixture
def run_here(
    small_database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Commands about the tables of `small_database`, and no table left behind."""
    yield runner(small_database, monkeypatch, capsys)
    for name in small_database.tables():
        small_database.delete_table(name)
