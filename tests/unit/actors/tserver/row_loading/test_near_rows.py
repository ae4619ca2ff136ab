"""Rows that are read past the backup that has them, from a file of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from stelae.actors.tserver.row_loading.near_rows import NearRows
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import ImagePlace
from stelae.core.schema.schema import TableSchema
from stelae.storage.segments.image import BLOCK_BYTES
from stelae.storage.segments.layout import Layout
from stelae.storage.segments.remote import RemoteRun
from tests.unit.storage.segments.test_partial_image import made
from tests.unit.storage.segments.test_remote import remote_segment

ROWS = 3000
FIELDS = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string()), ("n", pa.int64())])
FRAME_BYTES = 20_000
"""Not a number of whole blocks: some lie in two frames."""


def text_of(number: int) -> str:
    return f"text {number} " * (number % 13)


def image_of() -> bytes:
    texts = [text_of(n) for n in range(ROWS)]
    columns = [pa.array(range(ROWS)), pa.array(texts), pa.array(range(5, ROWS + 5))]
    return made(FIELDS, columns, ROWS)


class File:
    """A file of frames that lie apart."""

    def __init__(self, image: bytes) -> None:
        self.content = bytearray()
        places = []
        for start in range(0, len(image), FRAME_BYTES):
            self.content += b"other" * 100
            part = image[start : start + FRAME_BYTES]
            places.append((len(self.content), len(part)))
            self.content += part
        self.place = ImagePlace("file", tuple(places))
        self.is_cached = True
        self.reads = 0

    def read_cached(self, offset: int, length: int) -> bytes | None:
        buffer = bytearray(length)
        return bytes(buffer) if self.fill_cached(offset, memoryview(buffer)) else None

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        self.reads += 1
        data = self.content[offset : offset + len(buffer)]
        if not self.is_cached or len(data) < len(buffer):
            return False
        buffer[:] = data
        return True

    def close(self) -> None:
        pass


class World:
    """One image whose rows are wanted."""

    def __init__(self) -> None:
        self.image = image_of()
        self.file = File(self.image)
        self.counts: dict[str, int] = {}
        self.near = NearRows(self)  # type: ignore[arg-type]
        segment = remote_segment(pa.py_buffer(self.image))
        schema = TableSchema.of(FIELDS, ["id"])
        self.run = RemoteRun(Layout.of(schema), segment, schema.key_seed)
        self.run.cut(4096)
        self.near.found(self.run, self.file.place, ServerUuid("b"))

    @property
    def disk(self) -> Any:
        return self

    @property
    def metrics(self) -> Any:
        return self

    def open_near(self, place: str) -> File:
        return self.file

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def damage(self, found: bytes) -> None:
        at = bytes(self.file.content).index(found)
        self.file.content[at] ^= 1

    def row(self, number: int) -> Any:
        piece = self.near.take_row(self.run, number)
        if piece is None:
            return None
        assert self.run.row(number) == piece.run.row(0)
        assert self.run.version(number) == piece.run.version(0)
        return self.run.row(number)


def expected(number: int) -> tuple[Any, ...]:
    return number, text_of(number), number + 5


def test_rows_are_read_one_by_one_and_in_pieces() -> None:
    """The same; a row by itself lasts for as long as somebody holds it."""
    world = World()
    for number in np.random.default_rng(3).permutation(ROWS)[:300].tolist():
        assert world.row(number) == expected(number)
        assert world.run.piece_at(number) is None
    taken = world.near.take(world.run, [3])
    assert (list(taken.pieces), taken.far, taken.later) == ([3], [], [])
    first, end = world.run.rows_of(3)
    assert [world.run.row(n) for n in range(first, end)] == [expected(n) for n in range(first, end)]
    assert world.counts == {"near_rows_read": 300, "near_pieces_read": 1}


def test_a_row_takes_a_block_of_each_column_that_is_not_known() -> None:
    """Once the image is open; keys are known."""
    world = World()
    assert world.row(100) is not None
    world.file.reads = 0
    assert world.row(1000) == expected(1000)
    assert world.file.reads <= 6


def test_blocks_of_short_values_stay_and_those_of_texts_do_not() -> None:
    """They have those of the next rows, too: of another row near by only its text is read."""
    world = World()
    assert world.row(1000) == expected(1000)
    before, world.file.reads = world.near.held_bytes, 0
    assert world.row(1002) == expected(1002)
    assert 1 <= world.file.reads <= 2
    assert 0 < world.near.held_bytes == before


def test_what_is_not_in_memory_is_left_to_the_backup() -> None:
    """And read from here once it is."""
    world = World()
    world.file.is_cached = False
    assert world.row(7) is None
    world.file.is_cached = True
    assert world.row(7) == expected(7)
    world.file.is_cached = False
    assert world.row(1500) is None
    assert world.near.knows(world.run)


def _forgets(world: World, ask: Callable[[], object]) -> bool:
    ask()
    return not world.near.knows(world.run) and world.counts["near_rows_unlike"] == 1


def test_what_is_not_the_image_is_never_believed() -> None:
    """A changed byte in the block of a row: the image is forgotten. Other rows do not care."""
    world = World()
    world.damage(b"text 2000 ")
    assert world.row(10) == expected(10)
    assert _forgets(world, lambda: world.row(2001))
    assert world.row(10) is None


def test_a_file_that_is_too_short_or_another_one_is_not_read() -> None:
    """The frames are another segment's by now, or gone."""
    world = World()
    world.file.content[:] = bytes(len(world.file.content))
    assert _forgets(world, lambda: world.row(1))
    world = World()
    del world.file.content[BLOCK_BYTES:]
    assert world.row(2900) is None


def test_a_turn_reads_so_much_and_leaves_the_rest_to_the_next() -> None:
    """Each piece once, whatever is kept; others have their turns in between."""
    world = World()
    every = list(range(world.run.piece_count))
    taken = world.near.take(world.run, every, 3 * BLOCK_BYTES)
    assert 0 < taken.read_bytes < 12 * BLOCK_BYTES
    assert taken.later == every[len(taken.pieces) :]
    assert not taken.far
    world = World()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def read_all(limit_bytes: int) -> list[int]:
        counting = asyncio.create_task(count_turns())
        with patch.object(NearRows.take, "__defaults__", (limit_bytes,)):
            found = world.near.take_in_turns(world.run, every, lambda: turns < 1000)
            numbers = [number async for number, _ in found]
        counting.cancel()
        return numbers

    assert asyncio.run(read_all(BLOCK_BYTES)) == every
    assert turns >= len(world.image) // BLOCK_BYTES // 8
    turns = 1000
    assert asyncio.run(read_all(BLOCK_BYTES)) == [], "there is no time left"


def test_a_turn_comes_further_and_says_what_is_not_here() -> None:
    """At least by a piece; of what is not in memory nothing is left to later turns."""
    world = World()
    assert list(world.near.take(world.run, [5, 6, 7], 0).pieces) == [5]
    world.file.is_cached = False
    last = world.run.piece_count - 1
    taken = world.near.take(world.run, [5, 6, last], BLOCK_BYTES)
    assert not taken.later
    assert taken.far[-1] == last
    schema, segment = TableSchema.of(FIELDS, ["id"]), remote_segment(pa.py_buffer(world.image))
    unknown = RemoteRun(Layout.of(schema), segment, schema.key_seed)
    assert world.near.take(unknown, [1, 2]).far == [1, 2]
