"""Images of sealed segments: readable as Arrow, summarised, and damage of every kind found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.schema.schema import RowKind, TableSchema
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Summary
from stelae.storage.segments import image
from stelae.storage.segments.image import (
    IMAGE_TRAILER_BYTES,
    Image,
    ImageMeta,
    build_image,
    read_tail,
    summary_range,
)
from stelae.storage.segments.layout import Layout, versions_from

EXACT = TableSchema.of(
    pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.float64(), nullable=False)]), ["id"]
)
TEXT = TableSchema.of(pa.schema([("name", pa.string()), ("x", pa.float64())]), ["name"])


def image_of(schema: TableSchema, row_count: int) -> pa.Buffer:
    """An image of rows of which every third is a tombstone."""
    ids = np.arange(row_count)
    key = pa.array(ids) if schema is EXACT else pa.array([f"k{i}" for i in ids.tolist()])
    kinds = np.where(ids % 3 == 2, RowKind.TOMBSTONE, RowKind.ROW).astype(np.uint8)
    x = pa.array(ids / 2, mask=kinds == RowKind.TOMBSTONE)
    columns = pa.RecordBatch.from_arrays([key, x], names=list(schema.arrow.names))
    batch = Layout.of(schema).store(columns, kinds, versions_from(7, row_count))
    meta = ImageMeta("table", "tablet", 3, 2, 5, 9, row_count, 7 + row_count, 1)
    return build_image(batch, meta, KeyCodec(schema))


@pytest.mark.parametrize("schema", [EXACT, TEXT])
@pytest.mark.parametrize("row_count", [0, 1, 100])
def test_an_image_is_an_arrow_stream_and_more(schema: TableSchema, row_count: int) -> None:
    """Any Arrow reader reads the whole buffer as the rows, `_op` and `_version` included."""
    buffer = image_of(schema, row_count)
    table = pa.ipc.open_stream(buffer).read_all()
    assert table.schema.equals(schema.stored)
    assert table.num_rows == row_count
    image = Image.open(buffer, "image")
    assert image.batch.schema.equals(schema.stored)
    assert pa.Table.from_batches([image.batch]).equals(table)
    assert image.meta.row_count == row_count


@pytest.mark.parametrize("schema", [EXACT, TEXT])
def test_the_tail_alone_gives_the_summary(schema: TableSchema) -> None:
    """From the trailer a backup finds the tail; its summary is that of the rows."""
    buffer = image_of(schema, 100)
    data = bytes(buffer)
    offset, length = summary_range(data[-IMAGE_TRAILER_BYTES:], len(data), "image")
    assert offset + length == len(data)
    tail = read_tail(data[offset:], "image")
    image = Image.open(buffer, "image")
    assert tail.meta == image.meta
    codec = KeyCodec(schema)
    for summary in (tail.summary, image.summary()):
        assert np.array_equal(summary.hashes, codec.hash_batch(image.batch))
        assert np.array_equal(summary.versions_of(slice(None)), np.arange(7, 107))
        assert np.array_equal(summary.kinds_of(slice(None)), image.batch.column("_op").to_numpy())
        if schema is EXACT:
            assert summary.keys is None
        else:
            assert summary.keys is not None
            assert summary.keys.equals(codec.encode_batch(image.batch))


def whole_summary(summary: Summary) -> pa.RecordBatch:
    """What the summary of an image of format 2 is."""
    everything = slice(None)
    columns = [summary.hashes, summary.versions_of(everything), summary.kinds_of(everything)]
    arrays = [pa.array(column) for column in columns]
    names = ["hash", "version", "op"]
    if summary.keys is not None:
        arrays, names = [*arrays, summary.keys], [*names, "key"]
    return pa.RecordBatch.from_arrays(arrays, names=names)


@pytest.mark.parametrize("schema", [EXACT, TEXT])
def test_images_of_format_2_are_read(schema: TableSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their summaries have all columns, whatever the rows are; the next format is refused."""
    new = Image.open(image_of(schema, 100), "new").summary()
    monkeypatch.setattr(image, "_summary_batch", whole_summary)
    monkeypatch.setattr(image, "FORMAT_VERSION", 2)
    old = Image.open(image_of(schema, 100), "old").summary()
    assert old.versions is not None
    assert old.versions.dtype == np.uint64
    assert np.array_equal(old.hashes, new.hashes)
    assert old.versions_of(slice(None)).tolist() == new.versions_of(slice(None)).tolist()
    assert np.array_equal(old.kinds_of(slice(None)), new.kinds_of(slice(None)))
    monkeypatch.setattr(image, "FORMAT_VERSION", 5)
    with pytest.raises(CorruptData, match="format 5"):
        Image.open(image_of(schema, 100), "later")


