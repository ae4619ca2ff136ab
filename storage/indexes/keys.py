"""Entries of an index: a value and a primary key as bytes whose order is that of both.

Part after part, each of which says where it ends:

- a value that may be null begins with 01, or is 00 and then as one of nothing: nulls come first;
- integers, bool, dates, timestamps and decimals in as many bytes as their type has, the highest
  first, the sign turned over;
- floats likewise, all bits of negative ones turned over: -0.0 is 0.0, and NaN, of which there is
  one, is above all others;
- text and bytes escaped (`stelae.storage.kernels.index_api`).

The key's parts follow, in key order. One entry is handled in plain Python, many by kernels.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.schema.indexes import IndexDefinition
from stelae.core.schema.schema import TableSchema, is_plain_type
from stelae.core.schema.values import WireValue, to_wire
from stelae.storage.kernels.api import I32, U8
from stelae.storage.kernels.default import default_index_kernels
from stelae.storage.kernels.index_api import IndexKernels
from stelae.storage.keys.codec import binary_parts, is_variable

Matrix: TypeAlias = NDArray[np.uint8]
"""A row of bytes for each value."""
_TEXT_END = b"\0\1"
_MAX_BYTES = (1 << 31) - 1


class PartCodec:
    """One column's part of an entry."""

    def __init__(self, field: pa.Field) -> None:
        self.name: str = field.name
        self.kind = field.type
        self.nullable: bool = field.nullable
        self.is_text = is_variable(self.kind)
        self.width = 0 if self.is_text else max(1, self.kind.bit_width // 8)
        self.encode = _with_null(_encoder(self.kind, self.width), self.nullable, self.width)

    # ---- many ---------------------------------------------------------------------------------

    def marks(self, column: pa.Array) -> Matrix:
        """Of each value 1, or 0: it is null."""
        if not column.null_count:
            return np.ones((len(column), 1), np.uint8)
        return _valid(column).astype(np.uint8)[:, None]

    def fixed(self, column: pa.Array) -> Matrix:
        """The bytes of values of fixed width; those of null are zeros."""
        count, width = len(column), self.width
        turned = _turned(_bits(column, width), self.kind)
        matrix = np.require(turned, np.uint8, ["C", "W"]).reshape(count, width)
        if column.null_count:
            matrix[~_valid(column)] = 0
        return matrix

    def values(self, matrix: Matrix) -> pa.Array:
        """The values of a key column, which are never null."""
        count, kind = len(matrix), self.kind
        if pa.types.is_boolean(kind):
            return pa.array(matrix[:, 0] != 0)
        numbers = np.ascontiguousarray(matrix).view(f">u{self.width}").reshape(count)
        numbers = numbers.astype(f"=u{self.width}")
        if not pa.types.is_unsigned_integer(kind):
            numbers ^= numbers.dtype.type(1 << 8 * self.width - 1)
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])

    def one(self, entry: bytes, at: int) -> tuple[WireValue, int]:
        """A key column's wire value, and where the next part begins. Raises CorruptData."""
        if self.is_text:
            end = at
            while (end := entry.find(b"\0", end)) >= 0 and entry[end + 1 : end + 2] == b"\xff":
                end += 2
            if end < 0 or entry[end : end + 2] != _TEXT_END:
                raise CorruptData("an index entry", at, "its text does not end")
            text = entry[at:end].replace(b"\0\xff", b"\0")
            return (text.decode() if pa.types.is_string(self.kind) else text), end + 2
        end = at + self.width
        if end > len(entry):
            raise CorruptData("an index entry", at, "it is too short")
        number = int.from_bytes(entry[at:end], "big")
        if pa.types.is_boolean(self.kind):
            return number != 0, end
        signed = not pa.types.is_unsigned_integer(self.kind)
        return number - (1 << 8 * self.width - 1 if signed else 0), end

    def skip(self, entry: bytes, at: int) -> int:
        """Where the part after this one begins."""
        at += self.nullable
        return self.one(entry, at)[1] if self.is_text else at + self.width


