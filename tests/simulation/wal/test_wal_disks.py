"""Disks of safekeepers that fail, fill up, or are gone, below ``wal`` tables in a whole cluster.

In each story all steps of all timelines are those of the model in `spec/`, too.
"""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.core.messages.safekeepers import (
    TimelinePresence,
)
from stelae.core.messages.timelines import (
    LIST_SAFEKEEPERS,
    ListSafekeepers,
)
from stelae.simulation.world.disk import SimDisk
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    ask,
    read_all,
    tell,
    timelines,
    until_at_rest,
    write,
)


async def broken(here: WalFixture) -> int:
    """Timelines that did nothing any more, by the word of the masters."""
    listed = await ask(here, LIST_SAFEKEEPERS, ListSafekeepers())
    return sum(one.broken for one in listed.safekeepers)


def presences(here: WalFixture) -> set[TimelinePresence]:
    """How safekeepers that run have their timelines."""
    servers = [here.world.server(name) for name in here.cluster.safekeepers]
    found = [s.timelines for s in servers if s is not None]
    return {t.describe(one).presence for t in found for one in t.held}


def test_a_sync_that_fails_once_costs_no_member() -> None:
    """Below each member, one after the other: its timeline stops, the status says so, and it is
    opened anew from what is durable, without a restart; what was acknowledged outlives the loss of
    power on all three."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(3)
        ((_, first),) = timelines(here).items()
        names = [here.keeper(member) for member in first.sk_set]
        lives = [here.world.nodes[name].lives for name in names]
        written = seen = 0
        for name in names:
            here.world.nodes[name].disk.fail_next_sync = True
            for _ in range(10):
                await write(table, written, 2)
                written += 2
                await asyncio.sleep(0.1)
                seen += await broken(here)
            await here.until(
                lambda: presences(here) == {TimelinePresence.RESIDENT}, f"{name} goes on", 10.0
            )
        assert seen, "nobody saw a timeline that had stopped"
        assert [here.world.nodes[name].lives for name in names] == lives
        for name in names:
            assert here.world.metrics[name].counts["timelines_reopened"] == 1
            here.world.crash(name)
        assert timelines(here).popitem()[1] == first
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, written)
        await until_at_rest(here)

    tell(story, timeline_scan_s=0.2, safekeeper_dead_after_s=300.0)


def fail_second_sync(disk: SimDisk) -> None:
    """From now on."""

    def fail(_: float) -> None:
        disk.fail_next_sync = True

    def wait(_: float) -> None:
        disk.on_sync = fail

    disk.on_sync = wait


def test_a_disk_that_fails_while_safekeepers_start_costs_no_restart() -> None:
    """All three members start at once, and below each the sync of the log fails: nobody else could
    take their places. Each loads its timeline again, and all goes on."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(3)
        await write(table, 0, 10)
        names = [here.keeper(member) for member in timelines(here).popitem()[1].sk_set]
        for name in names:
            here.world.crash(name)
            fail_second_sync(here.world.nodes[name].disk)  # the first is of who it is
        await here.world.wait_ready()
        lives = [here.world.nodes[name].lives for name in names]
        assert TimelinePresence.FAILED in presences(here)
        await here.until(lambda: presences(here) == {TimelinePresence.RESIDENT}, "all go on", 10.0)
        assert [here.world.nodes[name].lives for name in names] == lives
        for name in names:
            assert here.world.metrics[name].counts["timelines_reopened"] == 1
        await write(table, 10, 10)
        for name in names:
            here.world.crash(name)
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 20)
        await until_at_rest(here)

    tell(story, timeline_scan_s=0.2, safekeeper_dead_after_s=300.0)


def test_a_disk_that_fails_for_ever_is_not_tried_for_ever() -> None:
    """Nobody else can take over: the tries are bounded, and the other two members go on."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(3)
        name = here.keeper(2)
        here.world.nodes[name].disk.fail_syncs = True
        await write(table, 0, 10)
        await asyncio.sleep(200.0)
        counts = here.world.metrics[name].counts
        failed = sum(n for key, n in counts.items() if key.startswith("timeline_reopenings_failed"))
        assert failed == 8
        assert await broken(here) == 1
        await write(table, 10, 10)
        here.world.nodes[name].disk.heal()
        here.world.restart(name)
        await until_at_rest(here)
        await asyncio.sleep(3.0)
        assert await broken(here) == 0
        await read_all(table, 20)

    tell(story, timeline_scan_s=0.2, safekeeper_dead_after_s=1000.0)


@pytest.mark.parametrize("seed", range(1, 5))
def test_full_disks_of_safekeepers_stop_writes_and_lose_nothing(seed: int) -> None:
    """With room on two of three members writes go on; with room on one they are refused, as what
    passes, once the room is used up that was taken before; when there is room again, all goes on,
    and what was acknowledged is there."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(3)
        disks = [here.world.nodes[name].disk for name in here.cluster.safekeepers]
        await write(table, 0, 5)
        disks[0].full = True
        await write(table, 5, 20)
        disks[1].full = True
        refused = 0
        for _ in range(40):  # zeros written ahead are room
            try:
                await table.upsert({"id": 100, "text": "x" * 50_000}, timeout=2.0)
            except (RetryLater, OutcomeUnknown):
                refused += 1
        assert refused >= 3
        with pytest.raises((RetryLater, OutcomeUnknown)):
            await table.upsert({"id": 100, "text": "x" * 50_000}, timeout=2.0)
        disks[0].full = disks[1].full = False
        await write(table, 25, 15)
        for name in here.cluster.safekeepers:
            here.world.crash(name)
        for owner in here.owners():
            here.world.crash(owner)
        await table.delete(100, timeout=20.0)
        await read_all(table, 40)
        await until_at_rest(here)

    tell(story, seed, safekeeper_dead_after_s=300.0)


def test_a_safekeeper_whose_disk_is_gone_comes_back_as_another_one() -> None:
    """It has lost its vote and its log, so it must not answer as the member that it was: it gets
    another id, takes the lost one's place after the grace time, and is sent what it lacks."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(3)
        await write(table, 0, 20)
        ((tablet_id, first),) = timelines(here).items()
        lost = first.sk_set[0]
        name = here.keeper(lost)
        here.world.crash(name, lose_disk=True)
        await write(table, 20, 10)
        await here.until(
            lambda: lost not in timelines(here)[tablet_id].members, "another member", 60.0
        )
        (new,) = set(timelines(here)[tablet_id].sk_set) - set(first.sk_set)
        assert here.keeper(new) == name
        await write(table, 30, 10)
        await until_at_rest(here)
        for member in first.sk_set[1:]:
            here.world.crash(here.keeper(member))
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 40)

    tell(story, timeline_scan_s=0.2, safekeeper_dead_after_s=3.0)
