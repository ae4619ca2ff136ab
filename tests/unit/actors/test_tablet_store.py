"""A server's tablets on disk: what each change needs, refuses and leaves. Crashes: beside this."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from stelae.actors.replica_storage import ReplicaStorage
from stelae.actors.tablet_copies import CopyAttempt, TabletCopies
from stelae.actors.tablet_startup import RepairKind
from stelae.actors.tablet_store import TabletStore
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    NoSpace,
    StaleTerm,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.replica_messages import DataState
from stelae.core.replication import TermAndVote
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk
from stelae.storage.consensus_metadata import ConsensusMetadata
from stelae.storage.superblock import NOTHING
from tests.unit.actors.tablet_store_world import (
    ME,
    OTHER,
    Crash,
    When,
    World,
    entry,
    files_of,
    flush,
    members,
    metadata,
    run,
    snapshot,
    stored,
    table,
)

TABLET = TabletId("t1")
LAST = OpId(3, 9)
Body = Callable[[World], Awaitable[None]]
IMAGES = {"one": b"first image", "two": b"second image"}
WANTED = [stored(name, data) for name, data in IMAGES.items()]


async def ready(world: World, term: int = 3) -> None:
    """A tablet with two images up to entry 5 of ``term``."""
    await world.store.create(TABLET, table(), members())
    vote = TermAndVote(term, OTHER)
    await world.store.files.replace_consensus(ConsensusMetadata(TABLET, vote, members()))
    await flush(world.store, TABLET, IMAGES, snapshot(OpId(term, 5), IMAGES))


async def tombstone(world: World, last: OpId | None = LAST) -> None:
    """What is left of such a tablet."""
    await ready(world)
    await world.store.tombstone(TABLET, last)


async def begun(world: World, term: int = 3) -> CopyAttempt:
    """A copy of the images, without any yet."""
    return await world.copies.begin_copy(TABLET, table(), metadata(TABLET, term), WANTED)


async def whole(world: World, term: int = 3) -> CopyAttempt:
    """A copy with all images."""
    attempt = await begun(world, term)
    for file in WANTED:
        await world.copies.write_copied(attempt, file, IMAGES[file.name])
    return attempt


def contents(world: World, folder: str) -> list[str]:
    return [path for path in world.disk.paths() if path.startswith(folder)]


# ---- creation, votes, flush -----------------------------------------------------------------


def test_creating_a_tablet_twice_makes_it_once() -> None:
    """A master repeats its order until it knows that it was carried out."""

    async def body(world: World) -> None:
        await ready(world)
        before, steps = world.store.superblock(TABLET), world.stepped.steps
        assert await world.store.create(TABLET, table(), members()) == before
        assert world.stepped.steps == steps, "nothing is written"
        assert before is not None
        assert before.snapshot is not None

    run(body)


def test_a_deleted_or_half_copied_tablet_is_not_created_anew() -> None:
    """A new, empty replica under the same id would have forgotten what it acknowledged."""

    async def body(world: World) -> None:
        await tombstone(world)
        with pytest.raises(TabletDeleted):
            await world.store.create(TABLET, table(), members())
        await begun(world)
        with pytest.raises(TabletNotReady, match="being copied"):
            await world.store.create(TABLET, table(), members())
        with pytest.raises(InvalidArgument):
            await world.store.create(TabletId("../t"), table(), members())

    run(body)


def test_the_vote_of_a_tombstone_rises_and_is_given_once_a_term() -> None:
    """What a decision was made on may have changed meanwhile; the store looks again."""

    async def body(world: World) -> None:
        await tombstone(world)
        await world.store.save_vote(TABLET, TermAndVote(5, OTHER))
        await world.store.save_vote(TABLET, TermAndVote(5, OTHER))
        for wrong in (TermAndVote(4, OTHER), TermAndVote(5, ME), TermAndVote(5, None)):
            with pytest.raises(StaleTerm):
                await world.store.save_vote(TABLET, wrong)
        await begun(world, term=4)
        await world.store.save_vote(TABLET, TermAndVote(6, ME))
        await world.start()
        found = await world.store.metadata(TABLET)
        assert found.term_and_vote == TermAndVote(6, ME)

    run(body)


def test_a_ready_tablets_vote_is_its_replicas_alone() -> None:
    """Two writers of one vote could each give another."""

    async def body(world: World) -> None:
        await ready(world)
        for tablet in (TABLET, TabletId("unknown")):
            with pytest.raises(TabletNotReady):
                await world.store.save_vote(tablet, TermAndVote(9, OTHER))

    run(body)


def test_a_snapshot_counts_only_with_all_its_images_durable() -> None:
    """A manifest that names a file which is not there would be a tablet that cannot be opened."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.write_image(TABLET, "three", b"third")
        for images in ({"four": b""}, {"three": b"other"}, {**IMAGES, "three": b"thirD"}):
            with pytest.raises(AssertionError, match="the snapshot needs"):
                await world.store.replace_snapshot(TABLET, snapshot(OpId(3, 8), images))
        assert world.store.superblock(TABLET) is not None
        assert (await world.start()).superblocks[TABLET].snapshot == snapshot(OpId(3, 5), IMAGES)

    run(body)