class EntryCodec:
    """The entries of one index in one version of its table's schema."""

    def __init__(
        self, schema: TableSchema, index: IndexDefinition, kernels: IndexKernels | None = None
    ) -> None:
        self.column = schema.column_of(index)
        self.place = schema.arrow.get_field_index(self.column)
        """Of the column in the schema."""
        field = schema.arrow.field(self.place)
        # A column never becomes nullable or not, and key columns never change.
        self._value = PartCodec(field)
        self._keys = tuple([PartCodec(f) for f in schema.key_schema])
        self.key_schema = schema.key_schema
        self.columns: tuple[str, ...] = tuple(dict.fromkeys((*schema.key, self.column)))
        """What `encode_batch` reads."""
        self._key_encoders = tuple([part.encode for part in self._keys])
        self._kernels_given = kernels

    @property
    def _kernels(self) -> IndexKernels:
        if self._kernels_given is None:
            self._kernels_given = default_index_kernels()
        return self._kernels_given

    # ---- one ----------------------------------------------------------------------------------

    def encode_one(self, value: WireValue, key: Sequence[WireValue]) -> bytes:
        """The entry of a row, from wire values."""
        encoders = self._key_encoders
        if len(encoders) == 1:
            return self._value.encode(value) + encoders[0](key[0])
        return self._value.encode(value) + b"".join(
            [encode(part) for encode, part in zip(encoders, key, strict=True)]
        )

    def prefix_of(self, value: object) -> bytes:
        """What all entries of this value begin with, and no others; None: of nulls.

        Raises:
            InvalidArgument: it is no value of the column.
        """
        part, what = self._value, f"column {self.column!r}"
        if value is None and not part.nullable:
            raise InvalidArgument(f"{what} is never null")
        if is_plain_type(part.kind):
            return part.encode(to_wire(value, part.kind, what))
        try:
            if pa.types.is_float16(part.kind) and value is not None:
                value = np.float16(value)  # type: ignore[arg-type]  # or a TypeError
            column = pa.array([value], part.kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"{what}: {value!r} does not fit {part.kind}: {error}") from None
        mark = part.marks(column).tobytes() if part.nullable else b""
        return mark + part.fixed(column).tobytes()

    def value_end(self, entry: bytes) -> int:
        """Where the value's part of an entry ends. Raises CorruptData."""
        return self._value.skip(entry, 0)

    def key_of(self, entry: bytes) -> tuple[WireValue, ...]:
        """The primary key that an entry names, as wire values. Raises CorruptData."""
        at, key = self.value_end(entry), []
        for part in self._keys:
            value, at = part.one(entry, at)
            key.append(value)
        if at != len(entry):
            raise CorruptData("an index entry", at, f"it has {len(entry)} bytes")
        return tuple(key)

    # ---- many ---------------------------------------------------------------------------------

    def encode_batch(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The entry of each row; ``batch`` has the columns of `columns`, among others.

        Raises:
            InvalidArgument: over 2 GiB in all.
        """
        parts: list[Matrix | tuple[I32, U8]] = []
        for part in (self._value, *self._keys):
            column = batch.column(part.name)
            if part.nullable:
                parts.append(part.marks(column))
            if not part.is_text:
                parts.append(part.fixed(column))
            elif column.null_count:
                parts.append(binary_parts(column.fill_null("" if _is_string(column) else b"")))
            else:
                parts.append(binary_parts(column))
        return self._joined(_gathered(parts), batch.num_rows)

    def _joined(self, parts: list[Matrix | tuple[I32, U8]], count: int) -> pa.BinaryArray:
        only = parts[0]
        if len(parts) == 1 and isinstance(only, np.ndarray):
            ends, data = np.arange(count + 1, dtype=np.int64) * only.shape[1], only.reshape(-1)
            _check_size(int(ends[-1]))
            return entries_of(ends.astype(np.int32), data)
        lengths = np.zeros(count, np.int64)
        for part in parts:
            if isinstance(part, tuple):
                self._kernels.text_lengths(*part, lengths)
            else:
                lengths += part.shape[1]
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        _check_size(int(ends[-1]))
        data, cursor = np.empty(int(ends[-1]), np.uint8), ends[:-1].copy()
        for part in parts:
            if isinstance(part, tuple):
                self._kernels.put_text(*part, cursor, data)
            else:
                self._kernels.put_parts(part.reshape(-1), part.shape[1], cursor, data)
        return entries_of(ends.astype(np.int32), data)

    def keys_of(self, entries: pa.BinaryArray) -> pa.RecordBatch:
        """The primary keys that entries name. Raises CorruptData."""
        offsets, data = binary_parts(entries)
        cursor, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        columns = []
        for i, part in enumerate((self._value, *self._keys)):
            column: pa.Array | None
            cursor += part.nullable
            if part.is_text:
                column = self._texts(part, data, cursor, ends)
            else:
                if len(cursor) and bool(np.any(cursor + part.width > ends)):
                    raise CorruptData("index entries", 0, "one is too short")
                places = cursor[:, None] + np.arange(part.width)
                column = part.values(data[places]) if i else None
                cursor += part.width
            if i:
                columns.append(column)
        if bool(np.any(cursor != ends)):
            raise CorruptData("index entries", 0, "one does not end where its key does")
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema)

    def _texts(self, part: PartCodec, data: U8, cursor: Any, ends: Any) -> pa.Array:
        begins, lengths = cursor.copy(), np.zeros(len(cursor), np.int64)
        if self._kernels.find_text(data, ends, cursor, lengths) >= 0:
            raise CorruptData("index entries", 0, "a text does not end")
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))).astype(np.int32)
        out = np.empty(int(offsets[-1]), np.uint8)
        self._kernels.take_text(data, begins, offsets, out)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(part.kind, len(cursor), buffers, null_count=0)


def entries_of(offsets: I32, data: U8) -> pa.BinaryArray:
    """Entries as an Arrow array, nothing copied."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, null_count=0)


def _check_size(size_bytes: int) -> None:
    if size_bytes > _MAX_BYTES:
        raise InvalidArgument(f"index entries of one batch take {size_bytes} bytes; split it")


def _gathered(parts: list[Matrix | tuple[I32, U8]]) -> list[Matrix | tuple[I32, U8]]:
    """Neighbours of fixed width as one."""
    found: list[Matrix | tuple[I32, U8]] = []
    for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, tuple)):
        same = list(group)
        if is_text or len(same) == 1:
            found += same
        else:
            found.append(np.hstack(cast(list[Matrix], same)))
    return found


