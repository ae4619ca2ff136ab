"""A checksum over all rows of a tablet that is the same on every replica, however each holds them.

A row's hash is made of its values as they are seen (columns by id, in the schema in force) and its
version; the digest adds up the hashes, so neither order nor segments nor what is dead matter. It
tells apart what went wrong by accident, not what someone forged. For ``stelae check`` and tests.

Work goes column by column in NumPy: a row of ten columns costs about a microsecond. Taken on the
event loop, computed off it. Nested types are hashed through their children.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.core.schema.schema import VERSION_COLUMN, TableSchema
from stelae.storage.kernels.api import U8, U64, Kernels
from stelae.storage.kernels.default import default_kernels
from stelae.storage.keys.codec import MASK, binary_parts, mix
from stelae.storage.rows.gather import Snapshot

_SEED = 0x5354454C41455355
_FIXED: dict[int, type[np.generic]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_NULL = np.uint64(0xD1B54A32D192ED03)
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Checksum(msgspec.Struct, frozen=True, array_like=True):
    """What two replicas of a tablet must agree in after the same log entry."""

    index: int
    """After this entry of the log."""
    row_count: int
    rows: str
    """32 hex digits over all rows and versions."""
    rest: int
    """CRC-32C over the next version, the group's time, clients' results and the table's record."""


@dataclass(frozen=True, slots=True)
class ChecksumSource:
    """The rows at one point of the log, held until they are summed up."""

    index: int
    schema: TableSchema
    snapshot: Snapshot
    rest: int

    def compute(self, kernels: Kernels | None = None) -> Checksum:
        """Read all rows. Off the loop, if they are many."""
        kernels = kernels or default_kernels()
        first = second = count = 0
        for batch in self.snapshot.batches(with_versions=True):
            hashes = row_hashes(batch, self.schema, kernels)
            first += int(hashes.sum(dtype=np.uint64))
            second += int(_mix(hashes + _ODD).sum(dtype=np.uint64))
            count += len(hashes)
        return Checksum(self.index, count, f"{first & MASK:016x}{second & MASK:016x}", self.rest)


def row_hashes(batch: pa.RecordBatch, schema: TableSchema, kernels: Kernels) -> U64:
    """A hash of each row of a batch with all columns of ``schema`` and ``_version``."""
    total = np.zeros(batch.num_rows, np.uint64)
    ids = dict(zip(schema.arrow.names, schema.column_ids, strict=True))
    for name, column_id in (*ids.items(), (VERSION_COLUMN, 0)):
        hashes = _hashes(batch.column(name), kernels)
        total += _mix(hashes + np.uint64(mix(column_id, _SEED)))
    return _mix(total)


def _mix(values: U64) -> U64:
    """`stelae.storage.keys.codec.mix` with seed 0, for arrays; changes its argument."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _hashes(column: pa.Array, kernels: Kernels) -> U64:
    """A hash of each value, which its type's representation does not change; of null, `_NULL`."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL, np.uint64)
    if isinstance(column, pa.ExtensionArray):
        return _hashes(column.storage, kernels)
    if pa.types.is_dictionary(kind):
        return _hashes(column.dictionary_decode(), kernels)
    if pa.types.is_boolean(kind):
        return _hashes(column.cast(pa.uint8()), kernels)
    if pa.types.is_struct(kind):
        hashes = _struct_hashes(column, kernels)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        hashes = _list_hashes(column, kernels)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _text_hashes(column, kernels)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        hashes = _text_hashes(column.cast(pa.binary()), kernels)
    elif (width := _bit_width(kind)) is not None:
        hashes = _fixed_hashes(column, width)
    else:
        written = pa.array([repr(value) for value in column.to_pylist()], pa.string())
        hashes = _text_hashes(written, kernels)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _bit_width(kind: pa.DataType) -> int | None:
    """Of types that are one block of bits a value."""
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return int(kind.bit_width)
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width) * 8
    return None


def _fixed_hashes(column: pa.Array, width: int) -> U64:
    kind = column.type
    if pa.types.is_floating(kind):
        # A NaN is a NaN, whatever its other bits.
        column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
    data = column.buffers()[1]
    if width not in _FIXED:
        return _wide_hashes(_bytes_of(data), column.offset, len(column), width // 8)
    if data is None:
        return np.zeros(len(column), np.uint64)
    bits = np.frombuffer(data, _FIXED[width], len(column), column.offset * width // 8)
    return _mix(bits.astype(np.uint64) + np.uint64(_SEED))


def _bytes_of(data: pa.Buffer | None) -> U8:
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _wide_hashes(data: U8, offset: int, count: int, width_bytes: int) -> U64:
    hashes = np.full(count, _SEED, np.uint64)
    table = data[offset * width_bytes : (offset + count) * width_bytes].reshape(count, width_bytes)
    for start in range(0, width_bytes, 8):
        word = np.zeros((count, 8), np.uint8)
        part = table[:, start : start + 8]
        word[:, : part.shape[1]] = part
        hashes = _mix(hashes * _ODD + word.view(np.uint64)[:, 0])
    return hashes


def _text_hashes(column: pa.Array, kernels: Kernels) -> U64:
    out = np.empty(len(column), np.uint64)
    offsets, data = binary_parts(column)
    kernels.hash_bytes(offsets, data, np.uint64(_SEED), out)
    return out


def _struct_hashes(column: pa.Array, kernels: Kernels) -> U64:
    hashes = np.full(len(column), _SEED, np.uint64)
    for child in column.flatten():
        hashes = _mix(hashes * _ODD + _hashes(child, kernels))
    return hashes


def _list_hashes(column: pa.Array, kernels: Kernels) -> U64:
    lengths: NDArray[np.int64] = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    places = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(starts, lengths)
    elements = _hashes(column.flatten(), kernels)  # without what lies under nulls
    elements = _mix(elements + _mix(places.astype(np.uint64) + np.uint64(_SEED)))
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(elements, out=sums[1:])
    return _mix(sums[ends] - sums[starts] + _mix(lengths.astype(np.uint64) + _ODD))
