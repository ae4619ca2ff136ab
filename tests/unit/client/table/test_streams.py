"""Streams that are cancelled or closed: no other error hides the cancellation, no rows are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pyarrow as pa
import pytest

from stelae.client.aio import Loop
from stelae.client.connection import BridgedStream
from stelae.client.table.streams import Piece, open_stream
from stelae.core.errors import ClosedMeanwhile

SCHEMA = pa.schema([("id", pa.int64())])


def piece(*ids: int) -> Piece:
    return [pa.RecordBatch.from_pydict({"id": list(ids)}, schema=SCHEMA)]


async def three_pieces() -> AsyncGenerator[Piece, None]:
    yield piece()
    for number in (1, 2, 3):
        yield piece(number, 10 * number)


class Endless:
    """One piece, then none ever. Pins are released by a call that takes some turns of the loop."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.released = asyncio.Event()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        yield piece()
        yield piece(1)
        try:
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.released.set()


def test_closing_a_cancelled_stream_waits_until_its_pins_are_released() -> None:
    """On one loop: `aclose` comes while the cancelled step still releases them."""

    async def run() -> None:
        source = Endless()
        stream = await open_stream(source.pieces())
        assert (await anext(stream)).num_rows == 1
        reading = asyncio.create_task(stream.next_piece())
        await source.waits.wait()
        reading.cancel()
        await asyncio.sleep(0)
        assert not source.released.is_set()
        await stream.aclose()
        assert source.released.is_set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(ClosedMeanwhile):
            await stream.next_piece()

    asyncio.run(run())


def test_a_reader_that_is_cancelled_on_another_loop_hears_that_it_was_cancelled() -> None:
    """`BridgedStream`: its ``async with`` closes the stream before the cancelled step has ended."""
    loop = Loop()

    async def opened() -> tuple[Endless, BridgedStream]:
        source = Endless()
        return source, BridgedStream(loop, await open_stream(source.pieces()))

    async def run() -> None:
        source, stream = await loop.bridge(opened())

        async def read() -> None:
            async with stream:
                async for _ in stream:
                    pass

        reading = asyncio.create_task(read())
        await loop.bridge(source.waits.wait())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert source.released.is_set()

    try:
        asyncio.run(run())
    finally:
        loop.close()


def test_a_batch_that_a_cancelled_reader_did_not_get_is_not_passed_over() -> None:
    """The stream had handed it out when its reader, on another loop, was cancelled."""
    loop = Loop()

    async def opened() -> BridgedStream:
        return BridgedStream(loop, await open_stream(three_pieces()))

    async def run() -> None:
        stream = await loop.bridge(opened())
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for _ in range(3):  # the stream's loop turns while this one is blocked
            loop.run(asyncio.sleep(0))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(ClosedMeanwhile):
            await anext(stream)

    try:
        asyncio.run(run())
    finally:
        loop.close()


@pytest.mark.parametrize("read", [0, 1, 2, 3])
def test_a_stream_that_was_closed_before_its_end_does_not_look_whole(read: int) -> None:
    """Each further call raises `ClosedMeanwhile`, even if only the end mark was not read."""

    async def run() -> None:
        stream = await open_stream(three_pieces())
        for _ in range(read):
            assert await stream.next_piece() is not None
        await stream.aclose()
        await stream.aclose()
        for _ in range(2):
            with pytest.raises(ClosedMeanwhile):
                await stream.next_piece()
            with pytest.raises(ClosedMeanwhile):
                await anext(stream)

    asyncio.run(run())


def test_rows_that_were_ready_when_a_stream_was_closed_are_not_its_end() -> None:
    """Batches of a piece that were not handed out count as not read."""

    async def run() -> None:
        stream = await open_stream(three_pieces(), batch_rows=1)
        assert (await anext(stream)).num_rows == 1
        await stream.aclose()
        with pytest.raises(ClosedMeanwhile):
            await anext(stream)

    asyncio.run(run())


def test_a_stream_that_was_read_to_its_end_stays_ended() -> None:
    """Closing it afterwards makes no error of that."""

    async def run() -> None:
        stream = await open_stream(three_pieces())
        async with contextlib.aclosing(stream):
            assert [batch.num_rows async for batch in stream] == [2, 2, 2]
        assert await stream.next_piece() is None

    asyncio.run(run())
