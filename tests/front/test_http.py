"""The HTTP API over a real cluster (real servers, TCP and files; no Ray), in one event loop."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from http_world import ARROW, World, http_world, problem_of

from stelae.client.http import HttpDatabase
from stelae.client.http_protocol import TIMEOUT_HEADER
from stelae.core.durability import segments
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    OutcomeUnknown,
    RowExists,
    RowNotFound,
    TableExists,
    TableNotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    VersionMismatch,
)
from stelae.core.partition import hash_and_range, hash_partition, range_partition
from stelae.serve.app import make_app
from stelae.serve.arrow_bodies import write_stream
from stelae.serve.guard import Limits
from stelae.serve.tokens import Role
from stelae.storage import client_results

pytestmark = pytest.mark.asyncio(loop_scope="module")

RAM = segments("ram", "ram")
FLIGHTS = {
    "name": "flights",
    "columns": [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "dest", "type": "string"},
        {"name": "delay", "type": "double"},
        {"name": "departed", "type": "timestamp[us, tz=UTC]"},
        {"name": "day", "type": "date32"},
        {"name": "raw", "type": "binary"},
    ],
    "key": ["id"],
    "partition": {"hash": {"columns": ["id"], "buckets": 3}},
    "durability": {"segments": ["ram", "ram"]},
}
ROW = {
    "id": 2**53 + 1,
    "dest": "LAX é",
    "delay": "NaN",
    "departed": "2013-01-01T10:00:00+00:00",
    "day": "2013-01-01",
    "raw": "AP8=",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with http_world(tmp_path_factory.mktemp("http")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """An admin's client, and no table left behind."""
    async with world.client() as client:
        yield client
        for info in (await client.get("/v1/tables")).json()["tables"]:
            await client.delete(f"/v1/tables/{info['name']}")


async def make_flights(http: httpx.AsyncClient, rows: int = 0) -> None:
    response = await http.post("/v1/tables", json=FLIGHTS)
    assert response.status_code == 201, response.text
    if rows:
        body = {"rows": [{"id": i, "dest": "LAX" if i % 2 else "JFK"} for i in range(rows)]}
        response = await http.post("/v1/tables/flights/rows:write", json=body)
        assert response.status_code == 200, response.text


# ---- who may ask ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/tables",
        "/v1/cluster",
        "/openapi.json",
        "/docs",
        "/nothing",
        "/healthz/",
        "//healthz",
        "/problems/row-exists",
    ],
)
async def test_nothing_but_health_answers_without_a_token(world: World, path: str) -> None:
    """Known and unknown paths alike are 401 with a challenge."""
    async with world.client(None) as client:
        response = await client.get(path)
        problem_of(response, 401, "not-authenticated")
        assert "Bearer" in response.headers["www-authenticate"]
        wrong = await client.get(path, headers={"Authorization": "Bearer stelae_wrong"})
        problem_of(wrong, 401, "not-authenticated")


async def test_health_is_open_and_true(world: World) -> None:
    """200 while the masters answer."""
    async with world.client(None) as client:
        response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_health_says_when_the_masters_do_not_answer(world: World, tmp_path: Path) -> None:
    """503 when there is no master at the addresses."""
    from stelae.client.database import AsyncDatabase
    from stelae.core.ids import Address

    lost = AsyncDatabase(world.cluster.client_runtime(tmp_path.name), [Address("127.0.0.1:1")])
    app = make_app(lost, world.verifier)
    async with world.client(None, app) as client:
        response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (503, {"status": "unavailable"})
    async with world.client(Role.READ, app) as client:
        response = await client.get(
            "/v1/tables/t/rows/1", headers={"X-Request-Timeout-Seconds": "0.2"}
        )
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


async def test_roles_are_enforced(world: World, http: httpx.AsyncClient) -> None:
    """read reads, write also writes rows, only admin makes and deletes tables."""
    await make_flights(http, 1)
    async with world.client(Role.READ) as reader, world.client(Role.WRITE) as writer:
        assert (await reader.get("/v1/tables/flights/rows/0")).status_code == 200
        for attempt in (
            reader.put("/v1/tables/flights/rows/0", json={}),
            reader.delete("/v1/tables/flights/rows/0"),
            reader.post("/v1/tables/flights/rows:write", json={"rows": []}),
            writer.delete("/v1/tables/flights"),
            writer.post("/v1/tables", json=FLIGHTS),
        ):
            problem_of(await attempt, 403, "not-permitted")
        assert (await writer.delete("/v1/tables/flights/rows/0")).status_code == 204