def test_the_replica_finds_its_snapshot_in_the_superblock() -> None:
    """The one replacement of the superblock is what makes a snapshot count."""

    async def body(world: World) -> None:
        await world.store.create(TABLET, table(), members())
        place = world.store.snapshots(TABLET)
        assert await place.load() is None
        await world.store.write_image(TABLET, "one", IMAGES["one"])
        taken = snapshot(OpId(0, 4), {"one": IMAGES["one"]})
        await place.replace(taken)
        await world.start()
        assert await world.store.snapshots(TABLET).load() == taken

    run(body)


def test_an_image_for_the_next_flush_survives_the_one_before() -> None:
    """Only what the earlier snapshot needed and the later does not is removed (KUDU-701)."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.write_image(TABLET, "next", b"next")
        assert await world.store.write_image(TABLET, "next", b"next") == stored("next", b"next")
        kept = {"two": IMAGES["two"]}
        await world.store.replace_snapshot(TABLET, snapshot(OpId(3, 6), kept))
        assert contents(world, "data/") == ["data/t1/next", "data/t1/two"]
        await world.store.replace_snapshot(TABLET, snapshot(OpId(3, 7), {**kept, "next": b"next"}))
        assert contents(world, "data/") == ["data/t1/next", "data/t1/two"]

    run(body)


def test_pinned_images_stay_until_the_last_pin_is_gone() -> None:
    """A copy from here reads images that a flush has replaced meanwhile."""

    async def body(world: World) -> None:
        await ready(world)
        first, second = await world.store.pin(TABLET), await world.store.pin(TABLET)
        assert first.files == tuple(WANTED)
        await flush(world.store, TABLET, {"new": b"n"}, snapshot(OpId(3, 8), {"new": b"n"}))
        await world.store.unpin(first)
        await world.store.unpin(first)
        for file in second.files:
            assert await world.store.read_image(TABLET, file) == IMAGES[file.name]
        await world.store.unpin(second)
        assert contents(world, "data/") == ["data/t1/new"]

    run(body)


# ---- deletion and quarantine ----------------------------------------------------------------


def test_a_deletion_keeps_term_vote_and_last_op_id_and_moves_the_data_away() -> None:
    """The tombstone votes for ever; the data is in the quarantine until it is purged."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.files.write_log(TABLET, [entry(3, 6), entry(3, 7)])
        after = await world.store.tombstone(TABLET, OpId(3, 7))
        assert after is not None
        assert (after.state, after.tombstone) == (DataState.DELETED, OpId(3, 7))
        assert contents(world, "data/") == contents(world, "wals/") == []
        (listed,) = await world.store.quarantine_list()
        assert (listed.tablet_id, listed.table) == (TABLET, "rows")
        assert contents(world, listed.folder) == [
            f"{listed.folder}/{name}"
            for name in (
                "consensus-meta",
                "data/one",
                "data/two",
                "tablet-meta",
                "wals/log-00000000000000000006",
            )
        ]
        assert listed.size_bytes == sum(len(world.disk.durable(p)) for p in contents(world, "q"))
        assert await world.store.quarantine_purge(TabletId("other")) == []
        assert await world.store.quarantine_purge(TABLET, 77) == []
        assert await world.store.quarantine_purge() == [listed]
        assert contents(world, "q") == []
        found = await world.store.metadata(TABLET)
        assert found.term_and_vote == TermAndVote(3, OTHER)

    run(body)


