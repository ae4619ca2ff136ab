"""A tablet is copied from another server: what counts, what is refused, what goes on."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.actors.raft.storage import ReplicaStorage
from stelae.core.errors import CorruptData, InvalidArgument, StaleTerm, TabletNotReady
from stelae.core.ids import OpId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import TermAndVote
from tests.unit.actors.tserver.tablet_store.stored_tablets import (
    IMAGES,
    TABLET,
    WANTED,
    begun,
    contents,
    ready,
    tombstone,
    whole,
)
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    ME,
    OTHER,
    World,
    entry,
    members,
    metadata,
    run,
    snapshot,
    stored,
    table,
)


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
