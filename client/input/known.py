"""A table as a handle knows it: one version of its record, and all that follows from it."""

from __future__ import annotations

import pyarrow as pa

from stelae.client.input.convert import RowCodec
from stelae.client.input.split_tablets import Parts
from stelae.core.records.records import TableRecord
from stelae.core.schema.indexes import IndexDefinition
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.core.schema.values import WireRow
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.kernels.api import I32
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.partitioner import Partitioner

ROW_TYPES_MAX = 64


class KnownTable:
    """Never changes: a handle that learns of an alter takes another one, in one assignment."""

    __slots__ = (
        "_entry_codecs",
        "_indexed",
        "_key_codec",
        "_row_types",
        "codec",
        "name",
        "names",
        "partitioner",
        "record",
        "schema",
    )

    def __init__(self, record: TableRecord) -> None:
        self.record = record
        self.name = record.name
        self.schema = record.schema
        self.names = tuple(record.schema.arrow.names)
        """Of its columns."""
        self.codec = RowCodec(record.schema, record.name)
        self.partitioner = Partitioner(record.partitioning, record.schema)
        self._key_codec: KeyCodec | None = None
        self._entry_codecs: dict[IndexDefinition, EntryCodec] = {}
        self._indexed: dict[str, tuple[IndexDefinition, EntryCodec]] = {}
        self._row_types: dict[tuple[tuple[str, ...], bool], pa.StructType] = {}

    def number_of(self, key: WireRow, parts: Parts) -> int:
        """The number of the tablet that has this key."""
        place = self.partitioner.tablet_number(key)
        if not parts.has(place):
            return place
        return parts.number(place, self._keys.hash_one(key))

    def numbers_of(self, batch: pa.RecordBatch, parts: Parts) -> I32:
        """The same of each row of a batch with the key columns. Raises as
        `Partitioner.tablet_numbers` does."""
        places = self.partitioner.tablet_numbers(batch)
        return parts.refine(places, self._keys.hash_batch(batch)) if parts.is_split else places

    @property
    def _keys(self) -> KeyCodec:
        if self._key_codec is None:
            self._key_codec = KeyCodec(self.schema)
        return self._key_codec

    def index_of(self, column: str) -> tuple[IndexDefinition, EntryCodec] | None:
        """The index of a column, with its codec; None: it has none. Raises ColumnNotFound."""
        found = self._indexed.get(column)
        if found is None:
            self.schema.check_columns((column,), self.name)
            index = self.schema.index_of(column)
            if index is None:
                return None
            found = self._indexed[column] = index, self.entry_codec(index)
        return found

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
