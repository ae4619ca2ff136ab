"""Columns read past a backup are those of the image whose summary was merged, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver.row_loading import near_columns
from stelae.actors.tserver.row_loading.near_columns import NearColumns, read_part
from stelae.core.errors import CorruptData
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.backups import ImagePlace
from stelae.core.messages.index_offers import ReadColumns
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import IndexId
from stelae.storage.indexes.log_entries import LogEntries, with_ids
from stelae.storage.rows.row_entries import TableCodecs
from stelae.storage.segments.image import Image
from stelae.storage.segments.remote import RemoteRun
from tests.unit.storage.rows.tablet_model import INT_KEY
from tests.unit.storage.segments.test_remote import first_run, loaded

GAP = 100
"""Of other bytes, between two frames."""


class File:
    """A backup's file, of which some may not be in memory; what was read is counted."""

    def __init__(self, content: bytes | bytearray) -> None:
        self.content = bytearray(content)
        self.is_cached = True
        self.read_bytes = 0

    def read_cached(self, offset: int, length: int) -> bytes | None:
        if not self.is_cached:
            return None
        self.read_bytes += length
        return bytes(self.content[offset : offset + length])

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        found = self.read_cached(offset, len(buffer))
        if found is None or len(found) < len(buffer):
            return False
        buffer[:] = found
        return True

    def close(self) -> None: ...


class Near:
    """A segment whose image lies in two frames, the second one first."""

    def __init__(self) -> None:
        _, tablet = loaded(with_index(INT_KEY, "x", IndexId("i"), "table"), 20_000)
        self.run: RemoteRun = first_run(tablet)
        data = tablet.images[self.run.segment_id]
        self.image = Image.open(data, "image")
        codecs = TableCodecs(tablet.schema)
        self.ids = LogEntries(tablet.schema, codecs.definition(IndexId("i"))).column_ids
        half = data.size // 2
        self.file = File(bytes(data[half:]) + b"x" * GAP + bytes(data[:half]))
        pieces = ((data.size - half + GAP, half), (0, data.size - half))
        self.place = ImagePlace("file", pieces)

    def read(self) -> pa.RecordBatch | None:
        partial = self.run.partial_image("image")
        assert partial is not None
        return near_columns._read(self.run, partial, self.file, self.place, self.ids)


def test_the_columns_are_those_of_the_image() -> None:
    """And less is read than all of it."""
    near = Near()
    assert near.read() == with_ids(near.image.batch, near.ids)
    assert 0 < near.file.read_bytes < len(near.file.content) * 0.8


def test_what_is_not_in_memory_is_asked_for() -> None:
    """The loop must not wait for a disk: the backup is asked."""
    near = Near()
    near.file.is_cached = False
    assert near.read() is None


def test_blocks_that_became_anothers_are_not_believed() -> None:
    """Whichever byte of a column is another one."""
    near = Near()
    for at in range(0, len(near.file.content), 4000):
        near.file.content[at] ^= 1
    with pytest.raises(CorruptData, match="checksum of a block"):
        near.read()


def test_parts_of_images_come_from_several_frames() -> None:
    """Wherever in the image they begin and end."""
    near = Near()
    whole = memoryview(near.image.buffer)
    half = near.place.pieces[0][1]
    for start, length in ((0, 10), (half - 5, 10), (half, 7), (half - 3, 3)):
        found = read_part(near.file, near.place, start, length)
        assert found == bytes(whole[start : start + length])
    assert read_part(near.file, near.place, len(whole) - 3, 9) is None


class World:
    """A tablet's near columns; the backup says at once where an image lies, reads wait."""

    def __init__(self, near: Near) -> None:
        self.near = near
        self.opened: list[OpenFile] = []
        self.may_read = asyncio.Event()
        self.is_reading = asyncio.Event()
        self.columns = NearColumns(self)  # type: ignore[arg-type]

    @property
    def peers(self) -> World:
        return self

    @property
    def disk(self) -> World:
        return self

    @property
    def metrics(self) -> World:
        return self

    def count(self, name: str) -> None:
        pass

    async def call(self, *asked: object, **how: object) -> Any:
        return SimpleNamespace(body=SimpleNamespace(place=self.near.place))

    def open_near(self, place: str) -> OpenFile:
        self.opened.append(OpenFile(self.near.file.content))
        return self.opened[-1]

    async def offload(self, fn: Callable[[], pa.RecordBatch | None]) -> pa.RecordBatch | None:
        self.is_reading.set()
        await self.may_read.wait()
        return fn()

    async def read(self) -> pa.RecordBatch | None:
        request = ReadColumns(TabletId("t"), self.near.run.segment_id, self.near.ids)
        at = ServerUuid("b"), Address("host:1")
        return await self.columns.read(self.near.run, request, *at, 1.0)


class OpenFile(File):
    """One that knows whether it is open."""

    is_open = True

    def read_cached(self, offset: int, length: int) -> bytes | None:
        assert self.is_open, "another file may have its number by now"
        return super().read_cached(offset, length)

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


def are_open(world: World) -> list[bool]:
    return [file.is_open for file in world.opened]


@pytest.mark.parametrize("end", ["clear", "close"])
def test_files_are_open_for_as_long_as_somebody_reads_them(end: str) -> None:
    """Also if all rows came meanwhile; and one that is opened after that is closed as well."""
    world = World(Near())

    async def story() -> None:
        reading = asyncio.create_task(world.read())
        await asyncio.wait_for(world.is_reading.wait(), 5.0)
        assert len(world.opened) == 1
        getattr(world.columns, end)()
        assert are_open(world) == [True]
        world.may_read.set()
        assert await reading is not None
        assert are_open(world) == [False]
        assert (await world.read() is None) == (end == "close")
        assert not any(are_open(world))

    asyncio.run(story())
