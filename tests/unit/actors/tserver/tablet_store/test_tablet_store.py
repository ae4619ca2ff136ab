"""A server's tablets on disk: what creation, votes and flushes need, refuse and leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from stelae.actors.tserver.tablet_copy.receiver_files import TabletCopies
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.errors import InvalidArgument, StaleTerm, TabletDeleted, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import TermAndVote
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk
from tests.unit.actors.tserver.tablet_store.stored_tablets import (
    IMAGES,
    TABLET,
    WANTED,
    begun,
    contents,
    ready,
    tombstone,
)
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    ME,
    OTHER,
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