def test_a_summary_says_no_more_than_it_must() -> None:
    """Rows with rising versions and no tombstone have 8 bytes each; versions with gaps 4 more."""
    rows = 1000
    lengths = []
    for versions in (versions_from(7, rows), versions_from(7, rows) * np.uint64(2)):
        batch = pa.RecordBatch.from_arrays(
            [pa.array(np.arange(rows)), pa.array(np.arange(rows) / 2)], names=["id", "x"]
        )
        stored = Layout.of(EXACT).store(batch, np.zeros(rows, np.uint8), versions)
        meta = ImageMeta("table", "tablet", 3, 2, 5, 9, rows, 7 + 2 * rows, 1)
        data = bytes(build_image(stored, meta, KeyCodec(EXACT)))
        lengths.append(Image.open(data, "here").summary().size_bytes)
        assert np.array_equal(Image.open(data, "here").summary().versions_of(slice(None)), versions)
    assert lengths == [8 * rows, 12 * rows]


def test_an_opened_image_copies_nothing() -> None:
    """Columns and summary lie inside the image's own buffer."""
    buffer = image_of(EXACT, 1000)
    image = Image.open(buffer, "image")
    end = buffer.address + buffer.size
    for column in image.batch.columns:
        assert buffer.address <= column.buffers()[1].address < end
    address = image.summary().hashes.__array_interface__["data"][0]
    assert buffer.address < address < end


IMAGES = {schema.key: bytes(image_of(schema, 20)) for schema in (EXACT, TEXT)}


@settings(max_examples=300)
@given(data=st.data(), key=st.sampled_from(list(IMAGES)))
def test_any_changed_bit_of_an_image_is_found(data: st.DataObject, key: tuple[str, ...]) -> None:
    """A flipped bit anywhere makes the image corrupt; one in the tail, the tail too."""
    whole = IMAGES[key]
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData):
        Image.open(bytes(damaged), "image")
    offset, _ = summary_range(whole[-IMAGE_TRAILER_BYTES:], len(whole), "image")
    if bit // 8 < offset:
        assert read_tail(bytes(damaged[offset:]), "image").meta.row_count == 20
    else:
        with pytest.raises(CorruptData):
            read_tail(bytes(damaged[offset:]), "image")


@pytest.mark.parametrize("key", list(IMAGES))
def test_any_truncated_image_is_corrupt(key: tuple[str, ...]) -> None:
    """No prefix and no suffix of an image is taken for one; nor for a tail, but the tail itself."""
    whole = IMAGES[key]
    offset, length = summary_range(whole[-IMAGE_TRAILER_BYTES:], len(whole), "image")
    for cut in range(len(whole)):
        with pytest.raises(CorruptData):
            Image.open(whole[:cut], "image")
        if cut:
            with pytest.raises(CorruptData):
                Image.open(whole[cut:], "image")
        if cut != offset:
            with pytest.raises(CorruptData):
                read_tail(whole[cut:], "image")
    with pytest.raises(CorruptData):
        summary_range(whole[-IMAGE_TRAILER_BYTES:], length - 1, "image")


def test_rows_without_their_checksum_are_still_counted() -> None:
    """With check_rows=False only the checksum over the rows is left out."""
    whole = bytearray(IMAGES[EXACT.key])
    offset, _ = summary_range(bytes(whole[-IMAGE_TRAILER_BYTES:]), len(whole), "image")
    whole[offset - 70] ^= 1
    assert Image.open(bytes(whole), "image", check_rows=False).batch.num_rows == 20
    with pytest.raises(CorruptData, match="rows"):
        Image.open(bytes(whole), "image")
