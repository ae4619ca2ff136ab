"""Python values as an Arrow column, at every depth: exact, or refused.

Arrow's own conversion of Python values rounds, cuts and drops in silence: 1.5 becomes 1 in an int64
column, an aware datetime loses its zone, a struct's unknown field vanishes. Here every value is
converted by the same rules as a single one (`stelae.core.schema.values.to_wire`), whatever the
number of rows. Columns whose values all have the one Python type that Arrow converts exactly take
Arrow's way, which is faster.
"""

from __future__ import annotations

import datetime
import decimal
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import is_plain_type
from stelae.core.schema.values import PER_SECOND, to_wire

Where = Callable[[int], str]
"""Names a value by its place, for messages."""

_MISSING = ("NAType", "NaTType")


def exact_column(values: Sequence[object], field: pa.Field) -> pa.Array:
    """A column of these values in the field's type.

    Raises:
        InvalidArgument: a value that does not fit, naming column, row and value.
    """
    return exact_array(values, field.type, lambda row: f"column {field.name!r}, row {row}")


def exact_array(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    """An array of these values in this type; ``where`` names each in messages.

    Raises:
        InvalidArgument: a value that does not fit.
    """
    if pa.types.is_dictionary(kind):
        return exact_array(values, kind.value_type, where).dictionary_encode().cast(kind)
    if is_plain_type(kind):
        return _plain(values, kind, where)
    if pa.types.is_struct(kind):
        return _structs(values, kind, where)
    if pa.types.is_map(kind):
        return _maps(values, kind, where)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(values, kind, where)
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists(values, kind, where)
    if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
        stored = exact_array(values, kind.storage_type, where)
        column: pa.Array = pa.ExtensionArray.from_storage(kind, stored)
        return column
    return _others(values, kind, where)


# ---- plain values ---------------------------------------------------------------------------


def _plain(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    try:
        column = _by_arrow(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError):
        column = None  # below it is told which value it is
    if column is not None:
        return column
    wire = [
        None if value is None else to_wire(value, kind, where(place))
        for place, value in enumerate(values)
    ]
    if pa.types.is_date32(kind):
        return pa.array(wire, pa.int32()).view(kind)
    if pa.types.is_temporal(kind):
        return pa.array(wire, pa.int64()).view(kind)
    return pa.array(wire, kind)


def _by_arrow(values: Sequence[object], kind: pa.DataType) -> pa.Array | None:
    """The column where all values have Python types that Arrow takes into this one as they are;
    else None. Raises what Arrow raises."""
    found = set(map(type, values)) - {type(None)}
    if found == {int} and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    if pa.types.is_timestamp(kind):
        if not found <= {datetime.datetime} or (kind.tz is None and _has_zones(values)):
            return None
        # Whole microseconds first: into coarser units Arrow cuts in silence.
        exact = kind.unit in ("us", "ns")
        fine = pa.array(values, kind if exact else pa.timestamp("us", kind.tz))
        return fine if exact else fine.cast(kind, safe=True)
    if kind == pa.float32():
        if not found <= {float}:
            return None
        doubles = pa.array(values, pa.float64())
        column = doubles.cast(kind)
        is_same = pc.sum(pc.is_inf(column)) == pc.sum(pc.is_inf(doubles))
        return column if is_same else None
    for takes, types in _TAKEN_AS_THEY_ARE:
        if takes(kind):
            return pa.array(values, kind) if found <= types else None
    return None


_TAKEN_AS_THEY_ARE: tuple[tuple[Callable[[pa.DataType], bool], set[type]], ...] = (
    (pa.types.is_integer, {int}),
    (pa.types.is_float64, {float, int}),
    (pa.types.is_boolean, {bool}),
    (pa.types.is_string, {str}),
    (pa.types.is_binary, {bytes}),
    (pa.types.is_date32, {datetime.date}),
)


def _has_zones(values: Sequence[Any]) -> bool:
    return any([value is not None and value.tzinfo is not None for value in values])


# ---- nested values --------------------------------------------------------------------------


def _structs(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    names = frozenset(field.name for field in fields)
    given: list[Mapping[Any, object]] = []
    missing = [_is_missing(value) for value in values]
    for place, value in enumerate(values):
        if missing[place]:
            value = {}
        elif not isinstance(value, Mapping):
            raise _refused(value, kind, where(place))
        elif not names.issuperset(value):
            unknown = next(name for name in value if name not in names)
            raise InvalidArgument(f"{where(place)}: {kind} has no field {unknown!r}")
        given.append(value)
    parts = [
        exact_array([value.get(f.name) for value in given], f.type, _field_of(where, f.name))
        for f in fields
    ]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_mask(missing))


def _field_of(where: Where, name: str) -> Where:
    return lambda place: f"{where(place)}.{name}"


def _lists(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    given, missing = _sequences(values, kind, where)
    offsets, child = _children(given, kind.value_type, where)
    is_large = pa.types.is_large_list(kind)
    made = pa.LargeListArray if is_large else pa.ListArray
    places = pa.array(offsets, pa.int64() if is_large else pa.int32())
    return made.from_arrays(places, child, type=kind, mask=_mask(missing))


def _fixed_lists(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    given, missing = _sequences(values, kind, where)
    for place, value in enumerate(given):
        if missing[place]:
            given[place] = [None] * kind.list_size
        elif len(value) != kind.list_size:
            raise InvalidArgument(f"{where(place)}: {len(value)} elements, and {kind} has others")
    _, child = _children(given, kind.value_type, where)
    return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=_mask(missing))


def _maps(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    pairs = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    given, missing = _sequences(pairs, kind, where)
    for place, value in enumerate(given):
        if not all([isinstance(pair, tuple | list) and len(pair) == 2 for pair in value]):
            raise _refused(values[place], kind, where(place))
    keys = [[key for key, _ in value] for value in given]
    offsets, key_column = _children(keys, kind.key_type, where)
    if key_column.null_count:
        raise InvalidArgument(f"{where(0)} or after: a key of {kind} may not be null")
    items = [[item for _, item in value] for value in given]
    _, item_column = _children(items, kind.item_type, where)
    places = pa.array(offsets, pa.int32())
    return pa.MapArray.from_arrays(places, key_column, item_column, type=kind, mask=_mask(missing))


def _sequences(
    values: Iterable[object], kind: pa.DataType, where: Where
) -> tuple[list[Sequence[Any]], list[bool]]:
    """Each value as a sequence, an empty one where it is missing; and where that is."""
    given: list[Sequence[Any]] = []
    missing = []
    for place, value in enumerate(values):
        missing.append(_is_missing(value))
        if missing[-1]:
            given.append(())
        elif isinstance(value, np.ndarray):
            given.append(list(value))
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            given.append(value)
        else:
            raise _refused(value, kind, where(place))
    return given, missing


def _children(
    given: Sequence[Sequence[Any]], kind: pa.DataType, where: Where
) -> tuple[list[int], pa.Array]:
    """The offsets of all elements one behind the other, and they as one column."""
    offsets = [0, *accumulate(map(len, given))]

    def where_child(place: int) -> str:
        parent = bisect_right(offsets, place) - 1
        return f"{where(parent)}[{place - offsets[parent]}]"

    return offsets, exact_array([each for value in given for each in value], kind, where_child)


# ---- all else -------------------------------------------------------------------------------


def _others(values: Sequence[object], kind: pa.DataType, where: Where) -> pa.Array:
    """Decimals, times, durations and the like: as Arrow takes them, if it gives the same back."""
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        places = [n for n, value in enumerate(values) if _is_count(value)]
        if places:
            return _counts(values, places, kind, where)
    given = [None if _is_missing(value) else _plain_python(value, kind) for value in values]
    for place, value in enumerate(given):
        is_taken = isinstance(value, _taken_by(kind)) and not isinstance(value, bool)
        if value is not None and not is_taken:
            raise _refused(values[place], kind, where(place))
    try:
        column = pa.array(given, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        column = None
    if column is None or not _gives_back(column, given):
        place = next((n for n, value in enumerate(given) if not _fits(value, kind)), 0)
        raise _refused(values[place], kind, where(place))
    return column


def _is_count(value: object) -> bool:
    """Whether it is an integer: of a time or a duration, a count of the type's unit, as in a column
    of timestamps."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def _counts(
    values: Sequence[Any], places: Sequence[int], kind: pa.DataType, where: Where
) -> pa.Array:
    """Times or durations of which those at ``places`` are counts. Python's own types have no
    nanoseconds, and end earlier, so the counts go past them."""
    others = list(values)
    for place in places:
        others[place] = None
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    stored = _others(others, kind, where).view(width).to_pylist()
    a_day = 86_400 * PER_SECOND[kind.unit]
    for place in places:
        count = int(values[place])
        if pa.types.is_time(kind) and not 0 <= count < a_day:
            raise _refused(values[place], kind, where(place))
        to_wire(count, width, where(place))
        stored[place] = count
    return pa.array(stored, width).view(kind)


def _plain_python(value: object, kind: pa.DataType) -> object:
    """The Python value that `_taken_by` knows, of one that stands for it."""
    if isinstance(value, np.timedelta64):  # whose item() is an int where Python's range ends
        microseconds = value.astype("timedelta64[us]")
        return microseconds.item() if microseconds == value else value
    if isinstance(value, np.generic):
        value = value.item()
    is_flag = isinstance(value, bool)
    if isinstance(value, int) and not is_flag and pa.types.is_decimal(kind):
        return decimal.Decimal(int(value))
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def _taken_by(kind: pa.DataType) -> tuple[type, ...]:
    if pa.types.is_decimal(kind):
        return (decimal.Decimal,)
    if pa.types.is_time(kind):
        return (datetime.time,)
    if pa.types.is_duration(kind):
        return (datetime.timedelta,)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return (str,)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return (bytes,)
    return (object,)


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        return _gives_back(pa.array([value], kind), [value])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False


def _gives_back(column: pa.Array, given: Sequence[object]) -> bool:
    if pa.types.is_duration(column.type) and column.type.unit == "ns":
        try:
            column = column.cast(pa.duration("us"))  # as_py would give pandas' kind
        except pa.ArrowInvalid:  # nanoseconds of pandas' kind, which Python's does not have
            return False
    kept: list[object] = column.to_pylist()
    if pa.types.is_float16(column.type):  # NaN equals nothing
        return all([a == b or (a != a and b != b) for a, b in zip(kept, given, strict=True)])
    return kept == list(given)


def _is_missing(value: object) -> bool:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in _MISSING


def _mask(missing: Sequence[bool]) -> pa.Array | None:
    return pa.array(missing, pa.bool_()) if any(missing) else None


def _refused(value: object, kind: pa.DataType, what: str) -> InvalidArgument:
    shown = repr(value)[:80]
    return InvalidArgument(
        f"{what}: {shown} is a {type(value).__name__}, and does not fit type {kind}"
    )
