"""If-Match and If-None-Match, on rows, tables and the cluster's spec: what RFC 9110 says."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pyarrow as pa
import pytest
from starlette.requests import Request

from stelae.client.table.table import AsyncTable
from stelae.core.errors import TableChanged, TableNotFound
from stelae.serve.gateway.conditions import condition_of
from tests.front.http_flights import make_flights
from tests.front.http_world import World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROW = "/v1/tables/flights/rows/1"


def holds(tag: str | None, **headers: str) -> tuple[bool, bool]:
    """Whether the If-Match of a request holds, and whether its If-None-Match excludes the tag."""
    given = [(n.replace("_", "-").lower().encode(), v.encode()) for n, v in headers.items()]
    condition = condition_of(Request({"type": "http", "headers": given}))
    assert condition is not None
    match = condition.match is None or condition.match.name(tag)
    return match, condition.excludes(tag)


async def test_tags_are_compared_as_the_rfc_says() -> None:
    """Strongly for If-Match, weakly for If-None-Match; `*` is whatever is there."""
    for text, tag, strongly, weakly in (
        ('"7"', "7", True, True),
        ('W/"7"', "7", False, True),
        ('"6", W/"7",, "8" ', "7", False, True),
        ('"6","7"', "7", True, True),
        ('"a,b"', "a,b", True, True),
        ('""', "", True, True),
        ("*", "7", True, True),
        ("*", None, False, False),
        ('"7"', None, False, False),
    ):
        assert holds(tag, If_Match=text) == (strongly, False), text
        assert holds(tag, If_None_Match=text) == (True, weakly), text


# ---- rows -----------------------------------------------------------------------------------


async def put(http: httpx.AsyncClient, dest: str, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.put(ROW, json={"dest": dest}, headers=given)


async def test_stars_and_lists_hold_writes_to_the_row_as_it_is(
    world: World, http: httpx.AsyncClient
) -> None:
    """`*` updates only or inserts only; a list takes any of its versions; weak tags take none."""
    await make_flights(world, http)
    for text in ("*", '"7"', '"7", "8"', 'W/"7"', '"0"', '"99999999999999999999"', '"x"'):
        refused = await put(http, "A", If_Match=text)
        assert refused.status_code == 412, (text, refused.text)
        assert (await http.delete(ROW, headers={"If-Match": text})).status_code == 412
    assert (await http.get(ROW)).status_code == 404
    first = await put(http, "A", If_None_Match='"7", W/"8"')
    assert first.status_code == 200, first.text
    tag = first.headers["etag"]
    problem_of(await put(http, "B", If_None_Match=f'"7", W/{tag}'), 412, "precondition-failed")
    problem_of(await put(http, "B", If_Match="*", If_None_Match="*"), 412, "precondition-failed")
    second = await put(http, "B", If_Match=f'"7", {tag}')
    assert second.status_code == 200, second.text
    document = problem_of(await put(http, "C", If_Match=f'"7", {tag}'), 412, "precondition-failed")
    assert second.headers["etag"] in str(document["detail"])
    third = await put(http, "C", If_Match="*", If_None_Match='"7"')
    assert third.status_code == 200
    assert (await http.get(ROW)).json()["dest"] == "C"
    gone = await http.delete(ROW, headers={"If-None-Match": third.headers["etag"]})
    problem_of(gone, 412, "precondition-failed")
    assert (await http.delete(ROW, headers={"If-Match": "*"})).status_code == 204
    problem_of(await http.delete(ROW, headers={"If-Match": "*"}), 412, "precondition-failed")


async def test_reads_of_rows_are_304_or_412(world: World, http: httpx.AsyncClient) -> None:
    """If-None-Match: 304, by weak tags too; If-Match: 412; an absent row is 404 all the same."""
    await make_flights(world, http)
    for headers in ({"If-None-Match": "*"}, {"If-Match": "*"}, {"If-Match": '"7"'}):
        problem_of(await http.get(ROW, headers=headers), 404, "row-not-found")
    tag = (await put(http, "A")).headers["etag"]
    for text in ("*", tag, f"W/{tag}", f'"7", {tag}'):
        unchanged = await http.get(ROW, headers={"If-None-Match": text})
        assert (unchanged.status_code, unchanged.content) == (304, b""), text
        assert unchanged.headers["etag"] == tag
    assert (await http.get(ROW, headers={"If-None-Match": '"7"'})).status_code == 200
    assert (await http.get(ROW, headers={"If-Match": f'"7", {tag}'})).status_code == 200
    wrong = await http.get(ROW, headers={"If-Match": f"W/{tag}"})
    problem_of(wrong, 412, "precondition-failed")


async def test_a_row_that_changes_meanwhile_is_looked_at_anew(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write somebody else writes: `*` still holds, and a version that was
    listed does not any more. The write that came in between is never lost unseen."""
    await make_flights(world, http)
    tag = (await put(http, "A")).headers["etag"]
    table = await world.cluster.database.table("flights")
    get, meddle = AsyncTable.get, 2

    async def meddled(self: AsyncTable, *args: Any, **options: Any) -> Any:
        nonlocal meddle
        found = await get(self, *args, **options)
        if meddle:
            meddle -= 1
            await table.upsert([{"id": 1, "dest": "meanwhile"}])
        return found

    monkeypatch.setattr(AsyncTable, "get", meddled)
    assert (await put(http, "B", If_Match="*")).status_code == 200
    tag = (await http.get(ROW)).headers["etag"]
    meddle = 1
    problem_of(await put(http, "C", If_Match=f'"7", {tag}'), 412, "precondition-failed")
    assert (await http.get(ROW)).json()["dest"] == "meanwhile"
    meddle = 1000
    problem_of(await put(http, "D", If_Match="*"), 503, "retry-later")