# ---- one column -------------------------------------------------------------------------------


def _is_string(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type))


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    return column.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _bits(column: pa.Array, width: int) -> Any:
    """The values as stored: unsigned numbers, or bytes of a decimal, the lowest first."""
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
    stored = column.buffers()[1]
    begin, count = column.offset * width, len(column)
    if stored is None:
        return np.zeros(count * width, np.uint8)
    raw = np.frombuffer(stored, np.uint8)[begin : begin + count * width]
    return raw.reshape(count, width) if width > 8 else np.require(raw.view(f"=u{width}"), None, "A")


def _turned(bits: Any, kind: pa.DataType) -> U8:
    """Numbers as bytes in the order of the values."""
    if pa.types.is_decimal(kind):
        turned = bits[:, ::-1].copy()
        turned[:, 0] ^= 0x80
        return turned.reshape(-1)  # type: ignore[no-any-return]
    width = bits.dtype.itemsize
    sign = bits.dtype.type(1 << 8 * width - 1)
    if pa.types.is_floating(kind):
        numbers = bits.view(f"f{width}")
        bits = np.where(numbers == 0, bits.dtype.type(0), bits)
        nan = np.array(np.nan, f"f{width}").view(bits.dtype)
        bits = np.where(np.isnan(numbers), nan & ~sign, bits)
        bits = np.where(bits & sign, ~bits, bits | sign)
    elif not (pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind)):
        bits = bits ^ sign
    return bits.astype(f">u{width}").view(np.uint8)  # type: ignore[no-any-return]


def _encoder(kind: pa.DataType, width: int) -> Callable[[Any], bytes]:
    """How one wire value is encoded; of types that are not plain, none ever is."""
    if pa.types.is_string(kind):
        return lambda text: _escape(text.encode())
    if pa.types.is_binary(kind):
        return _escape
    if pa.types.is_floating(kind):
        return _float_encoder(">e" if width == 2 else ">f" if width == 4 else ">d", width)
    if pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind):
        return lambda number: int(number).to_bytes(width, "big")
    bias = 1 << 8 * width - 1
    return lambda number: (number + bias).to_bytes(width, "big")


def _escape(content: bytes) -> bytes:
    return content.replace(b"\0", b"\0\xff") + _TEXT_END


def _float_encoder(form: str, width: int) -> Callable[[Any], bytes]:
    sign, all_bits = 1 << 8 * width - 1, (1 << 8 * width) - 1
    nan = int.from_bytes(struct.pack(form, math.nan), "big") & ~sign

    def encode(number: float) -> bytes:
        bits = int.from_bytes(struct.pack(form, number or 0.0), "big")
        if number != number:
            bits = nan
        return (bits ^ all_bits if bits & sign else bits | sign).to_bytes(width, "big")

    return encode


def _with_null(
    encode: Callable[[Any], bytes], nullable: bool, width: int
) -> Callable[[Any], bytes]:
    if not nullable:
        return encode
    null = b"\0" + (b"\0" * width if width else _TEXT_END)
    return lambda value: null if value is None else b"\1" + encode(value)
