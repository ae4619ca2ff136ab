"""The rows that a few entries name, read in small calls: what most look-ups are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stelae.client.find_query import FEW, FindQuery
from stelae.client.retries import all_or_first_error, on_tablet
from stelae.core.ids import ServerUuid
from stelae.core.messages import GET, Get, GetReply, TabletLocation
from stelae.core.values import WireRow

if TYPE_CHECKING:
    from stelae.client.table import AsyncTable


def is_few(query: FindQuery, entry_count: int) -> bool:
    """Whether rows of so many entries are read in small calls."""
    return entry_count <= FEW and query.known.schema.is_plain


def keys_by_tablet(query: FindQuery, entries: Sequence[bytes]) -> dict[int, list[WireRow]]:
    """The keys that entries name, each once, by the number of their tablet."""
    partitioner = query.known.partitioner
    parts: dict[int, list[WireRow]] = {}
    for key in dict.fromkeys([query.codec.key_of(entry) for entry in entries]):
        parts.setdefault(partitioner.tablet_number(key), []).append(key)
    return parts


def get_request(query: FindQuery, keys: Sequence[WireRow], where: TabletLocation) -> Get:
    """How the rows of a tablet are asked for."""
    version = query.known.schema.version
    return Get(where.tablet.tablet_id, tuple(keys), query.read_columns, version)


def rows_found(
    query: FindQuery,
    entries: Sequence[bytes],
    parts: Mapping[int, Sequence[WireRow]],
    replies: Sequence[GetReply],
) -> tuple[pa.Table, list[bytes]]:
    """Of the rows that tablets gave those that still have one of these entries, each once, in their
    order; and their entries."""
    names = query.read_columns or tuple(query.known.schema.arrow.names)
    at = names.index(query.codec.column)
    rows: dict[bytes, WireRow] = {}
    for part, reply in zip(parts.values(), replies, strict=True):
        for key, row in zip(part, reply.rows, strict=True):
            if row is not None:
                values, version = row
                entry = query.codec.encode_one(values[at], key)
                rows[entry] = (*values, version) if query.with_versions else tuple(values)
    wanted = dict.fromkeys(entries)
    own = sorted((entry for entry in rows if entry in wanted), reverse=query.is_reverse)
    # One array of whole rows: for a few it costs half of what an array for each column does.
    values = pa.array([rows[entry] for entry in own], query.row_type)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(values)]), own


async def rows_of_few(
    table: AsyncTable, query: FindQuery, entries: Sequence[bytes], timeout_s: float
) -> tuple[pa.Table, list[bytes]]:
    """The rows that still have these entries, each once, in their order; and their entries."""
    parts = keys_by_tablet(query, entries)
    reads = [_read(table, query, number, part, timeout_s) for number, part in parts.items()]
    found = [await reads[0]] if len(reads) == 1 else await all_or_first_error(reads)
    return rows_found(query, entries, parts, found)


async def _read(
    table: AsyncTable, query: FindQuery, number: int, keys: Sequence[WireRow], timeout_s: float
) -> GetReply:
    async def attempt(where: TabletLocation, owner: ServerUuid | None, limit_s: float) -> Any:
        request = get_request(query, keys, where)
        reply = await table.runtime.peers.call(
            where.address, GET, request, timeout_s=limit_s, destination=owner
        )
        return reply.body

    reply: GetReply = await on_tablet(
        table.runtime, table.cache, number, "find", attempt, timeout_s=timeout_s
    )
    return reply
