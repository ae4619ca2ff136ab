"""Streams that are cancelled: no other error hides the cancellation."""

from __future__ import annotations

import asyncio
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
