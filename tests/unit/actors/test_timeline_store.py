"""A safekeeper's timelines on disk: what each change needs, refuses and leaves. Crashes: beside."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.actors.timeline import Timeline
from stelae.actors.timeline_files import SYNCS_MAX
from stelae.actors.timeline_pull import PullAttempt
from stelae.actors.timeline_store import TimelineStore
from stelae.consensus.wal_acceptor import WalAcceptor
from stelae.consensus.wal_messages import (
    ProposerElected,
    ProposerGreeting,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
)
from stelae.core.errors import (
    AlreadyRunning,
    CopyOver,
    CorruptData,
    InvalidArgument,
    NoSpace,
    StaleTerm,
    TabletDeleted,
    TabletNotFound,
    TabletNotReady,
    TabletTombstoned,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.tasks import Tasks
from stelae.core.timelines import AcceptorState, ProposerId, TermStart, cut_history, history_of
from stelae.runtime.files import LocalDisk
from tests.unit.actors.timeline_world import (
    FILE_BYTES,
    ME,
    OTHER,
    PIECE_BYTES,
    THIRD,
    Blobs,
    World,
    entry,
    members,
    run,
)

TABLET = TabletId("t1")
Body = Callable[[World], Awaitable[None]]


async def filled(world: World, count: int = 12, *, committed: int = 8) -> Timeline:
    """A timeline of term 1 with entries, some of them committed, in several files."""
    timeline = await world.store.create(TABLET, members(1))
    await timeline.save(AcceptorState(members(1), term=1, voted_for=ProposerId("p")))
    for lsn in range(1, count + 1):
        await timeline.append([entry(1, lsn, 100)])
    state = msgspec.structs.replace(
        timeline.acceptor,
        commit_lsn=committed,
        horizon_lsn=committed,
        term_history=timeline.history,
    )
    await timeline.save(state)
    return timeline


def wal_files(world: World, incarnation: int = 1) -> list[str]:
    folder = f"timeline-wals/{TABLET}-{incarnation}/"
    return [path for path in world.disk.paths() if path.startswith(folder)]


async def copied(world: World, source: Any, attempt: PullAttempt) -> None:
    """All pieces of a copy that are missing."""
    while attempt.missing:
        file, offset = attempt.missing[0]
        piece = await source.read(file, offset, PIECE_BYTES)
        await world.store.pulls.write(attempt, file, offset, piece)


async def donor_of(world: World, count: int, *, term: int = 1, generation: int = 2) -> Any:
    """A snapshot of another safekeeper with so many entries."""
    log = [entry(term, lsn, 100) for lsn in range(1, count + 1)]
    state = AcceptorState(members(generation, OTHER, THIRD), term, commit_lsn=count)
    return await world.donor(TABLET, state, log)


# ---- appends --------------------------------------------------------------------------------


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
        file = log._newest

        class Filling:
            """A file that takes a part of what is written, as a real one does."""

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write_at(self, offset: int, *buffers: Any) -> None:
                log._newest = file
                file.write_at(offset, b"".join(map(bytes, buffers))[:250])
                raise OSError(errno.ENOSPC, "No space left on device")

        log._newest = Filling()  # type: ignore[assignment]
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


# ---- damage ---------------------------------------------------------------------------------


def test_damage_below_the_commit_stops_that_timeline_and_no_other() -> None:
    """What was committed is not silently cut off; the error names file and offset."""

    async def body(world: World) -> None:
        await filled(world)
        other = await world.store.create(TabletId("t2"), members(1))
        await other.save(AcceptorState(members(1), term=1))
        await other.append([entry(1, 1)])
        path = wal_files(world)[0]
        world.disk.corrupt(path, 200)
        loaded = await world.start()
        with pytest.raises(CorruptData) as caught:
            world.timeline(TABLET)
        assert caught.value.args[0] == path
        assert 0 < caught.value.args[1] <= 200
        assert list(loaded.failed) == [TABLET]
        assert await world.timeline("t2").append([entry(1, 2)]) == 2
        with pytest.raises(CorruptData):
            await world.store.create(TABLET, members(2))
        assert wal_files(world), "it is left as it is"

    run(body)


def test_a_missing_end_below_the_commit_is_corruption() -> None:
    """A file that is gone, or cut between records, is no end of a log that had committed more."""

    async def body(world: World) -> None:
        await filled(world, committed=12)
        await world.stepped.remove(wal_files(world)[-1])
        loaded = await world.start()
        assert "12 was committed" in str(loaded.failed[TABLET])

    run(body)


def test_a_torn_record_above_the_commit_is_the_end() -> None:
    """An append of which nobody was told ends there, and the log goes on from it."""

    async def body(world: World) -> None:
        timeline = await filled(world, 1, committed=0)
        log = await timeline.resident()
        assert log._newest is not None
        log._newest.write_at(log.index.files[-1].end, b"StRe half of a record")
        await log._newest.sync()
        loaded = await world.start()
        assert not loaded.failed
        again = world.timeline(TABLET)
        assert again.last == OpId(1, 1)
        await again.append([entry(1, 2)])
        await world.start()
        assert world.timeline(TABLET).last == OpId(1, 2)

    run(body)


def test_damage_of_what_was_proven_durable_is_corruption_also_above_the_commit() -> None:
    """It was acknowledged, even if the commit is not known here yet."""

    async def body(world: World) -> None:
        await filled(world, 4, committed=0)
        path = wal_files(world)[-1]
        world.disk.corrupt(path, 150)
        loaded = await world.start()
        assert "durable" in str(loaded.failed[TABLET])

    run(body)


def test_a_damaged_control_file_is_not_taken_for_none() -> None:
    """Who forgets its votes could give others; only dropping the table for good helps."""

    async def body(world: World) -> None:
        await filled(world)
        world.disk.corrupt(f"timelines/{TABLET}", 30)
        loaded = await world.start()
        assert TABLET in loaded.failed
        with pytest.raises(CorruptData):
            await world.store.delete(TABLET, members(9, OTHER, THIRD))
        await world.store.delete(TABLET, None)
        with pytest.raises(TabletTombstoned):
            world.timeline(TABLET)
        assert not wal_files(world)

    run(body)


def test_a_wal_without_a_control_file_is_corruption() -> None:
    """Control files are made first: somebody took it away, and term and vote with it."""

    async def body(world: World) -> None:
        await filled(world)
        await world.stepped.remove(f"timelines/{TABLET}")
        assert TABLET in (await world.start()).failed

    run(body)


def test_damage_found_while_reading_stops_the_timeline() -> None:
    """Nothing is served, and nothing acknowledged, of a log that is damaged."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        world.disk.corrupt(wal_files(world)[0], 200)
        with pytest.raises(CorruptData):
            await timeline.read(1, 12, 1 << 20)
        with pytest.raises(CorruptData):
            await timeline.append([entry(1, 13)])
        assert told == [TABLET]

    run(body)


