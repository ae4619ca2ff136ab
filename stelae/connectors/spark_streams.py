"""Which batches of which streams are in which tables: what makes a batch that comes again be one.

A batch is written first and noted afterwards; one that is noted is never written again, and one
that broke off is, under the same request ids, so that what it had written already is not applied
twice. The notes are rows of a table of the cluster, one for each stream and table, and only ever
grow: two runs of one stream cannot take a note back. A query counts its own batches, so a stream's
notes are of one query, that is, of one checkpoint. Knows neither Spark nor Ray. Design §12.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.connectors.data_tasks import connected
from stelae.core.errors import (
    InvalidArgument,
    Rejected,
    TableExists,
    TableNotFound,
    VersionMismatch,
)
from stelae.core.records.records import TableRecord
from stelae.core.schema.partition import hash_partition
from stelae.recovery.spark_link import ClusterLink

LEDGER = "stelae_streams"
SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), False),
        pa.field("table_id", pa.string(), False),
        ("table", pa.string()),
        ("batch", pa.int64()),
        ("rows", pa.int64()),
        ("query", pa.string()),
    ]
)
KEY = ("stream", "table_id")
TIMEOUT_S = 30.0
NONE = -1


def last_batch(link: ClusterLink, stream: str, table: TableRecord) -> int:
    """The last batch of a stream that is in a table; -1 if none is. Blocks."""
    return _noted(link, stream, table).batch


def is_noted(
    link: ClusterLink, stream: str, table: TableRecord, batch: int, query: str = ""
) -> bool:
    """Whether a batch of a stream is in a table. Blocks.

    Raises:
        InvalidArgument: another query has noted a batch that is as high: this one is not in it.
    """
    note = _noted(link, stream, table)
    _check_query(note, stream, table, batch, query)
    return batch <= note.batch


def note_batch(
    link: ClusterLink, stream: str, table: TableRecord, batch: int, rows: int, query: str = ""
) -> None:
    """All of a batch is in a table. Blocks. A lower one than is noted changes nothing.

    Raises:
        InvalidArgument: as `is_noted`.
    """
    with connected(link) as (runtime, run):

        async def note() -> None:
            database = AsyncDatabase(runtime, link.masters, link.settings)
            ledger = await _ledger(database)
            while True:
                found = await _row(ledger, stream, table)
                _check_query(found, stream, table, batch, query)
                if found.batch >= batch:
                    return
                row = {
                    "stream": stream,
                    "table_id": table.table_id,
                    "table": table.name,
                    "batch": batch,
                    "rows": rows,
                    "query": query,
                }
                try:
                    await ledger.upsert(row, if_version=found.version, timeout=TIMEOUT_S)
                    return
                except VersionMismatch:
                    continue  # somebody noted one: batches only grow, so this ends

        run(note())


class _Note(NamedTuple):
    """The last batch of a stream in a table; ``version`` 0: there is none."""

    batch: int = NONE
    query: str = ""
    version: int = 0


def _check_query(note: _Note, stream: str, table: TableRecord, batch: int, query: str) -> None:
    if query and note.query and note.query != query and batch <= note.batch:
        raise InvalidArgument(
            f"stream {stream!r} of table {table.name!r} is at batch {note.batch} of query "
            f"{note.query}, and this is batch {batch} of query {query}, with another checkpoint: "
            "go on with the former checkpoint, or give the stream another name"
        )


def _noted(link: ClusterLink, stream: str, table: TableRecord) -> _Note:
    with connected(link) as (runtime, run):

        async def look() -> _Note:
            database = AsyncDatabase(runtime, link.masters, link.settings)
            try:
                ledger = await database.table(LEDGER)
            except TableNotFound:
                return _Note()
            return await _row(ledger, stream, table)

        return run(look())


async def _row(ledger: AsyncTable, stream: str, table: TableRecord) -> _Note:
    key = {"stream": stream, "table_id": table.table_id}
    row = await ledger.get(key, with_version=True, timeout=TIMEOUT_S)
    if row is None:
        return _Note()
    return _Note(int(row["batch"]), row.get("query") or "", int(row["_version"]))


async def _ledger(database: AsyncDatabase) -> AsyncTable:
    try:
        ledger = await database.table(LEDGER)
    except TableNotFound:
        partition = hash_partition("stream", 1)
        try:
            return await database.create_table(LEDGER, SCHEMA, key=KEY, partition=partition)
        except TableExists:
            return await database.table(LEDGER)
    if "query" in ledger.schema.names:
        return ledger
    column = pa.schema([SCHEMA.field("query")])  # one of an earlier release has none
    with suppress(Rejected):  # somebody else was first
        await database.alter_table(LEDGER, add_columns=column)
    return await database.table(LEDGER)
