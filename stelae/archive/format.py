"""What lies in an archive, the folder of backups, and what its files say. No I/O.

::

    backup-20261127T034500Z-1f3a.json   a backup: its tables, and of each tablet its list
    data/<hash>.list                    a tablet: its chunks, their versions, which rows live
    data/<hash>.rows                    a chunk: rows as an Arrow IPC stream, packed
    busy/<kind>-<id>.json               who is at work here; see `stelae.archive.folder`

Files of ``data`` are called by the BLAKE2b of what they hold, are never changed, and are shared by
all backups that need them. A backup's own file is written last: with it the backup is there, whole.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.archive.chunks import Chunk
from stelae.archive.files import Part, digest_of
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning, RangePartition
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import from_wire

FORMAT = "stelae-backup/1"
PREFIX, SUFFIX = "backup-", ".json"
ROWS = ".rows"


class TabletList(msgspec.Struct, frozen=True):
    """All of one tablet. Two backups between which nothing was written have the same."""

    columns: str
    """What rows of the chunks are made of: only a table with the same can go on with them."""
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        return sum(chunk.live_rows for chunk in self.chunks)


class SavedTablet(msgspec.Struct, frozen=True):
    """One tablet in a backup, as of one point of its log."""

    tablet_id: str
    number: int
    rows: int
    next_version: int
    """Of its log at that point: every row has a lower one."""
    list: Part


class AsMade(msgspec.Struct, frozen=True, kw_only=True):
    """What a table was made with, so that it can be made once more."""

    schema_ipc: bytes
    partitioning_msgpack: bytes
    durability_msgpack: bytes

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema_ipc))

    @property
    def made_durable(self) -> Durability:
        """The durability that it had."""
        found: Durability = msgspec.msgpack.decode(self.durability_msgpack, type=Durability)
        return found

    @property
    def partitioning(self) -> Partitioning:
        """As users give it."""
        return as_given(self.partitioning_msgpack, self.schema)


def description_of(table: TableRecord, durability: Durability) -> dict[str, Any]:
    """The fields of `AsMade`, and those that tell people the same."""
    schema = table.schema
    return {
        "columns": tuple([f"{field.name}: {field.type}" for field in schema.arrow]),
        "key": schema.key,
        "indexes": tuple([schema.column_of(index) for index in schema.indexes]),
        "durability": str(durability),
        "schema_ipc": schema.arrow.serialize().to_pybytes(),
        "partitioning_msgpack": msgspec.msgpack.encode(table.partitioning),
        "durability_msgpack": msgspec.msgpack.encode(durability),
    }


class SavedTable(AsMade, frozen=True):
    """One table in a backup: what it was made with, and its tablets."""

    name: str
    table_id: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    indexes: tuple[str, ...]
    durability: str
    rows: int
    tablets: tuple[SavedTablet, ...]

    @staticmethod
    def of(table: TableRecord, tablets: Sequence[SavedTablet]) -> SavedTable:
        """A table and its tablets."""
        return SavedTable(
            name=table.name,
            table_id=table.table_id,
            rows=sum(tablet.rows for tablet in tablets),
            tablets=tuple(tablets),
            **description_of(table, table.becoming or table.durability),
        )


class Backup(msgspec.Struct, frozen=True):
    """The file that makes a backup one."""

    format: str
    id: str
    cluster: str
    began: str
    ended: str
    rows: int
    size_bytes: int
    """Of all files that it needs."""
    stored_bytes: int
    """Of those that were not there before it."""
    tables: tuple[SavedTable, ...]

    def table(self, name: str) -> SavedTable:
        """Raises InvalidArgument."""
        for table in self.tables:
            if table.name == name:
                return table
        has = ", ".join(sorted(table.name for table in self.tables))
        raise InvalidArgument(f"backup {self.id} has no table {name!r}; it has {has}")


def file_of(backup_id: str) -> str:
    return f"{PREFIX}{backup_id}{SUFFIX}"


def id_of(name: str) -> str | None:
    """Of a backup's own file; None: it is another file."""
    if name.startswith(PREFIX) and name.endswith(SUFFIX):
        return name[len(PREFIX) : -len(SUFFIX)]
    return None


def is_temporary(table: str) -> bool:
    """Whether it is a table that a restore has not yet filled."""
    return re.search(r"\.restoring-\d{8}T[\d.]+Z-[0-9a-f]+$", table) is not None


def now_text() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def part_of(data: bytes, rows: int, suffix: str) -> Part:
    """A file of ``data``, called by what it holds."""
    digest = digest_of(data)
    return Part(f"{digest}{suffix}", rows, len(data), digest)


def columns_of(schema: TableSchema) -> str:
    """Tells columns from others: by ids, names, types, and defaults that old rows show."""
    told = (schema.arrow_ipc, schema.column_ids, schema.defaults_ipc)
    return digest_of(msgspec.msgpack.encode(told))


def encode(document: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def decode_backup(data: bytes, where: str) -> Backup:
    """Raises CorruptData; InvalidArgument: it is of another version of Stelae."""
    try:
        kind = msgspec.json.decode(data, type=_Format).format
        if kind != FORMAT:
            raise InvalidArgument(f"{where} is of format {kind}; known here: {FORMAT}")
        return msgspec.json.decode(data, type=Backup)
    except msgspec.MsgspecError as error:
        raise CorruptData(where, 0, str(error)) from error


class _Format(msgspec.Struct):
    format: str


def encode_list(tablet: TabletList) -> bytes:
    return msgspec.msgpack.encode(tablet)


def decode_list(data: bytes, where: str) -> TabletList:
    """Raises CorruptData."""
    try:
        return msgspec.msgpack.decode(data, type=TabletList)
    except msgspec.MsgspecError as error:
        raise CorruptData(where, 0, str(error)) from error


def as_given(partitioning: bytes, schema: pa.Schema) -> Partitioning:
    """A partitioning as the catalog keeps it, as users give it."""
    found = msgspec.msgpack.decode(partitioning, type=Partitioning)
    by_range = found.range
    if by_range is None:
        return found
    kinds = [schema.field(column).type for column in by_range.columns]
    splits = tuple(
        tuple(from_wire(value, kind) for value, kind in zip(split, kinds, strict=True))
        for split in by_range.splits
    )
    return Partitioning(found.hash, RangePartition(by_range.columns, splits))
