"""Arrow data in the types of a table's columns, at every depth: exact, or refused.

A cast within a family (numbers, text, moments, …) is made only if it loses nothing: no fraction,
digit, time zone, time of day or infinity appears or vanishes. The fields of a struct are matched
by name as columns are; one that the table does not know is an error and is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument

Predicate = Callable[[pa.DataType], bool]

_FAMILIES: dict[str, tuple[Predicate, ...]] = {
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "bool": (pa.types.is_boolean,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "moment": (pa.types.is_date, pa.types.is_timestamp),
    "time": (pa.types.is_time,),
    "duration": (pa.types.is_duration,),
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
}
"""Types within a family are cast to each other where that loses nothing."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text, in any of Arrow's layouts; a dictionary is not."""
    return any([check(kind) for check in _FAMILIES["text"]])


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes, in any of Arrow's layouts; a dictionary is not."""
    return any([check(kind) for check in _FAMILIES["bytes"]])


def exact_cast(column: pa.Array, wanted: pa.DataType, what: str, first_row: int = 0) -> pa.Array:
    """The column in type ``wanted``; ``what`` and ``first_row`` name its values in messages.

    Raises:
        InvalidArgument: another family of types, a loss, or a struct's field that is unknown.
    """
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(column.type):
        return exact_cast(column.dictionary_decode(), wanted, what, first_row)
    found = column.type
    if pa.types.is_null(found):
        return pa.nulls(len(column), wanted)
    if _family(found) != _family(wanted):
        raise InvalidArgument(f"{what}: {found} does not fit type {wanted}")
    if pa.types.is_struct(wanted):
        return _struct(column, wanted, what)
    if pa.types.is_map(wanted):
        return _map(column, wanted, what)
    if _family(wanted) == "list":
        return _list(column, wanted, what)
    return _plain(column, wanted, what, first_row)


def _family(kind: pa.DataType) -> str:
    for family, checks in _FAMILIES.items():
        if any(check(kind) for check in checks):
            return family
    return str(kind).partition("<")[0].partition("[")[0].partition("(")[0]


def _plain(column: pa.Array, wanted: pa.DataType, what: str, first_row: int) -> pa.Array:
    found = column.type
    if pa.types.is_timestamp(found) and found.tz and not getattr(wanted, "tz", None):
        raise InvalidArgument(f"{what}: {found} does not fit type {wanted}: it has a time zone")
    result = _cast(column, wanted)
    if result is None:
        place = _first_refused(column, wanted)
        raise InvalidArgument(
            f"{what}: {found} does not fit type {wanted} without loss: "
            f"{column[place].as_py()!r}, row {first_row + place}"
        )
    return result


def _first_refused(column: pa.Array, wanted: pa.DataType) -> int:
    """The first value that cannot be cast: what is before it can."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _cast(column.slice(low, middle - low), wanted) is None:
            high = middle
        else:
            low = middle
    return low


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """None: something would be lost."""
    try:
        result = column.cast(wanted, safe=True)
    except pa.ArrowException:
        return None
    return result if _is_exact(column, result) else None


def _is_exact(column: pa.Array, result: pa.Array) -> bool:
    """Whether a cast that Arrow calls safe has lost nothing; NaN is a value like others."""
    found, wanted = column.type, result.type
    if wanted == pa.float32() and pa.types.is_floating(found):  # rounded, as ever, but not to inf
        return bool(pc.sum(pc.is_inf(result)) == pc.sum(pc.is_inf(column)))
    there_and_back = (pa.types.is_date(wanted) and pa.types.is_timestamp(found)) or (
        pa.types.is_decimal(wanted) and pa.types.is_floating(found)
    )
    if not there_and_back:
        return True
    return bool(pc.all(pc.equal(result.cast(found), column)).as_py() is not False)


def _struct(column: pa.Array, wanted: pa.DataType, what: str) -> pa.Array:
    found = column.type
    names = [found.field(place).name for place in range(found.num_fields)]
    known = {wanted.field(place).name for place in range(wanted.num_fields)}
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        raise InvalidArgument(
            f"{what}: {found} does not fit type {wanted}: "
            + (f"there is no field {unknown[0]!r}" if unknown else "a field is there twice")
        )
    parts = []
    for place in range(wanted.num_fields):
        field = wanted.field(place)
        if field.name in names:
            part = pc.struct_field(column, field.name)
            parts.append(exact_cast(part, field.type, f"{what}.{field.name}"))
        else:
            parts.append(pa.nulls(len(column), field.type))
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_mask(column))


def _list(column: pa.Array, wanted: pa.DataType, what: str) -> pa.Array:
    if pa.types.is_fixed_size_list(wanted):
        return _fixed_list(column, wanted, what)
    child = exact_cast(pc.list_flatten(column), wanted.value_type, f"{what}[]")
    is_large = pa.types.is_large_list(wanted)
    made = pa.LargeListArray if is_large else pa.ListArray
    offsets = _offsets(column, pa.int64() if is_large else pa.int32())
    return made.from_arrays(offsets, child, type=wanted, mask=_mask(column))


def _offsets(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where each list of the column begins in its flattened elements, and where the last ends."""
    offsets = np.zeros(len(column) + 1, np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets, kind)


def _fixed_list(column: pa.Array, wanted: pa.DataType, what: str) -> pa.Array:
    size = wanted.list_size
    lengths = pc.list_value_length(column)
    if bool(pc.any(pc.not_equal(lengths, size)).as_py()):
        raise InvalidArgument(f"{what}: each value has {size} elements, as {wanted} says")
    child = exact_cast(pc.list_flatten(column), wanted.value_type, f"{what}[]")
    if not column.null_count:
        return pa.FixedSizeListArray.from_arrays(child, type=wanted)
    # Under a null as many elements stand as under a value, which have none of the child's.
    is_there = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), size)
    places = np.where(is_there, np.cumsum(is_there) - 1, -1)
    spread = child.take(pa.array(places, mask=places < 0))
    return pa.FixedSizeListArray.from_arrays(spread, type=wanted, mask=_mask(column))


def _map(column: pa.Array, wanted: pa.DataType, what: str) -> pa.Array:
    lists = column.cast(_as_list(column.type))
    pairs = pc.list_flatten(lists)
    keys = exact_cast(pc.struct_field(pairs, [0]), wanted.key_type, f"{what} (key)")
    items = exact_cast(pc.struct_field(pairs, [1]), wanted.item_type, f"{what}[]")
    offsets = _offsets(lists, pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_mask(column))


def _as_list(kind: pa.DataType) -> pa.DataType:
    """The list of pairs that a map is."""
    pair = pa.struct([pa.field("key", kind.key_type, False), pa.field("value", kind.item_type)])
    return pa.list_(pair)


def _mask(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None
