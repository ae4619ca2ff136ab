"""Backups are retired while tables are written: what they have is elsewhere first."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stelae.coordinator.placement import leaving_backups as backup_leaving
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.schema.durability import Durability, segments, wal
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.backups.media_cluster import CALL_S, MediaFixture, tell
from tests.simulation.wal.wal_cluster import read_all, write

SEEDS = 2
BUG_SEEDS = 60


def test_backups_that_come_and_go_under_faults_lose_nothing() -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario("retired"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", ["ended_with_heads", "freed_before_it_is_elsewhere"])
def test_a_planted_bug_of_retirement_is_found(bug: str) -> None:
    """The scenario can see it; the same seed is fine without it."""
    scenario = load_scenario("retired")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


def held(here: MediaFixture, name: str) -> int:
    """What is on a backup, by its own books."""
    server = here.world.server(name)
    count: int = server._holdings.count + server._blobs.count
    return count


@pytest.mark.parametrize(
    "durability", [segments("disk", "disk"), segments("disk", "ram"), wal(3, ("disk", "disk"))]
)
def test_a_retired_backup_has_nothing_left_and_can_be_switched_off(durability: Durability) -> None:
    """Its heads are followed by others, its sealed segments made anew elsewhere before they go;
    its process, the owner, and the leader master die on the way. Each segment has all its replicas
    on other backups before the masters say that nothing is left."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(durability)
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(3), "sealed segments")
        victim = here.holders()[0][0]
        assert held(here, victim)
        seen: list[int] = []
        first = await here.database.retire_server(victim, wait=False)
        assert first.segments
        assert first.mark.retiring
        here.world.crash(here.cluster.leader() or "")
        retiring = asyncio.create_task(
            here.database.retire_server(
                victim, progress=lambda p: seen.append(p.segments), timeout=200.0
            )
        )
        await asyncio.sleep(0.5)
        here.world.crash(victim)
        await write(table, 60, 10)
        here.world.crash(here.owner())
        await write(table, 70, 10)
        done = await retiring
        assert (done.segments, done.problem) == (0, "")
        assert not held(here, victim)
        assert all(victim not in names for names in here.holders())
        shown = {s["id"]: s for s in (await here.database.status())["servers"]}
        assert (shown[victim]["retiring"], shown[victim]["drained"]) == (True, True)
        here.world.crash(victim, lose_disk=True, restart=False)
        await write(table, 80, 40)
        await read_all(table, 120)

    tell(story, safekeepers=3)


def test_it_is_refused_where_others_are_too_few_and_undone_by_taking_it_back() -> None:
    """A retiring backup counts for no new table; the second one of three is not retired."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 30)
        one, two, _ = here.cluster.backups
        await here.database.retire_server(one, timeout=100.0)
        with pytest.raises(InvalidArgument, match=r"cannot be retired.*'t' needs 2"):
            await here.database.retire_server(two)
        with pytest.raises(InvalidArgument, match="only tservers have maintenance"):
            await here.database.maintain_server(two, True)
        with pytest.raises(RetryLater, match="disk"):
            await here.database.create_table(
                "more", table.schema, key="id", durability=segments("disk", "disk", "disk"),
                timeout=3.0,
            )  # fmt: skip
        back = await here.database.retire_server(one, cancel=True)
        assert not back.mark.retiring
        here.world.crash(two, lose_disk=True, restart=False)
        await write(table, 30, 20)
        await here.until_whole()
        assert held(here, one)
        await read_all(table, 50)

    tell(story, backups=3)


def test_writes_go_on_when_too_few_others_are_left_meanwhile() -> None:
    """Another backup dies while one is retired: that one is taken again as the last resort, and is
    empty only once there is another."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 30)
        one, two, _ = here.cluster.backups
        await here.database.retire_server(one, wait=False)
        here.world.crash(two, lose_disk=True, restart=False)
        await write(table, 30, 30)
        await here.until_whole()
        assert held(here, one)
        with pytest.raises(RetryLater, match="segments or blobs are still on"):
            await here.database.retire_server(one, timeout=5.0)
        here.world.restart(two)
        done = await here.database.retire_server(one, timeout=100.0)
        assert not done.segments
        assert not held(here, one)
        await read_all(table, 60)

    tell(story, backups=3)


