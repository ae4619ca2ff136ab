"""Rows of an image read one by one: the same as of whole ones, whatever the columns."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.schema.schema import TableSchema
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.decoding import exact_value
from stelae.storage.segments.cells import row_reader
from stelae.storage.segments.image import BLOCK_BYTES, Image
from stelae.storage.segments.image_rows import ImageRows
from stelae.storage.segments.partial_image import PartialImage
from tests.unit.storage.segments.test_partial_image import made

ROWS = 3000
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
FIELDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *[pa.field(str(kind), kind) for kind in NUMBERS],
        *[("f4", pa.float32()), ("f8", pa.float64()), ("flag", pa.bool_())],
        *[("text", pa.string()), ("raw", pa.binary()), ("none", pa.string())],
        *[("day", pa.date32()), ("when", pa.timestamp("us")), ("sure", pa.string())],
    ]
)


def opened(data: bytes) -> PartialImage:
    """An image of which no more is here than what it says of itself."""
    whole = Image.open(data, "whole")
    image = PartialImage.of(whole.meta, whole.trailer, len(data), "part")
    assert image is not None
    while ranges := image.lacks_to_open():
        for start, length in ranges:
            image.put(start, data[start : start + length])
    return image


def mixed() -> bytes:
    """Of every kind of column that is read like that, with nulls."""
    some = [None if n % 5 == 0 else n for n in range(ROWS)]
    columns = [pa.array(range(-9, ROWS - 9), pa.int64())]
    columns += [pa.array([None if n is None else n % 100 for n in some], k) for k in NUMBERS]
    columns += [pa.array(some, pa.float32()), pa.array(some, pa.float64())]
    columns.append(pa.array([None if n is None else n % 2 == 0 for n in some]))
    columns.append(pa.array([None if n is None else f"tëxt {n}" * (n % 4) for n in some]))
    columns.append(pa.array([b"x" * (20_000 if n == 77 else n % 9) for n in range(ROWS)]))
    columns.append(pa.nulls(ROWS, pa.string()))
    columns += [pa.array(some, pa.date32()), pa.array(some, pa.timestamp("us"))]
    columns.append(pa.array([f"{n}" for n in range(ROWS)]))
    return made(FIELDS, columns, ROWS)


WHOLE = mixed()
IMAGE = opened(WHOLE)
SINGLE = ImageRows.of(IMAGE, {})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, ROWS - 1) | st.just(77))
def test_a_row_is_that_of_the_whole_image(number: int) -> None:
    """Its values are as a reader of the whole column has them."""
    assert SINGLE is not None
    batch = Image.open(WHOLE, "whole").batch
    expected = row_reader(batch.select(FIELDS.names))(number)
    found = SINGLE.row(lambda start, end: memoryview(WHOLE)[start:end], number)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_columns_are_not_read_whose_values_are_known() -> None:
    """Those are had from whoever knows them."""
    single = ImageRows.of(IMAGE, {n: lambda i: i for n in range(len(FIELDS))})
    assert single is not None

    def nothing(start: int, end: int) -> bytes:
        raise AssertionError("nothing is to be read")

    assert single.row(nothing, 7) == (7,) * len(FIELDS)


def test_columns_that_cannot_be_read_from_bytes_have_the_image_read_in_pieces() -> None:
    """As decimals."""
    fields = pa.schema([pa.field("id", pa.int64(), False), ("price", pa.decimal128(12, 2))])
    data = made(fields, [pa.array([1, 2]), pa.array([Decimal(1), Decimal(2)], fields[1].type)], 2)
    assert ImageRows.of(opened(data), {}) is None


def test_bytes_of_another_block_are_found() -> None:
    """A block is what its checksum says, and no other."""
    IMAGE.check(0, WHOLE[:BLOCK_BYTES])
    with pytest.raises(Exception, match="bad checksum"):
        IMAGE.check(1, WHOLE[:BLOCK_BYTES])


@pytest.mark.parametrize(
    "kind", [*NUMBERS, pa.bool_(), pa.date32(), pa.timestamp("us")], ids=lambda kind: str(kind)
)
def test_exact_keys_come_back_from_their_hashes(kind: pa.DataType) -> None:
    """The wire value that went in."""
    codec = KeyCodec(TableSchema.of(pa.schema([pa.field("k", kind, False)]), ["k"]))
    value = exact_value(kind, codec.seed)
    assert codec.exact
    assert value is not None
    low, high = (0, 1) if pa.types.is_boolean(kind) else (0, 127)
    edges = [low, high]
    if kind.bit_width > 1:
        dtype = np.int64 if pa.types.is_temporal(kind) else kind.to_pandas_dtype()
        bits = np.iinfo(np.int32 if pa.types.is_date32(kind) else dtype)
        edges += [int(bits.min), int(bits.max)]
    for each in edges:
        key = bool(each) if pa.types.is_boolean(kind) else each
        found = value(codec.hash_one((key,)))
        assert found == key
        assert type(found) is type(key)
