"""Disks and memory that are full: who waits, who is refused, and that all can be emptied again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.server.membership import Membership
from stelae.client.table.table import AsyncTable
from stelae.core.errors import NoSpace, OutcomeUnknown, OutOfMemory
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.backups.media_cluster import CALL_S, MediaFixture, tell
from tests.simulation.wal.wal_cluster import SCHEMA, read_all, text, write


def test_a_full_disk_is_avoided_and_writes_wait_only_if_none_is_left() -> None:
    """Placement knows it from heartbeats; with all full, writes hear NoSpace, reads go on."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("pram", "pram"))
        await write(table, 0, 20)
        full = here.cluster.backups[:2]
        for name in full:  # the file must not grow, and all of its frames are taken
            medium = here.world.server(name)._media["pram"]
            medium.allocator._free.clear()
            here.world.nodes[name].disk.full = True
        await asyncio.sleep(1.0)
        refused = here.count("backup_no_space")
        await write(table, 20, 40)
        assert here.count("backup_no_space") == refused
        rest = here.cluster.backups[2:]
        for name in rest:
            here.world.server(name)._media["pram"].allocator._free.clear()
            here.world.nodes[name].disk.full = True
        heard: list[Exception] = []
        number = 60
        for _ in range(80):
            try:
                await table.upsert({"id": number, "text": text(number)}, timeout=1.0)
                number += 1
            except (NoSpace, OutcomeUnknown) as error:
                heard.append(error)
                if isinstance(error, NoSpace):
                    break
        assert isinstance(heard[-1], NoSpace), heard
        row = await table.get(3, timeout=CALL_S)
        assert row is not None
        for name in here.cluster.backups:
            here.world.nodes[name].disk.full = False
        await asyncio.sleep(2.0)  # until heartbeats have said so
        for key in range(number, number + 10):
            await table.upsert({"id": key, "text": text(key)}, timeout=CALL_S)
        await read_all(table, number + 10)

    tell(story)


def test_memory_that_is_full_after_a_recovery_stops_writes_alone() -> None:
    """One of two servers dies; with the rows of both the other is over its limit: they are there to
    be read and deleted, and writes are refused until there is room."""

    async def story(here: MediaFixture) -> None:
        table = await here.database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 2),
            durability=segments("disk", "disk"),
            timeout=30.0,
        )
        await write(table, 0, 60)
        await here.until(lambda: here.cluster.is_whole(2, 2), "full strength")
        lost, left = here.cluster.tservers
        assert all(here.world.server(name).holders() for name in (lost, left)), "each has one"
        here.world.server(left).cleaner.limit_bytes = 60 * len(text(0)) // 2
        here.world.crash(lost, restart=False)
        await here.until(lambda: here.cluster.is_whole(2, 2), "one has both")
        await read_all(table, 60)
        with pytest.raises(OutOfMemory):
            await table.upsert({"id": 100, "text": text(100)}, timeout=2.0)
        for key in range(60):
            await table.delete(key, timeout=CALL_S)
        await asyncio.sleep(1.0)
        assert (await table.scan(timeout=CALL_S)).num_rows == 0

    tell(story)


SEGMENT_BYTES, FRAMES = 16384, 30


