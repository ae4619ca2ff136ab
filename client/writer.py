"""Writes of one table: rows in any form, cut by tablet, each part repeated until its end is known.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.convert import RowCodec, Rows, encode_batch, is_table, to_arrow
from stelae.client.given import check_key_given, row_versions, update_columns
from stelae.client.locations import TableCache
from stelae.client.retries import most_telling, on_tablet
from stelae.client.session import Session
from stelae.core.errors import StelaeError, TooLarge
from stelae.core.ids import ServerUuid
from stelae.core.messages import WRITE, TabletLocation, Write, WriteOp, WriteReply
from stelae.core.runtime import Runtime
from stelae.core.schema import MAX_CALL_BYTES, MAX_ROW_BYTES
from stelae.core.settings import Settings
from stelae.core.values import WireRow, check_batch, rows_to_batch
from stelae.storage.partitioner import Partitioner

Versions = NDArray[np.uint64]


class TableWriter:
    """The writing half of a table handle."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        session: Session,
        cache: TableCache,
        codec: RowCodec,
        partitioner: Partitioner,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._session = session
        self._cache = cache
        self._schema = cache.table.schema
        self._name = cache.table.name
        self._codec = codec
        self._partitioner = partitioner

    async def delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions:
        """Delete rows by key; see `AsyncTable.delete`."""
        if is_table(keys):
            return await self.write(WriteOp.DELETE, keys, if_version, timeout_s)
        rows = [self._codec.key(key) for key in (keys if isinstance(keys, list) else [keys])]
        if self._schema.is_plain and len(rows) < self._settings.arrow_rows:
            return await self._write_rows(WriteOp.DELETE, rows, (), if_version, timeout_s)
        batch = rows_to_batch(rows, self._schema.key_schema)
        return await self._write_batch(WriteOp.DELETE, batch, if_version, timeout_s)

    async def write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        """Write rows in any form that `to_arrow` takes; returns their versions, shape (rows,)."""
        if isinstance(rows, dict):
            rows = [rows]
        if isinstance(rows, list) and not rows:
            return _versions_of_nothing(if_version)
        small = isinstance(rows, list) and len(rows) < self._settings.arrow_rows
        if small and self._schema.is_plain:
            columns = update_columns(rows, self._schema, self._name) if op is WriteOp.UPDATE else ()
            wire = [self._codec.row(row, columns or None) for row in rows]
            return await self._write_rows(op, wire, columns, if_version, timeout_s)
        if op is WriteOp.UPDATE and isinstance(rows, list):
            update_columns(rows, self._schema, self._name)
        table = to_arrow(rows, self._schema.arrow)
        batch = await self._check(op, table)
        return await self._write_batch(op, batch, if_version, timeout_s)

    async def _check(self, op: WriteOp, table: pa.Table) -> pa.RecordBatch:
        columns = None
        if op is WriteOp.DELETE:
            columns = self._schema.key
            table = table.select([c for c in columns if c in table.column_names])
        elif op is WriteOp.UPDATE:
            check_key_given(table.column_names, self._schema)
            columns = tuple(n for n in self._schema.arrow.names if n in table.column_names)
        return await self._runtime.offload(
            check_batch, table, self._schema, columns=columns, table=self._name
        )

    async def _write_rows(
        self,
        op: WriteOp,
        rows: list[WireRow],
        columns: tuple[str, ...],
        if_version: Any,
        timeout_s: float,
    ) -> Versions:
        expected = row_versions(if_version, len(rows))
        if not rows:
            return np.empty(0, np.uint64)
        if len(rows) * MAX_ROW_BYTES > MAX_CALL_BYTES:  # tservers see each row, not the whole call
            _check_call_size(rows)
        numbers = [self._partitioner.tablet_number(self._key_of(op, row, columns)) for row in rows]
        if len(rows) == 1 or len(set(numbers)) == 1:
            reply = await self._write_part(
                numbers[0], op, tuple(rows), columns, expected, (), timeout_s
            )
            return _version_range(reply)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        versions = np.empty(len(rows), np.uint64)

        async def part(number: int) -> None:
            mine = places[number]
            reply = await self._write_part(
                number,
                op,
                tuple(rows[i] for i in mine),
                columns,
                tuple(expected[i] for i in mine) if expected else (),
                (),
                timeout_s,
            )
            versions[mine] = _version_range(reply)

        await _all_parts([part(number) for number in sorted(places)])
        return versions

    def _key_of(self, op: WriteOp, row: WireRow, columns: tuple[str, ...]) -> WireRow:
        if op is WriteOp.DELETE:
            return row
        if columns:
            return tuple(row[columns.index(name)] for name in self._schema.key)
        return tuple(row[place] for place in self._schema.key_positions)

    async def _write_batch(
        self, op: WriteOp, batch: pa.RecordBatch, if_version: Any, timeout_s: float
    ) -> Versions:
        expected = np.array(row_versions(if_version, batch.num_rows), np.uint64)
        if not batch.num_rows:
            return np.empty(0, np.uint64)
        parts = await self._runtime.offload(self.split, batch)
        versions = np.empty(batch.num_rows, np.uint64)
        columns = tuple(batch.schema.names) if op is WriteOp.UPDATE else ()

        async def part(number: int) -> None:
            rows, places, blob = parts[number]
            chosen = tuple(expected[places].tolist()) if len(expected) else ()
            reply = await self._write_part(number, op, (), columns, chosen, (blob,), timeout_s)
            versions[places] = _version_range(reply)
            assert reply.row_count == rows

        await _all_parts([part(number) for number in sorted(parts)])
        return versions

    def split(self, batch: pa.RecordBatch) -> dict[int, tuple[int, NDArray[np.int64], pa.Buffer]]:
        """Cut a batch by tablet: number → (rows, their places, Arrow IPC stream). Runs off-loop."""
        numbers = self._partitioner.tablet_numbers(batch)
        return {
            number: (rows.num_rows, places, encode_batch(rows))
            for number, (rows, places) in self._partitioner.split(batch, numbers).items()
        }

    async def _write_part(
        self,
        number: int,
        op: WriteOp,
        rows: tuple[WireRow, ...],
        columns: tuple[str, ...],
        expected: tuple[int, ...],
        blobs: Sequence[pa.Buffer],
        timeout_s: float,
    ) -> WriteReply:
        version = self._cache.table.schema.version
        with self._session.request(self._cache.tablet(number).tablet.tablet_id) as request:

            async def attempt(
                where: TabletLocation, owner: ServerUuid, limit_s: float
            ) -> WriteReply:
                body = Write(where.tablet.tablet_id, version, op, request, rows, columns, expected)
                reply = await self._runtime.peers.call(
                    where.address, WRITE, body, timeout_s=limit_s, blobs=blobs, destination=owner
                )
                return reply.body

            return await on_tablet(
                self._runtime, self._cache, number, "write", attempt, timeout_s=timeout_s
            )


def _check_call_size(rows: Sequence[WireRow]) -> None:
    """Raise `TooLarge` if the text and bytes of all rows are beyond what one call may have."""
    total = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
    if total > MAX_CALL_BYTES:
        raise TooLarge("the call", total, MAX_CALL_BYTES)


async def _all_parts(parts: Sequence[Awaitable[None]]) -> None:
    """Run all tablets' parts to their ends; raise the first refusal, saying how many were done."""
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not errors:
        return
    done = len(outcomes) - len(errors)
    first = most_telling(errors)
    if isinstance(first, StelaeError):
        first.add_note(f"{done} of the call's {len(outcomes)} tablets did their part")
    raise first


def _versions_of_nothing(if_version: Any) -> Versions:
    row_versions(if_version, 0)
    return np.empty(0, np.uint64)


def _version_range(reply: WriteReply) -> Versions:
    if reply.row_count == 1:
        return np.array((reply.first_version,), np.uint64)
    first = np.uint64(reply.first_version)
    return first + np.arange(reply.row_count, dtype=np.uint64)