# ---- cut and trim ---------------------------------------------------------------------------


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


# ---- creation and deletion ------------------------------------------------------------------


def test_creating_a_timeline_twice_makes_it_once() -> None:
    """A controller repeats its order until it knows that it was carried out."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        before = world.stepped.steps
        assert await world.store.create(TABLET, members(5)) is timeline
        assert world.stepped.steps == before
        with pytest.raises(TabletNotFound):
            world.timeline("t2")
        with pytest.raises(InvalidArgument):
            await world.store.create(TabletId("../t"), members(1))

    run(body)


def test_a_tombstone_refuses_older_generations_also_after_a_restart() -> None:
    """A late creation or pull does not bring back what was deleted; a newer one starts anew."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        assert await world.store.delete(TABLET, members(4, OTHER, THIRD))
        with pytest.raises(TabletNotReady, match="deleted"):
            await timeline.append([entry(1, 13)])
        await world.start()
        with pytest.raises(TabletTombstoned):
            world.timeline(TABLET)
        with pytest.raises(TabletDeleted):
            await world.store.create(TABLET, members(4))
        source = await donor_of(world, 3)
        with pytest.raises(TabletDeleted):
            await world.store.pulls.begin(source.snapshot, members(4))
        assert not await world.store.delete(TABLET, members(3, OTHER, THIRD))
        again = await world.store.create(TABLET, members(5))
        assert again.last == OpId(0, 0)
        assert again.acceptor.term == 1, "no term is won twice"

    run(body)


