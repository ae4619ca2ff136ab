"""The index entries of rows: of those of a call, of those that are there, of all of a tablet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.messages.rows import WriteOp
from stelae.core.schema.indexes import END, IndexDefinition, IndexId
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.indexes.runs import Run, sorted_alike
from stelae.storage.kernels.default import default_index_kernels
from stelae.storage.rows.gather import Located, Snapshot
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.layout import Row
from stelae.storage.segments.remote import RowsAbsent, Wanted

Few = dict[IndexId, tuple[bytes, ...]]
Many = dict[IndexId, Run]


class TableCodecs:
    """The indexes of a table in one version of its schema."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.codecs = {index.index_id: EntryCodec(schema, index) for index in schema.indexes}

    def definition(self, index_id: IndexId) -> IndexDefinition:
        """Of an index that the table has."""
        return next(index for index in self.schema.indexes if index.index_id == index_id)

    def touched(self, op: WriteOp, given: Sequence[str]) -> dict[IndexId, EntryCodec]:
        """The indexes whose entries a write of these columns may change."""
        if op is not WriteOp.UPDATE:
            return self.codecs
        return {i: codec for i, codec in self.codecs.items() if codec.column in given}


class FewSeen(NamedTuple):
    """Some rows before they were written."""

    codecs: dict[IndexId, EntryCodec]
    keys: list[Row]
    rows: list[Row | None]


class ManySeen(NamedTuple):
    """Many rows before they were written."""

    codecs: dict[IndexId, EntryCodec]
    keys: pa.RecordBatch
    located: Located


def seen_before(
    memory: TabletMemory, codecs: TableCodecs, op: WriteOp, rows: Any, columns: Sequence[str]
) -> FewSeen | ManySeen | None:
    """What there is of the keys of rows that are about to be written; None: nothing, or no index
    has to do with it. ``rows`` and ``columns`` as `TabletMemory.execute` takes them.

    Raises as that does: the rows do not fit.
    """
    if isinstance(rows, pa.RecordBatch):
        touched = codecs.touched(op, rows.schema.names)
        if not touched:
            return None
        return _many_seen(memory, touched, rows.select(list(codecs.schema.key)))
    shape = memory.shape(op, columns)
    touched = codecs.touched(op, shape.columns)
    if not touched:
        return None
    few = [shape.key(row) for row in shape.check(rows)[0]]
    if codecs.schema.is_plain:
        found = rows_of(memory, few)
        return FewSeen(touched, few, found) if any([row is not None for row in found]) else None
    return _many_seen(memory, touched, rows_to_batch(few, codecs.schema.key_schema))


def _many_seen(
    memory: TabletMemory, touched: dict[IndexId, EntryCodec], keys: pa.RecordBatch
) -> ManySeen | None:
    located = memory.locate(keys)
    located.check_here()  # they are read off the loop, later
    return ManySeen(touched, keys, located) if len(located.found) else None


def check_here(
    memory: TabletMemory, codecs: TableCodecs, op: WriteOp, rows: Any, columns: Sequence[str]
) -> None:
    """Raises RowsAbsent: of the rows that a write is to replace some are not here; else as
    `seen_before`. All calls need them: their entries go, or (updates) their other columns stay."""
    if isinstance(rows, pa.RecordBatch):
        memory.locate(rows.select(list(codecs.schema.key))).check_here()
        return
    wanted: list[Wanted] = []
    shape = memory.shape(op, columns)
    for row in shape.check(rows)[0]:
        try:
            memory.get(shape.key(row))
        except RowsAbsent as absent:
            wanted += absent.wanted
    if wanted:
        raise RowsAbsent(wanted)


def rows_of(memory: TabletMemory, keys: Iterable[Row]) -> list[Row | None]:
    """The rows of keys, as they are now."""
    return [None if (found := memory.get(key)) is None else found.row for key in keys]


def entries_of_few(
    codec: EntryCodec, keys: Sequence[Row], rows: Sequence[Row | None]
) -> list[bytes]:
    """The entries of the rows that are there."""
    place, encode = codec.place, codec.encode_one
    return [encode(row[place], key) for key, row in zip(keys, rows, strict=True) if row is not None]


