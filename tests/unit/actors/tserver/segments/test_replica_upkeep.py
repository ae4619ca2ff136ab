"""Turns at making lost replicas anew: how many at once, in which order, at which rate."""

from __future__ import annotations

import asyncio

from stelae.actors.tserver.segments.rereplication import TURNS, ReplicaUpkeep, ShortageWatch
from stelae.core.ids import ServerUuid
from stelae.core.records.losses import Shortage
from stelae.simulation import Options, World


def run(story: object) -> None:
    world = World(1, Options())
    world.run(story(world.client("c").clock))  # type: ignore[operator]


def test_a_few_at_a_time_those_with_the_fewest_left_first() -> None:
    """However they came: a segment with one replica goes before one with two."""

    async def story(clock: object) -> None:
        upkeep = ReplicaUpkeep()
        order: list[int] = []
        now = most = 0

        async def work(left: int) -> None:
            nonlocal now, most
            async with upkeep.turn(left):
                order.append(left)
                now += 1
                most = max(most, now)
                await asyncio.sleep(1.0)
                now -= 1

        lefts = [2, 2, 2, 1, 3, 1, 0]
        tasks = []
        for left in lefts:
            tasks.append(asyncio.create_task(work(left)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        assert most == TURNS
        assert order[:TURNS] == lefts[:TURNS], "nobody waited before them"
        assert order[TURNS:] == sorted(lefts[TURNS:])

    run(story)


def test_the_rate_is_bounded() -> None:
    """A hundred times 1 MB at 10 MB/s take ten seconds, whatever else is quick."""

    async def story(clock: object) -> None:
        upkeep = ReplicaUpkeep()

        async def work() -> None:
            async with upkeep.turn(1):
                await upkeep.pace(clock, 10**6, 1e7)  # type: ignore[arg-type]
                await asyncio.sleep(0.001)

        began = clock.monotonic()  # type: ignore[attr-defined]
        await asyncio.gather(*(work() for _ in range(101)))
        took = clock.monotonic() - began  # type: ignore[attr-defined]
        assert 9.9 <= took <= 10.5

    run(story)


def test_a_turn_in_which_nothing_is_sent_spends_nothing_of_the_rate() -> None:
    """However many had nothing to send, the next one that has waits for none of them."""

    async def story(clock: object) -> None:
        upkeep = ReplicaUpkeep()
        for _ in range(100):
            async with upkeep.turn(0):
                await asyncio.sleep(0.001)
        began = clock.monotonic()  # type: ignore[attr-defined]
        async with upkeep.turn(1):
            await upkeep.pace(clock, 10**6, 1e7)  # type: ignore[arg-type]
        assert clock.monotonic() - began < 0.01  # type: ignore[attr-defined]

    run(story)


def test_one_that_gives_up_waiting_takes_no_turn() -> None:
    """A tablet is closed while its segments wait."""

    async def story(clock: object) -> None:
        upkeep = ReplicaUpkeep()
        entered: list[str] = []

        async def work(name: str, left: int) -> None:
            async with upkeep.turn(left):
                entered.append(name)
                await asyncio.sleep(1.0)

        first = [asyncio.create_task(work(f"{n}", 1)) for n in range(TURNS)]
        await asyncio.sleep(0.1)
        gone = asyncio.create_task(work("gone", 0))
        last = asyncio.create_task(work("last", 1))
        await asyncio.sleep(0.1)
        gone.cancel()
        first[0].cancel()
        await asyncio.gather(*first, gone, last, return_exceptions=True)
        assert sorted(entered) == [*map(str, range(TURNS)), "last"]

    run(story)


def test_replicas_are_counted_by_backup() -> None:
    """What is put is taken again."""
    upkeep, a = ReplicaUpkeep(), ServerUuid("a")
    upkeep.put(a)
    upkeep.put(a)
    upkeep.take(a)
    assert upkeep.placed == {a: 1}
    upkeep.take(a)
    assert upkeep.placed == {}


def test_a_shortage_is_told_from_its_beginning_to_its_end() -> None:
    """What was missing at most is kept until nothing is."""
    watch = ShortageWatch()
    assert watch.look(0, 0) is None
    assert watch.look(3, 300) == Shortage(3, 300, 3, 300)
    assert watch.look(4, 350, 2) == Shortage(4, 350, 4, 350, segments_unheld=2)
    assert watch.look(5, 400) == Shortage(5, 400, 5, 400)
    assert watch.look(1, 50) == Shortage(1, 50, 5, 400)
    assert watch.look(0, 0) is None
    assert watch.look(1, 70) == Shortage(1, 70, 1, 70)
