"""A tablet that was recovered is served before its rows are back; they follow, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors import remote_rows
from stelae.actors.tablet import Tablet
from stelae.client.table import AsyncTable
from stelae.core.durability import Durability, segments, wal
from stelae.core.errors import StelaeError, VersionMismatch
from stelae.simulation.cluster import SimCluster
from stelae.simulation.options import Limits, Options, Servers
from stelae.simulation.runner import derive_seeds, find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world import World
from tests.simulation.planted_loading import BUGS, writes_that_waited_forget_entries

ROWS = 240
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
NEVER_S = 1e-3
"""Bytes a second: of each server the first segment is loaded, and then no other."""
FAST_SEEDS = 8
SEEDS = 50
BUG_SEEDS = 80


class Story:
    """A cluster whose only tablet's owner dies once all that it has is sealed."""

    def __init__(self, seed: int, load_bytes_per_s: float, durability: Durability) -> None:
        limits = Limits(segment_size_bytes=4096)
        servers = Servers(masters=1, tservers=3, backups=4, safekeepers=3)
        self.world = World(seed, Options(limits=limits, servers=servers))
        self.durability = durability
        self.cluster = SimCluster(
            self.world, metadata_first=True, load_bytes_per_s=load_bytes_per_s
        )
        self.values: dict[int, str] = {}

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.world.run(story, limit_s=400.0)

    async def begin(self) -> AsyncTable:
        """Write all rows, and have them sealed."""
        await self.cluster.start()
        self.database = self.cluster.database("client")
        table = await self.database.create_table(
            "rows", SCHEMA, key="id", durability=self.durability, timeout=60.0
        )
        for first in range(0, ROWS, 20):
            rows = []
            for key in range(first, first + 20):
                self.values[key] = f"{key}-" + "x" * 60
                rows.append({"id": key, "value": self.values[key], "count": key})
            await table.upsert(rows)
        await self.world.wait_until(lambda: self._is_sealed(), 60.0, "all but the head is sealed")
        return table

    def _is_sealed(self) -> bool:
        stats = self.tablet()[1]._memory.statistics()
        return self.cluster.is_whole(1, 2) and all(s.sealed for s in stats if s.closed)

    def tablet(self) -> tuple[str, Tablet]:
        """The server that owns the tablet, and the tablet there."""
        found = []
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None:
                found += [(name, t) for t in server._tablets.values() if t.holders()]
        assert found, "nobody serves it"
        (one,) = found
        return one

    async def lose_owner(self) -> None:
        """Kill the owner, and wait until another one serves."""
        owner, _ = self.tablet()
        self.world.crash(owner)

        def is_served() -> bool:
            for name in self.cluster.tservers:
                server = self.world.server(name)
                if server is not None and any(t.holders() for t in server._tablets.values()):
                    return True
            return False

        await self.world.wait_until(is_served, 60.0, "another one serves")

    def remote(self) -> list[int]:
        """Segments whose rows are elsewhere."""
        return [segment.segment_id for segment in self.tablet()[1]._memory.remote]

    def holders(self, segment: int) -> list[str]:
        """Backups that have it."""
        names = {self.world.server(name).info.uuid: name for name in self.cluster.backups}
        _, tablet = self.tablet()
        found = tablet._log._segments[segment]  # type: ignore[attr-defined]
        return [names[uuid] for uuid in found.holders]

    def damaged_holders(self) -> list[str]:
        """Of replicas that the owner counts on, those that their backup knows to be damaged."""
        _, tablet = self.tablet()
        found = []
        for segment in tablet._log._segments:  # type: ignore[attr-defined]
            for name in self.holders(segment):
                held = self.world.server(name)._holdings.find(tablet.tablet_id, segment)
                if held is None or held.damaged:
                    found.append(f"{segment} at {name}")
        return found

    def keys_of(self, segment: int) -> list[int]:
        """Some keys whose rows are there."""
        _, tablet = self.tablet()
        (remote,) = [s for s in tablet._memory.remote if s.segment_id == segment]
        return [int(remote.remote.key(row)[0]) for row in range(0, remote.row_count, 5)]

    def count(self, name: str) -> float:
        return sum(metrics.counts.get(name, 0.0) for metrics in self.world.metrics.values())

    async def check_all(self, table: AsyncTable) -> None:
        """Every row is what was written, by get, get_many and scan."""
        for key in range(0, ROWS, 7):
            row = await table.get(key, timeout=20.0)
            assert row is not None
            assert row["value"] == self.values[key]
        many = await table.get_many(list(range(ROWS)), timeout=20.0)
        assert (
            dict(zip(*(many[c].to_pylist() for c in ("id", "value")), strict=True)) == self.values
        )
        scanned = await table.scan(timeout=20.0)
        assert scanned.num_rows == len(self.values)
        rows = {row["id"]: row["value"] for row in scanned.to_pylist()}
        assert rows == self.values


