"""The rows that a few entries name, read in small calls: what most look-ups are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from stelae.client.finds.query import FEW, FindQuery
from stelae.client.finds.read_table import ReadTable
from stelae.client.input.split_tablets import Parts, WasSplit
from stelae.client.routing.retries import on_tablet, parts_of
from stelae.client.routing.shared_reads import Alike
from stelae.core.ids import ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.indexes import LookupReply
from stelae.core.messages.rows import GET, Get, GetReply
from stelae.core.schema.values import WireRow
from stelae.core.tasks import all_or_first_error

TOGETHER_BYTES_MAX = 64 << 10
"""Of the tables of several answers that are parts of one batch."""


@dataclass(slots=True)
class Found:
    """What came together for one look-up."""

    said: LookupReply
    parts: dict[int, list[WireRow]] = field(default_factory=dict)
    """The keys that its entries name, by tablet; none if they were not asked for."""
    replies: dict[int, GetReply] = field(default_factory=dict)
    """Of those tablets that could answer."""
    table: pa.Table | None = None
    """The rows, if all did: see `rows_of_few`."""
    own: list[bytes] = field(default_factory=list)
    """Their entries."""


def is_few(query: FindQuery, entry_count: int) -> bool:
    """Whether rows of so many entries are read in small calls."""
    return entry_count <= FEW and query.known.schema.is_plain


def keys_by_tablet(
    query: FindQuery, entries: Sequence[bytes], parts_now: Parts
) -> dict[int, list[WireRow]]:
    """The keys that entries name, each once, by the number of their tablet."""
    keys = dict.fromkeys([query.codec.key_of(entry) for entry in entries])
    return _cut(query, keys, parts_now)


def _cut(query: FindQuery, keys: Iterable[WireRow], parts_now: Parts) -> dict[int, list[WireRow]]:
    parts: dict[int, list[WireRow]] = {}
    for key in keys:
        parts.setdefault(query.known.number_of(key, parts_now), []).append(key)
    return parts


def get_request(query: FindQuery, keys: Sequence[WireRow], where: TabletLocation) -> Get:
    """How the rows of a tablet are asked for."""
    version = query.known.schema.version
    return Get(where.tablet.tablet_id, tuple(keys), query.read_columns, version)


def rows_found(
    query: FindQuery,
    entries: Sequence[bytes],
    parts: Mapping[int, Sequence[WireRow]],
    replies: Mapping[int, GetReply],
) -> tuple[list[WireRow], list[bytes]]:
    """Of the rows that tablets gave those that still have one of these entries, each once, in their
    order; and their entries. ``replies``: of each of ``parts``."""
    names = query.read_columns or query.known.names
    at = names.index(query.codec.column)
    rows: dict[bytes, WireRow] = {}
    for number, part in parts.items():
        for key, row in zip(part, replies[number].rows, strict=True):
            if row is not None:
                values, version = row
                entry = query.codec.encode_one(values[at], key)
                rows[entry] = (*values, version) if query.with_versions else tuple(values)
    wanted = dict.fromkeys(entries)
    own = sorted((entry for entry in rows if entry in wanted), reverse=query.is_reverse)
    return [rows[entry] for entry in own], own


def as_tables(answers: Sequence[Sequence[WireRow]], row_type: pa.StructType) -> list[pa.Table]:
    """Few rows of each of some answers, all of the same type, as a table of each.

    One array of whole rows, of all of them: for a few it costs half of what an array for each
    column does. Tables of small rows are parts of one batch: who keeps one keeps that.
    """
    rows = [row for answer in answers for row in answer]
    batch = pa.RecordBatch.from_struct_array(pa.array(rows, row_type))
    if len(answers) == 1:
        return [pa.Table.from_batches([batch])]
    if batch.nbytes > TOGETHER_BYTES_MAX:
        return [as_tables([answer], row_type)[0] for answer in answers]
    tables, first = [], 0
    for answer in answers:
        tables.append(pa.Table.from_batches([batch.slice(first, len(answer))]))
        first += len(answer)
    return tables


async def rows_of_few(
    table: ReadTable,
    query: FindQuery,
    entries: Sequence[bytes],
    timeout_s: float,
    found: Found | None = None,
) -> tuple[pa.Table, list[bytes]]:
    """The rows that still have these entries, each once, in their order; and their entries.

    ``found``: what came together with the entries.
    """
    if found is not None and found.table is not None:
        return found.table, found.own
    parts = found.parts if found is not None else {}
    replies = dict(found.replies) if found is not None else {}
    parts = parts or keys_by_tablet(query, entries, table.cache.parts)
    numbers = [number for number in parts if number not in replies]
    if numbers:
        reads = [_read(table, query, number, parts[number], timeout_s) for number in numbers]
        read = [await reads[0]] if len(reads) == 1 else await all_or_first_error(reads)
        replies.update(zip(numbers, read, strict=True))
    rows, own = rows_found(query, entries, parts, replies)
    return as_tables([rows], query.row_type)[0], own


async def _read(
    table: ReadTable, query: FindQuery, number: int, keys: Sequence[WireRow], timeout_s: float
) -> GetReply:
    """The rows of these keys, in their order: also if the tablet is split meanwhile."""
    deadline = table.runtime.clock.monotonic() + timeout_s
    try:
        return await _read_at(table, query, number, keys, timeout_s)
    except WasSplit:
        await parts_of(table.runtime, table.cache, number, deadline)
    parts = _cut(query, keys, table.cache.parts)
    left_s = deadline - table.runtime.clock.monotonic()
    reads = [_read(table, query, part, some, left_s) for part, some in parts.items()]
    replies = await all_or_first_error(reads)
    found = {
        key: row
        for some, reply in zip(parts.values(), replies, strict=True)
        for key, row in zip(some, reply.rows, strict=True)
    }
    return GetReply(tuple([found[key] for key in keys]))


async def _read_at(
    table: ReadTable, query: FindQuery, number: int, keys: Sequence[WireRow], timeout_s: float
) -> GetReply:
    async def attempt(where: TabletLocation, owner: ServerUuid | None, limit_s: float) -> GetReply:
        request = get_request(query, keys, where)
        reply = await table.runtime.peers.call(
            where.address, GET, request, timeout_s=limit_s, destination=owner
        )
        body: GetReply = reply.body
        return body

    async def alone(left_s: float) -> GetReply:
        runtime, cache = table.runtime, table.cache
        return await on_tablet(runtime, cache, number, "find", attempt, timeout_s=left_s)

    alike = Alike(number, query.read_columns, query.known.schema.version)
    return await table.shared_reads.get(alike, keys, timeout_s, alone)
