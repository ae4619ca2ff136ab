"""`db.aio`: the async twin of every call, from whatever loop, and by whatever door."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stelae.database.api import Database
from tests.tables.conftest import Make


def test_async_calls_come_from_any_loop(db: Database, make: Make) -> None:
    """One after the other, each with connections of the database's own."""
    name = make().name

    async def write_and_read(number: int) -> Any:
        table = await db.aio.table(name)
        await table.upsert({"id": number, "name": "x", "reading": 0.5})
        row = await table.get(number)
        assert row is not None
        return row["id"], await table.count()

    assert [asyncio.run(write_and_read(number)) for number in range(3)] == [(0, 1), (1, 2), (2, 3)]


def test_a_tables_calls_come_from_the_callers_loop(make: Make) -> None:
    """Many at a time; one that its caller gives up ends nobody else's. Their types are known."""
    table = make()

    async def work() -> list[int]:
        written = [table.aio.upsert({"id": n, "name": "x", "reading": 0.5}) for n in range(20)]
        versions = await asyncio.gather(*written)
        given_up = asyncio.create_task(table.aio.scan())
        await asyncio.sleep(0)
        given_up.cancel()
        row: dict[str, Any] | None = await table.aio.get(1)
        assert row is not None
        count: int = await table.aio.count()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        return [len(versions), row["id"], count]

    assert asyncio.run(work()) == [20, 1, 20]


def test_batches_come_to_any_loop_and_may_be_left(db: Database, make: Make) -> None:
    """All of them, and none after who iterates has ended."""
    table = make()
    rows = pa.table({"id": range(100), "name": ["x"] * 100, "reading": [0.5] * 100})
    table.upsert(rows)

    async def read(*, whole: bool) -> list[int]:
        found: list[int] = []
        batches = await (await db.aio.table(table.name)).scan_batches(columns=["id"])
        async for batch in batches:
            found += batch.column("id").to_pylist()
            if not whole:
                break
        await batches.aclose()
        return found

    assert sorted(asyncio.run(read(whole=True))) == list(range(100))
    assert asyncio.run(read(whole=False))
    assert table.count() == 100
