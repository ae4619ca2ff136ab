"""Stelae's own client over HTTP."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.database import HttpDatabase
from stelae.client.http.protocol import TIMEOUT_HEADER
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
from stelae.core.records.tokens import Role
from stelae.core.schema.partition import hash_and_range, hash_partition, range_partition
from tests.front.http_world import World

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", "UTC")), ("x", pa.float64())]
)


async def refusals(database: Any, table: Any, rows: list[dict[str, Any]]) -> list[object]:
    """How wrong calls end: the kind of each error, and its words."""
    found: list[object] = []
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
        found.append((type(caught.value), str(caught.value) if same_text else ""))
    return found


async def test_the_client_does_over_http_what_it_does_directly(world: World) -> None:
    """The same calls on both, the same answers and the same errors."""
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    results = []
    for database in (world.cluster.database, world.database()):
        table = await database.create_table(
            "twin",
            SCHEMA,
            key=["a", "b"],
            durability=world.durability,
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
        row = await table.get((1, "n"), with_version=True)
        assert row is not None
        version = row["_version"]
        log.append((await table.delete((1, "n"), if_version=version)).tolist())
        log.append(await table.count())
        log += await refusals(database, table, rows)
        log.append([record.name for record in await database.tables()])
        log.append((await database.status())["cluster"])
        await database.delete_table("twin")
        results.append(log)
    for direct, over_http in zip(*results, strict=True):
        assert direct == over_http


BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "a column twice": lambda t: t.scan(columns=["a", "a"]),
    "columns as text": lambda t: t.scan(columns="a"),
    "keys as text": lambda t: t.get_many("ab"),
    "keys without a column": lambda t: t.get_many(pa.table({"a": [1]})),
    "an update that is no dict": lambda t: t.update([(1, "k")]),
    "updates of different columns": lambda t: t.update([{"a": 1, "b": "k"}, {"a": 2}]),
    "an update without its key": lambda t: t.update([{"a": 1, "x": 2.0}]),
    "a table of updates without a key": lambda t: t.update(pa.table({"a": [1], "x": [2.0]})),
    "a negative version": lambda t: t.upsert({"a": 1, "b": "k"}, if_version=-1),
    "a version as text": lambda t: t.upsert({"a": 1, "b": "k"}, if_version="new"),
    "too many versions": lambda t: t.upsert({"a": 1, "b": "k"}, if_version=[1, 2]),
    "versions of nothing": lambda t: t.upsert([], if_version=[1]),
}


@pytest.mark.parametrize("what", BAD_CALLS)
async def test_what_is_refused_directly_is_refused_over_http_in_the_same_words(
    world: World, what: str
) -> None:
    """Before anything is sent: one home for the rules of what a call may be given."""
    refusals = []
    for database in (world.cluster.database, world.database()):
        table = await database.create_table(
            "bad", SCHEMA, key=["a", "b"], durability=world.durability
        )
        with pytest.raises(InvalidArgument) as caught:
            await BAD_CALLS[what](table)
        refusals.append(str(caught.value))
        assert await table.update([]) is not None
        await database.delete_table("bad")
    assert refusals[0] == refusals[1]


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
    table = await database.create_table("once", SCHEMA, key=["a"], durability=world.durability)
    versions = await table.insert([{"a": i, "b": "x"} for i in range(3)])
    assert lost == 2
    assert versions.tolist() == [1, 2, 3]
    await database.delete_table("once")
    await database.close()


async def test_a_front_that_was_there_is_waited_for(world: World) -> None:
    """A refused connection is repeated once the front has answered, as it may be restarting."""
    inner, refusals_left = httpx.ASGITransport(world.app), 0

    class Restarting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal refusals_left
            if refusals_left:
                refusals_left -= 1
                raise httpx.ConnectError("refused") from ConnectionRefusedError()
            return await inner.handle_async_request(request)

    client = httpx.AsyncClient(transport=Restarting())
    database = HttpDatabase("http://stelae", world.tokens[Role.ADMIN], client)
    before = await database.tables()
    refusals_left = 2
    assert await database.tables(timeout=60.0) == before
    assert not refusals_left
    refusals_left = 1_000_000
    with pytest.raises(Unavailable, match="may be restarting"):
        await database.tables(timeout=0.2)
    await database.close()


async def test_a_silent_front_ends_a_call_by_its_deadline() -> None:
    """The server is told to have less time than the call, so that its own answer comes before."""
    told: list[str] = []

    async def silent(request: httpx.Request) -> httpx.Response:
        told.append(request.headers[TIMEOUT_HEADER])
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    client = httpx.AsyncClient(transport=httpx.MockTransport(silent))
    database = HttpDatabase("http://stelae", "x", client)
    with pytest.raises(OutcomeUnknown):
        await database.delete_table("t", timeout=0.2)
    assert len(told) == 1
    assert float(told[0]) < 0.2
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
    table = await database.create_table("cut", SCHEMA, key=["a"], durability=world.durability)
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
    with pytest.raises(Unavailable, match="nobody listens there; check host and port"):
        await nobody.tables(timeout=600.0)  # at once: it is a mistake in the URL
    await nobody.close()

    async def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("broken off")

    client = httpx.AsyncClient(transport=httpx.MockTransport(broken))
    with pytest.raises(OutcomeUnknown):
        await HttpDatabase("http://stelae", "x", client).delete_table("t", timeout=0.2)
