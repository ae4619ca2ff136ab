"""Rows that are written while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.core.errors import OutOfMemory
from stelae.serve.app import make_app
from stelae.serve.gateway.guard import Limits
from stelae.serve.routes import row_streams, rows
from tests.front.http_flights import make_flights
from tests.front.http_world import ARROW, World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/tables/flights/rows:write?stream=true"
HEADERS = {"Content-Type": ARROW}
ROWS, BATCH = 20_000, 500


def stream_of(rows: int, *, dictionary: bool = False) -> bytes:
    """Flights in batches."""
    dest = pa.array([("LAX", "JFK")[i % 2] for i in range(rows)])
    table = pa.table({"id": pa.array(range(rows)), "dest": dest})
    if dictionary:
        table = table.set_column(1, "dest", table.column("dest").dictionary_encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("dictionary", [False, True])
async def test_a_stream_longer_than_any_body_is_written_once(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, dictionary: bool
) -> None:
    """In windows, with bounded bytes in hand; sent again under its key, in other pieces and by
    another replica, it is the same write."""
    monkeypatch.setattr(row_streams, "WINDOW_BYTES", 30_000)
    await make_flights(world, http)
    data = stream_of(ROWS, dictionary=dictionary)
    limits = Limits(body_bytes=80_000, bodies_bytes=100_000)
    assert len(data) > 2 * limits.body_bytes
    headers = {**HEADERS, "Idempotency-Key": f"load-{dictionary}"}
    for size in (7_777, 40_000):
        app = make_app(world.cluster.database, world.verifier, limits)
        async with world.client(app=app) as client:
            answer = await client.post(
                PATH + "&op=insert", content=pieces(data, size), headers=headers
            )
            assert (answer.status_code, answer.json()) == (200, {"rows": ROWS}), answer.text
            guard = app.middleware_stack
            while type(guard).__name__ != "Guard":
                guard = guard.app  # type: ignore[union-attr]
            assert guard._bytes == 0  # type: ignore[union-attr]
    table = await world.cluster.database.table("flights")
    assert await table.count() == ROWS


async def test_what_is_wrong_in_a_stream_is_told_with_what_was_written_before(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off, with bytes behind the end, none at all, or with one batch that is too large."""
    monkeypatch.setattr(row_streams, "WINDOW_BYTES", 30_000)
    await make_flights(world, http)
    data = stream_of(ROWS)
    cut = await http.post(PATH, content=data[: len(data) // 2], headers=HEADERS)
    problem = problem_of(cut, 400, "malformed-body")
    assert "rows of the stream were written before" in str(problem["notes"])
    for content in (
        b"",
        b"x" * 40,
        data[:50],
        data + b"more",
        b"\xff" * 8,
        b"\xff" * 4 + b"\x01" * 99,
    ):
        answer = await http.post(PATH, content=content, headers=HEADERS)
        assert answer.status_code in (400, 413), answer.text
    whole = await http.post("/v1/tables/none/rows:write?stream=true", content=data, headers=HEADERS)
    problem_of(whole, 404, "table-not-found")
    app = make_app(world.cluster.database, world.verifier, Limits(body_bytes=5_000))
    async with world.client(app=app) as client:
        problem_of(await client.post(PATH, content=data, headers=HEADERS), 413, "too-large")
    numbered = {**HEADERS, "Stelae-Request-Id": "a.1.1"}
    problem_of(await http.post(PATH, content=data, headers=numbered), 400, "invalid-argument")


async def test_a_stream_that_is_not_done_in_time_has_an_unknown_outcome_once_a_window_began(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """504 while a window is under way, or between two; before the first it is 503: nothing was
    done. Each window has what is left of the time, and `notes` say what was done."""
    monkeypatch.setattr(row_streams, "WINDOW_BYTES", 30_000)
    await make_flights(world, http)
    data, write, given = stream_of(ROWS), rows._write, list[float]()
    headers = {**HEADERS, "Stelae-Timeout-Seconds": "2.5"}
    patient = {**HEADERS, "Stelae-Timeout-Seconds": "12"}

    async def slow(*arguments: Any) -> Any:
        given.append(arguments[-1])
        done = await write(*arguments)
        await asyncio.sleep(0.0 if len(given) == 1 else 60.0)
        return done

    async def stuck(first: int) -> AsyncIterator[bytes]:
        yield data[:first]
        await asyncio.sleep(60.0)

    for first in (0, 100):
        answer = await http.post(PATH, content=stuck(first), headers=headers)
        problem = problem_of(answer, 503, "deadline-expired")
        assert "notes" not in problem
    table = await world.cluster.database.table("flights")
    assert await table.count() == 0
    answer = await http.post(PATH, content=stuck(len(data) // 2), headers=headers)
    problem = problem_of(answer, 504, "outcome-unknown")
    note, *more = problem["notes"]
    count = await table.count()
    stated = int(note.split()[0])
    assert note == f"{stated} rows of the stream were written before"
    assert stated == count if not more else stated <= count  # more: it was at a window just then
    monkeypatch.setattr(rows, "_write", slow)
    answer = await http.post(PATH, content=data, headers=patient)
    problem = problem_of(answer, 504, "outcome-unknown")
    before, unknown = problem["notes"]
    assert "rows of the stream were written before" in before
    assert "may or may not have been written" in unknown
    assert len(given) == 2
    assert 0.0 < given[1] < given[0] < 12.0


async def test_a_window_that_surely_was_not_written_is_503_and_tells_of_those_before(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused for a while may be sent again; what was acknowledged is not forgotten."""
    monkeypatch.setattr(row_streams, "WINDOW_BYTES", 30_000)
    await make_flights(world, http)
    write, turns = rows._write, iter((True, True, False))

    async def refusing(*arguments: Any) -> Any:
        if not next(turns):
            raise OutOfMemory("tserver-1", 1, 2)
        return await write(*arguments)

    monkeypatch.setattr(rows, "_write", refusing)
    answer = await http.post(PATH, content=stream_of(ROWS), headers=HEADERS)
    problem = problem_of(answer, 503, "out-of-memory")
    count = await (await world.cluster.database.table("flights")).count()
    assert problem["notes"] == [f"{count} rows of the stream were written before"]
