"""Keys out of a segment's summary: the way back from what `stelae.storage.keys.codec` makes of
them.

The hash of an exact key is a bijection of its 64 bits, so that the key is got back from it; other
keys are there in their encoding. Column by column, without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.storage.kernels.api import I64, U8, U64
from stelae.storage.keys.codec import MASK, binary_parts, is_variable
from stelae.storage.keys.merge import Summary

_LENGTH_BYTES = 4
_FIXED_BYTES = 8
_BACK = pow(0x94D049BB133111EB, -1, 1 << 64), pow(0xBF58476D1CE4E5B9, -1, 1 << 64)
_BACK_1, _BACK_2 = np.uint64(_BACK[0]), np.uint64(_BACK[1])
_SIGN = 1 << 63


def unmix(hashes: U64, seed: int) -> U64:
    """The 64 bits of each exact key, from its hash: `stelae.storage.keys.codec.mix` undone."""
    x: U64 = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    x = x * _BACK_1
    x = x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))
    x = x * _BACK_2
    x = x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))
    x = x - np.uint64(seed)
    return x


def exact_value(kind: pa.DataType, seed: int) -> Callable[[int], Any] | None:
    """What makes one exact key's wire value of its hash. None: `decode_keys` does."""
    if pa.types.is_unsigned_integer(kind):
        return lambda found: _unmix_one(found, seed)
    if pa.types.is_boolean(kind):
        return lambda found: bool(_unmix_one(found, seed))
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return lambda found: (_unmix_one(found, seed) ^ _SIGN) - _SIGN
    return None


def _unmix_one(found: int, seed: int) -> int:
    """As `unmix`."""
    x = (found ^ found >> 31 ^ found >> 62) * _BACK[0] & MASK
    x = (x ^ x >> 27 ^ x >> 54) * _BACK[1] & MASK
    return (x ^ x >> 30 ^ x >> 60) - seed & MASK


def decode_keys(
    fields: Sequence[pa.Field], summary: Summary, rows: NDArray[np.int64], seed: int
) -> pa.RecordBatch:
    """The key columns (``fields``, in key order) of some rows of a segment; ``seed``: the table's,
    with which its keys are hashed."""
    schema = pa.schema(list(fields))
    if summary.keys is None:
        arrays = [_fixed_array(unmix(summary.hashes[rows], seed), fields[0].type)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    keys = summary.keys.take(pa.array(rows))
    if len(fields) == 1 and is_variable(fields[0].type):
        return pa.RecordBatch.from_arrays([keys.cast(fields[0].type)], schema=schema)
    return pa.RecordBatch.from_arrays(_split(fields, keys), schema=schema)


def _split(fields: Sequence[pa.Field], keys: pa.BinaryArray) -> list[pa.Array]:
    """The columns that encodings were joined from."""
    offsets, data = binary_parts(keys)
    cursor, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    arrays: list[pa.Array] = []
    for place, field in enumerate(fields):
        if not is_variable(field.type):
            bits = _taken(data, cursor, _FIXED_BYTES).view("<u8").reshape(-1)
            arrays.append(_fixed_array(bits, field.type))
            cursor = cursor + _FIXED_BYTES
            continue
        if place + 1 < len(fields):
            lengths = _taken(data, cursor, _LENGTH_BYTES).view("<u4").reshape(-1).astype(np.int64)
            cursor = cursor + _LENGTH_BYTES
        else:
            lengths = ends - cursor
        arrays.append(_variable_array(data, cursor, lengths, field.type))
        cursor = cursor + lengths
    return arrays


def _taken(data: U8, starts: I64, size: int) -> U8:
    """``size`` bytes from each start."""
    return np.ascontiguousarray(data[starts[:, None] + np.arange(size)])


def _variable_array(data: U8, starts: I64, lengths: I64, kind: pa.DataType) -> pa.Array:
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    at = np.repeat(starts - ends[:-1], lengths) + np.arange(int(ends[-1]))
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data[at])]
    return pa.Array.from_buffers(kind, len(starts), buffers, null_count=0)


def _fixed_array(bits: U64, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(bits != 0)
    if pa.types.is_unsigned_integer(kind):
        return pa.array(bits.astype(kind.to_pandas_dtype()))
    values = bits.view(np.int64)
    if pa.types.is_date32(kind):
        return pa.array(values.astype(np.int32)).view(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values).view(kind)
    return pa.array(values.astype(kind.to_pandas_dtype()))
