"""A safekeeper's timelines on disk: created, written to by acceptors, deleted, on real files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.consensus.wal.acceptor import WalAcceptor
from stelae.consensus.wal.messages import (
    ProposerElected,
    ProposerGreeting,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
)
from stelae.core.errors import (
    AlreadyRunning,
    InvalidArgument,
    StaleTerm,
    TabletDeleted,
    TabletNotFound,
    TabletNotReady,
    TabletTombstoned,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import ProposerId, TermStart, cut_history
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk
from tests.unit.actors.safekeeper.timeline_store.stored_timelines import TABLET, donor_of, filled
from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    FILE_BYTES,
    ME,
    OTHER,
    THIRD,
    Blobs,
    World,
    entry,
    members,
    run,
)

# ---- creation and deletion ----------------------------------------------------------------------


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


# ---- acceptors ----------------------------------------------------------------------------------


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


# ---- the real disk ------------------------------------------------------------------------------


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
