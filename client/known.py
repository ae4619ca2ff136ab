"""A table as a handle knows it: one version of its record, and all that follows from it."""

from __future__ import annotations

import pyarrow as pa

from stelae.client.convert import RowCodec
from stelae.core.indexes import IndexDefinition
from stelae.core.records import TableRecord
from stelae.core.schema import VERSION_COLUMN
from stelae.storage.index_keys import EntryCodec
from stelae.storage.partitioner import Partitioner

ROW_TYPES_MAX = 64


class KnownTable:
    """Never changes: a handle that learns of an alter takes another one, in one assignment."""

    __slots__ = ("_entry_codecs", "_row_types", "codec", "name", "partitioner", "record", "schema")

    def __init__(self, record: TableRecord) -> None:
        self.record = record
        self.name = record.name
        self.schema = record.schema
        self.codec = RowCodec(record.schema, record.name)
        self.partitioner = Partitioner(record.partitioning, record.schema)
        self._entry_codecs: dict[IndexDefinition, EntryCodec] = {}
        self._row_types: dict[tuple[tuple[str, ...], bool], pa.StructType] = {}

    def entry_codec(self, index: IndexDefinition) -> EntryCodec:
        """Of one of its indexes; made once."""
        codec = self._entry_codecs.get(index)
        if codec is None:
            codec = self._entry_codecs[index] = EntryCodec(self.schema, index)
        return codec

    def row_type(self, columns: tuple[str, ...], *, with_version: bool) -> pa.StructType:
        """Of rows in these columns (empty: all), as one value each; the last ones are kept."""
        wanted = columns, with_version
        found = self._row_types.get(wanted)
        if found is None:
            if len(self._row_types) >= ROW_TYPES_MAX:
                self._row_types.clear()
            arrow = self.schema.arrow
            fields = [arrow.field(name) for name in columns or arrow.names]
            if with_version:
                fields.append(pa.field(VERSION_COLUMN, pa.uint64(), False))
            found = self._row_types[wanted] = pa.struct(fields)
        return found
