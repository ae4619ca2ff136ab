"""Rows that a backup picks out of a segment for one part of a split tablet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from stelae.actors.backup import served_picks
from stelae.core.errors import CorruptData, InvalidArgument, TooLarge
from stelae.core.messages.backups import READ_PICKED, ReadPicked
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES
from stelae.storage.segments.picked import Picks
from tests.unit.actors.backup.backup_world import LOG, SCHEMA, SEGMENT, Owner, Rows, make_image, run


async def ids(owner: Owner, wanted: list[bool], segment: int = SEGMENT) -> list[int]:
    """The ids of the rows that are wanted, checked as a reader checks them."""
    picks = Picks(np.array(wanted, np.bool_))
    request = ReadPicked(LOG, segment, picks.row_count)
    reply = await owner.call(READ_PICKED, request, picks.bits.tobytes())
    (blob,) = reply.blobs
    assert reply.body.crc == crc32c(blob)
    batch = pa.ipc.read_record_batch(pa.py_buffer(blob), SCHEMA.stored)
    found: list[int] = batch.column("id").to_pylist()
    return found


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_the_rows_that_are_wanted_are_served(medium: str) -> None:
    """In their order, with the end of the image that they are of."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image, medium=medium)
        assert await ids(owner, [n % 3 == 0 for n in range(250)]) == list(range(0, 250, 3))
        assert await ids(owner, [False] * 250) == []
        bits = Picks(np.ones(250, np.bool_)).bits.tobytes()
        reply = await owner.call(READ_PICKED, ReadPicked(LOG, SEGMENT, 250), bits)
        assert reply.body.trailer == image[-IMAGE_TRAILER_BYTES:]

    run(scenario)


def test_bits_of_another_segment_and_what_has_no_rows_are_refused() -> None:
    """Another number of rows, bits that are not so many, replicas in row form or absent."""

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        await owner.write(Rows(SEGMENT + 1), segment_id=SEGMENT + 1)
        for count in (249, 256, 8):
            with pytest.raises(InvalidArgument):
                await ids(owner, [True] * count)
        for blobs in ((), (b"",), (b"x" * 33,), (b"x" * 32, b"x")):
            with pytest.raises(InvalidArgument):
                await owner.call(READ_PICKED, ReadPicked(LOG, SEGMENT, 250), *blobs)
        with pytest.raises(InvalidArgument):
            await owner.call(READ_PICKED, ReadPicked(LOG, SEGMENT, -1), b"")
        for segment in (SEGMENT + 1, SEGMENT + 2):
            with pytest.raises(InvalidArgument):
                await ids(owner, [True] * 250, segment)

    run(scenario)


def test_more_rows_than_fit_a_reply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bytes of those that are wanted, and not of the whole image."""
    monkeypatch.setattr(served_picks, "REPLY_BYTES_MAX", 2000)

    async def scenario(owner: Owner) -> None:
        await owner.seal(make_image(rows=250))
        assert await ids(owner, [n < 10 for n in range(250)]) == list(range(10))
        with pytest.raises(TooLarge):
            await ids(owner, [True] * 250)

    run(scenario)


def test_a_damaged_image_serves_no_row() -> None:
    """Not even rows that are elsewhere in it, and the replica is offered no more."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=20_000)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(image)
        disk.corrupt("disk/frames", at + 5000 * 8)
        with pytest.raises(CorruptData):
            await ids(owner, [n < 10 for n in range(20_000)])
        replica = owner.world.server("b1")._holdings.find(LOG, SEGMENT)
        assert replica is not None
        assert replica.damaged

    run(scenario)