async def test_the_page_takes_the_token_as_a_password_and_writes_do_not(
    world: World, http: httpx.AsyncClient
) -> None:
    """Browsers can open /, but their stored password is no way to write."""
    await make_flights(http)
    auth = httpx.BasicAuth("me", world.tokens[Role.ADMIN])
    async with world.client(None) as client:
        assert "Basic" in (await client.get("/")).headers.get_list("www-authenticate")[1]
        page = await client.get("/", auth=auth)
        assert page.status_code == 200
        assert "flights" in page.text
        assert "tserver-0" in page.text
        assert "http" not in page.text.replace("http-equiv", "")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        problem_of(await client.delete("/v1/tables/flights", auth=auth), 401, "not-authenticated")


# ---- tables ---------------------------------------------------------------------------------


async def test_a_table_is_made_shown_listed_and_deleted(http: httpx.AsyncClient) -> None:
    """The whole life of a table; what is shown is what was asked for."""
    made = await http.post("/v1/tables", json=FLIGHTS)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/tables/flights"
    info = made.json()
    for name in ("name", "key", "durability"):
        assert info[name] == FLIGHTS[name]
    shown = {"date32": "date32[day]"}
    assert info["columns"] == [
        {"nullable": True, **column, "type": shown.get(column["type"], column["type"])}
        for column in FLIGHTS["columns"]
    ]
    assert info["partition"]["hash"] == FLIGHTS["partition"]["hash"]
    assert info["tablets"] == 3
    assert (await http.get("/v1/tables/flights")).json() == info
    assert (await http.get("/v1/tables")).json() == {"tables": [info]}
    problem_of(await http.post("/v1/tables", json=FLIGHTS), 409, "table-exists")
    assert (await http.delete("/v1/tables/flights")).status_code == 204
    problem_of(await http.get("/v1/tables/flights"), 404, "table-not-found")
    problem_of(await http.delete("/v1/tables/flights"), 404, "table-not-found")
    problem_of(await http.get("/v1/tables/flights/rows/1"), 404, "table-not-found")


async def test_a_table_made_anew_under_a_name_is_the_one_that_is_found(
    http: httpx.AsyncClient,
) -> None:
    """A handle on the deleted table is not used for its successor."""
    await make_flights(http, 5)
    await http.delete("/v1/tables/flights")
    await make_flights(http)
    problem_of(await http.get("/v1/tables/flights/rows/1"), 404, "row-not-found")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "a/b"}, 400),
        ({"name": ""}, 400),
        ({"name": 5}, 422),
        ({"extra": 1}, 422),
        ({"key": []}, 422),
        ({"key": ["nope"]}, 400),
        ({"key": ["delay"]}, 400),
        ({"columns": None}, 400),
        ({"columns": []}, 400),
        ({"arrow_schema": "AAAA"}, 400),
        ({"columns": [{"name": "id", "type": "int65"}]}, 400),
        ({"columns": [{"name": "id", "type": "timestamp[us, tz=Nowhere]"}]}, 400),
        ({"columns": None, "arrow_schema": "AAAA"}, 400),
        ({"columns": None, "arrow_schema": "?"}, 400),
        ({"partition": {"hash": {"columns": ["dest"], "buckets": 2}}}, 400),
        ({"partition": {"hash": {"columns": ["id"], "buckets": 0}}}, 422),
        ({"partition": {"range": {"columns": ["nope"], "splits": [[1]]}}}, 400),
        ({"partition": {"range": {"columns": ["id"], "splits": [["x"]]}}}, 400),
        ({"partition": {"range": {"columns": ["id"], "splits": [[2], [1]]}}}, 400),
        ({"partition": {"range": {"columns": ["id"], "splits": [[1, 2]]}}}, 400),
        ({"durability": {"segments": ["a"] * 8}}, 400),
        ({"durability": {"segments": [""]}}, 400),
    ],
)
async def test_impossible_tables_are_refused(
    http: httpx.AsyncClient, change: dict[str, object], status: int
) -> None:
    """A 400 or 422 problem, and no table."""
    response = await http.post("/v1/tables", json={**FLIGHTS, **change})
    problem_of(
        response, status, "invalid-request" if status == 422 else response.json()["type"][10:]
    )
    assert (await http.get("/v1/tables")).json() == {"tables": []}


# ---- one row --------------------------------------------------------------------------------


