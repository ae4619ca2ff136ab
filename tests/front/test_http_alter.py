"""Altering tables over HTTP: PATCH, problems, and Stelae's own client through alters."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.protocol import SCHEMA_VERSION_HEADER
from stelae.client.routing.locations import TableCache
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    RetryLater,
    StelaeError,
    TableExists,
    TableNotFound,
)
from stelae.core.records.tokens import Role
from tests.durabilities import as_json
from tests.front.http_world import World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("a", pa.string()), ("b", pa.int64())])


async def make(world: World, http: httpx.AsyncClient, name: str) -> str:
    body = {
        "name": name,
        "columns": [
            {"name": "id", "type": "int64", "nullable": False},
            {"name": "a", "type": "string"},
            {"name": "b", "type": "int64"},
        ],
        "key": ["id"],
        "durability": as_json(world.durability),
    }
    answer = await http.post("/v1/tables", json=body)
    assert answer.status_code == 201, answer.text
    return f"/v1/tables/{name}"


async def test_patch_alters_columns_and_answers_with_the_table(
    world: World, http: httpx.AsyncClient
) -> None:
    """Add, drop, rename and defaults in one call; rows show it at once."""
    path = await make(world, http, "patched")
    await http.put(f"{path}/rows/1", json={"a": "x", "b": 5})
    change = {
        "add_columns": [{"name": "c", "type": "date32", "nullable": False}],
        "drop_columns": ["b"],
        "rename_columns": {"a": "name"},
        "defaults": {"c": "2020-01-02", "name": "?"},
    }
    answer = await http.patch(path, json=change)
    assert answer.status_code == 200, answer.text
    info = answer.json()
    assert [column["name"] for column in info["columns"]] == ["id", "name", "c"]
    assert info["defaults"] == {"name": "?", "c": "2020-01-02"}
    assert (info["column_ids"], info["next_column_id"]) == ([1, 2, 4], 5)
    assert (info["schema_version"], info["state"]) == (2, "running")
    shown = (await http.get(path)).json()
    assert {name: shown[name] for name in info} == info
    assert (await http.get(f"{path}/rows/1")).json() == {"id": 1, "name": "x", "c": "2020-01-02"}
    await http.put(f"{path}/rows/2", json={})
    assert (await http.get(f"{path}/rows/2")).json() == {"id": 2, "name": "?", "c": "2020-01-02"}


@pytest.mark.parametrize("error", [RetryLater("no master leads"), TableNotFound("told")], ids=repr)
async def test_an_alter_that_was_executed_is_not_denied_afterwards(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, error: StelaeError
) -> None:
    """By masters that fall silent, or as the table was deleted since: 503 and 404 would say that it
    was not executed."""
    path = await make(world, http, f"told{type(error).__name__}")
    refresh = TableCache.refresh

    async def silent(cache: TableCache) -> None:
        if cache.table.schema.version > 1:
            raise error
        await refresh(cache)

    with monkeypatch.context() as patch:
        patch.setattr(TableCache, "refresh", silent)
        answer = await http.patch(path, json={"drop_columns": ["b"]})
    assert answer.status_code == 200, answer.text
    assert [column["name"] for column in answer.json()["columns"]] == ["id", "a"]


async def test_requests_that_say_their_schema_version_are_understood(
    world: World,
    http: httpx.AsyncClient,
) -> None:
    """Older names with the header; without it the newest; a dropped column is a problem of its
    own, and so is a version that never was."""
    path = await make(world, http, "versions")
    await http.put(f"{path}/rows/1", json={"a": "x", "b": 5})
    await http.patch(path, json={"rename_columns": {"a": "name"}})
    old = {SCHEMA_VERSION_HEADER: "1"}
    assert (await http.get(f"{path}/rows/1", headers=old)).json() == {"id": 1, "a": "x", "b": 5}
    done = await http.put(f"{path}/rows/2", json={"a": "y"}, headers=old)
    assert done.status_code == 200, done.text
    assert (await http.get(f"{path}/rows/2")).json() == {"id": 2, "name": "y", "b": None}
    problem_of(await http.put(f"{path}/rows/3", json={"a": "y"}), 400, "column-not-found")
    await http.patch(path, json={"drop_columns": ["b"]})
    problem_of(await http.get(f"{path}/rows/1", headers=old), 409, "schema-changed")
    never = {SCHEMA_VERSION_HEADER: "99"}
    problem_of(await http.get(f"{path}/rows/1", headers=never), 409, "schema-changed")
    for text in ("0", "-1", "x", "9" * 30):
        wrong = await http.get(f"{path}/rows/1", headers={SCHEMA_VERSION_HEADER: text})
        problem_of(wrong, 400, "invalid-argument")


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "invalid-argument"),
    ({"drop_columns": ["id"]}, 400, "invalid-argument"),
    ({"drop_columns": ["zz"]}, 400, "column-not-found"),
    ({"defaults": {"zz": 1}}, 400, "column-not-found"),
    ({"defaults": {"b": "one"}}, 400, "invalid-argument"),
    ({"add_columns": [{"name": "c", "type": "int65"}]}, 400, "invalid-argument"),
    ({"add_columns": [{"name": "c", "type": "int8", "nullable": False}]}, 400, "invalid-argument"),
    ({"add_arrow_schema": "AAAA"}, 400, "invalid-argument"),
    ({"add_columns": "c"}, 422, "invalid-request"),
    ({"unknown": 1}, 422, "invalid-request"),
    ({"name": "a/b"}, 400, "invalid-argument"),
    ({"name": "taken"}, 409, "table-exists"),
    ({"defaults": {"a": "x" * 2000}}, 413, "too-large"),
]


async def test_what_cannot_be_is_a_problem_and_changes_nothing(
    http: httpx.AsyncClient, world: World
) -> None:
    """Each refusal has its own type, and the table is as it was."""
    path = await make(world, http, "refused")
    await make(world, http, "taken")
    before = (await http.get(path)).json()
    for change, status, slug in REFUSED:
        problem_of(await http.patch(path, json=change), status, slug)
    problem_of(await http.patch("/v1/tables/none", json={"name": "x"}), 404, "table-not-found")
    async with world.client(Role.WRITE) as writer:
        problem_of(await writer.patch(path, json={"drop_columns": ["b"]}), 403, "not-permitted")
    assert (await http.get(path)).json() == before


async def test_the_client_alters_over_http_as_it_does_directly(world: World) -> None:
    """The same calls on both, with the same rows and the same refusals."""
    for database in (world.cluster.database, world.database()):
        table = await database.create_table("twin", SCHEMA, key="id", durability=world.durability)
        await table.upsert([{"id": n, "a": f"a{n}", "b": n} for n in range(3)])
        await table.alter(
            add_columns=[pa.field("c", pa.int32(), False), pa.field("l", pa.list_(pa.int8()))],
            rename_columns={"a": "name"},
            drop_columns="b",
            defaults={"c": 9, "l": [1, 2]},
        )
        assert table.schema.names == ["id", "name", "c", "l"]
        await table.upsert({"id": 7, "name": "n"})
        rows = sorted((await table.scan()).to_pylist(), key=lambda row: row["id"])
        assert rows[0] == {"id": 0, "name": "a0", "c": 9, "l": [1, 2]}
        assert rows[3] == {"id": 7, "name": "n", "c": 9, "l": [1, 2]}
        assert await table.is_alter_done()
        with pytest.raises(InvalidArgument, match="part of the key"):
            await table.alter(drop_columns=["id"])
        with pytest.raises(ColumnNotFound, match="no column 'b'"):
            await table.alter(drop_columns=["b"])
        renamed = await database.rename_table("twin", "other")
        assert renamed.name == "other"
        with pytest.raises(TableNotFound):
            await database.table("twin")
        again = await database.alter_table("other", rename_to="twin", drop_columns="l")
        assert (again.name, again.schema.names) == ("twin", ["id", "name", "c"])
        with pytest.raises(TableExists):
            await (
                await database.create_table("o2", SCHEMA, key="id", durability=world.durability)
            ).rename("twin")
        await database.delete_table("twin")
        await database.delete_table("o2")


async def test_an_old_handle_over_http_goes_on_through_alters_and_a_rename(world: World) -> None:
    """It says its schema's version; it loads the schema where that does not do; and it finds its
    table under another name."""
    database = world.database()
    await database.create_table("past", SCHEMA, key="id", durability=world.durability)
    handles = [await database.table("past") for _ in range(4)]
    old = handles[0]
    await old.upsert([{"id": n, "a": f"a{n}", "b": n} for n in range(3)])
    admin = world.cluster.database
    await admin.alter_table("past", rename_columns={"a": "name"}, add_columns={"c": pa.int8()})
    await old.upsert({"id": 5, "a": "old", "b": 5})
    assert await old.get(5) == {"id": 5, "a": "old", "b": 5}
    await admin.rename_table("past", "present")
    for n in range(10):
        await admin.alter_table("present", defaults={"b": n})
    await handles[1].upsert([{"id": 6, "a": "older"}], if_version=0)
    assert await old.get(6) == {"id": 6, "name": "older", "b": 9, "c": None}
    assert old.name == "present"
    assert (await handles[2].scan(where=[("id", "=", 6)])).num_rows == 1
    assert await handles[3].is_alter_done()
    await database.delete_table("present")
    with pytest.raises(TableNotFound):
        await old.get(6)