def test_a_purge_that_a_crash_interrupts_is_still_listed_with_its_name() -> None:
    """What is left can be found, known and purged."""

    def crashing_at(step: int, seed: int) -> bool:
        async def body(world: World) -> bool:
            await tombstone(world)
            world.stepped.crash_at = (world.stepped.steps + step, When.DURING)
            try:
                await world.store.quarantine_purge()
                cut_short = False
            except Crash:
                cut_short = True
            await world.start()
            for listed in await world.store.quarantine_list():
                assert cut_short
                assert listed.table == "rows" or not contents(world, f"{listed.folder}/data")
            await world.store.quarantine_purge()
            assert contents(world, "q") == []
            return cut_short

        return run(body, seed=(step, seed))

    step = 0
    while any([crashing_at(step, seed) for seed in range(40)]):
        step += 1
    assert step > 1


def test_what_is_deleted_already_costs_nothing() -> None:
    """Masters repeat deletions; each must not be a write (KUDU-2126)."""

    async def body(world: World) -> None:
        assert await world.store.tombstone(TABLET, NOTHING) is None
        await tombstone(world)
        steps = world.stepped.steps
        await world.store.tombstone(TABLET, OpId(9, 9))
        assert world.stepped.steps == steps
        await world.store.tombstone(TABLET, None, forever=True)
        assert world.stepped.steps == steps + 1
        for forever in (True, False):
            after = await world.store.tombstone(TABLET, None, forever=forever)
            assert after is not None
            assert (after.forever, after.tombstone) == (True, OpId(3, 9))
        assert world.stepped.steps == steps + 1

    run(body)


def test_a_tablet_that_is_gone_for_good_is_never_copied_again() -> None:
    """Neither one that was here, nor one of which only the deletion was ever heard."""

    async def body(world: World) -> None:
        await ready(world)
        for tablet in (TABLET, TabletId("unseen")):
            await world.store.tombstone(tablet, OpId(3, 5), forever=True)
        await world.start()
        for tablet in (TABLET, TabletId("unseen")):
            with pytest.raises(TabletDeleted):
                await world.copies.begin_copy(tablet, table(), metadata(tablet, 9), [])

    run(body)


# ---- copy -----------------------------------------------------------------------------------


def test_a_copy_onto_nothing_makes_a_replica_that_can_start() -> None:
    """Log, term and members are where the replica's storage looks for them."""

    async def body(world: World) -> None:
        source = metadata(TABLET, 4, OTHER)
        attempt = await world.copies.begin_copy(TABLET, table(), source, [])
        await world.copies.write_log(attempt, [entry(2, 1), entry(2, 2)])
        await world.copies.write_log(attempt, [])
        await world.copies.write_log(attempt, [entry(4, 3)])
        await world.copies.finish_copy(attempt, None, source)
        storage = ReplicaStorage(world.stepped, "", TABLET, log_file_bytes=1 << 20)
        loaded = await storage.load(members())
        assert loaded.term_and_vote == TermAndVote(4, None), "the source's vote is not ours"
        assert loaded.configuration == source.configuration
        assert loaded.entries == (entry(2, 1), entry(2, 2), entry(4, 3))
        await storage.save(None, None, [entry(4, 4)])
        storage.close()

    run(body)


def test_a_copy_keeps_the_higher_own_term_and_vote() -> None:
    """KUDU's follower with a higher term: the source learns of it, and elects again."""

    async def body(world: World) -> None:
        await tombstone(world)
        await world.store.save_vote(TABLET, TermAndVote(8, ME))
        attempt = await whole(world, term=5)
        await world.copies.finish_copy(
            attempt, snapshot(OpId(4, 3), IMAGES), metadata(TABLET, 6, OTHER)
        )
        loaded = await world.start()
        assert loaded.metadata[TABLET].term_and_vote == TermAndVote(8, ME)
        assert loaded.metadata[TABLET].configuration == metadata(TABLET, 1).configuration
        assert loaded.superblocks[TABLET].state is DataState.READY

    run(body)


def test_a_copy_ends_in_the_term_that_its_source_had_reached_by_then() -> None:
    """Entries of a term that the replica has not been in would make it fail at the next start."""

    async def body(world: World) -> None:
        attempt = await whole(world, term=3)
        given = snapshot(OpId(6, 8), IMAGES)
        await world.copies.finish_copy(attempt, given, metadata(TABLET, 6, OTHER))
        loaded = await world.start()
        assert not loaded.failed
        assert loaded.metadata[TABLET].term_and_vote == TermAndVote(6, None)

    run(body)


