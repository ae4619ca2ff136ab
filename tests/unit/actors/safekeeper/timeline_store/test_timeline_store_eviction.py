"""Idle timelines are offloaded, and come back when they are used."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.errors import CorruptData, NoSpace
from stelae.core.ids import OpId
from tests.unit.actors.safekeeper.timeline_store.stored_timelines import (
    TABLET,
    copied,
    filled,
    wal_files,
)
from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    OTHER,
    World,
    entry,
    members,
    run,
)


def is_evicted(timeline: Timeline) -> bool:
    return timeline.is_evicted


def test_an_evicted_timeline_votes_is_pulled_and_comes_back() -> None:
    """Only what needs the log brings it back; a copy of it has files of its own."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        assert await world.store.evict(TABLET)
        assert not wal_files(world)
        assert timeline.is_evicted
        assert timeline.last == OpId(1, 12)
        await timeline.save(msgspec.structs.replace(timeline.acceptor, term=5))
        held = await world.store.hold_snapshot(TABLET)
        other = World(world.loop, "other")
        await other.start()
        other.store.safekeeper = OTHER
        attempt = await other.store.pulls.begin(held.snapshot, members(2))
        assert attempt is not None
        await copied(other, held, attempt)
        assert await other.store.pulls.finish(attempt) is not None
        held.release()
        assert timeline.is_evicted, "it was read where it is"
        assert not other.blobs.content
        await world.start()
        again = world.timeline(TABLET)
        assert is_evicted(again)
        assert await again.append([entry(5, 13)]) == 13
        assert not is_evicted(again)
        assert not world.blobs.content
        assert len(await other.timeline(TABLET).read(1, 12, 1 << 20)) == 12

    run(body)


def test_an_offloaded_file_that_is_damaged_is_not_brought_back() -> None:
    """It is checked before it counts, and the timeline stays evicted."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        await world.store.evict(TABLET)
        name = min(world.blobs.content)
        good = world.blobs.content[name]
        world.blobs.content[name] = good[:-1] + b"?"
        with pytest.raises(CorruptData, match="blob"):
            await timeline.append([entry(1, 13)])
        assert timeline.is_evicted
        assert not wal_files(world, 2)
        world.blobs.content[name] = good
        assert await timeline.append([entry(1, 13)]) == 13

    run(body)


def test_eviction_gives_way_to_use_and_to_readers() -> None:
    """An idle timeline is one that nobody writes to or copies."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        held = await world.store.hold_snapshot(TABLET)
        assert not await world.store.evict(TABLET)
        held.release()
        timeline.write([entry(1, 13)])
        assert not await world.store.evict(TABLET)
        await timeline.flushed(13)
        assert await world.store.evict(TABLET)
        await asyncio.gather(timeline.resident(), timeline.resident())
        assert timeline.control.incarnation == 2, "it is brought back once"

    run(body)


def test_an_entry_written_while_an_eviction_begins_stops_it() -> None:
    """What is noted to be offloaded is what the timeline has; later entries would be lost."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        files = world.store.files
        replace = files.replace_control

        async def late(control: Any) -> None:
            files.replace_control = replace  # type: ignore[method-assign]
            timeline.write([entry(1, 13)])
            await timeline.flushed(13)
            await replace(control)

        files.replace_control = late  # type: ignore[method-assign]
        assert not await world.store.evict(TABLET)
        assert timeline.flush_lsn == 13

    run(body)


@pytest.mark.parametrize("what", ["held", "trimmed"])
def test_a_timeline_that_is_read_or_trimmed_while_it_is_offloaded_stays(what: str) -> None:
    """Its reader needs the files that would go, and what was offloaded is not what is here."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        uses = timeline.uses

        async def meanwhile() -> None:
            world.blobs.before_put = None
            if what == "held":
                timeline.holds[world] = 1
            else:
                assert await timeline.trim(8) > 0
            assert timeline.uses == uses, "nothing else stops it"

        world.blobs.before_put = meanwhile
        assert not await world.store.evict(TABLET)
        assert not is_evicted(timeline)
        assert wal_files(world)
        timeline.holds.clear()
        assert await world.store.evict(TABLET)

    run(body)


def test_a_timeline_goes_on_if_the_disk_is_full_when_it_would_be_evicted() -> None:
    """Its log was set aside for the step in which the other place begins to count."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        commit, full = timeline.commit, NoSpace("safekeeper 1", "disk")

        async def refused(control: Any) -> None:
            if control.evicted is not None:
                raise full
            await commit(control)

        timeline.commit = refused  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            await world.store.evict(TABLET)
        timeline.commit = commit  # type: ignore[method-assign]
        assert not is_evicted(timeline)
        assert await timeline.append([entry(1, 13)]) == 13
        assert len(await timeline.read(1, 13, 1 << 20)) == 13

    run(body)
