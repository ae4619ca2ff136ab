"""What Spark tasks do with tables: read a tablet, write a partition, and fit types to each other.

Runs in Spark's Python workers, over Stelae's own TCP; nothing here imports Spark or Ray, so that a
worker starts quickly. The DataFrames around it are made by `stelae.spark`. Implements design §12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from stelae.client.routing.locations import TableCache, look_up
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument
from stelae.core.schema.casts import exact_cast
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.sizes import size_cuts
from stelae.recovery.spark_link import ClusterLink, connected

SCAN_TIMEOUT_S = 600.0
WRITE_BYTES = 8 << 20
"""Of rows in one call: far below the limit of a call, whatever the table's types make of them."""

# ---- a tablet's rows into Spark -------------------------------------------------------------


def locate(link: ClusterLink, table: str) -> TableCache:
    """A table and where its tablets are. Blocks. Raises `TableNotFound`."""
    with connected(link) as (runtime, run):
        masters = MastersClient(runtime, link.masters)
        return TableCache(masters, run(look_up(masters, table)))


def to_spark(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """A batch of a table's columns in the types that Spark has for them.

    Raises:
        InvalidArgument: a value would lose something (a timestamp's nanoseconds).
    """
    arrays = []
    for field in target:
        column = batch.column(field.name)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"column {field.name!r} does not fit Spark's {field.type}: {error}; leave it out "
                "with columns="
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=target)


_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_AS_THEY_ARE = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_decimal128,
    pa.types.is_null,
)


def spark_type(kind: pa.DataType) -> pa.DataType | None:
    """The Arrow type in which Spark takes a column of this type; None if it has none."""
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    return _nested_type(kind)


def _nested_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        value = spark_type(kind.value_type)
        return None if value is None else pa.list_(pa.field("element", value))
    if pa.types.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_struct(kind):
        inner = {field.name: spark_type(field.type) for field in kind}
        if any(found is None for found in inner.values()):
            return None
        return pa.struct([pa.field(field.name, inner[field.name]) for field in kind])
    return None


# ---- a partition into a table ---------------------------------------------------------------


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of batches, in order, as tables of about `WRITE_BYTES`."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        for first, count in size_cuts(batch, WRITE_BYTES):
            part = batch.slice(first, count)
            if gathered and size_bytes + part.nbytes > WRITE_BYTES:
                yield pa.Table.from_batches(gathered)
                gathered, size_bytes = [], 0
            gathered.append(part)
            size_bytes += part.nbytes
    if gathered:
        yield pa.Table.from_batches(gathered)


def from_spark(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Bring what `spark_type` made of a table's columns back; all else is left to the client.

    Raises:
        InvalidArgument: a value does not fit the table's type.
    """
    columns = []
    for name in rows.column_names:
        column, kind = rows.column(name), schema.arrow.field(name).type
        if column.type != kind and _comes_from(column.type, kind):
            chunks = [exact_cast(each, kind, f"column {name!r}") for each in column.chunks]
            column = pa.chunked_array(chunks, kind)
        columns.append(column)
    return pa.table(columns, names=rows.column_names)


def _comes_from(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Spark's type is the one that a column of type ``kind`` has there."""
    there = spark_type(kind)
    if there is None or found.id != there.id:
        return False
    if pa.types.is_timestamp(found):
        return bool((found.tz is None) == (there.tz is None))
    return True
