"""Rows by value, and indexes, over HTTP: JSON, Arrow, pages, and what is refused."""

from __future__ import annotations

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.protocol import NEXT_PAGE_HEADER
from tests.front.http_flights import flights_of, make_flights
from tests.front.http_world import ARROW, World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

INDEXES = "/v1/tables/flights/indexes"
FIND = "/v1/tables/flights/rows:find"


async def test_an_index_is_made_shown_used_and_dropped(
    world: World, http: httpx.AsyncClient
) -> None:
    """In JSON and in Arrow, whole and page by page."""
    await make_flights(world, http, 90)
    made = await http.post(INDEXES, json={"column": "dest"})
    assert made.status_code == 201, made.text
    assert (made.json()["column"], made.json()["state"]) == ("dest", "serving")
    (shown,) = (await http.get(INDEXES)).json()["indexes"]
    assert shown["indexlets"][0]["state"] == "serving"
    table = (await http.get("/v1/tables/flights")).json()
    assert [each["column"] for each in table["indexes"]] == ["dest"]
    found = await http.post(FIND, json={"column": "dest", "value": "LAX", "columns": ["id"]})
    assert found.json() == {"rows": [{"id": n} for n in range(1, 90, 2)], "next": None}
    ids: list[int] = []
    after = None
    while True:
        wanted = {"column": "dest", "between": ["A", "Z"], "limit": 40, "after": after}
        page = await http.post(FIND, json=wanted, headers={"Accept": ARROW})
        assert page.status_code == 200, page.text
        with pa.ipc.open_stream(page.content) as reader:
            ids += reader.read_all()["id"].to_pylist()
        after = page.headers.get(NEXT_PAGE_HEADER)
        if after is None:
            break
    assert ids == [*range(0, 90, 2), *range(1, 90, 2)]
    assert (await http.delete(f"{INDEXES}/dest")).status_code == 204
    problem = problem_of(
        await http.post(FIND, json={"column": "dest", "value": "LAX"}), 404, "index-not-found"
    )
    assert "create_index" in problem["detail"]


async def test_a_table_is_made_with_indexes_and_nulls_are_found(
    world: World, http: httpx.AsyncClient
) -> None:
    """Values are JSON's, as in rows: dates and moments are text, binary is base64."""
    columns = ["dest", "departed", "day", "raw", "delay"]
    made = await http.post("/v1/tables", json={**flights_of(world), "indexes": columns})
    assert made.status_code == 201, made.text
    row = {
        "id": 1, "dest": None, "departed": "2026-01-02T03:04:05.000006Z", "day": "2026-01-02",
        "raw": "AP8=", "delay": 1.5,
    }  # fmt: skip
    assert (await http.put("/v1/tables/flights/rows/1", json=row)).status_code == 200
    for column in columns:
        found = await http.post(FIND, json={"column": column, "value": row[column]})
        assert [each["id"] for each in found.json()["rows"]] == [1], found.text


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ({"column": "zz", "value": 1}, 400, "column-not-found"),
        ({"column": "delay", "value": 1.0}, 404, "index-not-found"),
        ({"column": "dest"}, 400, "invalid-argument"),
        ({"column": "dest", "value": "a", "between": ["a", "b"]}, 400, "invalid-argument"),
        ({"column": "dest", "between": ["a"]}, 422, "invalid-request"),
        ({"column": "dest", "value": 5}, 400, "invalid-argument"),
        ({"column": "dest", "value": "a", "limit": 0}, 422, "invalid-request"),
        ({"column": "dest", "value": "a", "after": "nonsense"}, 400, "invalid-argument"),
        ({"column": "dest", "value": "a", "limit": 1 << 40}, 400, "invalid-argument"),
    ],
)
async def test_what_is_no_find_is_refused(
    world: World, http: httpx.AsyncClient, body: dict[str, object], status: int, slug: str
) -> None:
    """With a problem document that says what is wrong."""
    await http.post("/v1/tables", json={**flights_of(world), "indexes": ["dest"]})
    problem_of(await http.post(FIND, json=body), status, slug)


async def test_what_is_no_index_is_refused(world: World, http: httpx.AsyncClient) -> None:
    """Unknown columns, a second one, unique ones; and only admins change indexes."""
    await make_flights(world, http)
    problem_of(await http.post(INDEXES, json={"column": "zz"}), 400, "column-not-found")
    assert (await http.post(INDEXES, json={"column": "dest"})).status_code == 201
    problem_of(await http.post(INDEXES, json={"column": "dest"}), 409, "index-exists")
    unique = await http.post(INDEXES, json={"column": "delay", "unique": True})
    assert "if_version=0" in problem_of(unique, 400, "invalid-argument")["detail"]
    problem_of(await http.delete(f"{INDEXES}/delay"), 404, "index-not-found")