def test_a_member_is_not_deleted_and_neither_is_a_newer_one() -> None:
    """The seed's rule: only of a configuration that is not older, and without this safekeeper."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        state = msgspec.structs.replace(timeline.acceptor, configuration=members(6))
        await timeline.save(state)
        with pytest.raises(InvalidArgument):
            await world.store.delete(TABLET, members(7, ME, OTHER))
        with pytest.raises(StaleTerm):
            await world.store.delete(TABLET, members(5, OTHER, THIRD))
        assert await timeline.append([entry(1, 13)]) == 13

    run(body)


# ---- pull -----------------------------------------------------------------------------------


def test_a_pull_goes_on_where_an_earlier_attempt_ended() -> None:
    """Files that are whole are not copied again."""

    async def body(world: World) -> None:
        source = await donor_of(world, 20)
        first = await world.store.pulls.begin(source.snapshot, members(2))
        assert first is not None
        file = first.missing[0][0]
        await world.store.pulls.write(first, file, 0, await source.read(file, 0, 1 << 20))
        attempt = await world.store.pulls.begin(source.snapshot, members(3))
        assert attempt is not None
        assert file.name in attempt.held
        with pytest.raises(TabletNotReady):
            await world.store.pulls.finish(first)
        await copied(world, source, attempt)
        timeline = await world.store.pulls.finish(attempt)
        assert timeline is not None
        assert timeline.position == source.snapshot.position
        await timeline.append([entry(1, 21)])

    run(body)


def test_a_copy_that_is_not_what_was_promised_does_not_count() -> None:
    """Each file is checked against the manifest, and all of them against its position."""

    async def body(world: World) -> None:
        await filled(world, 4, committed=2)
        source = await donor_of(world, 20)
        manifest = source.snapshot
        attempt = await world.store.pulls.begin(manifest, members(2))
        assert attempt is not None
        file = manifest.files[0]
        data = bytearray(await source.read(file, 0, 1 << 20))
        data[50] ^= 1
        with pytest.raises(CorruptData):
            await world.store.pulls.write(attempt, file, 0, data)
        with pytest.raises(InvalidArgument, match="lacks"):
            await world.store.pulls.finish(attempt)
        await world.store.pulls.abort(attempt)
        farther = msgspec.structs.replace(manifest, last=OpId(1, 21))
        attempt = await world.store.pulls.begin(farther, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        with pytest.raises(CorruptData, match="ends at"):
            await world.store.pulls.finish(attempt)
        assert world.timeline(TABLET).last == OpId(1, 4)
        assert len({path.rpartition("/")[0] for path in world.disk.paths()}) == 2

    run(body)


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    """Nothing of it reaches the disk."""

    async def body(world: World) -> None:
        manifest = (await donor_of(world, 5)).snapshot
        file = manifest.files[0]
        for wrong in (
            {"base_lsn": 9},
            {"last": OpId(2, 5)},
            {"files": (msgspec.structs.replace(file, name="../control"),)},
            {"files": (file, file)},
            {"files": (msgspec.structs.replace(file, size_bytes=0),)},
            {"tablet_id": TabletId("a/b")},
        ):
            with pytest.raises(InvalidArgument):
                await world.store.pulls.begin(
                    msgspec.structs.replace(manifest, **wrong), members(2)
                )
        with pytest.raises(InvalidArgument, match="no member"):
            await world.store.pulls.begin(manifest, members(2, OTHER, THIRD))
        with pytest.raises(StaleTerm):
            await world.store.pulls.begin(manifest, members(1))
        assert not world.disk.paths()

    run(body)


@pytest.mark.parametrize("seed", range(12))
def test_appends_that_race_with_a_pull_are_kept_or_refused(seed: int) -> None:
    """Whatever was acknowledged before the copy counts is in the log afterwards."""

    async def body(world: World) -> None:
        timeline = await filled(world, 4, committed=2)
        source = await donor_of(world, 8)
        attempt = await world.store.pulls.begin(source.snapshot, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        acknowledged = 4

        async def append() -> None:
            nonlocal acknowledged
            for lsn in range(5, 30):
                try:
                    acknowledged = await timeline.append([entry(1, lsn, 100)])
                except TabletNotReady:
                    return
                await asyncio.sleep(world.rng.random() * 0.001)

        async def finish() -> None:
            await asyncio.sleep(world.rng.random() * 0.02)
            await world.store.pulls.finish(attempt)

        await asyncio.gather(append(), finish())
        now = world.timeline(TABLET)
        assert now.flush_lsn >= acknowledged
        await world.start()
        assert world.timeline(TABLET).flush_lsn >= acknowledged

    run(body, seed)


def test_a_cut_ends_the_snapshots_of_before() -> None:
    """Else the copy could mix two histories."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        held = await world.store.hold_snapshot(TABLET)
        await timeline.append([entry(1, 13)])
        file = held.snapshot.files[-1]
        assert len(await held.read(file, 0, 1 << 20)) == file.size_bytes, "appends do not matter"
        await timeline.save(cut_from=11)
        with pytest.raises(CopyOver):
            await held.read(file, 0, 10)
        held.release()
        with pytest.raises(CopyOver):
            await held.read(file, 0, 10)

    run(body)


# ---- eviction -------------------------------------------------------------------------------


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
        assert again.is_evicted
        assert await again.append([entry(5, 13)]) == 13
        assert not again.is_evicted
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