def test_a_copy_that_does_not_reach_what_was_acknowledged_is_not_finished() -> None:
    """The tombstone's vote would be forgotten: an entry could be lost that a majority had."""

    async def body(world: World) -> None:
        await tombstone(world, last=OpId(3, 9))
        attempt = await whole(world)
        given = snapshot(OpId(3, 7), IMAGES)
        with pytest.raises(TabletNotReady, match="acknowledged"):
            await world.copies.finish_copy(attempt, given, metadata(TABLET, 3))
        await world.copies.write_log(attempt, [entry(3, 8)])
        with pytest.raises(TabletNotReady, match="acknowledged"):
            await world.copies.finish_copy(attempt, given, metadata(TABLET, 3))
        await world.copies.write_log(attempt, [entry(3, 9)])
        after = await world.copies.finish_copy(attempt, given, metadata(TABLET, 3))
        assert (after.state, after.tombstone) == (DataState.READY, None)

    run(body)


def test_a_replica_that_no_longer_knows_its_log_comes_back_as_a_non_voter_only() -> None:
    """Once removed from the members, it owes them nothing from before."""

    async def body(world: World) -> None:
        await tombstone(world, last=None)
        with pytest.raises(TabletNotReady, match="non-voter"):
            await begun(world)
        source = msgspec.structs.replace(
            metadata(TABLET, 3), configuration=members(voter=False, index=1)
        )
        attempt = await world.copies.begin_copy(TABLET, table(), source, WANTED)
        for file in WANTED:
            await world.copies.write_copied(attempt, file, IMAGES[file.name])
        given = snapshot(OpId(3, 2), IMAGES)
        with pytest.raises(TabletNotReady, match="non-voter"):
            await world.copies.finish_copy(attempt, given, metadata(TABLET, 3))
        after = await world.copies.finish_copy(attempt, given, source)
        assert after.state is DataState.READY

    run(body)


def test_copies_from_older_terms_and_onto_ready_tablets_are_refused() -> None:
    """A rogue leader of an earlier term orders a copy; and a replica is deleted before it."""

    async def body(world: World) -> None:
        await ready(world)
        with pytest.raises(TabletNotReady, match="deleted before"):
            await begun(world)
        await world.store.tombstone(TABLET, OpId(3, 9))
        with pytest.raises(StaleTerm):
            await begun(world, term=2)
        with pytest.raises(InvalidArgument):
            await world.copies.begin_copy(TABLET, table(), metadata("t2", 3), WANTED)
        with pytest.raises(InvalidArgument):
            await world.copies.begin_copy(TABLET, table(), metadata(TABLET, 3), WANTED * 2)
        wrong = [stored("../one", b"")]
        with pytest.raises(InvalidArgument):
            await world.copies.begin_copy(TABLET, table(), metadata(TABLET, 3), wrong)
        superblock = world.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.state is DataState.DELETED

    run(body)


def test_images_that_are_not_what_was_promised_never_reach_the_disk() -> None:
    """Wrong bytes, wrong sizes, files that nobody asked for."""

    async def body(world: World) -> None:
        attempt = await begun(world)
        for data in (b"first imagE", b"first imag", b""):
            with pytest.raises(CorruptData, match="copied image one"):
                await world.copies.write_copied(attempt, WANTED[0], data)
        with pytest.raises(InvalidArgument):
            await world.copies.write_copied(attempt, stored("three", b"3"), b"3")
        assert contents(world, "data/") == []
        assert attempt.missing == WANTED

    run(body)


def test_images_are_written_side_by_side_and_whatever_ends_the_copy_waits_for_them() -> None:
    """Votes need not wait for large files; what is given up, or deleted, leaves no file behind."""

    async def body(world: World) -> None:
        for end in ("abort", "delete", "begin anew"):
            attempt = await begun(world)
            writes = [
                asyncio.create_task(world.copies.write_copied(attempt, file, IMAGES[file.name]))
                for file in WANTED
            ]
            for _ in range(1000):
                if len(contents(world, "data/")) == 2:
                    break
                await asyncio.sleep(0)
            assert not any(task.done() for task in writes)
            assert not world.store.lock(TABLET).locked()
            if end == "abort":
                await world.copies.abort_copy(attempt)
            elif end == "delete":
                await world.store.tombstone(TABLET, None)
            else:
                attempt = await begun(world)
                assert (attempt.missing, list(attempt.held)) == ([], list(IMAGES))
            await asyncio.gather(*writes)
            assert len(contents(world, "data/")) == (2 if end == "begin anew" else 0)

    run(body)


