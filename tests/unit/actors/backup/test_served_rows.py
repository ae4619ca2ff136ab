"""Rows that a backup serves piece by piece while a tablet is brought back."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from stelae.actors.backup import served as served_rows
from stelae.actors.backup.holdings import Holdings
from stelae.core.errors import CorruptData, InvalidArgument, TabletNotReady, TooLarge
from stelae.core.messages.backups import (
    READ_ROWS,
    READ_SINGLE_ROWS,
    SINGLE_ROWS_MAX,
    ReadRows,
    ReadSingleRows,
)
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES
from stelae.storage.segments.partial_image import PartialImage
from tests.unit.actors.backup.backup_world import LOG, SCHEMA, SEGMENT, Owner, Rows, make_image, run


async def ids(owner: Owner, piece_rows: int, *pieces: int, segment: int = SEGMENT) -> list[int]:
    """The ids in some pieces, checked as a reader checks them."""
    reply = await owner.call(READ_ROWS, ReadRows(LOG, segment, piece_rows, pieces))
    assert reply.body.crcs == tuple(crc32c(blob) for blob in reply.blobs)
    found: list[int] = []
    for blob in reply.blobs:
        batch = pa.ipc.read_record_batch(pa.py_buffer(blob), SCHEMA.stored)
        found += batch.column("id").to_pylist()
    return found


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_pieces_of_a_sealed_replica_are_served(medium: str) -> None:
    """The rows that are asked for, the last piece shorter, with the end of the image."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image, medium=medium)
        assert await ids(owner, 100, 1) == list(range(100, 200))
        assert await ids(owner, 100, 2, 0) == [*range(200, 250), *range(100)]
        reply = await owner.call(READ_ROWS, ReadRows(LOG, SEGMENT, 100, (0,)))
        assert reply.body.trailer == image[-IMAGE_TRAILER_BYTES:]

    run(scenario)


def test_what_has_no_such_rows_is_refused() -> None:
    """Pieces past the end, sizes that are none, replicas in row form or absent."""

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        rows = Rows(SEGMENT + 1)
        await owner.write(rows, segment_id=SEGMENT + 1)
        for piece_rows, piece in ((100, 3), (0, 0), (100, -1), (1, 1 << 40)):
            with pytest.raises(InvalidArgument):
                await ids(owner, piece_rows, piece)
        for segment in (SEGMENT + 1, SEGMENT + 2):
            with pytest.raises(InvalidArgument):
                await ids(owner, 100, 0, segment=segment)

    run(scenario)


def test_more_than_fits_a_reply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pieces, or more bytes of them."""

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        with pytest.raises(InvalidArgument, match="pieces up to 0"):
            await ids(owner, 100, *[0] * (served_rows.PIECES_MAX + 1))
        monkeypatch.setattr(served_rows, "REPLY_BYTES_MAX", 1000)
        with pytest.raises(TooLarge):
            await ids(owner, 100, 0, 1)

    run(scenario)


OPENS_S = 0.5
"""Time that an opening takes in `slow_openings`: longer than messages are under way."""


def slow_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have each opening take its time. Returns what was opened, in order."""
    opens, opened = PartialImage.open, list[str]()

    async def slowly(read: Any, length: int, where: str) -> PartialImage | None:
        opened.append(where)
        image = await opens(read, length, where)
        await asyncio.sleep(OPENS_S)
        return image

    monkeypatch.setattr(PartialImage, "open", slowly)
    return opened


def test_an_image_is_opened_once_for_all_who_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the first one that does."""
    opened = slow_openings(monkeypatch)

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        found = await asyncio.gather(*(ids(owner, 100, n) for n in (0, 1, 2)))
        assert [each for part in found for each in part] == list(range(250))
        assert len(opened) == 1

    run(scenario)


def test_an_image_whose_replica_is_freed_while_it_is_opened_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would ask for it again, and its memory would be taken for a while."""
    opened = slow_openings(monkeypatch)

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        reading = asyncio.create_task(ids(owner, 100, 0))
        await asyncio.sleep(OPENS_S / 2)
        assert opened
        await owner.free(SEGMENT)
        assert await reading == list(range(100)), "they were read before"
        assert not owner.world.server("b1")._served._opened

    run(scenario)