SMALL = {
    "disk": MediumSpec(
        name="disk", path="disk", size_bytes=FRAMES * (SEGMENT_BYTES * 5 // 4 + 8192)
    )
}
"""Room for less than so many frames, and their records."""
UNBOUNDED = {"disk": MediumSpec(name="disk", path="disk")}
"""As far as the disk has room, which other files lie on as well."""
DISK_BYTES = (FRAMES + 2) * (SEGMENT_BYTES * 5 // 4 + 8192)
RESERVE_SHARE = 0.4
"""Of so few frames; rows come in faster here than backups say how many are left."""


def large(number: int) -> dict[str, Any]:
    """A row, of which ten fill a segment."""
    return {"id": number, "text": text(number) + "y" * 1400}


async def fill_up(here: MediaFixture, table: AsyncTable) -> int:
    """Write rows, none of which dies, until no backup takes any; how many."""
    for number in range(1000):
        try:
            await table.upsert(large(number), timeout=5.0)
        except (NoSpace, OutcomeUnknown):
            return number
    raise AssertionError("disks without end")


async def write_once_there_is_room(table: AsyncTable, key: int) -> None:
    async with asyncio.timeout(120.0):
        while True:
            try:
                await table.upsert(large(key), timeout=5.0)
            except NoSpace:
                await asyncio.sleep(0.5)
            else:
                return


def bound_disks(here: MediaFixture) -> None:
    """Give the disks of backups an end, and whatever is on them."""
    for name in here.cluster.backups:
        here.world.nodes[name].disk.capacity_bytes = DISK_BYTES


async def empty_a_full_cluster(here: MediaFixture) -> None:
    bound_disks(here)
    table = await here.create(segments("disk", "disk"))
    count = await fill_up(here, table)
    assert count > 100, "there was room"
    assert await table.get(3, timeout=CALL_S) is not None
    kept = [key for key in range(count) if key % 4 == 0]
    for key in range(count):
        if key % 4:
            await table.delete(key, timeout=CALL_S)
    for key in range(count, count + 40):
        await write_once_there_is_room(table, key)
        kept.append(key)
    here.world.crash(here.owner())
    await asyncio.sleep(1.0)
    await here.until_whole()
    found = (await table.scan(timeout=CALL_S)).to_pylist()
    assert {row["id"]: row for row in found} == {key: large(key) for key in kept}


async def empty_after_fast_writes(here: MediaFixture) -> None:
    """Rows come in faster than heartbeats say that disks are low: two segments a call."""
    bound_disks(here)
    table = await here.create(segments("disk", "disk"))
    count = 0
    with contextlib.suppress(NoSpace, OutcomeUnknown):
        while count < 2000:
            rows = [large(number) for number in range(count, count + 20)]
            await table.upsert(pa.Table.from_pylist(rows, schema=table.schema), timeout=5.0)
            count += 20
    assert 60 <= count < 2000, "there was room, and an end to it"
    for key in range(count + 20):
        await table.delete(key, timeout=CALL_S)
    await write_once_there_is_room(table, count + 20)
    await here.until_whole()


async def start_a_full_cluster_again(here: MediaFixture) -> None:
    """All servers end while disks are full, and start again."""
    bound_disks(here)
    table = await here.create(segments("disk", "disk"))
    count = await fill_up(here, table)
    for name in (*here.cluster.tservers, *here.cluster.backups):
        here.world.crash(name)
    await asyncio.sleep(1.0)
    assert (await table.scan(columns=["id"], timeout=60.0)).num_rows >= count
    for key in range(count):
        await table.delete(key, timeout=CALL_S)
    await write_once_there_is_room(table, count)
    await here.until_whole()


@pytest.mark.parametrize(
    ("seed", "media"),
    [(1, SMALL), (2, SMALL), (3, SMALL), (1, UNBOUNDED), (2, UNBOUNDED), (3, UNBOUNDED)],
)
def test_a_cluster_with_full_disks_can_be_emptied_and_filled_again(
    seed: int, media: dict[str, MediumSpec]
) -> None:
    """Rows are refused while there is room yet for deletes, survivors and heads: what dies is
    cleaned away, though the log is not long for its rows, and rows are taken again."""
    with patch("stelae.core.messages.backup_loads.RESERVE_SHARE", RESERVE_SHARE):
        tell(empty_a_full_cluster, seed=seed, media=media, segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cluster_with_full_disks_starts_again(seed: int) -> None:
    """Its tables come back and are counted, deletes are taken, and then rows."""
    with patch("stelae.core.messages.backup_loads.RESERVE_SHARE", RESERVE_SHARE):
        tell(start_a_full_cluster_again, seed=seed, media=UNBOUNDED, segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_that_come_in_fast_leave_the_reserve_to_deletes(seed: int) -> None:
    """A backup says with its answer that a frame may have been one of its reserve."""
    with patch("stelae.core.messages.backup_loads.RESERVE_SHARE", 0.25):
        tell(empty_after_fast_writes, seed=seed, media=UNBOUNDED, segment_bytes=SEGMENT_BYTES)


def test_this_would_see_reserves_that_heartbeats_alone_tell_of() -> None:
    """They come too late: what was for deletes is taken by rows."""
    share = patch("stelae.core.messages.backup_loads.RESERVE_SHARE", 0.25)
    deaf = patch.object(Membership, "note_low", lambda *_: None)
    with share, deaf, pytest.raises(SimulationFailure):
        tell(empty_after_fast_writes, media=UNBOUNDED, segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("media", [SMALL, UNBOUNDED])
def test_this_would_see_disks_without_a_reserve(media: dict[str, MediumSpec]) -> None:
    """The last frame is given to a row: nothing can be deleted, or moved to where it takes less."""
    spent = patch("stelae.core.messages.backup_loads.RESERVE_SHARE", 0.0)
    with spent, pytest.raises(SimulationFailure):
        tell(empty_a_full_cluster, media=media, segment_bytes=SEGMENT_BYTES)