def test_an_image_that_is_still_being_written_is_not_written_by_another_try() -> None:
    """The second one waits, and finds that it is there."""

    async def body(world: World) -> None:
        attempt = await begun(world)
        before = world.stepped.steps
        await world.copies.write_copied(attempt, WANTED[0], IMAGES["one"])
        alone = world.stepped.steps - before
        for _ in range(2):
            tries = [
                asyncio.create_task(world.copies.write_copied(attempt, WANTED[1], IMAGES["two"]))
                for _ in range(3)
            ]
            await asyncio.gather(*tries)
        assert world.stepped.steps - before == 2 * alone
        assert not attempt.missing

    run(body)


def test_an_unfinished_copy_is_told_what_it_lacks() -> None:
    """An image less, a log with a gap or of an unknown term: nothing of it counts."""

    async def body(world: World) -> None:
        attempt = await begun(world)
        await world.copies.write_copied(attempt, WANTED[0], IMAGES["one"])
        source, given = metadata(TABLET, 3), snapshot(OpId(3, 5), IMAGES)
        with pytest.raises(InvalidArgument, match="lacks two"):
            await world.copies.finish_copy(attempt, given, source)
        await world.copies.write_copied(attempt, WANTED[1], IMAGES["two"])
        with pytest.raises(InvalidArgument, match="nobody was in"):
            await world.copies.finish_copy(attempt, snapshot(OpId(4, 5), IMAGES), source)
        await world.copies.write_log(attempt, [entry(3, 7)])
        with pytest.raises(CorruptData, match="follows"):
            await world.copies.write_log(attempt, [entry(3, 9)])
        with pytest.raises(InvalidArgument, match="begins at"):
            await world.copies.finish_copy(attempt, given, source)
        superblock = world.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.state is DataState.COPYING

    run(body)


def test_a_copy_that_goes_on_keeps_what_was_verified_and_makes_the_earlier_one_stale() -> None:
    """A broken connection does not start a copy over, and a late answer of it does nothing."""

    async def body(world: World) -> None:
        old = await begun(world)
        await world.copies.write_copied(old, WANTED[0], IMAGES["one"])
        await world.copies.write_copied(old, WANTED[1], IMAGES["two"])
        await world.copies.write_log(old, [entry(3, 6)])
        other = [WANTED[0], stored("two", b"of another source")]
        new = await world.copies.begin_copy(TABLET, table(), metadata(TABLET, 3), other)
        assert (new.missing, list(new.held)) == ([other[1]], ["one"])
        assert contents(world, "data/") == ["data/t1/one"]
        assert contents(world, "wals/") == []
        given = snapshot(OpId(3, 5), IMAGES)
        for late in (
            world.copies.write_copied(old, WANTED[1], IMAGES["two"]),
            world.copies.write_log(old, [entry(3, 7)]),
            world.copies.finish_copy(old, given, metadata(TABLET, 3)),
        ):
            with pytest.raises(TabletNotReady, match="newer attempt"):
                await late
        await world.copies.abort_copy(old)
        superblock = world.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.state is DataState.COPYING

    run(body)


def test_a_copy_ends_with_the_deletion_of_its_tablet() -> None:
    """Whatever of it comes later, also when the next copy has begun, is refused."""

    async def body(world: World) -> None:
        await tombstone(world)
        attempt = await whole(world)
        after = await world.store.tombstone(TABLET, None, forever=False)
        assert after is not None
        assert (after.state, after.tombstone) == (DataState.DELETED, OpId(3, 9))
        assert contents(world, "data/") == []
        given = snapshot(OpId(3, 9), IMAGES)
        for _ in range(2):
            with pytest.raises(TabletNotReady):
                await world.copies.finish_copy(attempt, given, metadata(TABLET, 3))
            await world.copies.abort_copy(attempt)
            await begun(world)

    run(body)


