"""`db.aio`: the async twin of every call, from whatever loop, and by whatever door."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from stelae.database.api import Database
from tests.tables.conftest import Make


def test_async_calls_come_from_any_loop(db: Database, make: Make) -> None:
    """One after the other, each with connections of the database's own."""
    name = make().name

    async def write_and_read(number: int) -> Any:
        table = await db.aio.table(name)
        await table.upsert({"id": number, "name": "x", "reading": 0.5})
        row = await table.get(number)
        return row["id"], await table.count()

    assert [asyncio.run(write_and_read(number)) for number in range(3)] == [(0, 1), (1, 2), (2, 3)]


def test_batches_come_to_any_loop_and_may_be_left(db: Database, make: Make) -> None:
    """All of them, and none after who iterates has ended."""
    table = make()
    rows = pa.table({"id": range(100), "name": ["x"] * 100, "reading": [0.5] * 100})
    table.upsert(rows)

    async def read(*, whole: bool) -> list[int]:
        found: list[int] = []
        batches = (await db.aio.table(table.name)).scan_batches(columns=["id"])
        async for batch in batches:
            found += batch.column("id").to_pylist()
            if not whole:
                break
        await batches.aclose()
        return found

    assert sorted(asyncio.run(read(whole=True))) == list(range(100))
    assert asyncio.run(read(whole=False))
    assert table.count() == 100
