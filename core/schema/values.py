"""Values on the wire, and Arrow data on its way into a table.

A **wire value** is what msgpack carries for a column of a plain type: int, float, str, bytes, bool
or None; a date32 is an int of days since 1970-01-01, a date64 one of milliseconds, a timestamp one
in the unit of its type (UTC where the type has a time zone). Rows of a small call are tuples of
wire values; larger ones are Arrow batches, which `check_batch` brings into the table's types. Both
ways refuse what would lose something (`InvalidArgument`, naming the column), and agree on what
that is.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.schema.casts import exact_cast
from stelae.core.schema.schema import MAX_CALL_BYTES, TableSchema
from stelae.core.schema.sizes import check_row_sizes

WireValue: TypeAlias = int | float | str | bytes | bool | None
WireRow: TypeAlias = tuple[WireValue, ...]

DAY_MS = 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.date().toordinal()
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


# ---- one value ------------------------------------------------------------------------------


def to_wire(value: object, kind: pa.DataType, what: str) -> WireValue:
    """The wire value of a user's Python or NumPy value, for a column of type ``kind``.

    Dates and timestamps are also taken as ISO 8601 text (JSON has no other form) and as wire
    values already. None, NaT and ``pandas.NA`` are None; whether null may stand there is the
    caller's to check (`rows_to_batch` does). ``what`` names the value in messages.

    Raises:
        InvalidArgument: wrong type, out of range, not exact, or a type that is not plain.
    """
    if value is None:
        return None
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if pa.types.is_integer(kind):
        return _integer(value, kind, what)
    if pa.types.is_string(kind):
        return _text(value, what)
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return _floating(value, kind, what)
    if pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
    elif pa.types.is_binary(kind):
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
    elif pa.types.is_date(kind):
        return _date(value, kind, what)
    elif pa.types.is_timestamp(kind):
        return _timestamp(value, kind, what)
    else:
        raise InvalidArgument(f"{what}: a {kind} does not travel as a single value; write a batch")
    return _refuse(value, kind, what)


def from_wire(value: WireValue, kind: pa.DataType) -> object:
    """What a user gets for a wire value: dates and datetimes as Arrow's ``as_py`` gives them
    (``numpy.datetime64`` where Python's range ends), all else as it is."""
    if value is None or not pa.types.is_temporal(kind):
        return value
    try:
        return pa.scalar(value, type=kind).as_py()
    except (ValueError, OverflowError):
        unit = "D" if kind == pa.date32() else "ms" if kind == pa.date64() else kind.unit
        return np.array(value, np.int64).astype(f"datetime64[{unit}]")[()]


def _refuse(value: object, kind: pa.DataType, what: str) -> WireValue:
    """None for what pandas calls missing; otherwise the error."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    shown = repr(value)
    raise InvalidArgument(
        f"{what}: {shown[:80]} is a {type(value).__name__}, and does not fit type {kind}"
    )


def _within(value: int, bits: int, signed: bool, kind: pa.DataType, what: str) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise InvalidArgument(f"{what}: {value} is outside the range of {kind}")
    return value


def _integer(value: object, kind: pa.DataType, what: str) -> WireValue:
    if isinstance(value, int) and not isinstance(value, bool):
        signed = bool(pa.types.is_signed_integer(kind))
        return _within(int(value), kind.bit_width, signed, kind, what)
    return _refuse(value, kind, what)


def _text(value: object, what: str) -> WireValue:
    if not isinstance(value, str):
        return _refuse(value, pa.string(), what)
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: the text has a lone surrogate, and is not UTF-8") from None
    return str.__str__(value)  # of an Enum that is a str, too, its value and not its name


def _floating(value: object, kind: pa.DataType, what: str) -> WireValue:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _refuse(value, kind, what)
    try:
        number = float(value)
    except OverflowError:
        raise InvalidArgument(f"{what}: {value} is outside the range of {kind}") from None
    if kind == pa.float32():
        with np.errstate(over="ignore"):
            rounded = float(np.float32(number))
        if np.isinf(rounded) and not np.isinf(number):
            raise InvalidArgument(f"{what}: {value} is outside the range of {kind}")
        number = rounded
    if isinstance(value, int) and int(number) != value:
        raise InvalidArgument(f"{what}: {value} has no exact form as {kind}")
    return number


def _date(value: object, kind: pa.DataType, what: str) -> WireValue:
    if isinstance(value, int) and not isinstance(value, bool):
        if kind == pa.date64() and value % DAY_MS:
            raise InvalidArgument(f"{what}: {value} ms is not a whole day")
        return _within(value, kind.bit_width, True, kind, what)
    if isinstance(value, np.datetime64):
        days = _from_datetime64(value, "D", what)
    else:
        day = _whole_day(value, kind, what)
        days = None if day is None else day.toordinal() - _EPOCH_DAY
    if days is None or kind == pa.date64():
        return None if days is None else days * DAY_MS
    return _within(days, 32, True, kind, what)


def _whole_day(value: object, kind: pa.DataType, what: str) -> datetime.date | None:
    if isinstance(value, str):
        value = _parsed(value, kind, what)
    if isinstance(value, datetime.datetime):
        if value != value:  # NaT, which pandas makes a datetime
            return None
        if value.time() != datetime.time() or _nanosecond(value) or value.tzinfo:
            raise InvalidArgument(f"{what}: {value!r} is a moment, and {kind} has whole days")
        return value.date()
    if isinstance(value, datetime.date):
        return value
    _refuse(value, kind, what)
    return None


def _timestamp(value: object, kind: pa.DataType, what: str) -> WireValue:
    if isinstance(value, int) and not isinstance(value, bool):
        return _within(value, 64, True, kind, what)
    if isinstance(value, str):
        value = _parsed(value, kind, what)
    if isinstance(value, np.datetime64):
        return _from_datetime64(value, kind.unit, what)
    if not isinstance(value, datetime.datetime):
        return _refuse(value, kind, what)
    if value != value:  # NaT
        return None
    offset = value.utcoffset()
    if offset is not None and kind.tz is None:
        raise InvalidArgument(
            f"{what}: {value!r} has a time zone and the column's type, {kind}, has none"
        )
    since = value.replace(tzinfo=None) - _EPOCH - (offset or datetime.timedelta())
    nanoseconds = (since.days * 86_400 + since.seconds) * 1_000_000_000
    nanoseconds += since.microseconds * 1_000 + _nanosecond(value)
    count, rest = divmod(nanoseconds, 1_000_000_000 // PER_SECOND[kind.unit])
    if rest:
        raise InvalidArgument(f"{what}: {value!r} is finer than {kind}")
    return _within(count, 64, True, kind, what)


def _nanosecond(value: datetime.datetime) -> int:
    """pandas' datetimes have a part below the microsecond."""
    part: int = getattr(value, "nanosecond", 0)
    return part


def _from_datetime64(value: np.datetime64, unit: str, what: str) -> int | None:
    if np.isnat(value):
        return None
    exact = value.astype(f"datetime64[{unit}]")
    # Back again: NumPy wraps around in silence where the range of a finer unit ends.
    if exact.astype(value.dtype).astype(np.int64) != value.astype(np.int64):
        raise InvalidArgument(f"{what}: {value!r} has no exact form in the column's unit, {unit}")
    return int(exact.astype(np.int64))


def _parsed(value: str, kind: pa.DataType, what: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(value)
    except ValueError:
        raise InvalidArgument(f"{what}: {value[:80]!r} is not an ISO 8601 {kind}") from None


# ---- rows and batches -----------------------------------------------------------------------


def rows_to_batch(rows: Sequence[Sequence[WireValue]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of wire values as a record batch of this schema, column by column.

    Raises:
        InvalidArgument: a row of another length, a value that does not fit, a null where the
            schema has none.
    """
    try:
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    except ValueError:
        columns = []
    if len(columns) != len(schema):
        raise InvalidArgument(f"each row has {len(schema)} values: {', '.join(schema.names)}")
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = pa.array(values, type=field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidArgument(f"column {field.name!r} ({field.type}): {error}") from None
        _check_nulls(array, field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_to_rows(batch: pa.RecordBatch) -> list[WireRow]:
    """The rows of a batch of plain columns as tuples of wire values."""
    if batch.num_columns == 0:
        return [()] * batch.num_rows
    return list(zip(*(wire_values(column) for column in batch.columns), strict=True))


def wire_values(column: pa.Array) -> list[Any]:
    """The wire values of a column of a plain type; of others what `exact_array` takes."""
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def check_batch(
    data: pa.Table | pa.RecordBatch,
    schema: TableSchema,
    *,
    columns: Sequence[str] | None = None,
    table: str = "",
    validate: bool = False,
    first_row: int = 0,
) -> pa.RecordBatch:
    """The data as one record batch in the table's types, with ``columns`` (all, if None) in order.

    Columns of the table that the data lacks get their default, or null where they may; columns
    that the data has beyond ``columns`` are left out; columns that the table does not have are an
    error. Casts are those that lose nothing; NaN is a value like others. ``validate`` checks the
    data's buffers and text first, for data that comes from the network: kernels believe offsets.
    ``first_row``: number of the first row, for messages.

    Raises:
        ColumnNotFound: the data or ``columns`` names a column that the table does not have.
        InvalidArgument: a column twice, a lossy cast, a null where none may be.
        TooLarge: a row over `MAX_ROW_BYTES`, or all of it over `MAX_CALL_BYTES`.
    """
    schema.check_columns(data.schema.names, table)
    if columns is not None:
        schema.check_columns(columns, table)
    if len(set(data.schema.names)) != len(data.schema.names):
        raise InvalidArgument(f"a column is there twice: {', '.join(data.schema.names)}")
    if validate:
        try:
            data.validate(full=True)
        except pa.ArrowException as error:
            raise InvalidArgument(f"malformed Arrow data: {error}") from None
    wanted = schema.arrow if columns is None else [schema.arrow.field(name) for name in columns]
    arrays = [_column(data, field, schema, first_row) for field in wanted]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(wanted)))
    if batch.nbytes > MAX_CALL_BYTES:
        raise TooLarge("the call", batch.nbytes, MAX_CALL_BYTES)
    check_row_sizes(batch)
    return batch


def _column(
    data: pa.Table | pa.RecordBatch, field: pa.Field, schema: TableSchema, first_row: int
) -> pa.Array:
    place = data.schema.get_field_index(field.name)
    if place < 0:
        if field.name in schema.required:
            raise InvalidArgument(f"column {field.name!r} is missing, and cannot be null")
        return schema.default_arrays([field.name], data.num_rows)[0]
    column = data.column(place)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    first_rows = accumulate(map(len, chunks), initial=first_row)
    cast = [
        exact_cast(chunk, field.type, f"column {field.name!r}", first_row)
        for chunk, first_row in zip(chunks, first_rows, strict=False)
    ]
    size_bytes = sum([chunk.nbytes for chunk in cast])
    if size_bytes > MAX_CALL_BYTES:
        raise TooLarge(f"column {field.name!r}", size_bytes, MAX_CALL_BYTES)
    if len(cast) == 1:
        column = cast[0]
    else:
        column = pa.concat_arrays(cast) if cast else pa.nulls(0, field.type)
    if pa.types.is_date64(field.type) and _has_part_days(column):
        raise InvalidArgument(f"column {field.name!r}: a date64 is not a whole day")
    _check_nulls(column, field)
    return column


def _has_part_days(column: pa.Array) -> bool:
    values = column.view(pa.int64()).drop_null().to_numpy()
    return bool(np.any(values % DAY_MS))


def _check_nulls(column: pa.Array, field: pa.Field) -> None:
    if column.null_count and not field.nullable:
        raise InvalidArgument(f"column {field.name!r} has nulls, and may not")
