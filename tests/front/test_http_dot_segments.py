"""Keys that clients and proxies change in paths, by real clients over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio
import requests
import urllib3
import uvicorn

from stelae.core.errors import InvalidArgument
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import segments
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = [
    *("", ".", "..", "%2e", "%2E%2E", "/", "a/../b", "../odd", "//", "a/b/", ",", "a b", "+", "&"),
    *("é", "\U0001f600", "?", "#", "~", "\\", "\x00\n", "rows:get", "plain"),
]
TABLE = {
    "name": "odd é",
    "key": ["k"],
    "columns": [{"name": "k", "type": "string"}, {"name": "..", "type": "int64"}],
    "durability": {"segments": ["ram", "ram"]},
}
Sender = Callable[[str, str, list[tuple[str, str]]], tuple[int, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with local_cluster(tmp_path_factory.mktemp("dots"), tservers=1) as cluster:
        yield World(cluster, durability=segments("ram", "ram"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(world: World) -> AsyncIterator[str]:
    """The application on a socket."""
    config = uvicorn.Config(world.app, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest_asyncio.fixture(loop_scope="module")
async def rows(http: httpx.AsyncClient) -> str:
    """A table, by the place that its creation named."""
    made = await http.post("/v1/tables", json=TABLE)
    assert made.status_code == 201, made.text
    place: str = made.headers["location"]
    assert (await http.get(place)).json()["name"] == TABLE["name"]
    return f"{place}/rows"


def senders(url: str, token: str) -> dict[str, Sender]:
    """The same request by each client."""
    headers = {"Authorization": f"Bearer {token}"}
    body = {"..": 7}

    def by_httpx(method: str, path: str, query: list[tuple[str, str]]) -> tuple[int, Any]:
        json = body if method == "PUT" else None
        with httpx.Client(verify=False, headers=headers, timeout=60) as client:
            found = client.request(method, url + path, params=tuple(query) or None, json=json)
        return found.status_code, found.json() if found.content else None

    def by_requests(method: str, path: str, query: list[tuple[str, str]]) -> tuple[int, Any]:
        json = body if method == "PUT" else None
        found = requests.request(
            method, url + path, params=query, headers=headers, json=json, timeout=60
        )
        return found.status_code, found.json() if found.content else None

    def by_urllib3(method: str, path: str, query: list[tuple[str, str]]) -> tuple[int, Any]:
        json = body if method == "PUT" else None
        ending = f"?{urlencode(query)}" if query else ""
        found = urllib3.request(method, url + path + ending, headers=headers, json=json)
        return found.status, found.json() if found.data else None

    return {"httpx": by_httpx, "requests": by_requests, "urllib3": by_urllib3}


async def raw(url: str, token: str, method: str, target: str) -> int:
    """The status of a request that is sent as it stands."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}"]
    lines += ["Content-Length: 2", "Connection: close", "", "{}"]
    writer.write("\r\n".join(lines).encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def keys_of(http: httpx.AsyncClient, rows: str) -> list[str]:
    found = (await http.post(f"{rows}:scan", json={})).json()["rows"]
    return sorted(row["k"] for row in found)


@pytest.mark.parametrize("client", ["httpx", "requests", "urllib3"])
async def test_every_key_is_written_read_and_deleted_by_the_query(
    world: World, url: str, http: httpx.AsyncClient, rows: str, client: str
) -> None:
    """Each is the row that it names, and none a table."""
    send = senders(url, world.tokens[Role.ADMIN])[client]

    def work() -> None:
        for key in KEYS:
            named = [("key", key)]
            assert send("PUT", rows, named)[0] == 200, key
            assert send("GET", rows, named) == (200, {"k": key, "..": 7})
            assert send("HEAD", rows, named) == (200, None)

    def remove() -> None:
        for key in KEYS:
            assert send("DELETE", rows, [("key", key)])[0] == 204
            assert send("GET", rows, [("key", key)])[0] == 404

    await asyncio.to_thread(work)
    assert await keys_of(http, rows) == sorted(KEYS)
    await asyncio.to_thread(remove)
    assert await keys_of(http, rows) == []


@pytest.mark.parametrize("client", ["httpx", "requests", "urllib3"])
@pytest.mark.parametrize("key", ["..", ".", "%2e%2e", "%2E", ""])
async def test_a_key_of_dots_in_a_path_changes_nothing(
    world: World, url: str, http: httpx.AsyncClient, rows: str, client: str, key: str
) -> None:
    """Whatever the client makes of it on the way: no table goes, and no other row is written."""
    send = senders(url, world.tokens[Role.ADMIN])[client]
    for method in ("DELETE", "PUT"):
        status, document = await asyncio.to_thread(send, method, f"{rows}/{key}", [])
        assert status in (400, 404, 405), (method, document)
        if status == 400:
            assert "?key=" in document["detail"] or "?confirm=" in document["detail"]
    assert await keys_of(http, rows) == []


@pytest.mark.parametrize("key", ["..", ".", "%2e%2e", ".%2E", "../..", "..%2f..", "x/../..", ""])
async def test_raw_paths_of_dots_are_refused(
    world: World, url: str, http: httpx.AsyncClient, rows: str, key: str
) -> None:
    """As no client would send them."""
    token = world.tokens[Role.ADMIN]
    for method in ("DELETE", "PUT", "GET"):
        assert await raw(url, token, method, f"{rows}/{key}") == 400
    assert await keys_of(http, rows) == []


async def test_a_table_is_deleted_only_if_that_is_confirmed(
    world: World, http: httpx.AsyncClient, rows: str
) -> None:
    """By its own name, once; the problem says what to add. Stelae's client adds it."""
    place = rows.removesuffix("/rows")
    for query in (
        "",
        "?confirm=",
        "?confirm=true",
        "?confirm=odd",
        "?confirm=odd+%C3%A9&confirm=x",
    ):
        document = problem_of(await http.delete(place + query), 400, "confirmation-needed")
        assert "?confirm=odd%20%C3%A9" in str(document["detail"])
    assert (await http.get(place)).status_code == 200
    database = world.database()
    await database.delete_table("odd é")
    await database.close()
    assert (await http.get(place)).status_code == 404
    missing = await http.delete("/v1/tables/none?confirm=none")
    problem_of(missing, 404, "table-not-found")


async def test_an_index_of_a_column_of_dots_is_dropped_by_the_query(
    world: World, http: httpx.AsyncClient, rows: str
) -> None:
    """In a path it would name the table itself. Stelae's client uses the query."""
    place = rows.removesuffix("/rows")
    for drop in range(2):
        made = await http.post(f"{place}/indexes", json={"column": ".."})
        assert made.status_code == 201, made.text
        problem_of(await http.delete(f"{place}/indexes/.."), 400, "confirmation-needed")
        problem_of(await http.delete(f"{place}/indexes"), 400, "invalid-argument")
        if drop == 0:
            gone = await http.delete(f"{place}/indexes", params={"column": ".."})
            assert gone.status_code == 204, gone.text
        else:
            database = world.database()
            await (await database.table("odd é")).drop_index("..")
            await database.close()
        assert (await http.get(f"{place}/indexes")).json() == {"indexes": []}


@pytest.mark.parametrize("name", [".", "..", "%2e%2E", "a\\b"])
async def test_no_table_has_a_name_that_paths_lose(
    world: World, http: httpx.AsyncClient, name: str
) -> None:
    """By HTTP, by its client, and by the cluster's own; nor does a token."""
    problem_of(await http.post("/v1/tables", json={**TABLE, "name": name}), 400, "invalid-argument")
    made = await http.post("/v1/tables", json=TABLE)
    assert made.status_code == 201, made.text
    place = made.headers["location"]
    problem_of(await http.patch(place, json={"name": name}), 400, "invalid-argument")
    remote = world.database()
    for database in (remote, world.cluster.database):
        table = await database.table("odd é")
        with pytest.raises(InvalidArgument, match="table name"):
            await database.create_table(name, table.schema, key="k")
        with pytest.raises(InvalidArgument, match="table name"):
            await table.alter(rename_to=name)
    await remote.close()
    if name in (".", ".."):
        body = {"name": name, "role": "read"}
        problem_of(await http.post("/v1/tokens", json=body), 400, "invalid-argument")


async def test_a_key_of_the_query_is_part_of_what_an_idempotency_key_stands_for(
    http: httpx.AsyncClient, rows: str
) -> None:
    """The same body for two rows is two writes."""
    for key in ("a", "b", "a"):
        headers = {"Idempotency-Key": "k1"}
        put = await http.put(rows, params={"key": key}, json={"..": 1}, headers=headers)
        assert put.status_code == 200, put.text
    assert await keys_of(http, rows) == ["a", "b"]