def new_entries(
    memory: TabletMemory,
    codecs: TableCodecs,
    op: WriteOp,
    rows: Sequence[Any],
    columns: Sequence[str],
) -> tuple[list[Row], Few]:
    """The keys of a small call, and the entries that its rows need. Raises: they do not fit."""
    shape = memory.shape(op, columns)
    checked = shape.check(rows)[0]
    keys = [shape.key(row) for row in checked]
    if op is WriteOp.DELETE:
        return keys, {}
    full = [shape.full(row) for row in checked]
    touched = codecs.touched(op, shape.columns)
    return keys, {i: tuple(entries_of_few(codec, keys, full)) for i, codec in touched.items()}


def lacking(
    memory: TabletMemory, codecs: TableCodecs, keys: Sequence[Row], few: Few, since: int
) -> Few:
    """Of the entries that rows of these keys need those that the rows which are there have not, or
    have from before version ``since``.

    ``few``: as `new_entries` made it, an entry for each key."""
    if not few:
        return few
    present = [memory.get(key) for key in keys]
    rows = [None if one is None or one.version < since else one.row for one in present]
    found = {}
    for index_id, entries in few.items():
        codec = codecs.codecs[index_id]
        found[index_id] = tuple(
            [
                entry
                for entry, key, row in zip(entries, keys, rows, strict=True)
                if row is None or codec.encode_one(row[codec.place], key) != entry
            ]
        )
    return found


def new_entries_of_batch(
    codecs: TableCodecs, op: WriteOp, batch: pa.RecordBatch
) -> tuple[Many, bool]:
    """The entries that a batch's rows need, sorted; and whether all its keys differ for sure: rows
    of one key may have the same entry in one index, and others in another. May run off the loop.
    Columns that are left out get their defaults."""
    if op is WriteOp.DELETE:
        return {}, True
    schema = codecs.schema
    found: Many = {}
    for index_id, codec in codecs.touched(op, batch.schema.names).items():
        rows = batch.select([n for n in codec.columns if n in batch.schema.names])
        if codec.column not in batch.schema.names:
            default = schema.default_arrays([codec.column], batch.num_rows)[0]
            rows = rows.append_column(codec.column, default)
        found[index_id] = sorted_entries(codec.encode_batch(rows))
    return found, not found or _has_distinct_keys(batch, schema)


def _has_distinct_keys(batch: pa.RecordBatch, schema: TableSchema) -> bool:
    """Whether rows all have keys of their own, for sure."""
    if len(schema.key) > 1:
        return False
    keys = batch.column(schema.key[0])
    ascending = pc.all(pc.less(keys.slice(0, max(0, len(keys) - 1)), keys.slice(1)))
    return bool(ascending.as_py()) or pc.count_distinct(keys).as_py() == len(keys)


def sorted_entries(entries: pa.BinaryArray) -> Run:
    """Entries in order, each once."""
    return sorted_alike(entries, 0, 0, default_index_kernels())


def located_entries(codec: EntryCodec, located: Located) -> pa.BinaryArray:
    """The entries of rows that were located. May run off the loop."""
    return codec.encode_batch(located.gather(codec.columns))


def without(entries: pa.BinaryArray, others: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """The entries that are in none of the others, each once. May run off the loop."""
    entries = entries.unique()
    for other in others:
        if len(other) and len(entries):
            entries = entries.filter(pc.invert(pc.is_in(entries, value_set=other)))
    return entries


def tablet_entries(
    codec: EntryCodec,
    snapshot: Snapshot,
    others: Sequence[pa.BinaryArray],
    low: bytes,
    high: bytes,
) -> Run:
    """All entries of a tablet's rows in a range, and ``others``: of writes that are not carried out
    yet, and of rows that are not here, which the snapshot has not. Runs off the loop."""
    found = [_in_range(entries, low, high) for entries in others]
    rows = snapshot.batches(codec.columns)
    found += [_in_range(codec.encode_batch(batch), low, high) for batch in rows]
    if not found:
        return sorted_entries(pa.array([], pa.binary()))
    return sorted_entries(pa.concat_arrays(found))


def _in_range(entries: pa.BinaryArray, low: bytes, high: bytes) -> pa.BinaryArray:
    if low:
        entries = entries.filter(pc.greater_equal(entries, pa.scalar(low, pa.binary())))
    if high != END:
        entries = entries.filter(pc.less(entries, pa.scalar(high, pa.binary())))
    return entries
