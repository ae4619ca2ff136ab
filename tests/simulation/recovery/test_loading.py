"""A tablet that was recovered is served before its rows are back; they follow, whatever happens.

Reads of rows that are elsewhere: `tests.simulation.tables.test_rows_elsewhere`.
"""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import StelaeError, VersionMismatch
from stelae.core.schema.durability import Durability, segments
from stelae.simulation.cluster import SimCluster
from tests.simulation.recovery.loading_story import DURABILITIES, NEVER_S, Story


@pytest.mark.parametrize("durability", DURABILITIES, ids=str)
def test_rows_are_read_and_written_before_they_are_back(durability: Durability) -> None:
    """Gets, multi-gets, scans and updates fetch what they need; other writes need nothing."""
    story = Story(1, NEVER_S, durability)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        assert len(story.remote()) >= 3
        for key in (3, 4):
            story.values[key] = "written over"
            await table.upsert({"id": key, "value": story.values[key], "count": 0})
        await table.delete(5)
        del story.values[5]
        assert story.fetched() == 0
        keys = story.keys_of(story.remote()[-1])
        row = await table.get(keys[1])
        assert row == {"id": keys[1], "value": story.values[keys[1]], "count": keys[1]}
        fetched = story.fetched()
        assert fetched >= 1
        assert await table.get(keys[1]) == row
        assert story.fetched() == fetched, "what came stays for a while"
        key = keys[2]
        versions = await table.update({"id": key, "count": -1})
        found = await table.get(key, with_version=True)
        assert found is not None
        assert (found["value"], found["_version"]) == (story.values[key], versions[0])
        with pytest.raises(VersionMismatch):
            await table.update({"id": 151, "count": -1}, if_version=1 << 40)
        assert story.tablet()[1].is_loading
        many = await table.get_many([5, 60, 61, 120, 239])
        assert many["id"].to_pylist() == [60, 61, 120, 239]
        assert (await table.scan(limit=30)).num_rows == 30
        expected = dict(story.values)
        scanned = await table.scan()
        assert {r["id"]: r["value"] for r in scanned.to_pylist()} == expected
        await story.world.wait_until(lambda: not story.remote(), 60.0, "a scan brings all back")

    story.run(tell())


@pytest.mark.parametrize("durability", DURABILITIES, ids=str)
def test_all_rows_follow_at_a_bounded_rate_and_status_says_how_far_it_is(
    durability: Durability,
) -> None:
    """Without anybody asking; nothing changes hands meanwhile; then it is as it was before."""
    story = Story(2, 4000.0, durability)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        began = story.world.loop.time()
        remote = story.tablet()[1]._remote
        left_bytes = remote.left_bytes  # the first segment may have come by then: it waits for none
        assert remote.total_bytes > 20_000
        assert left_bytes > 10_000
        await asyncio.sleep(1.5)
        document = await story.database.status()
        (tablet,) = document["tablets"]
        assert (tablet["state"], 0.0 < tablet["loaded"] < 1.0) == ("running", True)
        assert document["recoveries"][0]["state"] == "done"
        assert document["recoveries"][0]["loaded_s"] is None
        await story.world.wait_until(lambda: not story.remote(), 120.0, "all rows are back")
        assert story.world.loop.time() - began > 0.7 * left_bytes / 4000.0
        await asyncio.sleep(1.0)
        recovery = (await story.database.status())["recoveries"][0]
        assert recovery["loaded"] == 1.0
        assert recovery["loaded_s"] > recovery["phases_s"]["running"]
        closed = [s for s in story.tablet()[1]._memory.statistics() if s.closed]
        assert closed
        assert all(each.sealed for each in closed)
        await story.check_all(table)
        await story.lose_owner()
        await story.check_all(table)

    story.run(tell())


def test_rows_that_no_backup_has_are_waited_for_and_come_back_by_themselves() -> None:
    """The tablet names the segment; reads of its rows say so by their deadline, others go on."""
    story = Story(3, NEVER_S, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        gone = story.remote()[-1]
        lost = story.keys_of(gone)[0]
        backups = story.holders(gone)
        for backup in backups:
            story.world.crash(backup, restart=False)
        with pytest.raises(StelaeError, match="waiting for rows of segment"):
            await table.get(lost, timeout=4.0)
        await table.upsert({"id": lost, "value": "newer", "count": 0}, timeout=30.0)
        story.values[lost] = "newer"
        assert (await table.get(lost, timeout=10.0))["value"] == "newer"  # type: ignore[index]
        elsewhere = [k for s in story.remote()[:-1] for k in story.keys_of(s)]
        read = 0
        for key in elsewhere[::9]:
            try:
                row = await table.get(key, timeout=2.0)
            except StelaeError:
                continue
            read += 1
            assert row is not None
            assert row["value"] == story.values[key]
        assert read
        other = next(k for k in story.keys_of(gone) if k != lost)
        waiting = asyncio.create_task(table.get(other, timeout=60.0))
        await asyncio.sleep(2.0)
        problem = (await story.database.status())["tablets"][0]["problem"]
        assert "waits for a readable replica" in problem
        for backup in backups:
            story.world.restart(backup)
        row = await waiting
        assert row is not None
        assert row["value"] == story.values[other]
        await story.check_all(table)

    story.run(tell())


def test_recoveries_that_are_interrupted_begin_again_from_what_is_replicated() -> None:
    """The new owner dies while it loads, then the leader master, then a backup: nothing is lost."""
    story = Story(6, 3000.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        for key in (7, 8):
            await story.lose_owner()
            assert story.tablet()[1].is_loading
            story.values[key] = f"after {key}"
            await table.upsert({"id": key, "value": story.values[key], "count": 0}, timeout=30.0)
            await asyncio.sleep(0.7)
        assert story.tablet()[1].is_loading
        story.world.crash(story.cluster.masters[0])
        story.world.crash(story.cluster.backups[1])
        await story.check_all(table)
        await story.lose_owner()
        await story.check_all(table)

    story.run(tell())


def test_a_segment_is_loaded_once_whoever_waits_for_it() -> None:
    """A backup goes away while rows are elsewhere: that replicas are made anew spends none of the
    bounded rate twice, so all is here, and has its replicas, in the time that the bytes take."""
    rate = 500.0
    story = Story(9, rate, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        remote = story.remote()
        assert len(remote) >= 3
        size_bytes = sum(each.remote.size_bytes for each in story.tablet()[1]._memory.remote)
        gone = max(
            story.cluster.backups,
            key=lambda name: sum(name in story.holders(each) for each in remote),
        )
        story.world.crash(gone, restart=False)
        await story.world.wait_until(lambda: not story.remote(), size_bytes / rate + 5.0, "rows")
        await story.world.wait_until(lambda: story.cluster.is_whole(1, 2), 10.0, "replicas")
        await story.check_all(table)

    story.run(tell())


def test_without_metadata_first_a_tablet_waits_for_all_rows() -> None:
    """It may be switched off: what is served then has everything."""
    story = Story(7, NEVER_S, segments("disk", "disk"))
    story.cluster = SimCluster(story.world, metadata_first=False)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        assert not story.remote()
        await story.check_all(table)

    story.run(tell())
