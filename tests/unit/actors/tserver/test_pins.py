"""Pins of a tserver and scans of them: what closes meanwhile, what is dropped meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver import pins as pins_module
from stelae.actors.tserver.pins import Pins
from stelae.actors.tserver.scans import ScanSessions
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, Overloaded, SnapshotLost, TabletNotHere
from stelae.core.ids import TabletId
from stelae.core.messages.rows import KeepPins, Pin, Scan

SCHEMA = pa.schema([pa.field("id", pa.int64())])
KEEP_S = 30.0
PIECES = 4


class Rows:
    """What was pinned: some batches."""

    def __init__(self) -> None:
        self.snapshot = SimpleNamespace(row_count=PIECES)
        self.row_bytes, self.next_version = 8, 1

    async def open(
        self, request: Scan, _runtime: Any
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return SCHEMA, iter(
            [pa.RecordBatch.from_pydict({"id": [n]}, schema=SCHEMA) for n in range(PIECES)]
        )


class Tablet:
    """One whose rows count only once it is let."""

    def __init__(self) -> None:
        self.tablet_id = TabletId("t")
        self.commits = asyncio.Event()

    async def pin(self, schema_version: int, timeout_s: float) -> Rows:
        await self.commits.wait()
        return Rows()

    async def scan(self, request: Scan, timeout_s: float) -> Any:
        await self.commits.wait()
        return await Rows().open(request, None)


class World:
    """A tserver's pins and scans, and a tablet there."""

    def __init__(self) -> None:
        self.now, self.is_short, self.names = 0.0, False, 0
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        runtime: Any = SimpleNamespace(clock=clock, offload=self.offload, rng=self)
        self.pins = Pins(clock, "server", lambda: self.is_short)
        self.scans = ScanSessions(runtime, Settings(scan_batch_bytes=1), self.pins)
        self.tablet: Any = Tablet()

    async def offload(self, fn: Callable[..., Any], *given: Any) -> Any:
        return fn(*given)

    def getrandbits(self, count: int) -> int:
        self.names += 1
        return self.names

    async def pin(self, name: str = "p", tablet: Any = None, *, yields: bool = False) -> Any:
        request = Pin(TabletId("t"), name, 1, KEEP_S, yields)
        return (await self.pins.pin(tablet or self.tablet, request, 1.0)).body

    async def scan(self, cursor: str = "", piece: int = 0, pin: str = "p") -> str:
        request = Scan(TabletId("t"), cursor=cursor, piece=piece, schema_version=1, pin=pin)
        if pin:
            reply = await self.scans.next_pinned(request, 1.0)
        else:
            reply = await self.scans.next(self.tablet, request, 1.0)
        found: str = reply.body.cursor
        return found

    async def until_waits(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        return task


def told(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        await story(World())

    asyncio.run(tell())


def test_a_pin_that_is_under_way_while_its_tablet_closes_is_not_made() -> None:
    """The caller looks elsewhere; nothing is kept of a tablet that is not here. The same name may
    be asked for of the tablet that is opened next."""

    async def story(world: World) -> None:
        making = await world.until_waits(world.pin())
        world.scans.drop(world.tablet.tablet_id)
        world.tablet.commits.set()
        with pytest.raises(TabletNotHere):
            await making
        assert not len(world.pins)
        again = Tablet()
        again.commits.set()
        assert (await world.pin(tablet=again)).row_count == PIECES

    told(story)


def test_a_scan_that_is_being_opened_while_its_tablet_closes_is_none() -> None:
    """Its rows would outlive the tablet."""

    async def story(world: World) -> None:
        opening = await world.until_waits(world.scan(pin=""))
        world.scans.drop(world.tablet.tablet_id)
        world.tablet.commits.set()
        with pytest.raises(TabletNotHere):
            await opening
        assert not world.scans._scans
        assert not world.scans._opening

    told(story)


@pytest.mark.parametrize("how", ["memory", "time", "let go", "closed"])
def test_a_scan_of_a_pin_that_was_dropped_ends_and_holds_nothing(how: str) -> None:
    """Its next piece is refused, and its rows are free at the next look; for ever: a late copy of
    the call that had made the pin does not bring it back with other rows."""

    async def story(world: World) -> None:
        world.tablet.commits.set()
        await world.pin()
        cursor = await world.scan()
        if how == "memory":
            world.is_short = True
        elif how == "time":
            world.now += KEEP_S + 1
            world.scans._scans[cursor].used = world.now
        elif how == "let go":
            world.pins.keep(KeepPins(("p",), 0.0))
        else:
            world.scans.drop(world.tablet.tablet_id)
        world.scans.look()
        assert not len(world.pins)
        assert not world.scans._scans
        with pytest.raises(SnapshotLost):
            await world.scan(cursor, 1)
        world.is_short = False
        with pytest.raises(SnapshotLost):
            await world.pin()
        with pytest.raises(SnapshotLost):
            await world.scan()

    told(story)


def test_a_scan_of_a_pin_that_is_kept_goes_on() -> None:
    """And belongs to that pin only."""

    async def story(world: World) -> None:
        world.tablet.commits.set()
        await world.pin()
        await world.pin("q")
        cursor = await world.scan()
        for piece in range(1, PIECES):
            world.scans.look()
            assert await world.scan(cursor, piece) == cursor
        with pytest.raises(InvalidArgument, match="expired"):
            await world.scan(cursor, PIECES, pin="q")
        assert await world.scan(cursor, PIECES) == ""
        assert await world.scan()

    told(story)


def test_pins_that_are_being_made_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls wait at the same time; names that went are forgotten in their turn."""
    monkeypatch.setattr(pins_module, "MAX_PINS", 3)
    monkeypatch.setattr(pins_module, "GONE_MAX", 2)

    async def story(world: World) -> None:
        calls = [await world.until_waits(world.pin(f"p{n}")) for n in range(3)]
        with pytest.raises(Overloaded):
            await world.pin("more")
        world.tablet.commits.set()
        await asyncio.gather(*calls)
        assert len(world.pins) == 3
        assert not world.pins._making
        world.is_short = True
        world.pins.expire()
        assert list(world.pins._gone) == ["p1", "p2"]

    told(story)


def test_pins_that_yield_go_where_newer_ones_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of first pages who never come back keep nobody from reading: the pin that was not
    used for longest goes. Pins that do not yield neither go nor are refused for those that do."""
    monkeypatch.setattr(pins_module, "MAX_PINS", 2)
    monkeypatch.setattr(pins_module, "MAX_YIELDING", 3)

    async def story(world: World) -> None:
        world.tablet.commits.set()
        await world.pin("firm-1")
        for name in ("a", "b", "c"):
            await world.pin(name, yields=True)
        await world.scan(pin="a")
        world.pins.keep(KeepPins(("b",), KEEP_S))
        await world.pin("d", yields=True)
        held = [name for name in ("firm-1", "a", "b", "c", "d") if name in world.pins]
        assert held == ["firm-1", "a", "b", "d"]
        with pytest.raises(SnapshotLost):
            await world.scan(pin="c")
        with pytest.raises(SnapshotLost):
            await world.pin("c", yields=True)
        await world.pin("firm-2")
        with pytest.raises(Overloaded):
            await world.pin("firm-3")
        for name in ("a", "b", "d"):
            world.pins.keep(KeepPins((name,), 0))
        for number in range(10):
            await world.pin(f"e{number}", yields=True)
        assert len(world.pins) == 5

    told(story)


def test_a_pin_that_is_let_go_before_it_is_made_is_not_made() -> None:
    """Its reader has ended while the call was under way."""

    async def story(world: World) -> None:
        making = await world.until_waits(world.pin("a"))
        assert world.pins.keep(KeepPins(("a",), 0.0)).body.lost == ("a",)
        world.tablet.commits.set()
        with pytest.raises(SnapshotLost):
            await making
        assert len(world.pins) == 0

    told(story)