def test_one_that_is_empty_is_taken_again_when_too_few_others_are_left() -> None:
    """It was said to have nothing left, and nobody has ended it yet: while another backup is away
    it takes what is written, also under the next leader master; then it is emptied again."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 30)
        one, two, _ = here.cluster.backups
        done = await here.database.retire_server(one, timeout=100.0)
        assert not done.segments
        here.world.crash(two, restart=False)
        await write(table, 30, 30)
        assert held(here, one)
        here.world.crash(here.cluster.leader() or "")
        await write(table, 60, 30)
        shown = {s["id"]: s for s in (await here.database.status())["servers"]}
        assert (shown[one]["retiring"], shown[one]["drained"]) == (True, False)
        here.world.restart(two)
        done = await here.database.retire_server(one, timeout=100.0)
        assert (done.segments, done.mark.needed) == (0, False)
        here.world.crash(one, lose_disk=True, restart=False)
        await write(table, 90, 10)
        await read_all(table, 100)

    tell(story, backups=3)


def test_one_that_is_away_is_let_go_of_once_all_is_elsewhere() -> None:
    """Nothing is known of what is on its disk, and nobody waits for it: also under the next leader
    master, and asked again."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(3), "sealed segments")
        victim = here.holders()[0][0]
        here.world.crash(victim, restart=False)
        retiring = asyncio.create_task(here.database.retire_server(victim, timeout=300.0))
        await asyncio.sleep(3.0)
        assert not retiring.done()
        here.world.crash(here.cluster.leader() or "")
        done = await retiring
        assert (done.is_live, done.segments, done.problem) == (False, 0, "")
        await here.until_whole()
        again = await here.database.retire_server(victim, timeout=5.0)
        assert not again.segments
        await read_all(table, 60)

    tell(story)


def test_one_that_is_away_with_the_only_replicas_keeps_nobody_waiting_for_ever() -> None:
    """What it has is nowhere else: the command ends, and its words name the ways out."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(3), "sealed segments")
        one, two = here.holders()[0]
        here.world.crash(here.owner(), restart=False)
        for name in (one, two):
            here.world.crash(name, restart=False)
        with pytest.raises(RetryLater, match=f"lack replicas, or wait.*--gone {one}.*--no-wait"):
            await here.database.retire_server(one, timeout=10_000.0)
        for name in (one, two):
            here.world.restart(name)
        done = await here.database.retire_server(one, timeout=200.0)
        assert (done.is_live, done.segments) == (True, 0)
        await read_all(table, 60)

    tell(story)


@pytest.mark.parametrize("bug", ["", "full_ones_count"])
def test_one_that_is_empty_is_taken_again_when_another_is_full(bug: str) -> None:
    """Owners choose none that is full: what frees room goes on, by the one that was drained, and so
    do rows. Where full ones count, as a planted bug has it, one is written to and ends itself, or
    a write waits for it."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("pram", "pram"))
        await write(table, 0, 60)
        one, two, _ = here.cluster.backups
        done = await here.database.retire_server(one, timeout=100.0)
        assert not done.segments
        full = here.world.server(two)
        full._media["pram"].allocator._free.clear()
        here.world.nodes[two].disk.full = True
        await asyncio.sleep(3.0)
        for key in range(50):
            await table.delete(key, timeout=CALL_S)
        assert held(here, one)
        await write(table, 100, 5)
        assert here.world.server(two) is full, "it was written to"
        shown = {s["id"]: s for s in (await here.database.status())["servers"]}
        assert (shown[one]["retiring"], shown[one]["drained"]) == (True, False)
        assert (await table.scan(timeout=CALL_S)).num_rows == 15

    def staying(catalog: Any, liveness: Any, now: float, mark: Any) -> Any:
        return backup_leaving.staying_backups(catalog, liveness, now, but=mark.uuid)

    if not bug:
        tell(story, backups=3)
        return
    with (
        patch.object(backup_leaving, "_roomy_backups", staying),
        pytest.raises(SimulationFailure, match=r"it was written to|did not answer tserver\.write"),
    ):
        tell(story, backups=3)


def test_blobs_of_evicted_timelines_leave_a_retired_backup() -> None:
    """The timelines come back, and are evicted anew to backups that stay; what was written is read
    though the retired one is gone with its disk."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(wal(3, ("disk", "disk")))
        await write(table, 0, 10)

        def blobs() -> dict[str, int]:
            servers = {name: here.world.server(name) for name in here.cluster.backups}
            return {name: server._blobs.count for name, server in servers.items() if server}

        await here.until(lambda: sum(blobs().values()) >= 6, "evicted timelines")
        victim = max(blobs(), key=lambda name: blobs()[name])
        done = await here.database.retire_server(victim, timeout=300.0)
        assert not done.segments
        assert blobs()[victim] == 0
        here.world.crash(victim, lose_disk=True, restart=False)
        await here.until(lambda: sum(blobs().values()) >= 6, "evicted anew")
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await read_all(table, 10)

    tell(story, safekeepers=3, evict_after_s=2.0, evict_copies=2, safekeeper_sweep_s=0.5)
