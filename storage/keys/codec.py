"""Keys as hashes and as bytes.

**Exact** keys are one column of integers, bool, date or timestamp: the value as 64 bits
(sign-extended) goes through the finalizer of splitmix64, a bijection, so that equal hashes mean
equal keys and nobody needs to compare. All other keys are hashed (XXH64) over their **encoding**,
which is injective: column by column in key order, a fixed-width value as its 8 little-endian bytes,
text or bytes as 4 bytes of length and its bytes; only the last column goes without the length.

Hashes and encodings are kept in segment summaries on disk: they must never change. Each table has a
seed of its own (`TableSchema.key_seed`), which no client chooses: with a known seed keys could be
chosen whose hashes collide, and every probe of the index would pass all of them.

One key is handled in plain Python in about a microsecond; a batch by kernels, which are only
loaded then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import WireValue
from stelae.storage.kernels.api import I32, U8, U64, Kernels
from stelae.storage.kernels.default import default_kernels

MASK = (1 << 64) - 1
MAX_ENCODED_BYTES = (1 << 31) - 1


def mix(value: int, seed: int) -> int:
    """Finalizer of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
    generators", 2014) over ``value + seed``: a bijection of 64-bit values for each seed."""
    x = (value + seed) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


class ColumnCodec:
    """Hashes and encodes the values of some columns, in the order given."""

    def __init__(
        self,
        fields: Sequence[pa.Field],
        seed: int,
        hash_bits: int = 64,
        kernels: Kernels | None = None,
    ) -> None:
        """``hash_bits`` below 64 keeps only that many upper bits, so that tests meet collisions;
        ``kernels`` are numba's by default."""
        self._fields = tuple(fields)
        self.seed = seed
        self._mask = MASK ^ (MASK >> hash_bits)
        self._kernels_given = kernels
        self._fixed = tuple(not is_variable(field.type) for field in fields)
        self._whole = len(fields) == 1 and self._fixed[0]
        self.exact = self._whole and hash_bits == 64
        self._encoders = tuple(
            _encode_fixed if is_fixed else _variable_encoder(field.type, prefix=i + 1 < len(fields))
            for i, (field, is_fixed) in enumerate(zip(fields, self._fixed, strict=True))
        )

    @property
    def _kernels(self) -> Kernels:
        if self._kernels_given is None:
            self._kernels_given = default_kernels()
        return self._kernels_given

    # ---- one ----------------------------------------------------------------------------------

    def hash_one(self, key: Sequence[WireValue]) -> int:
        """The 64-bit hash of a tuple of wire values; the same as `hash_batch` gives."""
        if self._whole:
            x = (key[0] + self.seed) & MASK  # type: ignore[operator]
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
            x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
            return (x ^ (x >> 31)) & self._mask
        return xxhash.xxh64_intdigest(self.encode_one(key), self.seed) & self._mask

    def encode_one(self, key: Sequence[WireValue]) -> bytes:
        """The encoding of a tuple of wire values."""
        encoders = self._encoders
        if len(encoders) == 1:
            return encoders[0](key[0])
        return b"".join([e(value) for e, value in zip(encoders, key, strict=True)])

    # ---- many ---------------------------------------------------------------------------------

    def hash_batch(self, batch: pa.RecordBatch) -> U64:
        """The hash of each row; ``batch`` has the columns, by name, among others.

        Raises:
            InvalidArgument: a column has nulls or another type.
        """
        out = np.empty(batch.num_rows, np.uint64)
        seed = np.uint64(self.seed)
        if self._whole:
            self._kernels.mix_values(fixed_bits(self._column(batch, 0)), seed, out)
        else:
            offsets, data = binary_parts(self.encode_batch(batch))
            self._kernels.hash_bytes(offsets, data, seed, out)
        if self._mask != MASK:
            out &= np.uint64(self._mask)
        return out

    def encode_batch(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The encoding of each row. One column of text or bytes is not copied.

        Raises:
            InvalidArgument: a column has nulls or another type; over 2 GiB in all.
        """
        columns = [self._column(batch, i) for i in range(len(self._fields))]
        if len(columns) == 1 and not self._fixed[0]:
            return columns[0].cast(pa.binary())
        fixed = [fixed_bits(c) if f else None for c, f in zip(columns, self._fixed, strict=True)]
        parts = [None if f else binary_parts(c) for c, f in zip(columns, self._fixed, strict=True)]
        ends = np.zeros(batch.num_rows + 1, np.int64)
        for i, part in enumerate(parts):
            last = i + 1 == len(parts)
            ends[1:] += 8 if part is None else np.diff(part[0]) + (0 if last else 4)
        np.cumsum(ends, out=ends)
        if ends[-1] > MAX_ENCODED_BYTES:
            raise InvalidArgument(f"keys of one batch take {int(ends[-1])} bytes; 2 GiB is the end")
        data = np.empty(int(ends[-1]), np.uint8)
        cursor = ends[:-1].copy()
        for i, (values, part) in enumerate(zip(fixed, parts, strict=True)):
            if values is not None:
                self._kernels.put_fixed(values, cursor, data)
            elif part is not None:
                self._kernels.put_variable(*part, i + 1 < len(parts), cursor, data)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), batch.num_rows, buffers, null_count=0)

    def _column(self, batch: pa.RecordBatch, i: int) -> pa.Array:
        field = self._fields[i]
        column = batch.column(field.name)
        if column.type != field.type:
            raise InvalidArgument(
                f"column {field.name!r} has type {column.type}; it should be {field.type}"
            )
        if column.null_count:
            raise InvalidArgument(f"key column {field.name!r} has nulls")
        return column


class KeyCodec(ColumnCodec):
    """Hashes and encodes primary keys of a table. ``exact``: equal hashes mean equal keys."""

    def __init__(
        self, schema: TableSchema, hash_bits: int = 64, kernels: Kernels | None = None
    ) -> None:
        super().__init__(list(schema.key_schema), schema.key_seed, hash_bits, kernels)


def is_variable(kind: pa.DataType) -> bool:
    """Whether values of this key type are text or bytes; all others are 64 bits or less."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _encode_fixed(value: WireValue) -> bytes:
    return (value & MASK).to_bytes(8, "little")  # type: ignore[operator]


def _variable_encoder(kind: pa.DataType, prefix: bool) -> Callable[[WireValue], bytes]:
    if pa.types.is_string(kind):
        plain: Callable[[WireValue], bytes] = str.encode  # type: ignore[assignment]
    else:
        plain = bytes  # type: ignore[assignment]
    if not prefix:
        return plain

    def with_length(value: WireValue) -> bytes:
        content = plain(value)
        return len(content).to_bytes(4, "little") + content

    return with_length


def fixed_bits(column: pa.Array) -> U64:
    """Values of a column of fixed width, without nulls, as 64 bits each, sign-extended."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False).astype(np.uint64)  # type: ignore[no-any-return]
    if pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int64())
    values = column.to_numpy(zero_copy_only=True)
    if values.dtype.kind == "u":
        values = values.astype(np.uint64, copy=False)
    else:
        values = values.astype(np.int64, copy=False).view(np.uint64)
    return np.require(values, np.uint64, ["C", "A"])


def binary_parts(column: pa.Array) -> tuple[I32, U8]:
    """Offsets (one more than rows) and data of a text or binary column without nulls, uncopied."""
    _validity, offsets, data = column.buffers()
    if len(column) == 0 or offsets is None:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    # A buffer may be longer than its column needs, by any number of bytes.
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return np.require(bounds, np.int32, ["C", "A"]), content