async def test_a_row_goes_in_and_comes_back_as_it_was(http: httpx.AsyncClient) -> None:
    """PUT, GET: every column type, exact integers, NaN, and the version as ETag."""
    await make_flights(http)
    path = f"/v1/tables/flights/rows/{ROW['id']}"
    put = await http.put(path, json={k: v for k, v in ROW.items() if k != "id"})
    assert put.status_code == 200, put.text
    assert put.headers["etag"] == f'"{put.json()["version"]}"'
    got = await http.get(path)
    assert got.json() == ROW
    assert got.headers["etag"] == put.headers["etag"]
    assert (await http.get(path, params={"columns": ["dest"]})).json() == {"dest": ROW["dest"]}
    unchanged = await http.get(path, headers={"If-None-Match": put.headers["etag"]})
    assert unchanged.status_code == 304
    assert (await http.delete(path)).status_code == 204
    problem_of(await http.get(path), 404, "row-not-found")
    assert (await http.delete(path)).status_code == 204


async def test_conditions_are_checked_against_the_version(http: httpx.AsyncClient) -> None:
    """If-Match and If-None-Match: 412 when they do not hold, and nothing changes."""
    await make_flights(http)
    path = "/v1/tables/flights/rows/1"
    absent = {"If-None-Match": "*"}
    first = await http.put(path, json={"dest": "A"}, headers=absent)
    assert first.status_code == 200
    problem_of(await http.put(path, json={"dest": "B"}, headers=absent), 412, "version-mismatch")
    match = {"If-Match": first.headers["etag"]}
    second = await http.put(path, json={"dest": "C"}, headers=match)
    assert second.status_code == 200
    for late in (
        http.put(path, json={"dest": "D"}, headers=match),
        http.delete(path, headers=match),
    ):
        document = problem_of(await late, 412, "version-mismatch")
        assert document["error"] == "VersionMismatch"
        assert document["args"][3] == second.json()["version"]
    assert (await http.get(path)).json()["dest"] == "C"
    match = {"If-Match": second.headers["etag"]}
    assert (await http.delete(path, headers=match)).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Match": "*"},
        {"If-Match": "7"},
        {"If-Match": 'W/"7"'},
        {"If-Match": '"7", "8"'},
        {"If-Match": '"0"'},
        {"If-Match": '"99999999999999999999"'},
        {"If-None-Match": '"7"'},
        {"If-Match": '"7"', "If-None-Match": "*"},
        {"X-Request-Timeout-Seconds": "0"},
        {"X-Request-Timeout-Seconds": "nan"},
        {"X-Request-Timeout-Seconds": "601"},
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "a b"},
        {"Idempotency-Key": "a" * 256},
        {"Stelae-Request-Id": "x"},
    ],
)
async def test_headers_that_make_no_sense_are_refused(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """400, and the row is not written."""
    await make_flights(http)
    path = "/v1/tables/flights/rows/1"
    problem_of(await http.put(path, json={}, headers=headers), 400, "invalid-argument")
    assert (await http.get(path)).status_code == 404


async def test_keys_of_several_columns_and_odd_characters(http: httpx.AsyncClient) -> None:
    """Commas separate; commas and slashes inside a value are percent-encoded."""
    table = {
        "name": "odd names",
        "key": ["s", "d", "b"],
        "durability": {"segments": []},
        "columns": [
            {"name": "s", "type": "string"},
            {"name": "d", "type": "date32"},
            {"name": "b", "type": "binary"},
            {"name": "v", "type": "int64"},
        ],
    }
    assert (await http.post("/v1/tables", json=table)).status_code == 201
    rows = "/v1/tables/odd%20names/rows"
    for place, text in enumerate(
        ["a%2Cb", "a%2Fb", "", "%25", "%C3%A9", "x%2Frows%2Fy", "rows:get"]
    ):
        path = f"{rows}/{text},2013-01-0{place + 1},_w"
        assert (await http.put(path, json={"v": place})).status_code == 200
        assert (await http.get(path)).json()["v"] == place
    keys = [row["s"] for row in (await http.post(f"{rows}:scan", json={})).json()["rows"]]
    assert sorted(keys) == sorted(["a,b", "a/b", "", "%", "é", "x/rows/y", "rows:get"])
    for bad in (
        "a",
        "a,2013-01-01",
        "a,2013-01-01,_w,x",
        "a,x,_w",
        "a,2013-01-01,!",
        "%FF,2013-01-01,_w",
    ):
        problem_of(await http.get(f"{rows}/{bad}"), 400, "invalid-argument")


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        (b"", "malformed-body"),
        (b"{", "malformed-body"),
        (b"[1]", "malformed-body"),
        (b"NaN", "malformed-body"),
        (b'{"dest": "\xff"}', "malformed-body"),
        (b"[" * 100_000, "malformed-body"),
        (b'{"dest": 5}', "invalid-argument"),
        (b'{"delay": "fast"}', "invalid-argument"),
        (b'{"day": "soon"}', "invalid-argument"),
        (b'{"raw": "?"}', "invalid-argument"),
        (b'{"departed": true}', "invalid-argument"),
        (b'{"id": 2}', "invalid-argument"),
        (b'{"id": 99999999999999999999}', "invalid-argument"),
        (b'{"nope": 1}', "column-not-found"),
    ],
)
async def test_bad_row_bodies_are_named(http: httpx.AsyncClient, body: bytes, slug: str) -> None:
    """400 that says which column, and nothing is written."""
    await make_flights(http)
    path = "/v1/tables/flights/rows/1"
    headers = {"Content-Type": "application/json"}
    document = problem_of(await http.put(path, content=body, headers=headers), 400, slug)
    if slug == "invalid-argument":
        assert "column" in str(document["detail"])
    assert (await http.get(path)).status_code == 404


