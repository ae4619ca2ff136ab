"""Real servers, and a caller with the right secret that sends them whatever it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    TooLarge,
    VersionMismatch,
)
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.rows import WRITE, Write, WriteOp
from stelae.core.schema.durability import segments
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.unit.actors.tserver.owned_tablet.tablet_world import segment_log

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string(), False),
        pa.field("amount", pa.float64()),
        pa.field("small", pa.int8(), False),
        pa.field("data", pa.binary()),
        pa.field("day", pa.date32()),
    ]
)
KEY = ["id", "name"]
GOOD: tuple[Any, ...] = (1, "one", 1.5, 1, b"x", 100)
UPSERT, UPDATE, DELETE, INSERT = WriteOp.UPSERT, WriteOp.UPDATE, WriteOp.DELETE, WriteOp.INSERT


class Wire:
    """Calls with bodies of any kind on the one tablet of a table that has one row."""

    def __init__(self, cluster: LocalCluster, table: AsyncTable) -> None:
        self.cluster = cluster
        self.table = table
        self._sequence = 0

    @property
    def tablet_id(self) -> TabletId:
        return self.table.cache.tablet(0).tablet.tablet_id

    async def call(self, method: Any, body: Any, *blobs: Any) -> Any:
        where = self.table.cache.tablet(0)
        return await self.table.runtime.peers.call(
            where.address,
            method,
            body,
            timeout_s=10.0,
            blobs=blobs,
            destination=where.tablet.owner,
        )

    def request(self) -> RequestId:
        self._sequence += 1
        return RequestId(ClientId("wire"), self._sequence, 1)

    async def write(
        self,
        op: WriteOp,
        *rows: tuple[Any, ...],
        columns: tuple[str, ...] = (),
        versions: tuple[int, ...] = (),
        blob: Any = None,
    ) -> Any:
        body = Write(self.tablet_id, 1, op, self.request(), rows, columns, versions)
        return await self.call(WRITE, body, *([] if blob is None else [blob]))

    async def unchanged(self) -> None:
        """The server answers, and the table is what it was."""
        rows = (await self.table.scan()).to_pylist()
        assert [(row["id"], row["name"], row["amount"]) for row in rows] == [GOOD[:3]]


@asynccontextmanager
async def wire(root: Path) -> AsyncIterator[Wire]:
    async with local_cluster(root, tservers=1) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key=KEY, durability=segments("ram", "ram")
        )
        here = Wire(cluster, table)
        await here.write(UPSERT, GOOD)
        yield here
        await here.unchanged()
        for n in range(3):  # and a head full of whatever got in can be sealed
            await here.write(UPSERT, (n, "filler", None, 0, b"x" * (600 << 10), None))
        log = segment_log(next(iter(cluster.tservers[0]._tablets.values())))
        async with asyncio.timeout(20):
            await log.wait_until(lambda: len(log._unsealed) == 1)


async def refused(call: Awaitable[Any], what: str) -> None:
    """A call must end in one of the errors that tell its caller what to change."""
    try:
        await call
    except (InvalidArgument, ColumnNotFound, TooLarge, VersionMismatch):
        return
    pytest.fail(what)
