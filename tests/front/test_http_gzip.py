"""Bodies that are packed, and bodies that do not come."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import httpx
import pyarrow as pa
import pytest

from stelae.serve.app import make_app
from stelae.serve.gateway import arriving
from stelae.serve.gateway.guard import Limits
from tests.front.http_flights import make_flights
from tests.front.http_world import ARROW, World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/tables/flights/rows"
JSON = {"Content-Type": "application/json"}
GZIP = {"Content-Encoding": "gzip"}


def packed(content: object) -> bytes:
    return gzip.compress(json.dumps(content).encode())


async def test_packed_bodies_are_taken_as_they_would_be_unpacked(
    world: World, http: httpx.AsyncClient
) -> None:
    """One row, many, and an Arrow stream as it arrives; the same key for the same content."""
    await make_flights(world, http)
    headers = {**JSON, **GZIP, "Idempotency-Key": "k"}
    first = await http.put(f"{PATH}/1", content=packed({"dest": "LAX"}), headers=headers)
    assert first.status_code == 200, first.text
    plain = {**JSON, "Idempotency-Key": "k"}
    again = await http.put(
        f"{PATH}/1", content=gzip.decompress(packed({"dest": "LAX"})), headers=plain
    )
    assert again.json() == first.json()
    rows = {"rows": [{"id": 2, "dest": "JFK"}]}
    many = await http.post(f"{PATH}:write", content=packed(rows), headers={**JSON, **GZIP})
    assert many.status_code == 200, many.text
    sink = pa.BufferOutputStream()
    table = pa.table({"id": [3, 4], "dest": ["SFO", "SFO"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = gzip.compress(sink.getvalue().to_pybytes())
    arrow = {"Content-Type": ARROW, **GZIP}
    done = await http.post(f"{PATH}:write?stream=true", content=stream, headers=arrow)
    assert (done.status_code, done.json()) == (200, {"rows": 2}), done.text
    found = (await http.post(f"{PATH}:scan", json={"columns": ["id", "dest"]})).json()["rows"]
    wanted = {1: "LAX", 2: "JFK", 3: "SFO", 4: "SFO"}
    assert {row["id"]: row["dest"] for row in found} == wanted


async def test_packed_bodies_are_bounded_and_other_encodings_named(
    world: World, http: httpx.AsyncClient
) -> None:
    """413 for what unpacks to too much, 400 for what is none, 415 for what is another."""
    await make_flights(world, http)
    app = make_app(world.cluster.database, world.verifier, Limits(body_bytes=10_000))
    bomb = packed({"dest": "x" * 1_000_000})
    assert len(bomb) < 10_000
    async with world.client(app=app) as client:
        answer = await client.put(f"{PATH}/1", content=bomb, headers={**JSON, **GZIP})
        problem_of(answer, 413, "too-large")
    answer = await http.put(f"{PATH}/1", content=b"{}", headers={**JSON, **GZIP})
    problem_of(answer, 400, "malformed-body")
    answer = await http.put(f"{PATH}/1", content=b"{}", headers={**JSON, "Content-Encoding": "br"})
    problem_of(answer, 415, "unsupported-encoding")
    assert answer.headers["accept-encoding"] == "gzip"
    assert (await http.get(f"{PATH}/1")).status_code == 404


async def test_a_body_that_stands_still_is_408(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stream of rows, too; nothing was done."""
    await make_flights(world, http)
    monkeypatch.setattr(arriving, "STALL_S", 0.05)

    async def begun() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    for path, media in (
        (f"{PATH}:write", JSON),
        (f"{PATH}:write?stream=true", {"Content-Type": ARROW}),
    ):
        document = problem_of(
            await http.post(path, content=begun(), headers=media), 408, "body-too-slow"
        )
        assert document["error"] == "RetryLater"
    assert (await http.post(f"{PATH}:scan", json={})).json()["rows"] == []