async def test_other_media_types_and_methods_are_refused(http: httpx.AsyncClient) -> None:
    """415 and 405, as problems."""
    await make_flights(http)
    xml = {"Content-Type": "application/xml"}
    for response in (
        await http.put("/v1/tables/flights/rows/1", content=b"<x/>", headers=xml),
        await http.post("/v1/tables/flights/rows:write", content=b"<x/>", headers=xml),
        await http.post(
            "/v1/tables/flights/rows:scan", content=b"", headers={"Content-Type": ARROW}
        ),
    ):
        problem_of(response, 415, "unsupported-media-type")
    problem_of(await http.patch("/v1/tables/flights"), 405, "method-not-allowed")
    problem_of(await http.get("/v1/nothing"), 404, "not-found")


# ---- many rows ------------------------------------------------------------------------------


async def test_many_rows_as_json(http: httpx.AsyncClient) -> None:
    """write, get, scan with filters, update, delete; versions given and checked."""
    await make_flights(http, 250)
    rows = "/v1/tables/flights/rows"
    scan = await http.post(
        f"{rows}:scan", json={"where": [["dest", "=", "LAX"]], "columns": ["id"]}
    )
    assert sorted(row["id"] for row in scan.json()["rows"]) == list(range(1, 250, 2))
    any_of = {"where": [[["id", "<", 2]], [["id", "in", [7, 8]], ["dest", "=", "LAX"]]]}
    scan = await http.post(f"{rows}:scan", json=any_of)
    assert sorted(row["id"] for row in scan.json()["rows"]) == [0, 1, 7]
    limited = await http.post(f"{rows}:scan", json={"limit": 10, "with_versions": True})
    assert len(limited.json()["rows"]) == 10
    assert all(row["_version"] > 0 for row in limited.json()["rows"])
    got = await http.post(
        f"{rows}:get", json={"keys": [5, [3], {"id": 4}, 9999], "with_versions": True}
    )
    assert [row["id"] for row in got.json()["rows"]] == [5, 3, 4]
    five = got.json()["rows"][0]["_version"]
    update = {"op": "update", "rows": [{"id": 5, "delay": 1.5}], "if_versions": [five]}
    assert (await http.post(f"{rows}:write", json=update)).status_code == 200
    problem_of(await http.post(f"{rows}:write", json=update), 409, "version-mismatch")
    assert (await http.get(f"{rows}/5")).json()["delay"] == 1.5
    assert (await http.get(f"{rows}/5")).json()["dest"] == "LAX"
    delete = {"op": "delete", "rows": [{"id": 5}, {"id": 6}]}
    assert len((await http.post(f"{rows}:write", json=delete)).json()["versions"]) == 2
    problem_of(await http.get(f"{rows}/6"), 404, "row-not-found")


