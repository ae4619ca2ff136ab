"""Every durability strategy under faults of media, many seeds; and stories of single faults."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.tserver.segments.repair import ReplicaCensus
from stelae.core.errors import RetryLater, StelaeError
from stelae.core.schema.durability import segments
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.backups.media_cluster import CALL_S, MediaFixture, tell
from tests.simulation.wal.wal_cluster import SCHEMA, read_all, write

SEEDS = 1
BUG_SEEDS = 150


def test_strategies_and_faults_of_media_lose_nothing() -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario("media"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", ["stale_head_replica", "short_head_replica"])
def test_a_planted_bug_of_media_is_found(bug: str) -> None:
    """The scenario can see it; the same seed is fine without it."""
    scenario = load_scenario("media")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


# ---- stories --------------------------------------------------------------------------------


STRATEGIES = [
    segments("disk", "disk"),
    segments("disk", "flash"),
    segments("ram", "ram", "disk"),
    segments("flash", "flash"),
    segments("pram", "ram"),
    segments("ram", "ram"),
    segments("disk"),
]


@pytest.mark.parametrize("durability", STRATEGIES, ids=str)
def test_each_strategy_survives_the_death_of_the_owner(durability: Any) -> None:
    """Whatever media are named, mixed or not: the rows are there, and each replica is where it is
    to be."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(durability)
        await write(table, 0, 40)
        await here.until_whole(len(durability.media))
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole(len(durability.media))
        await read_all(table, 40)
        held: list[str] = []
        for name in here.cluster.backups:
            holdings = here.world.server(name)._holdings
            for log in holdings.logs:
                held += [holdings.find(log, s).medium for s in holdings.segments(log)]
        assert set(held) == set(durability.media)

    tell(story)


def test_unknown_media_and_too_many_replicas_are_told_in_words() -> None:
    """First the table waits, in words; once the masters know every backup, it is refused."""

    async def story(here: MediaFixture) -> None:
        for wrong, what in ((segments("tape"), "tape"), (segments(*["disk"] * 5), "disk")):
            with pytest.raises(RetryLater, match=what):
                await here.database.create_table(
                    "w", SCHEMA, key="id", durability=wrong, timeout=2.0
                )
        await asyncio.sleep(31.0)
        for wrong, what in ((segments("tape"), "tape"), (segments(*["disk"] * 5), "disk")):
            with pytest.raises(StelaeError, match=what) as caught:
                await here.database.create_table(
                    "w", SCHEMA, key="id", durability=wrong, timeout=2.0
                )
            assert not isinstance(caught.value, RetryLater)

    tell(story)


async def decay(here: MediaFixture) -> list[Any]:
    """Frames of the first backup decay; each time an owner dies, replicas are read at random. The
    replicas that were found to be damaged, by then replaced."""
    table = await here.create(segments("disk", "disk"))
    await write(table, 0, 40)
    await here.until_whole()
    name = here.cluster.backups[0]
    server = here.world.server(name)
    decayed = []
    for log in server._holdings.logs:
        for segment in server._holdings.segments(log):
            replica = server._holdings.find(log, segment)
            if replica.facts.state.value != "sealed":
                continue
            ((offset, _),) = server._media["disk"].layout.pieces(replica.frames, 100, 1)
            here.world.nodes[name].disk.corrupt("disk/frames", offset)
            decayed.append(replica)
    assert decayed
    for _ in range(8):
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 40)
    assert here.count("backup_damaged_replicas") >= 1
    found = [replica for replica in decayed if replica.damaged]
    assert found
    return found


def test_a_damaged_replica_is_passed_over_and_replaced() -> None:
    """A frame decays; the owner dies: the other replica is read, and a good one takes its place.
    The bad one's frames are free again while its backup runs."""

    async def story(here: MediaFixture) -> None:
        damaged = await decay(here)
        await here.world.wait_until(
            lambda: all(replica.freed for replica in damaged), 150.0, "frames are free again"
        )

    tell(story, 6, 7, metadata_first=False)


@pytest.mark.soak
def test_this_would_see_frames_that_stay_taken() -> None:
    """A census that does not ask for damaged replicas leaves them until their backup restarts."""

    async def story(here: MediaFixture) -> None:
        damaged = await decay(here)
        await asyncio.sleep(150.0)
        assert all(replica.freed for replica in damaged), "frames are taken"

    def tell_each() -> (
        None
    ):  # a replica may be made anew just where it was, and the frames are free
        for seed in (1, 2, 3):
            tell(story, 6, seed, metadata_first=False)

    tell_each()
    compare = ReplicaCensus._compare

    async def blind(self: Any, backup: Any, held: Any, believed: Any) -> bool:
        return await compare(self, backup, msgspec.structs.replace(held, damaged=()), believed)

    planted = patch.object(ReplicaCensus, "_compare", blind)
    with planted, pytest.raises(SimulationFailure, match="frames are taken"):
        tell_each()


def test_a_loss_of_power_of_all_flash_is_not_served_as_if_nothing_were_lost() -> None:
    """Both replicas of the head may be short: the longest of both is taken. With one of them away
    the tablet waits, as that one may hold more."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("flash", "flash"))
        await write(table, 0, 40)
        await here.until_whole()
        head = here.holders()[-1]
        here.world.options = here.world.options.but(keep_unsynced_rate=0.0)
        for name in here.cluster.backups:
            here.world.nodes[name].disk._options = here.world.options
            here.world.crash(name, restart=False)
        here.world.crash(here.owner())
        for name in here.cluster.backups:
            if name != head[0]:
                here.world.restart(name)
        await asyncio.sleep(8.0)
        with pytest.raises(StelaeError):
            await table.get(1, timeout=2.0)
        (loss,) = (await here.database.losses()).waiting
        assert loss.is_end_lost
        here.world.restart(head[0])
        await here.until_whole()
        found = (await table.scan(timeout=CALL_S)).column("id").to_pylist()
        assert sorted(found) == list(range(len(found))), "a prefix of what was written"

    tell(story)
