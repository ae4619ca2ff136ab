"""A call that has to learn something from the masters ends by its deadline where none answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import DeadlineExpired
from stelae.core.ids import Address
from stelae.core.schema.alter import MAX_HISTORY
from stelae.core.schema.durability import segments
from tests.cluster_fixture import local_cluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
NOBODY = Address("127.0.0.1:1")
TIMEOUT_S = 0.3
CALLS: dict[str, Callable[[AsyncTable], Awaitable[Any]]] = {
    "get": lambda table: table.get(1, columns=["v"], timeout=TIMEOUT_S),
    "get_many": lambda table: table.get_many([1], columns=["v"], timeout=TIMEOUT_S),
    "scan": lambda table: table.scan(columns=["v"], timeout=TIMEOUT_S),
    "write": lambda table: table.upsert({"id": 1, "v": "x"}, timeout=TIMEOUT_S),
    "find": lambda table: table.find("v", "x", timeout=TIMEOUT_S),
}


async def test_calls_with_an_old_schema_end_while_the_masters_are_away(tmp_path: Path) -> None:
    """Nothing was done, and the error names the masters. A look-up of its own takes 10 s."""
    async with local_cluster(tmp_path) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key="id", durability=segments("ram")
        )
        await table.upsert({"id": 1, "v": "x"})
        before = cluster.database.locations_of(table)
        for n in range(MAX_HISTORY):
            await table.alter(add_columns={f"c{n}": pa.int8()}, wait=False)
        await table.alter(drop_columns="v")  # writes too are of a version that nobody knows now
        runtime = cluster.client_runtime("alone")
        alone = AsyncDatabase(runtime, [NOBODY], cluster.settings).handle(before)
        for call in CALLS.values():
            with pytest.raises(DeadlineExpired, match=f"waited for the masters {NOBODY}"):
                await call(alone)
