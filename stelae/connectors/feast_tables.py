"""The tables of feature views: made and changed, written and read, on the client's loop.

Invariant: an event never replaces a newer one of the same entity key, whoever writes at the same
time. A write reads the times that are stored, and is carried out only if those rows are still of
the version that was read; otherwise it is done again. Doing it twice leaves the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.connectors.feast_rows import CREATED, EVENT, KEY, Batch, Layout, table_name
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    TableExists,
    TableNotFound,
    VersionMismatch,
)
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.sizes import size_cuts

WRITE_BYTES = 16 << 20
"""Of one call."""
ATTEMPTS = 12
BACKOFF_S = 0.01
MAX_BACKOFF_S = 0.5

T = TypeVar("T")


class ViewTables:
    """The tables of one cluster. All calls are coroutines for the loop of ``database``."""

    def __init__(
        self,
        database: AsyncDatabase,
        durability: Durability,
        buckets: int,
        timeout_s: float,
        max_staleness_s: float | None,
    ) -> None:
        self._database = database
        self._durability = durability
        self._buckets = buckets
        self._timeout_s = timeout_s
        self._max_staleness_s = max_staleness_s
        self._tables: dict[str, AsyncTable] = {}

    # ---- rows ---------------------------------------------------------------------------------

    async def read(self, layout: Layout, keys: Sequence[bytes], columns: list[str]) -> pa.Table:
        """Raises `InvalidArgument`: ``feast apply`` has not made the table, or not like this."""

        async def work(table: AsyncTable) -> pa.Table:
            return await table.get_many(
                pa.array(keys, pa.binary()),
                columns=columns,
                max_staleness=self._max_staleness_s,
                timeout=self._timeout_s,
            )

        return await self._on_table(layout, work)

    async def write(self, batch: Batch) -> None:
        """Store the events that are newer than what is there.

        Raises:
            InvalidArgument: see `read`.
            Overloaded: others write the same keys all the time.
        """
        for attempt in range(ATTEMPTS):
            try:
                await self._write_due(batch, is_again=attempt > 0)
                return
            except (VersionMismatch, OutcomeUnknown):
                limit_s = min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt)
                await asyncio.sleep(random.uniform(0, limit_s))
        view = batch.layout.view
        raise Overloaded(f"writing feature view {view!r} at the same time as others", ATTEMPTS)

    async def _write_due(self, batch: Batch, *, is_again: bool) -> None:
        columns = [KEY, EVENT, CREATED] if batch.is_whole else None
        keys = pa.array(list(batch.events), pa.binary())

        async def work(table: AsyncTable) -> None:
            stored = await table.get_many(
                keys, columns=columns, with_versions=True, timeout=self._timeout_s
            )
            due = await asyncio.to_thread(batch.due, stored, is_again=is_again)
            absent, there = _by_presence(*due)
            for part, expected in _calls(*absent):
                await table.upsert(part, if_version=expected, timeout=self._timeout_s)
            for part, expected in _calls(*there):  # other writers' features stay as they are
                await table.update(part, if_version=expected, timeout=self._timeout_s)

        await self._on_table(batch.layout, work)

    async def _on_table(self, layout: Layout, work: Callable[[AsyncTable], Awaitable[T]]) -> T:
        """With the table as it is known here; once more if it has been made or changed anew."""
        known = self._tables.get(layout.table)
        if known is not None:
            try:
                return await work(known)
            except (TableNotFound, ColumnNotFound):
                if self._tables.get(layout.table) is known:  # not what another call found since
                    del self._tables[layout.table]
        try:
            table = self._tables[layout.table] = await self._database.table(layout.table)
            return await work(table)
        except TableNotFound:
            raise InvalidArgument(
                f"feature view {layout.view!r} has no table {layout.table!r} in this cluster: run "
                "feast apply"
            ) from None
        except ColumnNotFound as error:
            raise InvalidArgument(
                f"feature view {layout.view!r} is not as it was when feast apply ran; run it "
                f"again ({error})"
            ) from None

    # ---- tables -------------------------------------------------------------------------------

    async def reconcile(self, layouts: Sequence[Layout]) -> None:
        """Make the tables that are missing; give the others the columns that they are to have."""
        there = await self._names()
        for layout in layouts:
            self._tables.pop(layout.table, None)
            if layout.table not in there:
                await self.make(layout)
            await self._alter(layout)

    async def make_missing(self, layout: Layout) -> None:
        """For a view that is written to without having been applied."""
        if layout.table not in self._tables and layout.table not in await self._names():
            await self.make(layout)

    async def make(self, layout: Layout) -> None:
        """Nothing, if it is there."""
        try:
            await self._database.create_table(
                layout.table,
                layout.schema,
                key=KEY,
                partition=hash_partition(KEY, buckets=self._buckets),
                durability=self._durability,
                timeout=self._timeout_s,
            )
        except TableExists:
            return  # somebody else applies too

    async def _alter(self, layout: Layout) -> None:
        """A column of another type is another column: what it held is gone."""
        table = await self._database.table(layout.table)
        wanted, there = layout.schema, table.schema
        kinds = dict(zip(wanted.names, wanted.types, strict=True))
        kept = {f.name for f in there if kinds.get(f.name) == f.type}
        dropped = [f.name for f in there if f.name not in kept]
        added = [f for f in wanted if f.name not in kept]
        if dropped:
            await table.alter(drop_columns=dropped, timeout=self._timeout_s)
        if added:
            await table.alter(add_columns=added, timeout=self._timeout_s)

    async def drop(self, project: str, views: Sequence[str], *, also: str = "") -> None:
        """Delete the tables of these views, of every version; with ``also``, those too of views
        whose names begin so."""
        exact = {table_name(project, view) for view in views}
        beginning = table_name(project, also) if also else None
        for name in await self._names():
            if name.partition("@")[0] in exact or (beginning and name.startswith(beginning)):
                self._tables.pop(name, None)
                try:
                    await self._database.delete_table(name, timeout=self._timeout_s)
                except TableNotFound:
                    continue  # somebody else was faster

    async def _names(self) -> set[str]:
        return {table.name for table in await self._database.tables(timeout=self._timeout_s)}


Due = tuple[pa.Table, list[int]]


def _by_presence(rows: pa.Table, versions: list[int]) -> tuple[Due, Due]:
    """Rows that are absent, with version 0; and the others."""
    is_there = pa.array([version > 0 for version in versions], pa.bool_())
    there = [version for version in versions if version > 0]
    absent = rows.filter(pc.invert(is_there)), [0] * (len(versions) - len(there))
    return absent, (rows.filter(is_there), there)


def _calls(rows: pa.Table, versions: list[int]) -> Iterator[tuple[pa.Table, list[int]]]:
    """In parts that one call may carry."""
    for first, count in size_cuts(rows, WRITE_BYTES):
        yield rows.slice(first, count), versions[first : first + count]