async def test_many_rows_as_arrow(http: httpx.AsyncClient) -> None:
    """Arrow in, Arrow out, streamed scans in all three forms agree."""
    await make_flights(http)
    table = pa.table({"id": range(5000), "dest": ["x" * (i % 7) for i in range(5000)]})
    arrow = {"Content-Type": ARROW, "Accept": ARROW}
    rows = "/v1/tables/flights/rows"
    body = write_stream(table.schema, table.to_batches(max_chunksize=700))
    wrote = await http.post(f"{rows}:write?op=insert", content=body, headers=arrow)
    versions = pa.ipc.open_stream(wrote.content).read_all()
    assert versions.schema == pa.schema([("_version", pa.uint64())])
    assert versions.num_rows == 5000
    problem_of(
        await http.post(f"{rows}:write?op=insert", content=body, headers=arrow), 409, "row-exists"
    )
    keys = table.select(["id"]).slice(10, 3)
    got = await http.post(
        f"{rows}:get?columns=dest",
        content=write_stream(keys.schema, keys.to_batches()),
        headers=arrow,
    )
    found = pa.ipc.open_stream(got.content).read_all()
    assert found.equals(table.select(["dest"]).slice(10, 3))
    forms = {}
    for accept in (ARROW, "application/x-ndjson", "application/json"):
        answer = await http.post(
            f"{rows}:scan", json={"columns": ["id", "dest"]}, headers={"Accept": accept}
        )
        assert answer.headers["content-type"].startswith(accept)
        forms[accept] = answer.content
    whole = pa.ipc.open_stream(forms[ARROW]).read_all().sort_by("id")
    assert whole.to_pylist() == table.to_pylist()
    lines = [json.loads(line) for line in forms["application/x-ndjson"].splitlines()]
    assert lines == json.loads(forms["application/json"])["rows"]
    assert sorted(lines, key=lambda row: row["id"]) == table.to_pylist()


async def test_an_empty_scan_is_a_whole_answer_in_each_form(http: httpx.AsyncClient) -> None:
    """No rows: an Arrow stream with its schema, no lines, an empty list."""
    await make_flights(http)
    path = "/v1/tables/flights/rows:scan"
    arrow = await http.post(path, json={}, headers={"Accept": ARROW})
    assert pa.ipc.open_stream(arrow.content).read_all().column_names[0] == "id"
    assert (
        await http.post(path, json={}, headers={"Accept": "application/x-ndjson"})
    ).content == b""
    assert (await http.post(path, json={})).json() == {"rows": []}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("write", {"rows": [{"id": 1}], "op": "replace"}, 422),
        ("write", {"rows": "x"}, 422),
        ("write", {"rows": [5]}, 422),
        ("write", {"rows": [{"id": None}]}, 400),
        ("write", {"rows": [{}]}, 400),
        ("write", {"rows": [{"id": "1"}]}, 400),
        ("write", {"rows": [{"id": 1, "x": 1}]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [1, 2]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [-1]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [2**64]}, 400),
        ("write", {"rows": [{"id": 1}], "op": "insert", "if_versions": [0]}, 400),
        ("write", {"rows": [{"id": 1, "dest": "a"}, {"id": 2}], "op": "update"}, 400),
        ("write", {"rows": [{"dest": "a"}], "op": "update"}, 400),
        ("write", {"rows": [{"id": 1, "dest": "a"}], "op": "update"}, 404),
        ("write", {"rows": [{"id": 1, "dest": "a"}], "op": "delete"}, 400),
        ("write", {"rows": [{"id": 1}, {"id": 1}], "op": "insert"}, 400),
        ("get", {"keys": ["x"]}, 400),
        ("get", {"keys": [[1, 2]]}, 400),
        ("get", {"keys": [{"x": 1}]}, 400),
        ("get", {"keys": [1], "columns": ["x"]}, 400),
        ("get", {"keys": [1], "columns": []}, 422),
        ("get", {}, 422),
        ("scan", {"where": [["x", "=", 1]]}, 400),
        ("scan", {"where": [["id", "~", 1]]}, 400),
        ("scan", {"where": [["id", "=", "a"]]}, 400),
        ("scan", {"where": [["id", "="]]}, 400),
        ("scan", {"where": [5]}, 400),
        ("scan", {"where": [[]]}, 400),
        ("scan", {"where": [["id", 5, 1]]}, 400),
        ("scan", {"where": [["id", "in", 5]]}, 400),
        ("scan", {"where": [["id", "=", [1]]]}, 400),
        ("scan", {"where": [["id", "=", None]]}, 400),
        ("scan", {"limit": -1}, 422),
        ("scan", {"limit": 1.5}, 422),
        ("scan", {"columns": ["x"]}, 400),
        ("scan", {"columns": "id"}, 422),
    ],
)
async def test_bad_calls_on_many_rows_are_refused_whole(
    http: httpx.AsyncClient, path: str, body: dict[str, object], status: int
) -> None:
    """A 4xx problem, and the table stays empty."""
    await make_flights(http)
    response = await http.post(f"/v1/tables/flights/rows:{path}", json=body)
    problem_of(response, status, response.json()["type"].removeprefix("/problems/"))
    assert (await http.post("/v1/tables/flights/rows:scan", json={})).json() == {"rows": []}


