"""A table as a handle knows it: one version of its record, and all that follows from it."""

from __future__ import annotations

from stelae.client.convert import RowCodec
from stelae.core.indexes import IndexDefinition
from stelae.core.records import TableRecord
from stelae.storage.index_keys import EntryCodec
from stelae.storage.partitioner import Partitioner


class KnownTable:
    """Never changes: a handle that learns of an alter takes another one, in one assignment."""

    __slots__ = ("_entry_codecs", "codec", "name", "partitioner", "record", "schema")

    def __init__(self, record: TableRecord) -> None:
        self.record = record
        self.name = record.name
        self.schema = record.schema
        self.codec = RowCodec(record.schema, record.name)
        self.partitioner = Partitioner(record.partitioning, record.schema)
        self._entry_codecs: dict[IndexDefinition, EntryCodec] = {}

    def entry_codec(self, index: IndexDefinition) -> EntryCodec:
        """Of one of its indexes; made once."""
        codec = self._entry_codecs.get(index)
        if codec is None:
            codec = self._entry_codecs[index] = EntryCodec(self.schema, index)
        return codec
