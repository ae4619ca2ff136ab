"""Tables, and one row at a time, over HTTP."""

from __future__ import annotations

import httpx
import pytest

from tests.durabilities import as_json
from tests.front.http_flights import flights_of, make_flights
from tests.front.http_world import ARROW, World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
DROP = "/v1/tables/flights?confirm=flights"
ROW = {
    "id": 2**53 + 1,
    "dest": "LAX é",
    "delay": "NaN",
    "departed": "2013-01-01T10:00:00+00:00",
    "day": "2013-01-01",
    "raw": "AP8=",
}


# ---- tables ---------------------------------------------------------------------------------


async def test_a_table_is_made_shown_listed_and_deleted(
    world: World, http: httpx.AsyncClient
) -> None:
    """The whole life of a table; what is shown is what was asked for."""
    made = await http.post("/v1/tables", json=flights_of(world))
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/tables/flights"
    info = made.json()
    for name in ("name", "key", "durability"):
        assert info[name] == flights_of(world)[name]
    shown = {"date32": "date32[day]"}
    assert info["columns"] == [
        {"nullable": True, **column, "type": shown.get(column["type"], column["type"])}
        for column in flights_of(world)["columns"]
    ]
    assert info["partition"]["hash"] == flights_of(world)["partition"]["hash"]
    assert info["tablets"] == 3
    shown_now = (await http.get("/v1/tables/flights")).json()
    assert shown_now == {**info, "tablet_states": {"running": 3}}
    assert (await http.get("/v1/tables")).json() == {"tables": [info]}
    problem_of(await http.post("/v1/tables", json=flights_of(world)), 409, "table-exists")
    assert (await http.delete(DROP)).status_code == 204
    problem_of(await http.get("/v1/tables/flights"), 404, "table-not-found")
    problem_of(await http.delete(DROP), 404, "table-not-found")
    problem_of(await http.get("/v1/tables/flights/rows/1"), 404, "table-not-found")


async def test_a_table_made_anew_under_a_name_is_the_one_that_is_found(
    world: World,
    http: httpx.AsyncClient,
) -> None:
    """A handle on the deleted table is not used for its successor."""
    await make_flights(world, http, 5)
    await http.delete(DROP)
    await make_flights(world, http)
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
        ({"durability": {"replicas": 2}}, 400),
        ({"durability": {"replicas": 9}}, 400),
        ({"durability": {"replicas": "3"}}, 422),
        ({"durability": {"replicas": 3, "segments": ["ram"]}}, 422),
        ({"durability": {}}, 422),
    ],
)
async def test_impossible_tables_are_refused(
    world: World, http: httpx.AsyncClient, change: dict[str, object], status: int
) -> None:
    """A 400 or 422 problem, and no table."""
    response = await http.post("/v1/tables", json={**flights_of(world), **change})
    problem_of(
        response, status, "invalid-request" if status == 422 else response.json()["type"][10:]
    )
    assert (await http.get("/v1/tables")).json() == {"tables": []}


# ---- one row --------------------------------------------------------------------------------


async def test_a_row_goes_in_and_comes_back_as_it_was(
    world: World, http: httpx.AsyncClient
) -> None:
    """PUT, GET: every column type, exact integers, NaN, and the version as ETag."""
    await make_flights(world, http)
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


async def test_conditions_are_checked_against_the_version(
    world: World, http: httpx.AsyncClient
) -> None:
    """If-Match and If-None-Match: 412 when they do not hold, and nothing changes."""
    await make_flights(world, http)
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
        {"If-Match": "7"},
        {"If-Match": ""},
        {"If-Match": ","},
        {"If-Match": '"7" "8"'},
        {"If-Match": '*, "7"'},
        {"If-Match": '"7'},
        {"If-Match": 'w/"7"'},
        {"If-Match": ", ".join(['"7"'] * 101)},
        {"If-None-Match": "7"},
        {"Stelae-Timeout-Seconds": "0"},
        {"Stelae-Timeout-Seconds": "nan"},
        {"Stelae-Timeout-Seconds": "601"},
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "a b"},
        {"Idempotency-Key": "a" * 256},
        {"Stelae-Request-Id": "x"},
    ],
)
async def test_headers_that_make_no_sense_are_refused(
    world: World, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """400, and the row is not written."""
    await make_flights(world, http)
    path = "/v1/tables/flights/rows/1"
    problem_of(await http.put(path, json={}, headers=headers), 400, "invalid-argument")
    assert (await http.get(path)).status_code == 404


async def test_keys_of_several_columns_and_odd_characters(
    world: World, http: httpx.AsyncClient
) -> None:
    """Commas separate; commas and slashes inside a value are percent-encoded."""
    table = {
        "name": "odd names",
        "key": ["s", "d", "b"],
        "durability": as_json(world.durability),
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
async def test_bad_row_bodies_are_named(
    world: World, http: httpx.AsyncClient, body: bytes, slug: str
) -> None:
    """400 that says which column, and nothing is written."""
    await make_flights(world, http)
    path = "/v1/tables/flights/rows/1"
    headers = {"Content-Type": "application/json"}
    document = problem_of(await http.put(path, content=body, headers=headers), 400, slug)
    if slug == "invalid-argument":
        assert "column" in str(document["detail"])
    assert (await http.get(path)).status_code == 404


async def test_other_media_types_and_methods_are_refused(
    world: World, http: httpx.AsyncClient
) -> None:
    """415 and 405, as problems."""
    await make_flights(world, http)
    xml = {"Content-Type": "application/xml"}
    for response in (
        await http.put("/v1/tables/flights/rows/1", content=b"<x/>", headers=xml),
        await http.post("/v1/tables/flights/rows:write", content=b"<x/>", headers=xml),
        await http.post(
            "/v1/tables/flights/rows:scan", content=b"", headers={"Content-Type": ARROW}
        ),
    ):
        problem_of(response, 415, "unsupported-media-type")
    problem_of(await http.patch("/v1/tables"), 405, "method-not-allowed")
    problem_of(await http.get("/v1/nothing"), 404, "not-found")