async def test_bad_arrow_bodies_are_refused(http: httpx.AsyncClient) -> None:
    """Damaged streams, wrong types, unknown columns, missing keys: 400, nothing written."""
    await make_flights(http)
    good = pa.table({"id": [1, 2], "dest": ["a", "b"]})
    stream = write_stream(good.schema, good.to_batches())
    bad_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    bodies = {
        "nothing": b"",
        "noise": b"x" * 100,
        "half": stream[: len(stream) // 2],
        "text": pa.table({"id": ["1"]}),
        "unknown": pa.table({"id": [1], "x": [1]}),
        "no key": pa.table({"dest": ["a"]}),
        "null key": pa.table({"id": pa.array([None], pa.int64())}),
        "bad utf-8": pa.table({"id": [1], "dest": bad_text}),
        "versions": pa.table({"id": [1], "_if_version": ["a"]}),
    }
    for op in ("insert", "upsert", "update", "delete"):
        for name, body in bodies.items():
            if op == "delete" and name in ("unknown", "bad utf-8"):
                continue
            data = body if isinstance(body, bytes) else write_stream(body.schema, body.to_batches())
            response = await http.post(
                f"/v1/tables/flights/rows:write?op={op}",
                content=data,
                headers={"Content-Type": ARROW},
            )
            assert response.status_code == 400, (op, name, response.text)
    assert (await http.post("/v1/tables/flights/rows:scan", json={})).json() == {"rows": []}


# ---- exactly once ---------------------------------------------------------------------------


async def test_the_same_write_with_the_same_key_is_done_once(
    world: World, http: httpx.AsyncClient
) -> None:
    """The second sending gets the first answer, also from another replica of the API."""
    await make_flights(http)
    path = "/v1/tables/flights/rows:write"
    key = {"Idempotency-Key": "order-1"}
    body = {"op": "insert", "rows": [{"id": i, "dest": "A"} for i in range(5)]}
    first = await http.post(path, json=body, headers=key)
    other = make_app(world.cluster.connect("replica-2"), world.verifier)
    async with world.client(app=other) as second_replica:
        again = await second_replica.post(path, json=body, headers=key)
    assert again.status_code == 200, again.text
    assert again.json() == first.json()
    problem_of(await http.post(path, json=body), 409, "row-exists")
    changed = {"op": "upsert", "rows": [{"id": 0, "dest": "B"}]}
    assert (await http.post(path, json=changed, headers=key)).status_code == 200
    assert (await http.get("/v1/tables/flights/rows/0")).json()["dest"] == "B"


async def test_keys_of_different_tokens_do_not_meet(world: World, http: httpx.AsyncClient) -> None:
    """One token's key is not an answer for another's request."""
    await make_flights(http)
    path = "/v1/tables/flights/rows/1"
    headers = {"Idempotency-Key": "k", "If-None-Match": "*"}
    assert (await http.put(path, json={}, headers=headers)).status_code == 200
    assert (await http.put(path, json={}, headers=headers)).status_code == 200
    async with world.client(Role.WRITE) as other:
        problem_of(await other.put(path, json={}, headers=headers), 412, "version-mismatch")


async def test_too_many_keys_of_the_last_hour_are_refused_in_plain_words(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says what is full, for how long, and what to do; writes without a key go on."""
    await make_flights(http)
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 4)
    path = "/v1/tables/flights/rows/1"
    assert (await http.put(path, json={})).status_code == 200
    for number in range(20):
        headers = {"Idempotency-Key": f"key-{number}", TIMEOUT_HEADER: "0.5"}
        answer = await http.put(path, json={}, headers=headers)
        if answer.status_code != 200:
            break
    detail = problem_of(answer, 429, "overloaded")["detail"]
    assert all(text in detail for text in ("Idempotency-Key", "an hour", "limit of 4")), detail
    assert (await http.put(path, json={})).status_code == 200


# ---- bounds ---------------------------------------------------------------------------------


async def test_bodies_are_bounded_while_they_arrive(world: World, http: httpx.AsyncClient) -> None:
    """413 by Content-Length, and by counting where there is none."""
    await make_flights(http)
    app = make_app(world.cluster.database, world.verifier, Limits(body_bytes=1000, rows=10))
    async with world.client(app=app) as client:
        path = "/v1/tables/flights/rows:write"
        problem_of(await client.post(path, content=b"x" * 1001), 413, "too-large")
        sent = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(100):
                sent += 1
                yield b"x" * 100

        problem_of(await client.post(path, content=pieces()), 413, "too-large")
        rows = {"rows": [{"id": i} for i in range(11)]}
        problem_of(await client.post(path, json=rows), 400, "invalid-argument")


async def test_more_requests_than_the_limit_are_turned_away(
    world: World, http: httpx.AsyncClient
) -> None:
    """429 with Retry-After while others are in hand; afterwards all is well again."""
    app = make_app(world.cluster.database, world.verifier, Limits(requests=2))
    release = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"rows": ['
        begun.release()
        await release.wait()
        yield b"]}"

    await make_flights(http)
    path = "/v1/tables/flights/rows:write"
    async with world.client(app=app) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.post(path, content=slow())) for _ in range(2)]
        for _ in tasks:
            await begun.acquire()
        refused = await client.get("/v1/tables")
        problem_of(refused, 429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        release.set()
        assert [(await task).status_code for task in tasks] == [200, 200]
        assert (await client.get("/v1/tables")).status_code == 200


async def test_a_body_that_does_not_come_ends_at_the_deadline(http: httpx.AsyncClient) -> None:
    """No request is held longer than its deadline by a client that sends nothing."""
    never = asyncio.Event()

    async def nothing() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    response = await http.post(
        "/v1/tables", content=nothing(), headers={"X-Request-Timeout-Seconds": "0.05"}
    )
    problem_of(response, 503, "deadline-expired")


# ---- status and description -----------------------------------------------------------------


async def test_status_documents_agree(http: httpx.AsyncClient) -> None:
    """/v1/cluster, /v1/servers, /v1/recoveries and /v1/tablets/{id} show one state."""
    await make_flights(http, 10)
    cluster = (await http.get("/v1/cluster")).json()
    kinds = {server["kind"] for server in (await http.get("/v1/servers")).json()["servers"]}
    assert kinds == {"master", "tserver", "backup"}
    assert (await http.get("/v1/recoveries")).json() == {"recoveries": cluster["recoveries"]}
    for tablet in cluster["tablets"]:
        shown = (await http.get(f"/v1/tablets/{tablet['id']}")).json()
        assert (shown["table"], shown["term"]) == ("flights", tablet["term"])
    problem_of(await http.get("/v1/tablets/none"), 404, "not-found")
    described = (await http.get("/problems/row-exists")).json()
    assert described["status"] == 409


async def test_the_description_names_every_route_and_resolves(http: httpx.AsyncClient) -> None:
    """OpenAPI: the routes of the design, problem schemas for errors, no dangling reference."""
    text = (await http.get("/openapi.json")).text
    document = json.loads(text)
    for path in (
        "/healthz",
        "/",
        "/v1/tables",
        "/v1/tables/{table}",
        "/v1/tables/{table}/rows/{key}",
        "/v1/tables/{table}/rows:write",
        "/v1/tables/{table}/rows:get",
        "/v1/tables/{table}/rows:scan",
        "/v1/cluster",
        "/v1/servers",
        "/v1/recoveries",
        "/v1/tablets/{tablet_id}",
    ):
        assert path in document["paths"]
    schemas = document["components"]["schemas"]
    for part in text.split('"$ref":"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in schemas
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status[0] in "45" and "Health" not in json.dumps(answer):
                    assert list(answer["content"]) == ["application/problem+json"]


# ---- Stelae's own client over HTTP ----------------------------------------------------------

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", "UTC")), ("x", pa.float64())]
)


async def test_the_client_does_over_http_what_it_does_directly(world: World) -> None:
    """The same calls on both, the same answers and the same errors."""
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    results = []
    for database in (world.cluster.database, world.database()):
        table = await database.create_table(
            "twin",
            SCHEMA,
            key=["a", "b"],
            durability=RAM,
            partition=hash_and_range(hash_partition("a", 2), range_partition("b", ["m"])),
        )
        log: list[object] = [table.record.partitioning, table.schema, table.key]
        rows = [{"a": i, "b": "kn"[i % 2], "t": moment, "x": math.inf} for i in range(10)]
        log.append((await table.insert(rows)).tolist())
        log.append((await table.upsert(pa.Table.from_pylist(rows[:4], SCHEMA))).tolist())
        log.append((await table.update([{"a": 1, "b": "n", "x": 2.0}])).tolist())
        log.append(await table.get((1, "n"), with_version=True))
        log.append(await table.get({"a": 99, "b": "n"}))
        log.append(
            (await table.get_many([(3, "n"), (2, "k"), (8, "q")], columns=["a"])).to_pylist()
        )
        where = [("b", "=", "n"), ("t", ">=", moment), ("a", "in", [1, 3, 4])]
        log.append((await table.scan(where=where, columns=["a"])).sort_by("a").to_pylist())
        log.append(await table.count(where=[("a", "<", 5)]))
        version = (await table.get((1, "n"), with_version=True))["_version"]
        log.append((await table.delete((1, "n"), if_version=version)).tolist())
        log.append(await table.count())
        for attempt in (
            table.insert(rows),
            table.update({"a": 1, "b": "n", "x": 1.0}),
            table.upsert({"q": 1}),
            table.delete((0, "k"), if_version=99),
            table.upsert({"a": "x", "b": "y"}),
            table.scan(where=[("zz", "=", 1)]),
            database.table("none"),
            database.delete_table("none"),
            database.create_table("twin", SCHEMA, key="a"),
            table.upsert({"a": 1, "b": "x" * (2 << 20)}),
        ):
            with pytest.raises(
                (
                    RowExists,
                    RowNotFound,
                    VersionMismatch,
                    ColumnNotFound,
                    InvalidArgument,
                    TableNotFound,
                    TableExists,
                    TooLarge,
                )
            ) as caught:
                await attempt
            same_text = not isinstance(caught.value, TooLarge)  # rows and batches count otherwise
            log.append((type(caught.value), str(caught.value) if same_text else ""))
        log.append([record.name for record in await database.tables()])
        log.append((await database.status())["cluster"])
        await database.delete_table("twin")
        results.append(log)
    for direct, over_http in zip(*results, strict=True):
        assert direct == over_http


async def test_a_lost_answer_is_asked_for_again_and_the_write_done_once(world: World) -> None:
    """The connection breaks after the server did the write: the client's repetition is answered."""
    inner = httpx.ASGITransport(world.app)
    lost = 0

    class Lossy(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal lost
            response = await inner.handle_async_request(request)
            await response.aread()
            if "rows:write" in str(request.url) and lost < 2:
                lost += 1
                raise httpx.ReadError("broken off")
            return response

    database = HttpDatabase(
        "http://stelae", world.tokens[Role.ADMIN], httpx.AsyncClient(transport=Lossy())
    )
    table = await database.create_table("once", SCHEMA, key=["a"], durability=RAM)
    versions = await table.insert([{"a": i, "b": "x"} for i in range(3)])
    assert lost == 2
    assert versions.tolist() == [1, 2, 3]
    await database.delete_table("once")
    await database.close()


async def test_a_scan_that_breaks_off_is_never_taken_for_whole(world: World) -> None:
    """An Arrow stream without its end marker is an error."""
    inner = httpx.ASGITransport(world.app)

    class Cutting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await inner.handle_async_request(request)
            data = await response.aread()
            cut = data[:-8] if "rows:scan" in str(request.url) else data
            return httpx.Response(response.status_code, content=cut)

    database = HttpDatabase(
        "http://stelae", world.tokens[Role.ADMIN], httpx.AsyncClient(transport=Cutting())
    )
    table = await database.create_table("cut", SCHEMA, key=["a"], durability=RAM)
    with pytest.raises(Unavailable, match="broke off"):
        await table.scan()
    await database.delete_table("cut")
    await database.close()


async def test_wrong_tokens_and_dead_servers_are_told_apart(world: World) -> None:
    """Unauthorized, Unavailable, and OutcomeUnknown for what must not be repeated."""
    wrong = HttpDatabase("http://stelae", "nonsense", world.client(None))
    with pytest.raises(Unauthorized):
        await wrong.tables()
    with pytest.raises(InvalidArgument, match="token"):
        HttpDatabase("http://stelae", "")
    with pytest.raises(InvalidArgument, match="http"):
        HttpDatabase("stelae:8000", "x")
    nobody = HttpDatabase("http://127.0.0.1:1", "x")
    with pytest.raises(Unavailable):
        await nobody.tables(timeout=0.2)
    await nobody.close()

    async def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("broken off")

    client = httpx.AsyncClient(transport=httpx.MockTransport(broken))
    with pytest.raises(OutcomeUnknown):
        await HttpDatabase("http://stelae", "x", client).delete_table("t", timeout=0.2)