# ---- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("tablet-meta/t1", "flip"),
        ("tablet-meta/t1", "remove"),
        ("consensus-meta/t1", "flip"),
        ("consensus-meta/t1", "remove"),
        ("data/t1/one", "cut"),
        ("data/t1/one", "remove"),
        ("tablet-meta/t1", "unreadable"),
        ("consensus-meta/t1", "unreadable"),
    ],
)
def test_a_damaged_tablet_fails_alone_is_left_as_it_is_and_can_be_replaced(
    path: str, change: str
) -> None:
    """The report names the file; the way back is a tombstone without a vote, and a copy."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.create(TabletId("t2"), table(), members())
        if change == "remove":
            await world.stepped.remove(path)
        elif change == "flip":
            world.disk.corrupt(path, 30)
        elif change == "unreadable":
            world.disk.make_unreadable(path)
        else:
            (await world.stepped.open(path)).truncate(3)
        before = {name: world.disk.durable(name) for name in world.disk.paths()}
        loaded = await world.start()
        assert list(loaded.superblocks) == ["t2"]
        assert loaded.failed[TABLET].args[0] == path
        assert {name: world.disk.durable(name) for name in world.disk.paths()} == before
        for refused in (
            world.store.create(TABLET, table(), members()),
            begun(world),
            world.store.pin(TABLET),
        ):
            with pytest.raises(TabletNotReady, match="failed"):
                await refused
        after = await world.store.tombstone(TABLET, OpId(3, 9))
        assert after is not None
        assert (after.state, after.tombstone) == (DataState.DELETED, None)
        assert len(await world.store.quarantine_list(TABLET)) == 1
        loaded = await world.start()
        assert (loaded.failed, loaded.repairs) == ({}, [])
        source = msgspec.structs.replace(metadata(TABLET, 9), configuration=members(voter=False))
        await world.copies.begin_copy(TABLET, table(), source, [])

    run(body)


def test_a_failed_tablets_deletion_survives_a_crash_at_any_step() -> None:
    """Afterwards it is still failed, or a tombstone that does not vote: never ready and blank."""

    def crashing_at(step: int, when: When, path: str) -> bool:
        async def body(world: World) -> bool:
            await ready(world)
            world.disk.corrupt(path, 30)
            await world.start()
            world.stepped.crash_at = (world.stepped.steps + step, when)
            try:
                await world.store.tombstone(TABLET, None, forever=True)
                cut_short = False
            except Crash:
                cut_short = True
            loaded = await world.start()
            superblock = loaded.superblocks.get(TABLET)
            if superblock is None:
                assert TABLET in loaded.failed
                if path.startswith("consensus-meta"):
                    before = await world.store.files.read_superblock(TABLET)
                    assert before is not None
                    assert before.state is DataState.READY, "what was committed is carried on"
                await world.store.tombstone(TABLET, None, forever=True)
                superblock = (await world.start()).superblocks[TABLET]
            assert superblock.state is DataState.DELETED
            assert (superblock.tombstone, superblock.forever) == (None, True)
            assert contents(world, "data/") == contents(world, "wals/") == []
            assert not (await world.start()).repairs
            return cut_short

        return run(body, seed=(step, when, path))

    for path in ("tablet-meta/t1", "consensus-meta/t1"):
        for when in When:
            step = 0
            while crashing_at(step, when, path):
                step += 1
            assert step > 4


def test_a_log_or_a_term_without_a_superblock_is_a_lost_superblock() -> None:
    """Nothing of what a replica has promised is ever removed as an orphan."""

    async def body(world: World) -> None:
        await world.store.files.replace_consensus(metadata("t1", 2, ME))
        await world.store.files.write_log(TabletId("t2"), [entry(1, 1)])
        await world.stepped.replace("data/t3/image", b"x")
        paths = world.disk.paths()
        loaded = await world.start()
        assert sorted(loaded.failed) == ["t1", "t2", "t3"]
        assert all(error.args[0].startswith("tablet-meta/") for error in loaded.failed.values())
        assert world.disk.paths() == paths

    run(body)


def test_a_tombstone_that_votes_is_nothing_without_its_term_and_vote() -> None:
    """Lost consensus metadata are renewed only of a tombstone that never votes."""

    async def body(world: World) -> None:
        await tombstone(world)
        await world.stepped.remove("consensus-meta/t1")
        assert list((await world.start()).failed) == [TABLET]
        after = await world.store.tombstone(TABLET, None)
        assert after is not None
        assert after.tombstone is None
        await world.stepped.remove("consensus-meta/t1")
        loaded = await world.start()
        assert [repair.kind for repair in loaded.repairs] == [RepairKind.METADATA_RENEWED]

    run(body)


def test_orphan_images_are_removed_at_the_start() -> None:
    """An image that no flush made count is garbage, and one that does is kept."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.write_image(TABLET, "three", b"never named")
        loaded = await world.start()
        assert [repair.kind for repair in loaded.repairs] == [RepairKind.ORPHANS_REMOVED]
        assert contents(world, "data/") == ["data/t1/one", "data/t1/two"]

    run(body)