DURABILITIES = [segments("disk", "disk"), wal(3, segments=("disk", "disk"))]


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
        assert story.count("row_pieces_fetched") == 0
        keys = story.keys_of(story.remote()[-1])
        row = await table.get(keys[1])
        assert row == {"id": keys[1], "value": story.values[keys[1]], "count": keys[1]}
        fetched = story.count("row_pieces_fetched")
        assert fetched >= 1
        near = [await table.get(keys[1] + n) for n in (-1, 1)]
        assert all(near)
        assert story.count("row_pieces_fetched") <= fetched + 1, "a neighbour came with it"
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
        left_bytes = story.tablet()[1]._remote.left_bytes
        assert left_bytes > 20_000
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
        stats = story.tablet()[1]._memory.statistics()
        assert all(s.sealed for s in stats if s.closed)
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
        lost, kept = story.keys_of(gone)[0], story.keys_of(story.remote()[0])
        backups = story.holders(gone)
        for backup in backups:
            story.world.crash(backup, restart=False)
        with pytest.raises(StelaeError, match="waiting for rows of segments"):
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
        assert read or kept
        other = next(k for k in story.keys_of(gone) if k != lost)
        waiting = asyncio.create_task(table.get(other, timeout=60.0))
        await asyncio.sleep(2.0)
        problem = (await story.database.status())["tablets"][0]["problem"]
        assert "waits for a backup" in problem
        for backup in backups:
            story.world.restart(backup)
        assert (await waiting)["value"] == story.values[other]
        await story.check_all(table)

    story.run(tell())