async def test_a_repeated_write_under_a_list_gets_its_first_answer(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its key, though the condition holds no more, or did not at first and does now; and
    though its first attempt met another version."""
    await make_flights(world, http)
    tag = (await put(http, "A")).headers["etag"]
    table = await world.cluster.database.table("flights")
    get, meddle = AsyncTable.get, 1

    async def meddled(self: AsyncTable, *args: Any, **options: Any) -> Any:
        nonlocal meddle
        found = await get(self, *args, **options)
        if meddle:
            meddle -= 1
            await table.upsert([{"id": 1, "dest": "meanwhile"}])
        return found

    monkeypatch.setattr(AsyncTable, "get", meddled)
    first = await put(http, "B", If_None_Match='"7"', Idempotency_Key="k1")
    assert first.status_code == 200, first.text
    await put(http, "later")
    again = await put(http, "B", If_None_Match='"7"', Idempotency_Key="k1")
    assert (again.status_code, again.json()) == (200, first.json())
    listed = f'"7", {again.headers["etag"]}'
    problem_of(
        await put(http, "C", If_Match=listed, Idempotency_Key="k2"), 412, "precondition-failed"
    )
    tag = (await put(http, "D")).headers["etag"]
    listed = f'"7", {tag}'
    done = await put(http, "E", If_Match=listed, Idempotency_Key="k3")
    again = await put(http, "E", If_Match=listed, Idempotency_Key="k3")
    assert (done.status_code, again.status_code) == (200, 200)
    assert done.json() == again.json()
    await http.delete(ROW)
    problem_of(await put(http, "F", If_Match="*", Idempotency_Key="k4"), 412, "precondition-failed")
    await put(http, "there")
    problem_of(await put(http, "F", If_Match="*", Idempotency_Key="k4"), 412, "precondition-failed")
    assert (await put(http, "F", If_Match="*", Idempotency_Key="k5")).status_code == 200


# ---- tables ---------------------------------------------------------------------------------

TABLE = "/v1/tables/flights"
DROP = f"{TABLE}?confirm=flights"


async def test_a_table_has_an_etag_that_changes_with_it(
    world: World, http: httpx.AsyncClient
) -> None:
    """Told by whoever made, showed or altered it; 304 while nothing changed, rows or not."""
    await make_flights(world, http)
    shown = await http.get(TABLE)
    tag = shown.headers["etag"]
    assert tag == f'"{shown.json()["id"]}.1"'
    await put(http, "A")
    for text in (tag, f"W/{tag}", "*", f'"x", {tag}'):
        unchanged = await http.get(TABLE, headers={"If-None-Match": text})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
    problem_of(await http.get(TABLE, headers={"If-Match": '"x"'}), 412, "precondition-failed")
    problem_of(await http.get(TABLE, headers={"If-None-Match": "x"}), 400, "invalid-argument")
    altered = await http.patch(TABLE, json={"drop_columns": ["raw"]})
    assert altered.status_code == 200, altered.text
    now = await http.get(TABLE, headers={"If-None-Match": tag})
    assert now.status_code == 200
    assert now.headers["etag"] == altered.headers["etag"] != tag


async def test_a_table_is_altered_and_deleted_only_as_it_was_seen(
    world: World, http: httpx.AsyncClient
) -> None:
    """412 once somebody else altered it, or made another of its name; nothing is changed then."""
    await make_flights(world, http)
    old = (await http.get(TABLE)).headers["etag"]
    for text in ('"x", {}-creating.2"', "*", '{}"'):
        match = {"If-Match": text.format(old[:-1])}
        done = await http.patch(TABLE, json={"defaults": {"dest": text}}, headers=match)
        assert done.status_code == 200, done.text
        old = done.headers["etag"]
    first = old[:33] + '.1"'
    drop = {"drop_columns": ["day"]}
    for headers in (
        {"If-Match": first},
        {"If-Match": f"W/{old}"},
        {"If-Match": f'{first}, "x"'},
        {"If-None-Match": "*"},
        {"If-None-Match": f"W/{old}"},
    ):
        problem_of(await http.patch(TABLE, json=drop, headers=headers), 412, "precondition-failed")
        problem_of(await http.delete(DROP, headers=headers), 412, "precondition-failed")
    assert (await http.get(TABLE)).headers["etag"] == old
    problem_of(
        await http.patch(TABLE, json=drop, headers={"If-Match": "1"}), 400, "invalid-argument"
    )
    problem_of(await http.delete(DROP, headers={"If-Match": "1"}), 400, "invalid-argument")
    missing = await http.delete("/v1/tables/none?confirm=none", headers={"If-Match": "*"})
    problem_of(missing, 404, "table-not-found")
    assert (await http.delete(DROP, headers={"If-Match": old})).status_code == 204
    await make_flights(world, http)
    problem_of(await http.delete(DROP, headers={"If-Match": old}), 412, "precondition-failed")
    assert (await http.delete(DROP, headers={"If-None-Match": old})).status_code == 204


async def test_a_repeated_alter_under_a_condition_gets_its_first_answer(
    world: World, http: httpx.AsyncClient
) -> None:
    """The condition held the first time, and with the same key that counts."""
    await make_flights(world, http)
    tag = (await http.get(TABLE)).headers["etag"]
    headers = {"If-Match": tag, "Idempotency-Key": "alter-1"}
    for _ in range(2):
        done = await http.patch(TABLE, json={"defaults": {"dest": "?"}}, headers=headers)
        assert done.status_code == 200, done.text
    other = {"If-Match": tag, "Idempotency-Key": "alter-2"}
    late = await http.patch(TABLE, json={"defaults": {"dest": "!"}}, headers=other)
    document = problem_of(late, 412, "precondition-failed")
    assert document["error"] == "TableChanged"


async def test_of_many_who_alter_what_they_saw_one_does(
    world: World, http: httpx.AsyncClient
) -> None:
    """The masters compare, not the front: of eight at once one is 200, and seven are 412."""
    await make_flights(world, http)
    tag = (await http.get(TABLE)).headers["etag"]
    answers = await asyncio.gather(
        *(
            http.patch(TABLE, json={"defaults": {"dest": str(i)}}, headers={"If-Match": tag})
            for i in range(8)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7


async def test_the_client_alters_and_deletes_by_edition_over_both_ways(
    world: World, http: httpx.AsyncClient
) -> None:
    """`if_edition` is If-Match: `TableChanged` over HTTP and on the direct way."""
    await make_flights(world, http)
    for database in (world.database(), world.cluster.database):
        table = await database.table("flights")
        await table.refresh()
        seen = table.edition
        await table.alter(add_columns={"x": pa.int8()}, if_edition=seen)
        assert table.edition != seen
        with pytest.raises(TableChanged):
            await table.alter(drop_columns="x", if_edition=seen)
        await table.alter(drop_columns="x", if_edition=table.edition)
        with pytest.raises(TableChanged):
            await database.delete_table("flights", if_edition=seen)
        with pytest.raises(TableNotFound):
            await database.delete_table("none", if_edition=seen)
        await database.delete_table("flights", if_edition=table.edition)
        await make_flights(world, http)


async def test_the_list_of_tables_has_a_tag_that_changes_with_any_of_them(
    world: World, http: httpx.AsyncClient
) -> None:
    """So a dashboard that asks again and again is answered 304; nothing is listed for a 412."""
    await make_flights(world, http)
    seen = []
    for change in ({}, {"rename_columns": {"dest": "to"}}, {"name": "trips"}):
        if change:
            path = "/v1/tables/flights"
            assert (await http.patch(path, json=change)).status_code == 200, change
        listed = await http.get("/v1/tables")
        seen.append(listed.headers["etag"])
        same = await http.get("/v1/tables", headers={"If-None-Match": f'"x", {seen[-1]}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", seen[-1])
    assert len(set(seen)) == 3
    refused = await http.get("/v1/tables", headers={"If-Match": seen[0]})
    problem_of(refused, 412, "precondition-failed")
    assert (await http.get("/v1/tables", headers={"If-None-Match": seen[0]})).status_code == 200
