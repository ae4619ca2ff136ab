"""Images read in part: the same rows as of whole ones, and only what was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.schema.schema import TableSchema
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.segments.image import BLOCK_BYTES, Image, ImageMeta, build_image
from stelae.storage.segments.layout import Layout, versions_from
from stelae.storage.segments.partial_image import PartialImage
from stelae.storage.segments.remote import cut_piece

ROWS = 5000
FIELDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("raw", pa.large_binary()),
        ("when", pa.timestamp("us")),
        ("price", pa.decimal128(12, 2)),
        ("code", pa.binary(3)),
    ]
)


def made(fields: pa.Schema, columns: list[pa.Array], rows: int) -> bytes:
    schema = TableSchema.of(fields, ["id"])
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    stored = Layout.of(schema).store(batch, np.zeros(rows, np.uint8), versions_from(9, rows))
    meta = ImageMeta("table", "tablet", 3, 2, 5, 9, rows, 9 + rows, 1)
    return bytes(build_image(stored, meta, KeyCodec(schema)))


def mixed(rows: int) -> bytes:
    """Of every kind of column that can be cut, with nulls."""
    numbers = range(rows)
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([None if n % 7 == 0 else n % 2 == 0 for n in numbers]),
        pa.array([None if n % 5 == 0 else f"text {n}" * (n % 4) for n in numbers]),
        pa.array([b"x" * (n % 9) for n in numbers], pa.large_binary()),
        pa.array([None if n % 3 == 0 else n for n in numbers], pa.timestamp("us")),
        pa.array([Decimal(n) for n in numbers], pa.decimal128(12, 2)),
        pa.array([b"%03d" % (n % 1000) for n in numbers], pa.binary(3)),
    ]
    return made(FIELDS, columns, rows)


WHOLE = mixed(ROWS)


class Reader:
    """Serves bytes of an image, and counts them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes_read = 0

    async def __call__(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        for offset, length in ranges:
            self.bytes_read += length
            assert 0 <= offset <= offset + length <= len(self.data)
            found.append(self.data[offset : offset + length])
        return found


async def opened(reader: Reader) -> PartialImage:
    image = await PartialImage.open(reader, len(reader.data), "here")
    assert image is not None
    return image


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 400), st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_pieces_are_those_of_the_whole_image(piece_rows: int, numbers: list[int]) -> None:
    """Whatever the columns, and whatever was brought before; the last piece may be short."""
    batch = Image.open(WHOLE, "whole").batch
    last = (ROWS - 1) // piece_rows

    async def check() -> None:
        reader = Reader(WHOLE)
        image = await opened(reader)
        for number in [min(n, last) for n in numbers] + [last]:
            part = (number * piece_rows, (number + 1) * piece_rows)
            await image.bring(reader, [part])
            assert cut_piece(image.batch, number, piece_rows) == cut_piece(
                batch, number, piece_rows
            )
            before = reader.bytes_read
            await image.bring(reader, [part])
            assert reader.bytes_read == before

    asyncio.run(check())


def test_little_is_read_for_a_few_rows() -> None:
    """A block or two of each column, and not the summary."""

    async def check() -> None:
        reader = Reader(mixed(40_000))
        image = await opened(reader)
        await image.bring(reader, [(20_000, 20_010)])
        assert image.held_bytes <= reader.bytes_read < 25 * BLOCK_BYTES < len(reader.data) / 4

    asyncio.run(check())


@pytest.mark.parametrize("text", [None, ""])
def test_columns_without_a_byte_of_text_lie_nowhere_and_are_read_all_the_same(
    text: str | None,
) -> None:
    """Arrow's empty buffers may be anywhere: their places are no places of the image."""
    rows = 2000
    fields = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("raw", pa.binary())]
    )
    data = b"" if text is not None else None
    columns = [
        pa.array(range(rows), pa.int64()),
        pa.array([text] * rows, pa.string()),
        pa.array([data] * rows, pa.binary()),
    ]
    whole = made(fields, columns, rows)
    batch = Image.open(whole, "whole").batch

    async def check() -> None:
        reader = Reader(whole)
        image = await opened(reader)
        await image.bring(reader, [(100, 200)])
        assert cut_piece(image.batch, 1, 100) == cut_piece(batch, 1, 100)
        for start, length in image.lacks_columns(["text", "raw", "id"]):
            assert 0 <= start < start + length <= len(whole)

    asyncio.run(check())


def test_a_damaged_block_is_found_when_rows_of_it_are_wanted_and_not_before() -> None:
    """No byte of it is believed; rows elsewhere are."""

    async def check() -> None:
        at = WHOLE.index(b"text 4001")
        damaged = bytearray(WHOLE)
        damaged[at] ^= 1
        reader = Reader(bytes(damaged))
        image = await opened(reader)
        await image.bring(reader, [(0, 100)])
        for _ in range(2):
            with pytest.raises(CorruptData):
                await image.bring(reader, [(4000, 4002)])

    asyncio.run(check())


def test_damage_where_the_image_tells_of_itself_is_found_at_once() -> None:
    """The trailer, the meta with its checksums, the stream's own metadata."""
    trailer = len(WHOLE) - 1
    meta = WHOLE.rindex(b"block_crcs") + 40
    for at in (trailer, meta, 3, 100):
        damaged = bytearray(WHOLE)
        damaged[at] ^= 1
        with pytest.raises(CorruptData):
            asyncio.run(opened(Reader(bytes(damaged))))


def test_images_of_before_and_rows_in_many_places_are_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have no checksums of blocks; lists have rows in places that only Arrow knows."""
    fields = pa.schema([pa.field("id", pa.int64(), False), ("many", pa.list_(pa.int64()))])
    nested = made(fields, [pa.array([1, 2]), pa.array([[1], [2, 3]])], 2)
    replace = msgspec.structs.replace

    def older(meta: ImageMeta, **changes: Any) -> ImageMeta:
        changes.pop("block_crcs", None)
        return replace(meta, **changes)

    monkeypatch.setattr(msgspec.structs, "replace", older)
    for data in (nested, mixed(10)):
        assert asyncio.run(PartialImage.open(Reader(data), len(data), "here")) is None
        assert Image.open(data, "here").batch.num_rows in (2, 10)