@pytest.mark.parametrize("change", ["flip", "unreadable"])
def test_a_rotten_image_is_noticed_when_it_is_read(change: str) -> None:
    """Sizes are looked at in the start, contents when they are needed; a bad sector is damage."""

    async def body(world: World) -> None:
        await ready(world)
        if change == "flip":
            world.disk.corrupt("data/t1/one", 3)
        else:
            world.disk.make_unreadable("data/t1/one")
        await world.start()
        with pytest.raises(CorruptData, match="data/t1/one"):
            await world.store.read_image(TABLET, WANTED[0])
        assert await world.store.read_image(TABLET, WANTED[1]) == IMAGES["two"]

    run(body)


# ---- full and failing disks, cancelled callers ----------------------------------------------


def test_a_full_disk_refuses_and_leaves_everything_as_it_was() -> None:
    """NoSpace is for later; what a copy has written can still be given back."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.create(TabletId("t2"), table(), members())
        await world.store.tombstone(TabletId("t2"), NOTHING)
        await world.store.quarantine_purge()
        attempt = await world.copies.begin_copy(TabletId("t2"), table(), metadata("t2", 3), WANTED)
        await world.copies.write_copied(attempt, WANTED[0], IMAGES["one"])
        paths, superblocks = world.disk.paths(), dict(world.store.superblocks)
        world.disk.full = True
        for refused in (
            world.store.write_image(TABLET, "three", b"3"),
            world.copies.write_copied(attempt, WANTED[1], IMAGES["two"]),
            world.store.tombstone(TABLET, OpId(3, 5)),
            world.store.create(TabletId("t3"), table(), members()),
        ):
            with pytest.raises(NoSpace):
                await refused
        assert (world.disk.paths(), world.store.superblocks) == (paths, superblocks)
        with pytest.raises(NoSpace):  # the simulated disk has room for nothing at all, but ...
            await world.copies.abort_copy(attempt)
        assert not contents(world, "data/t2")  # ... a real one has by now
        world.disk.full = False
        await world.store.tombstone(TABLET, OpId(3, 5))
        assert world.tasks._error is None, "a full disk is no reason to stop"

    run(body)


def test_a_deletion_that_a_full_disk_interrupts_is_carried_on_when_asked_again() -> None:
    """After its commit point there is no way back."""

    async def body(world: World) -> None:
        await ready(world)
        steps = 0

        async def fill_after(path: str, data: bytes) -> None:
            nonlocal steps
            steps += 1
            await original(path, data)
            world.disk.full = steps == 2

        original, world.stepped.replace = world.stepped.replace, fill_after  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            await world.store.tombstone(TABLET, OpId(3, 5))
        superblock = world.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.state is DataState.DELETED
        assert contents(world, "data/")
        world.disk.full = False
        await world.store.tombstone(TABLET, OpId(3, 5))
        assert not contents(world, "data/")

    run(body)


def test_a_copy_whose_beginning_a_full_disk_cut_short_leaves_no_attempt_that_could_go_on() -> None:
    """An attempt of before would take images for held that are no longer there."""

    async def body(world: World) -> None:
        await tombstone(world)
        old = await whole(world)
        await world.store.tombstone(TABLET, None)
        replace, steps = world.stepped.replace, 0

        async def fill_after(path: str, data: bytes) -> None:
            nonlocal steps
            steps += 1
            await replace(path, data)
            world.disk.full = steps == 1

        world.stepped.replace = fill_after  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            await begun(world, term=9)
        world.disk.full = False
        with pytest.raises(TabletNotReady, match="newer attempt"):
            await world.copies.finish_copy(old, snapshot(LAST, IMAGES), metadata(TABLET, 9))
        assert (await begun(world, term=9)).missing == WANTED

    run(body)


def test_a_failed_sync_ends_the_server_even_if_nobody_waits() -> None:
    """After it nothing is known of the disk."""

    async def body(world: World) -> None:
        await ready(world)
        before = world.stepped.steps
        world.disk.fail_next_sync = True
        waiting, steps = asyncio.create_task(world.store.tombstone(TABLET, OpId(3, 5))), 0
        while steps == 0:
            await world.stepped.list("")
            steps = world.stepped.steps - before
        waiting.cancel()
        assert isinstance(await world.tasks.wait_failed(), OSError)

    run(body)


def test_whose_files_a_disk_failed_is_told_once_each_time_nobody_waits() -> None:
    """By the tablet, so that only that one fails; who waits is told by the call."""

    async def body(world: World) -> None:
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        for tablet in ("t1", "t2", "t3"):
            tablet_id = TabletId(tablet)
            await world.store.create(tablet_id, table(), members())
            world.disk.fail_next_sync = True
            waiting = asyncio.create_task(world.store.tombstone(tablet_id, NOTHING))
            if tablet == "t2":
                with pytest.raises(OSError, match="Input/output"):
                    await waiting
                continue
            await world.stepped.list("")
            waiting.cancel()
            while tablet_id not in told:
                await world.stepped.list("")
        assert told == ["t1", "t3"]
        assert world.tasks._error is None

    run(body)


def test_who_lets_go_of_images_is_not_told_of_a_disk_that_fails() -> None:
    """A session of a copy ends as well as it can; the tablet is what failed."""

    async def body(world: World) -> None:
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        await ready(world)
        pin = await world.store.pin(TABLET)
        await flush(world.store, TABLET, {"three": b"3"}, snapshot(OpId(3, 6), {"three": b"3"}))

        async def fail(path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

        world.stepped.remove = fail  # type: ignore[method-assign]
        await world.store.unpin(pin)
        assert told == [TABLET]

    run(body)


def test_a_cancelled_caller_does_not_leave_half_a_transition() -> None:
    """The next one finds the tablet as the whole of it has left it."""

    async def body(world: World) -> None:
        await ready(world)
        before = world.stepped.steps
        waiting, steps = asyncio.create_task(world.store.tombstone(TABLET, OpId(3, 5))), 0
        while steps == 0:
            await world.stepped.list("")
            steps = world.stepped.steps - before
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        attempt = await begun(world)
        assert attempt.missing == WANTED
        assert len(await world.store.quarantine_list()) == 1
        assert contents(world, "data/") == []

    run(body)


async def test_a_tablets_life_on_real_files(tmp_path: Path) -> None:
    """Create, flush, delete, copy and purge work on a file system as on the simulated disk."""
    disk, tasks = LocalDisk(tmp_path / "data"), Tasks()
    store = TabletStore(disk, tasks, ME, files_of)
    copies = TabletCopies(store)
    await store.load_all()
    await store.create(TABLET, table(), members())
    await store.files.write_log(TABLET, [entry(0, 1)])
    await flush(store, TABLET, IMAGES, snapshot(OpId(0, 1), IMAGES))
    await store.tombstone(TABLET, OpId(0, 1))
    attempt = await copies.begin_copy(TABLET, table(), metadata(TABLET, 1), WANTED)
    for file in WANTED:
        await copies.write_copied(attempt, file, IMAGES[file.name])
    await copies.finish_copy(attempt, snapshot(OpId(1, 3), IMAGES), metadata(TABLET, 1))
    (listed,) = await store.quarantine_purge()
    assert listed.size_bytes > sum(map(len, IMAGES.values()))
    assert not list((disk.root / "quarantine").iterdir())
    store = TabletStore(disk, tasks, ME, files_of)
    loaded = await store.load_all()
    assert (loaded.failed, loaded.repairs) == ({}, [])
    assert await store.snapshots(TABLET).load() == snapshot(OpId(1, 3), IMAGES)
    assert await store.read_image(TABLET, WANTED[1]) == IMAGES["two"]
    await tasks.close()
    disk.close()