def test_a_whole_image_whose_replica_is_freed_while_it_is_read_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its frames may have bytes of another replica by then. Images of before are read whole."""
    read = Holdings.read

    async def whole(*_: Any) -> None:
        return None

    monkeypatch.setattr(PartialImage, "open", whole)

    async def scenario(owner: Owner) -> None:
        async def freed_meanwhile(self: Holdings, request: Any) -> Any:
            found = await read(self, request)
            await owner.free(SEGMENT)
            return found

        await owner.seal(make_image(rows=250))
        assert await ids(owner, 100, 1) == list(range(100, 200))
        owner.world.server("b1")._served._opened.clear()
        monkeypatch.setattr(Holdings, "read", freed_meanwhile)
        with pytest.raises(TabletNotReady, match="replaced"):
            await ids(owner, 100, 1)

    run(scenario)


def test_an_image_without_its_end_is_told_of_as_damaged() -> None:
    """Nothing of it can be served; the replica is offered no more."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        disk.corrupt("disk/frames", disk.durable("disk/frames").index(image) + len(image) - 5)
        replica = owner.world.server("b1")._holdings.find(LOG, SEGMENT)
        assert replica is not None
        with pytest.raises(CorruptData):
            await ids(owner, 100, 0)
        assert replica.damaged

    run(scenario)


def test_rows_are_checked_before_they_are_served_and_damage_is_told() -> None:
    """Rows elsewhere in the image are served; whoever wants the damaged ones hears so, and the
    replica is offered no more."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=20_000)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(image)
        disk.corrupt("disk/frames", at + 5000 * 8)  # an id
        assert await ids(owner, 10, 0) == list(range(10))
        replica = owner.world.server("b1")._holdings.find(LOG, SEGMENT)
        assert replica is not None
        assert not replica.damaged
        with pytest.raises(CorruptData):
            await ids(owner, 10, *range(200, 800))
        assert replica.damaged

    run(scenario)


async def single(owner: Owner, *rows: int, known: tuple[int, ...] = ()) -> list[tuple[Any, int]]:
    """Ids and versions of some rows by themselves, checked as a reader checks them."""
    reply = await owner.call(READ_SINGLE_ROWS, ReadSingleRows(LOG, SEGMENT, rows, known))
    return [(row[0], version) for version, row in reply.body.rows]


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_rows_by_themselves_are_served(medium: str) -> None:
    """With their versions, and without what the reader knows; what is no row is refused."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image, medium=medium)
        assert await single(owner, 7) == [(7, 8)]
        assert await single(owner, 249, 0) == [(249, 250), (0, 1)]
        assert await single(owner, 9, known=(0,)) == [(None, 10)]
        request = ReadSingleRows(LOG, SEGMENT, (1,), (), True)
        reply = await owner.call(READ_SINGLE_ROWS, request)
        assert reply.body.trailer == image[-IMAGE_TRAILER_BYTES:]
        assert (reply.body.place is None) == (medium == "ram")
        for rows in ((250,), (-1, 3), (), tuple(range(SINGLE_ROWS_MAX + 1))):
            with pytest.raises(InvalidArgument):
                await single(owner, *rows)
        await owner.free(SEGMENT)
        with pytest.raises(InvalidArgument):
            await single(owner, 7)

    run(scenario)


def test_a_row_by_itself_is_checked_before_it_is_served_and_damage_is_told() -> None:
    """The blocks that it lies in, and no others."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=20_000)
        await owner.seal(image)
        assert await single(owner, 1) == [(1, 2)]
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(image)
        disk.corrupt("disk/frames", at + 5000 * 8)  # an id
        assert await single(owner, 10, 19_999) == [(10, 11), (19_999, 20_000)]
        replica = owner.world.server("b1")._holdings.find(LOG, SEGMENT)
        assert replica is not None
        assert not replica.damaged
        with pytest.raises(CorruptData):
            await single(owner, 4990)
        assert replica.damaged

    run(scenario)


def test_what_took_the_place_of_a_replica_is_served_and_nothing_older() -> None:
    """An image that is kept in memory is not served once its replica was freed or replaced."""

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=50))
        assert await ids(owner, 100, 0) == list(range(50))
        await owner.free(SEGMENT)
        with pytest.raises(InvalidArgument):
            await ids(owner, 100, 0)
        await owner.seal(make_image(rows=70))
        assert await ids(owner, 100, 0) == list(range(70))

    run(scenario)


def test_images_that_nobody_asks_for_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """By age, and the oldest ones once there are too many; then they are read again."""
    monkeypatch.setattr(served_rows, "KEPT_BYTES", 12_000)

    async def scenario(owner: Owner) -> None:
        server = owner.world.server("b1")
        for segment in range(SEGMENT, SEGMENT + 4):
            await owner.seal(make_image(segment, rows=300), segment_id=segment)
            await ids(owner, 100, 0, segment=segment)
        kept = server._served._opened
        assert 1 <= len(kept) < 4
        assert (LOG, SEGMENT + 3) in kept
        assert await ids(owner, 100, 0) == list(range(100))
        await owner.runtime.clock.sleep(3 * served_rows.KEPT_S)
        assert not server._served._opened

    run(scenario)
