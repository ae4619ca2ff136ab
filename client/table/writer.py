"""Writes of one table: rows in any form, cut by tablet, each part repeated until its end is known.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.input.convert import Rows, decode_batch, encode_batch, is_table, to_arrow
from stelae.client.input.given import (
    key_list,
    key_rows,
    row_versions,
    update_columns,
    wire_rows,
    written_columns,
)
from stelae.client.input.known import KnownTable
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.locations import TableCache
from stelae.client.routing.part import CutReply, Part, Versions, versions_in
from stelae.client.routing.retries import on_tablet
from stelae.client.routing.session import Session
from stelae.client.table.gathering import Gathering
from stelae.core.config.settings import Settings
from stelae.core.errors import SchemaChanged, StaleRequest, StelaeError, TooLarge
from stelae.core.ids import ClientId, RequestId, ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import WRITE, Write, WriteOp, WriteReply
from stelae.core.runtime import Runtime
from stelae.core.schema.own_tables import check_users_table
from stelae.core.schema.schema import MAX_CALL_BYTES, MAX_ROW_BYTES, TableSchema
from stelae.core.schema.values import WireRow, check_batch
from stelae.core.tasks import most_telling
from stelae.storage.rows.versions import SchemaView


@dataclass(slots=True)
class SmallWrite:
    """A call of few rows, cut by tablet; ``places``: which rows each part has, if several."""

    row_count: int
    parts: list[Part]
    places: list[list[int]]


class TableWriter:
    """The writing half of a table handle."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        session: Session,
        cache: TableCache,
        known: KnownTable,
        gathering: Gathering,
        *,
        is_stelae: bool = False,
    ) -> None:
        """``is_stelae``: whether it may write to tables of Stelae's own."""
        self.known = known
        self._runtime = runtime
        self._settings = settings
        self._session = session
        self._cache = cache
        self._schema = known.schema
        self._name = known.name
        self._codec = known.codec
        self._partitioner = known.partitioner
        self._gathering = gathering
        self._is_stelae = is_stelae

    async def delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions:
        """Delete rows by key; see `AsyncTable.delete`."""
        small = self.small_delete(keys, if_version)
        if small is not None:
            return await self.carry_out(small, timeout_s)
        keys = key_list(keys)
        if is_table(keys) and not isinstance(keys, pa.Array | pa.ChunkedArray):
            return await self.write(WriteOp.DELETE, keys, if_version, timeout_s)
        make = partial(key_rows, keys, self._schema, self._codec, self._name)
        batch = await self._runtime.offload(make)
        return await self._write_batch(WriteOp.DELETE, batch, if_version, timeout_s)

    async def write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        """Write rows in any form that `to_arrow` takes; returns their versions, shape (rows,)."""
        small = self.small_write(op, rows, if_version)
        if small is not None:
            return await self.carry_out(small, timeout_s)
        if isinstance(rows, dict):
            rows = [rows]
        if isinstance(rows, list) and not rows:
            return _versions_of_nothing(if_version)
        if op is WriteOp.UPDATE and isinstance(rows, list):
            update_columns(rows, self._schema, self._name)
        table = to_arrow(rows, self._schema.arrow, self._codec.defaults)
        batch = await self._check(op, table)
        return await self._write_batch(op, batch, if_version, timeout_s)

    def _check_writable(self) -> None:
        """Raise `InvalidArgument` for a table of Stelae's own."""
        if not self._is_stelae:
            check_users_table(self._name, "to write to it")

    # ---- few rows ---------------------------------------------------------------------------

    def small_write(self, op: WriteOp, rows: Rows, if_version: Any) -> SmallWrite | None:
        """A call of few rows, ready to be sent; None if this is none."""
        if isinstance(rows, dict):
            rows = [rows]
        if not self._schema.is_plain or not isinstance(rows, list):
            return None
        if not 0 < len(rows) < self._settings.arrow_rows:
            return None
        wire, columns = wire_rows(op, rows, self._schema, self._codec, self._name)
        return self._cut(op, wire, columns, if_version)

    def small_delete(self, keys: Any, if_version: Any) -> SmallWrite | None:
        """A call that deletes few keys, ready to be sent; None if this is none."""
        keys = key_list(keys)
        if not self._schema.is_plain or not isinstance(keys, list):
            return None
        if len(keys) >= self._settings.arrow_rows:
            return None
        return self._cut(WriteOp.DELETE, [self._codec.key(key) for key in keys], (), if_version)

    def _cut(
        self, op: WriteOp, rows: list[WireRow], columns: tuple[str, ...], if_version: Any
    ) -> SmallWrite:
        self._check_writable()
        expected = row_versions(if_version, len(rows))
        if len(rows) * MAX_ROW_BYTES > MAX_CALL_BYTES:  # tservers see each row, not the whole call
            _check_call_size(rows)
        keys, parts_now = [self._key_of(op, row, columns) for row in rows], self._cache.parts
        numbers = [self.known.number_of(key, parts_now) for key in keys]
        if len(rows) == 1 or len(set(numbers)) == 1:
            version = self._schema.version
            part = Part(numbers[0], op, tuple(rows), columns, expected, version)
            return SmallWrite(len(rows), [part], [])
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        parts = [
            Part(
                number,
                op,
                tuple([rows[i] for i in mine]),
                columns,
                tuple([expected[i] for i in mine]) if expected else (),
                self._schema.version,
            )
            for number, mine in sorted(places.items())
        ]
        return SmallWrite(len(rows), parts, [places[part.number] for part in parts])

    async def carry_out(self, small: SmallWrite, timeout_s: float) -> Versions:
        """Send all parts of a small call; returns the versions of its rows."""
        if len(small.parts) == 1:
            return version_range(await self._write_part(small.parts[0], timeout_s))
        versions = np.empty(small.row_count, np.uint64)

        async def send(part: Part, mine: list[int]) -> None:
            versions[mine] = version_range(await self._write_part(part, timeout_s))

        pairs = zip(small.parts, small.places, strict=True)
        await _all_parts([send(part, mine) for part, mine in pairs])
        return versions

    # ---- many rows --------------------------------------------------------------------------

    async def _check(self, op: WriteOp, table: pa.Table) -> pa.RecordBatch:
        if op is WriteOp.DELETE:
            columns = self._schema.key
            table = table.select([c for c in columns if c in table.column_names])
        else:
            columns = written_columns(op, table.column_names, self._schema)
        return await self._runtime.offload(
            check_batch, table, self._schema, columns=columns, table=self._name
        )

    def _key_of(self, op: WriteOp, row: WireRow, columns: tuple[str, ...]) -> WireRow:
        if op is WriteOp.DELETE:
            return row
        if columns:
            return tuple(row[columns.index(name)] for name in self._schema.key)
        return tuple(row[place] for place in self._schema.key_positions)

    async def _write_batch(
        self, op: WriteOp, batch: pa.RecordBatch, if_version: Any, timeout_s: float
    ) -> Versions:
        self._check_writable()
        expected = np.array(row_versions(if_version, batch.num_rows), np.uint64)
        if not batch.num_rows:
            return np.empty(0, np.uint64)
        parts = await self._runtime.offload(self.split, batch)
        versions = np.empty(batch.num_rows, np.uint64)
        whole = op is WriteOp.DELETE or batch.num_columns == len(self._schema.column_ids)
        columns = () if whole else tuple(batch.schema.names)

        async def part(number: int) -> None:
            rows, places, blob = parts[number]
            chosen = tuple(expected[places].tolist()) if len(expected) else ()
            mine = Part(number, op, (), columns, chosen, self._schema.version, (blob,))
            reply = await self._write_part(mine, timeout_s)
            versions[places] = version_range(reply)
            assert reply.row_count == rows

        await _all_parts([part(number) for number in sorted(parts)])
        return versions

    async def write_once(
        self, op: WriteOp, rows: Rows, client_id: ClientId, sequence: int, timeout_s: float
    ) -> int:
        """Write rows under a request id that the caller has of its own; returns how many.

        Whoever writes the same rows under the same id again, be it from another process, has them
        applied once. A caller begins request ``sequence`` of a client only once all those before it
        are done, which servers then forget.
        """
        self._check_writable()
        batch = await self._check(op, to_arrow(rows, self._schema.arrow, self._codec.defaults))
        if not batch.num_rows:
            return 0
        parts = await self._runtime.offload(self.split, batch)
        whole = op is WriteOp.DELETE or batch.num_columns == len(self._schema.column_ids)
        columns = () if whole else batch.schema.names
        request, version = RequestId(client_id, sequence, sequence), self._schema.version

        async def write(number: int) -> None:
            blob = parts[number][2]
            part = Part(number, op, (), tuple(columns), (), version, (blob,))
            # Of one that is older than what was begun since, the caller has had the answer.
            with contextlib.suppress(StaleRequest):
                await self.send_part(part, request, timeout_s)

        await _all_parts([write(number) for number in sorted(parts)])
        return int(batch.num_rows)

    def split(self, batch: pa.RecordBatch) -> dict[int, tuple[int, NDArray[np.int64], pa.Buffer]]:
        """Cut a batch by tablet: number → (rows, their places, Arrow IPC stream). Runs off-loop."""
        numbers = self.known.numbers_of(batch, self._cache.parts)
        return {
            number: (rows.num_rows, places, encode_batch(rows))
            for number, (rows, places) in self._partitioner.split(batch, numbers).items()
        }

    # ---- one tablet's part ------------------------------------------------------------------

    def receiver(self, part: Part) -> str:
        """Whom the session numbers the part for: a place in the table, and not its tablet, as what
        a tablet knows of requests goes over to its successor, or to its parts."""
        return f"{self._cache.table.table_id}/{self._cache.parts.place(part.number)}"

    def request_of(self, part: Part, where: TabletLocation, request: RequestId) -> Write:
        """The message that carries a part; the same whenever it is repeated."""
        return Write(
            where.tablet.tablet_id,
            part.schema_version,
            part.op,
            request,
            part.rows,
            part.columns,
            part.expected,
        )

    async def _write_part(self, part: Part, timeout_s: float) -> WriteReply:
        with self._session.request(self.receiver(part)) as request:
            return await self._gathering.send(part, request, timeout_s, self.send_part)

    async def send_part(
        self, part: Part, request: RequestId, timeout_s: float, tried: StelaeError | None = None
    ) -> WriteReply:
        """Send a part until its end is known; see `on_tablet`. One that was made with too old a
        schema is surely not done: it is made anew, once, with the one that is in force."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        try:
            return await self._send_part(part, request, timeout_s, tried)
        except SchemaChanged:
            left_s = deadline - clock.monotonic()
            await self._cache.refresh_within(left_s, f"a write to altered table {self._name!r}")
            fresh = self._cache.table.schema
            if fresh.version <= part.schema_version:
                raise
            part = await self._runtime.offload(self._with_schema, part, fresh)
            return await self.send_part(part, request, deadline - clock.monotonic(), None)
        except WasSplit as split:
            return await self._send_cut(part, request, deadline, split.tried)

    async def _send_cut(
        self, part: Part, request: RequestId, deadline: float, tried: StelaeError | None
    ) -> WriteReply:
        """Send a part to the tablets that have its rows by now, under the one request id.

        The split tablet may have carried it out: then all of them know the answer. If it has not,
        none does, and each does what it gets once. One that is cut again is told apart by its rows.
        """
        clock = self._runtime.clock
        cuts = await self._runtime.offload(self._cut_again, part)
        replies = await asyncio.gather(
            *(self.send_part(cut, request, deadline - clock.monotonic(), tried) for cut, _ in cuts),
            return_exceptions=True,
        )
        errors = [reply for reply in replies if isinstance(reply, BaseException)]
        if errors:
            raise most_telling(errors)
        versions = np.empty(sum(len(chosen) for _, chosen in cuts), np.uint64)
        for (cut, chosen), reply in zip(cuts, replies, strict=True):
            assert isinstance(reply, WriteReply), "all were answered"
            versions[chosen] = versions_in(reply, cut)
        return CutReply(int(versions[0]), len(versions), versions)

    def _cut_again(self, part: Part) -> list[tuple[Part, NDArray[np.int64]]]:
        """A part by the tablets that its rows are in now, and which rows each gets. May run off the
        loop."""
        parts_now, batch = self._cache.parts, part.keys
        if batch is not None:
            numbers = self.known.numbers_of(batch, parts_now)
        else:
            keys = [self._key_of(part.op, row, part.columns) for row in part.rows]
            found = [self.known.number_of(key, parts_now) for key in keys]
            numbers = np.array(found, np.int32)
        chosen = {n: np.flatnonzero(numbers == n) for n in np.unique(numbers).tolist()}
        return [(part.some(rows, number), rows) for number, rows in chosen.items()]

    def _with_schema(self, part: Part, fresh: TableSchema) -> Part:
        """The part in the columns of a newer schema. May run off the loop."""
        view = SchemaView(self._schema, fresh, self._name)
        rows: Any = decode_batch(part.blobs[0]) if part.blobs else part.rows
        rows, columns = view.write(part.op, rows, part.columns)
        blobs: tuple[pa.Buffer, ...] = ()
        if isinstance(rows, pa.RecordBatch):
            if part.op is not WriteOp.DELETE:
                columns = tuple(rows.schema.names)
            rows, blobs = (), (encode_batch(rows),)
        return Part(
            part.number,
            part.op,
            tuple(rows),
            columns,
            part.expected,
            fresh.version,
            blobs,
            part.levels,
        )

    async def _send_part(
        self, part: Part, request: RequestId, timeout_s: float, tried: StelaeError | None
    ) -> WriteReply:
        async def attempt(
            where: TabletLocation, owner: ServerUuid | None, limit_s: float
        ) -> WriteReply:
            reply = await self._runtime.peers.call(
                where.address,
                WRITE,
                self.request_of(part, where, request),
                timeout_s=limit_s,
                blobs=part.blobs,
                destination=owner,
            )
            return reply.body

        return await on_tablet(
            self._runtime,
            self._cache,
            part.number,
            "write",
            attempt,
            timeout_s=timeout_s,
            tried=tried,
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


def version_range(reply: WriteReply) -> Versions:
    """The versions of a part's rows, shape (rows,)."""
    if isinstance(reply, CutReply):
        return np.asarray(reply.versions, np.uint64)
    if reply.row_count == 1:
        return np.array((reply.first_version,), np.uint64)
    first = np.uint64(reply.first_version)
    return first + np.arange(reply.row_count, dtype=np.uint64)
