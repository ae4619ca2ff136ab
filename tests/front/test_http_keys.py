"""Idempotency keys of what changes the catalog: done once, answered again, never confused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.database import HttpDatabase
from stelae.core.errors import KeyReused, TableNotFound
from stelae.core.records.tokens import Role
from tests.front.http_flights import flights_of, make_flights
from tests.front.http_world import World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
TABLE = "/v1/tables/flights"
DROP = f"{TABLE}?confirm=flights"


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


async def test_a_table_is_created_once_under_a_key(world: World, http: httpx.AsyncClient) -> None:
    """However often, and at once: 201 with the same table; another body or route is 422; another
    token's key, or no key, is 409; after its end it is 404."""
    body = flights_of(world)
    made = await asyncio.gather(
        *(http.post("/v1/tables", json=body, headers=key("t1")) for _ in range(4))
    )
    assert {answer.status_code for answer in made} <= {201, 503}, [a.text for a in made]
    again = await http.post("/v1/tables", json=body, headers=key("t1"))
    assert again.status_code == 201, again.text
    assert {a.json()["id"] for a in made if a.status_code == 201} == {again.json()["id"]}
    other = await http.post("/v1/tables", json={**body, "name": "other"}, headers=key("t1"))
    assert problem_of(other, 422, "key-reused")["error"] == KeyReused.__name__
    index = await http.post(f"{TABLE}/indexes", json={"column": "dest"}, headers=key("t1"))
    problem_of(index, 422, "key-reused")
    problem_of(await http.post("/v1/tables", json=body), 409, "table-exists")
    problem_of(await http.post("/v1/tables", json=body, headers=key("t2")), 409, "table-exists")
    assert [t["name"] for t in (await http.get("/v1/tables")).json()["tables"]] == ["flights"]
    await http.delete(DROP)
    gone = await http.post("/v1/tables", json=body, headers=key("t1"))
    problem_of(gone, 404, "table-not-found")
    first = await http.post("/v1/tables", json=body, headers=key("t2"))
    problem_of(first, 409, "table-exists")  # as it was answered first
    for odd in ("", "a b", "x" * 256):
        wrong = await http.post("/v1/tables", json=body, headers=key(odd))
        problem_of(wrong, 400, "invalid-argument")


async def test_what_alters_a_table_is_done_once_under_a_key(
    world: World, http: httpx.AsyncClient
) -> None:
    """Altering it, its indexes, its deletion; and each key is for one request."""
    await make_flights(world, http)
    change = {"add_columns": [{"name": "x", "type": "int8"}]}
    for _ in range(2):
        done = await http.patch(TABLE, json=change, headers=key("a1"))
        assert done.status_code == 200, done.text
    assert [c["name"] for c in done.json()["columns"]].count("x") == 1
    drop: dict[str, Any] = {"drop_columns": ["x"]}
    problem_of(await http.patch(TABLE, json=drop, headers=key("a1")), 422, "key-reused")
    for _ in range(2):
        index = await http.post(f"{TABLE}/indexes", json={"column": "dest"}, headers=key("a2"))
        assert index.status_code == 201, index.text
    for _ in range(2):
        gone = await http.delete(f"{TABLE}/indexes/dest", headers=key("a3"))
        assert gone.status_code == 204, gone.text
    for wanted in (False, True):
        tag = (await http.get(TABLE)).headers["etag"]
        headers = {**key(f"a4{wanted}"), **({"If-Match": tag} if wanted else {})}
        for _ in range(2):
            assert (await http.delete(DROP, headers=headers)).status_code == 204
        await make_flights(world, http)
    assert (await http.get(TABLE)).status_code == 200


async def test_a_rename_that_is_sent_again_is_answered_as_the_first_one_under_its_key(
    world: World, http: httpx.AsyncClient
) -> None:
    """The table has its new name by then; what was not done is 404, and does nothing."""
    await make_flights(world, http)
    rename = {"name": "trips"}
    first = await http.patch(TABLE, json=rename, headers=key("r1"))
    assert first.status_code == 200, first.text
    again = await http.patch(TABLE, json=rename, headers=key("r1"))
    assert (again.status_code, again.json()) == (200, first.json())
    for headers in ({}, key("r2")):
        problem_of(await http.patch(TABLE, json=rename, headers=headers), 404, "table-not-found")
    body = {"name": "trips", "add_columns": [{"name": "x", "type": "int8"}]}
    for given in ("r1", "r3"):
        gone = await http.patch(TABLE, json=body, headers=key(given))
        problem_of(gone, 404, "table-not-found")
    nowhere = await http.patch(TABLE, json={"name": "nobody"}, headers=key("r4"))
    problem_of(nowhere, 404, "table-not-found")
    assert (await http.get("/v1/tables/trips")).json()["schema_version"] == 1
    made = await http.post("/v1/tables", json=flights_of(world))
    assert made.status_code == 201
    taken = await http.patch(TABLE, json=rename, headers=key("r5"))
    problem_of(taken, 409, "table-exists")


async def test_a_token_is_made_once_under_a_key_and_shown_once(
    world: World, http: httpx.AsyncClient
) -> None:
    """The second answer is 409 and says what to do; the first token stays good until revoked."""
    body = {"name": "kay", "role": "read"}
    made = await http.post("/v1/tokens", json=body, headers=key("k1"))
    assert made.status_code == 201, made.text
    again = await http.post("/v1/tokens", json=body, headers=key("k1"))
    document = problem_of(again, 409, "token-shown")
    assert "DELETE /v1/tokens/kay" in str(document["detail"])
    assert document["error"] == "TokenExists"
    mine = {"Authorization": f"Bearer {made.json()['token']}"}
    async with world.client(None) as there:
        assert (await there.get("/v1/tables", headers=mine)).status_code == 200
    other = await http.post("/v1/tokens", json={**body, "role": "admin"}, headers=key("k1"))
    problem_of(other, 422, "key-reused")
    problem_of(await http.post("/v1/tokens", json=body, headers=key("k2")), 409, "token-exists")
    assert (await http.delete("/v1/tokens/kay")).status_code == 204
    problem_of(await http.post("/v1/tokens", json=body, headers=key("k1")), 409, "token-shown")
    assert "kay" not in [t["name"] for t in (await http.get("/v1/tokens")).json()["tokens"]]


class Losing(httpx.AsyncBaseTransport):
    """Carries out every request, and loses the first answer to each of these methods."""

    def __init__(self, world: World, *methods: str) -> None:
        self._inner = httpx.ASGITransport(world.app, raise_app_exceptions=False)
        self.left = list(methods)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        if request.method in self.left:
            self.left.remove(request.method)
            raise httpx.ReadError("the connection broke")
        return answer


async def test_the_client_creates_and_deletes_through_lost_answers(
    world: World, http: httpx.AsyncClient
) -> None:
    """Its requests have ids: what was done is not found to be there, or to be gone."""
    losing = Losing(world, "POST", "DELETE")
    client = httpx.AsyncClient(transport=losing, base_url="http://stelae")
    database = HttpDatabase("http://stelae", world.tokens[Role.ADMIN], client)
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    made = await database.create_table("lost", schema, key="a", durability=world.durability)
    await database.delete_table("lost", if_edition=made.edition)
    assert losing.left == []
    with pytest.raises(TableNotFound):
        await database.delete_table("lost")
    await database.close()
