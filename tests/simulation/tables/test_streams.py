"""Streams of a table under strikes: every row once, or `SnapshotLost`; in bounded memory.

A stream that ends leaves no pin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from stelae.client.table import snapshots, streams
from stelae.client.table.streams import KEEP_S, BatchStream
from stelae.core.errors import DeadlineExpired, OutcomeUnknown, SnapshotLost
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.simulation import World
from stelae.simulation.world.options import Options, Servers
from tests.simulation.tables.test_pinned_tables import ROWS, STRIKES, PinnedFixture

DURABILITIES: list[Durability] = [segments("disk", "disk"), wal(3, ("disk",)), replicas(3)]
Story = Callable[[PinnedFixture], Awaitable[None]]


def tell(story: Story, durability: Durability = DURABILITIES[0], seed: int = 1) -> None:
    safekeepers = 3 if "wal" in str(durability) else 0
    servers = Servers(tservers=3, backups=3, safekeepers=safekeepers)
    here = PinnedFixture(World(seed, Options(servers=servers)), durability)

    async def run() -> None:
        await here.start()
        await story(here)

    here.world.run(run(), limit_s=900.0)


def pins(here: PinnedFixture) -> int:
    found = [here.world.server(name) for name in here.cluster.tservers]
    return sum(len(server._pins) for server in found if server is not None)


async def rest(stream: BatchStream) -> list[int]:
    return [n async for batch in stream for n in batch.column("id").to_pylist()]


class Pieces:
    """The pieces that were asked for; ``answer`` of each is called with its number, from 1."""

    def __init__(self, answer: Callable[[int], None] = lambda number: None) -> None:
        self.asked = 0
        self._answer = answer
        self._real = snapshots._piece

    async def __call__(self, *asked: Any) -> Any:
        self.asked += 1
        found = await self._real(*asked)
        self._answer(self.asked)
        return found


@pytest.mark.parametrize("kind", STRIKES)
@pytest.mark.parametrize("durability", DURABILITIES, ids=str)
def test_a_stream_has_every_row_once_or_is_lost(durability: Durability, kind: str) -> None:
    """Struck in the midst of a tablet; the error comes again, and is no end of the rows."""

    async def story(here: PinnedFixture) -> None:
        stream = await here.table.scan_batches(batch_rows=3)
        found = (await anext(stream)).column("id").to_pylist()
        owners = {here.server_of(tablet) for tablet in await _pinned(here)}
        for name in sorted(owners):
            await here.strike(kind, name)
        try:
            found += await rest(stream)
        except SnapshotLost:
            assert kind != "none"
            with pytest.raises(SnapshotLost):
                await anext(stream)
        else:
            assert sorted(found) == list(range(ROWS))
        assert len(set(found)) == len(found)

    tell(story, durability)


async def _pinned(here: PinnedFixture) -> list[snapshots.PinnedTablet]:
    """Where the tablets of the table are, by pins that are released again."""
    runtime, cache = here.database.runtime, here.table.cache
    made = await snapshots.pin_table(runtime, cache, keep_s=1.0, timeout_s=30.0)
    await snapshots.let_go(runtime, made)
    return list(made.tablets)


def test_a_tablet_of_which_nothing_was_read_is_pinned_again() -> None:
    """Its server lost the pin before the first piece; the stream goes on."""

    async def story(here: PinnedFixture) -> None:
        real, lost = snapshots.pin_tablet, list[object]()

        async def pin_and_lose(*given: Any, **more: Any) -> Any:
            made = await real(*given, **more)
            if len(lost) < 2:
                lost.append(made)
                for name in here.cluster.tservers:
                    here.world.server(name)._pins._pins.clear()
            return made

        with patch.object(streams, "pin_tablet", pin_and_lose):
            assert sorted(await rest(await here.table.scan_batches())) == list(range(ROWS))
        assert len(lost) == 2

    tell(story)


def test_three_pieces_are_in_memory_however_slow_the_reader_is() -> None:
    """The one in use, one in the queue, one that is fetched."""

    async def story(here: PinnedFixture) -> None:
        pieces = Pieces()
        with patch.object(snapshots, "_piece", pieces):
            stream = await here.table.scan_batches()
            found: list[int] = []
            used = 0
            while (piece := await stream.next_piece()) is not None:
                used += 1
                found += [n for batch in piece for n in batch.column("id").to_pylist()]
                if used in (1, 4):
                    await asyncio.sleep(3 * KEEP_S)
                    assert pieces.asked <= used + 2
            assert used >= 6, "it has several pieces"
            assert sorted(found) == list(range(ROWS))

    tell(story)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_read_goes_on_after_pieces_that_were_lost_on_the_way(ahead: bool) -> None:
    """From the row after the last one that came: a link that loses every third piece would never
    end a scan that begins again."""

    async def story(here: PinnedFixture) -> None:
        def lose(number: int) -> None:
            if number % 3 == 0:
                raise OutcomeUnknown("tserver", "scan", 1.0)

        pieces = Pieces(lose)
        with patch.object(snapshots, "_piece", pieces):
            if not ahead:
                assert sorted(await rest(await here.table.scan_batches())) == list(range(ROWS))
                return
            runtime, cache = here.database.runtime, here.table.cache
            made = await snapshots.pin_table(runtime, cache, keep_s=60.0, timeout_s=30.0)
            found: list[int] = []
            for tablet in made.tablets:
                async for batch in snapshots.read_pinned(runtime, made, tablet, limit=1000):
                    found += batch.column("id").to_pylist()
            assert sorted(found) == list(range(ROWS))
        assert pieces.asked > 6

    tell(story)


def test_a_stream_that_is_closed_or_fails_leaves_no_pin() -> None:
    """Closed half read; a piece that takes too long ends it by its deadline."""

    async def story(here: PinnedFixture) -> None:
        stream = await here.table.scan_batches(batch_rows=1)
        await anext(stream)
        assert pins(here) > 0
        await stream.aclose()
        assert pins(here) == 0

        async def never(*asked: Any) -> Any:
            await asyncio.sleep(1000.0)

        stream = await here.table.scan_batches(timeout=2.0)
        with patch.object(snapshots, "_piece", never):
            since_s = here.world.loop.time()
            with pytest.raises(DeadlineExpired):
                await rest(stream)
            assert here.world.loop.time() - since_s < 3.0 + 2.0
        await here.until(lambda: pins(here) == 0, "no pin")

    tell(story)
