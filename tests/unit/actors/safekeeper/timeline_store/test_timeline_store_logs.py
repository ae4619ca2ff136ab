"""The log of a safekeeper's timeline on disk: appended to, read, cut and trimmed."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper.timeline_store.files import SYNCS_MAX
from stelae.core.errors import NoSpace
from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import AcceptorState, ProposerId, history_of
from tests.unit.actors.safekeeper.timeline_store.stored_timelines import TABLET, filled, wal_files
from tests.unit.actors.safekeeper.timeline_store.timeline_world import World, entry, members, run

# ---- appends and reads --------------------------------------------------------------------------


def test_one_sync_serves_all_appends_that_came_meanwhile() -> None:
    """Group commit: what arrives while a sync is under way shares the next one."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        before = world.stepped.steps
        log = await timeline.resident()
        first = timeline.flush_lsn + 1
        timeline.write([entry(1, first, 10)])
        waiting = asyncio.ensure_future(timeline.flushed(first))
        await world.stepped.list("")  # the first sync is under way
        for lsn in range(first + 1, first + 4):
            timeline.write([entry(1, lsn, 10)])
        assert await timeline.flushed(first + 3) == first + 3
        await waiting
        assert log.is_idle
        assert world.stepped.steps - before <= 4, "two syncs, and a new file with its own at most"

    run(body)


def test_many_timelines_sync_at_once_but_not_too_many() -> None:
    """A thousand idle timelines that wake up do not take all threads of the process."""

    async def body(world: World) -> None:
        timelines = []
        for number in range(3 * SYNCS_MAX):
            timeline = await world.store.create(TabletId(f"n{number}"), members(1))
            await timeline.save(AcceptorState(members(1), term=1))
            timelines.append(timeline)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, world.disk.syncs_in_flight)
                await world.stepped.list("")

        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(timeline.append([entry(1, 1)]) for timeline in timelines))
        watching.cancel()
        assert 2 <= most <= SYNCS_MAX

    run(body)


def test_entries_are_read_by_range_and_size() -> None:
    """A reader gets at least one entry, as many as fit, and nothing that is not there."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        everything = [entry(1, lsn, 100) for lsn in range(1, 13)]
        assert await timeline.read(1, 12, 1 << 20) == everything
        assert await timeline.read(1, 99, 1 << 20) == everything
        assert await timeline.read(3, 4, 1 << 20) == everything[2:4]
        assert await timeline.read(3, 12, 1) == everything[2:3]
        some = await timeline.read(3, 12, 300)
        assert some == everything[2:4]
        assert await timeline.read(13, 20, 1 << 20) == []

    run(body)


def test_a_write_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """What of it reached the disk is cut off before the next entry is written."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        log = await timeline.resident()
        assert log._newest is not None
        file, newest = log._newest._file, log._newest

        class Filling:
            """A file that takes a part of what is written, as a real one does."""

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write_at(self, offset: int, *buffers: Any) -> None:
                newest._file = file
                file.write_at(offset, b"".join(map(bytes, buffers))[:250])
                raise OSError(errno.ENOSPC, "No space left on device")

        newest._file = Filling()
        with pytest.raises(NoSpace):
            await timeline.append([entry(1, 13, 50), entry(1, 14, 50), entry(1, 15, 50)])
        assert timeline.last == OpId(1, 12)
        with pytest.raises(NoSpace):
            timeline.write([entry(1, 16, 50)])
        await timeline.append([entry(2, 13, 50)])
        await world.start()
        again = world.timeline(TABLET)
        assert again.last == OpId(2, 13)
        assert (await again.read(13, 13, 1000))[0].term == 2

    run(body)


# ---- cut and trim -------------------------------------------------------------------------------


def test_a_cut_and_what_came_with_it_are_one_change() -> None:
    """The new term and the shorter log are durable together; the log goes on from there."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        state = msgspec.structs.replace(timeline.acceptor, term=3, voted_for=ProposerId("q"))
        await timeline.save(state, cut_from=10)
        assert timeline.last == OpId(1, 9)
        await timeline.append([entry(3, 10), entry(3, 11)])
        await world.start()
        again = world.timeline(TABLET)
        assert (again.acceptor.term, again.last) == (3, OpId(3, 11))
        assert history_of(await again.read(1, 11, 1 << 20)) == again.history

    run(body)


def test_trimming_removes_whole_files_up_to_the_horizon() -> None:
    """And nothing that somebody still reads."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        count = len(wal_files(world))
        held = await world.store.hold_snapshot(TABLET)
        assert await timeline.trim(99) == 0
        held.release()
        base = await timeline.trim(99)
        assert 0 < base <= 8
        assert len(wal_files(world)) < count
        assert await timeline.read(base, 12, 1 << 20) == []
        assert (await timeline.read(base + 1, 12, 1 << 20))[0].index == base + 1
        await world.start()
        assert world.timeline(TABLET).base_lsn == base
        assert world.timeline(TABLET).history == history_of([entry(1, 1)])

    run(body)