# ---- acceptors ------------------------------------------------------------------------------


def acceptor_of(timeline: Timeline) -> WalAcceptor:
    return WalAcceptor(
        timeline_id=TABLET, safekeeper=ME, state=timeline.acceptor, log=timeline.extent
    )


async def receive(timeline: Timeline, core: WalAcceptor, *messages: Any) -> list[Any]:
    """What the acceptor answers, once what it promises is durable."""
    for message in messages:
        core.receive(message)
    ready = core.take_ready()
    await timeline.carry_out(ready)
    if ready:
        core.advance(ready)
    core.check_invariants()
    return list(ready.messages)


async def lead(timeline: Timeline, core: WalAcceptor, term: int, history: Any) -> list[Any]:
    """A proposer greets, is voted for and elected in that term."""
    proposer, generation = ProposerId(f"p{term}"), core.generation
    head = (TABLET, proposer, ME)
    messages = (
        ProposerGreeting(*head, term, generation, 1, 0, core.configuration),
        WalVoteRequest(*head, term, generation, 1, 1),
        ProposerElected(*head, term, generation, 1, 2, history, 0),
    )
    return await receive(timeline, core, *messages)


def test_an_acceptor_finds_on_disk_what_it_had() -> None:
    """Votes, appends, cuts and the horizon go through the store, and come back after restarts."""

    async def body(world: World) -> None:
        timeline = await world.store.create(TABLET, members(1))
        core = acceptor_of(timeline)
        for term in range(1, 6):
            kept = core.last_lsn - 2 if core.last_lsn - 2 > core.commit_lsn else core.last_lsn
            history = cut_history(core.history, kept)
            start = TermStart(term, kept + 1)
            answers = await lead(timeline, core, term, (*history, start))
            assert isinstance(answers[-1], WalAppendResponse)
            assert answers[-1].flush_lsn == kept == timeline.flush_lsn
            entries = tuple(entry(term, kept + 1 + i, 90) for i in range(9))
            request = WalAppendRequest(
                TABLET,
                ProposerId(f"p{term}"),
                ME,
                term,
                1,
                1,
                3,
                core.last,
                entries,
                kept + 4,
                kept + 3,
                1,
            )
            answers = await receive(timeline, core, request)
            assert answers[-1].flush_lsn == kept + 9
            core.checkpoint()
            await receive(timeline, core)
            await timeline.trim(core.horizon_lsn)
            await world.start()
            timeline = world.timeline(TABLET)
            again = acceptor_of(timeline)
            assert again.state == core.state
            assert (again.last, again.history) == (core.last, core.history)
            core = again
        assert timeline.base_lsn > 0

    run(body)


# ---- the real disk --------------------------------------------------------------------------


async def test_two_incarnations_cannot_use_one_directory(tmp_path: Path) -> None:
    """The lock of a safekeeper's directory is taken before any timeline is read."""
    disk = LocalDisk(tmp_path, sync_in_thread=True)
    with pytest.raises(AlreadyRunning):
        LocalDisk(tmp_path)
    disk.close()


async def test_timelines_lie_on_a_real_disk(tmp_path: Path) -> None:
    """All of it once over files: append, cut, trim, evict, pull, delete, and restarts."""
    rng = random.Random(1)
    blobs = Blobs()
    for life in range(3):
        disk = LocalDisk(tmp_path, sync_in_thread=True)
        tasks = Tasks()
        store = TimelineStore(disk, tasks, ME, blobs=blobs, file_bytes=FILE_BYTES)
        assert not (await store.load_all()).failed
        if life == 0:
            await store.create(TABLET, members(1))
        timeline = store.timeline(TABLET)
        start = timeline.flush_lsn
        state = msgspec.structs.replace(timeline.acceptor, term=life + 1)
        await timeline.save(state, cut_from=max(state.commit_lsn + 1, start - 1))
        for lsn in range(timeline.flush_lsn + 1, start + 20):
            await timeline.append([entry(life + 1, lsn, rng.randrange(300))])
        entries = await timeline.read(timeline.base_lsn + 1, start + 20, 1 << 20)
        assert entries[-1].op_id == timeline.last == OpId(life + 1, start + 19)
        commit = timeline.flush_lsn - 3
        state = msgspec.structs.replace(
            timeline.acceptor, commit_lsn=commit, horizon_lsn=commit, term_history=timeline.history
        )
        await timeline.save(state)
        assert await timeline.trim(commit) > 0
        assert await store.evict(TABLET)
        if life == 2:
            await store.delete(TABLET, None)
        await store.close()
        await tasks.close()
        disk.close()
    assert not blobs.content