def test_a_damaged_replica_is_passed_over_and_replaced() -> None:
    """One backup's frames are damaged: rows come from the other one, and bad ones are replaced."""
    story = Story(4, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        story.world.crash(story.tablet()[0], restart=False)
        disk = story.world.nodes[story.cluster.backups[0]].disk
        (path,) = [path for path in disk.paths() if path.endswith("frames") or "disk" in path][:1]
        for offset in range(20_000, 200_000, 700):
            if offset < len(disk.durable(path)):
                disk.corrupt(path, offset)
        await asyncio.sleep(1.0)
        await story.check_all(table)
        await story.world.wait_until(lambda: not story.remote(), 60.0, "all rows are back")
        await story.world.wait_until(
            lambda: story.cluster.is_whole(1, 2), 60.0, "all replicas are there again"
        )
        assert story.count("replicas_corrupt") >= 1
        assert story.count("backup_damaged_replicas") >= 1
        assert not story.damaged_holders()
        await story.check_all(table)

    story.run(tell())


def test_a_lost_replica_of_rows_that_stay_elsewhere_is_made_anew() -> None:
    """There is no memory for the rows: what a dead backup held is fetched for it, and let go of."""
    story = Story(6, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        for name in story.cluster.tservers:
            story.world.server(name).cleaner.limit_bytes = 30_000
        await story.lose_owner()
        await asyncio.sleep(3.0)
        remote = story.remote()
        assert len(remote) >= 2
        lost = story.holders(remote[0])[0]
        story.world.crash(lost, restart=False)
        _, tablet = story.tablet()
        await story.world.wait_until(lambda: tablet.report().shortage, 60.0, "it is missed")
        shortage = tablet.report().shortage
        assert shortage is not None
        assert shortage.size_bytes > 0
        await story.world.wait_until(
            lambda: tablet.report().shortage is None, 60.0, "all replicas are there again"
        )
        assert story.cluster.is_whole(1, 2)
        assert remote[0] in story.remote()
        await story.check_all(table)

    story.run(tell())


def test_without_memory_rows_stay_elsewhere_and_are_read_all_the_same() -> None:
    """Rows that do not fit are fetched on demand; once there is room they are loaded."""
    story = Story(5, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        for name in story.cluster.tservers:
            story.world.server(name).cleaner.limit_bytes = 30_000
        await story.lose_owner()
        await asyncio.sleep(3.0)
        assert len(story.remote()) >= 2
        assert "no memory" in (await story.database.status())["tablets"][0]["problem"]
        await story.check_all(table)
        assert len(story.remote()) >= 2
        story.world.server(story.tablet()[0]).cleaner.limit_bytes = 30_000_000
        await story.world.wait_until(lambda: not story.remote(), 30.0, "all rows are back")
        assert story.tablet()[1].report().problem == ""
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


async def _index_made_while_a_write_waits(story: Story) -> int:
    """A write waits for a row that no backup serves; an index is made, and filled from the tablet
    once a scan has brought all rows; then the write goes on. How many rows the index finds of it.
    """
    table = await story.begin()
    await story.lose_owner()
    gone = story.remote()[-1]
    key, backups = story.keys_of(gone)[0], story.holders(gone)
    for backup in backups:
        story.world.crash(backup, restart=False)
    writing = asyncio.create_task(table.update({"id": key, "count": -1}, timeout=60.0))
    coming = story.tablet()[1]._remote._pieces._coming
    await story.world.wait_until(
        lambda: story.count("row_reads_failed") > 0 and not coming, 10.0, "it waits to ask again"
    )
    await table.create_index("count", wait=False, timeout=20.0)
    for backup in backups:
        story.world.restart(backup)
    await asyncio.sleep(0.5)
    await table.scan(timeout=20.0)
    assert not story.remote()
    await asyncio.sleep(0.7)
    assert not writing.done(), "it still waits, while the index is filled"
    await writing
    found: pa.Table = await table.find("count", -1, timeout=30.0)
    return int(found.num_rows)


def test_a_write_that_waited_for_a_row_has_its_entries_in_an_index_made_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was begun without; its planted bug shows that the story would tell."""
    monkeypatch.setattr(remote_rows, "PAUSE_S", 3.0)  # time for all of it
    for bug, rows in ((contextlib.nullcontext(), 1), (writes_that_waited_forget_entries(), 0)):
        story = Story(8, NEVER_S, segments("disk", "disk"))

        async def tell(story: Story = story, rows: int = rows) -> None:
            assert await _index_made_while_a_write_waits(story) == rows

        with bug:
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


def test_crashes_fall_into_the_loading_of_rows_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few seeds of the scenario; servers do die while rows are elsewhere, which readers need."""
    died_loading = fetched = loaded = 0
    crash = World.crash

    def counted(world: World, name: str, **how: Any) -> None:
        nonlocal died_loading
        server = world.server(name) if name.startswith("tserver") else None
        if server is not None:
            died_loading += any(tablet.is_loading for tablet in server._tablets.values())
        crash(world, name, **how)

    monkeypatch.setattr(World, "crash", counted)
    scenario = load_scenario("loading")
    for run, seed in enumerate(derive_seeds("loading", SEEDS)):
        if run >= FAST_SEEDS and min(died_loading, fetched, loaded) >= 3:
            break  # what one world has of each is chance: as many worlds as show them all
        world = World(seed, scenario.options(seed))
        world.run(scenario.run(world, ""), limit_s=scenario.limit_s)
        counts = [metrics.counts for metrics in world.metrics.values()]
        fetched += int(sum(each.get("row_pieces_fetched", 0.0) for each in counts))
        loaded += int(sum(each.get("segments_loaded", 0.0) for each in counts))
    assert min(died_loading, fetched, loaded) >= 3, (died_loading, fetched, loaded)


@pytest.mark.slow
def test_many_seeds_of_loading() -> None:
    """The same, with others for each commit."""
    outcomes = run_seeds(load_scenario("loading"), SEEDS, budget_s=480.0)
    assert len(outcomes) >= SEEDS // 2


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("loading")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
