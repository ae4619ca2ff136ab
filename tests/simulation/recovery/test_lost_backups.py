"""Backups that are lost or started again: replicas are made anew, in groups, in their turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.schema.durability import Durability, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from tests.simulation.backups.media_cluster import CALL_S, MediaFixture, tell
from tests.simulation.wal.wal_cluster import SCHEMA, read_all, text, write
from tests.simulation.world.cluster_fixture import SimClusterFixture


def test_copysets_hold_whole_segments_and_are_made_anew_when_a_member_is_lost() -> None:
    """Six backups in groups of two: each segment lies in one. One dies for good: its group is no
    more, and by and by all segments lie in groups again, with never fewer replicas meanwhile."""

    async def story(here: MediaFixture) -> None:

        def catalog() -> Any:
            return here.world.server(here.cluster.leader() or "").catalog

        await here.until(lambda: len(catalog().backups.copysets.groups) == 3, "three groups")

        def groups() -> list[set[str]]:
            found = catalog().backups.copysets.groups
            return [{here.name_of(uuid) for uuid in group} for group in found]

        def all_grouped() -> bool:
            if here.cluster.leader() is None or not here.cluster.is_whole(1, 2):
                return False
            return all(set(names) in groups() for names in here.holders())

        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until(all_grouped, "each segment in a group")
        lost = here.holders()[0][0]
        here.world.crash(lost, lose_disk=True, restart=False)
        await here.until(lambda: len(groups()) == 2, "its group is dissolved")
        await write(table, 60, 20)
        await here.until(all_grouped, "each segment in a group again", 120.0)
        here.world.restart(lost)
        await here.until(lambda: len(groups()) == 3, "who is left over finds a new one")
        await here.until(all_grouped, "and still", 120.0)
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 80)

    tell(story, backups=6, copyset_size=2, replica_dead_after_s=3.0)


def test_several_lost_backups_are_made_up_for_heads_first_at_a_bounded_rate() -> None:
    """Two of five die: writes go on at once, the rest comes at the rate that was set, and status
    says how far it is."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(segments("disk", "disk", "disk"))
        await write(table, 0, 120)
        await here.until_whole(3)
        head = here.holders()[-1]
        lost = [head[0], next(name for name in here.cluster.backups if name not in head)]
        for name in lost:
            here.world.crash(name, lose_disk=True, restart=False)
        await asyncio.sleep(3.0)
        began = here.world.loop.time()
        await table.upsert({"id": 120, "text": text(120)}, timeout=CALL_S)
        assert here.world.loop.time() - began < 3.0, "the head is whole again already"
        seen: list[tuple[int, int]] = []
        for _ in range(600):
            seen += [
                (each["segments_of"] - each["segments"], each["segments_of"])
                for each in (await here.database.status())["shortages"]
            ]
            if here.cluster.is_whole(1, 3):
                break
            await asyncio.sleep(0.1)
        took_s = here.world.loop.time() - began
        assert here.cluster.is_whole(1, 3)
        done = [made for made, _ in seen]
        assert done == sorted(done), seen
        assert len(set(done)) >= 4, seen
        total = max(of for _, of in seen)
        assert took_s > 0.5 * total * 2000 / 8000, "it kept to its rate"
        await asyncio.sleep(1.0)  # until a heartbeat has said so
        assert not (await here.database.status())["shortages"]

    tell(story, backups=5, rereplication_bytes_per_s=8000)


@pytest.mark.parametrize("durability", [segments("disk", "disk"), wal(3, ("disk", "disk"))])
def test_what_is_sealed_for_the_first_time_does_not_wait_for_what_is_made_anew(
    durability: Durability,
) -> None:
    """However slowly lost replicas are to be replaced, a recovery seals the former head at once,
    and a log on safekeepers is sealed as it grows."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(durability)
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(5), "segments on both disks", 5.0)
        for number in range(2):
            here.world.crash(here.owner())
            began = here.world.loop.time()
            await table.upsert({"id": number, "text": text(number)}, timeout=60.0)
            assert here.world.loop.time() - began < 5.0
        await read_all(table, 60)

    tell(story, rereplication_bytes_per_s=50, safekeepers=3)


@pytest.mark.parametrize("durability", [segments("disk", "disk"), wal(3, ("disk", "disk"))])
def test_segments_that_no_live_backup_has_are_told_of(durability: Durability) -> None:
    """Their rows are in memory: one of the silent backups may be needed, if that is lost. With one
    backup of two each segment has a replica."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(durability)
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(5), "segments on both disks", 5.0)

        async def unheld() -> list[int]:
            shortages = (await here.database.status())["shortages"]
            return [each["segments_unheld"] for each in shortages]

        async def wait(wanted: Callable[[list[int]], bool], what: str) -> None:
            for _ in range(100):
                if wanted(await unheld()):
                    return
                await asyncio.sleep(0.2)
            raise AssertionError(f"{what}: {await unheld()}")

        first, second = here.cluster.backups
        here.world.crash(first, restart=False)
        await wait(lambda found: found == [0], "the other one has all")
        here.world.crash(second, restart=False)
        await wait(lambda found: bool(found) and found[0] >= 5, "no live backup has them")
        here.world.restart(first)
        await wait(lambda found: found in ([], [0]), "it has them again")
        here.world.restart(second)
        await wait(lambda found: not found, "all have two replicas")
        await read_all(table, 60)

    tell(story, backups=2, safekeepers=3, rereplication_bytes_per_s=0)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_cold_start_of_everything_with_or_without_one_machine(absent: int) -> None:
    """All servers lose power at once; started again on their disks, one backup of them not, they
    serve all that was acknowledged, and are at full strength."""

    async def story(here: MediaFixture) -> None:
        here.world.options = here.world.options.but(keep_unsynced_rate=0.0)
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until_whole()
        cluster = here.cluster
        for name in [*cluster.masters, *cluster.tservers, *cluster.backups]:
            here.world.nodes[name].disk._options = here.world.options
            here.world.crash(name, restart=False)
        await asyncio.sleep(5.0)
        for name in [*cluster.masters, *cluster.tservers, *cluster.backups[absent:]]:
            here.world.restart(name)
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 60)
        assert not (await here.database.losses()).waiting

    tell(story)


def test_segments_that_have_nowhere_to_go_hold_up_no_others() -> None:
    """One table's only replicas are lost, and no backup has room in memory for others: however many
    they are, another table's lost replicas are made anew at the rate that was set."""

    async def story(here: MediaFixture) -> None:
        here.world.crash(here.cluster.tservers[1], restart=False)  # the other has both tables
        stuck = await here.database.create_table(
            "stuck", SCHEMA, key="id", durability=segments("ram"), timeout=30.0
        )
        await write(stuck, 0, 600)
        server = here.world.server(here.cluster.tservers[0])
        (stuck_id,) = server.holders()
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 120)
        await here.until(lambda: here.cluster.is_whole(2, 1), "all is sealed")
        lost, *rest = here.cluster.backups
        for name in rest:
            here.world.server(name)._media["ram"]._limit_bytes = 0
        await asyncio.sleep(1.0)  # until heartbeats have said so
        here.world.crash(lost, lose_disk=True, restart=False)

        def lacks(replicas: int, tablet_id: str) -> int:
            return sum(len(held) < replicas for held in server.holders()[tablet_id])

        (table_id,) = (each for each in server.holders() if each != stuck_id)
        await here.until(lambda: lacks(1, stuck_id) > 8 and lacks(2, table_id), "it is missed")
        await here.until(lambda: not lacks(2, table_id), "the others' replicas", 20.0)
        assert lacks(1, stuck_id) > 8

    tell(story, rereplication_bytes_per_s=8000)


@pytest.mark.parametrize(
    ("seed", "dead_after_s", "most_s"), [(2, 2.0, 3.0), (1, 1.0, 1.7), (2, 1.0, 1.7)]
)
def test_writers_wait_for_a_backup_of_a_lost_machine_until_masters_give_it_up(
    seed: int, dead_after_s: float, most_s: float
) -> None:
    """Nothing comes of the machine, not even an error. What was sent to it is not waited for once
    its replica is made again elsewhere: each call would hold the writers for its whole timeout."""
    servers = Servers(tservers=2, backups=4)
    world = World(seed, Options(servers=servers, unnoticed_end_rate=1.0, one_machine=False))
    here = SimClusterFixture(
        *(world,), append_timeout_s=2.0, call_timeout_s=5.0, dead_after_s=dead_after_s, lease_s=0.75
    )

    async def story() -> None:
        await here.start()
        await asyncio.sleep(1.0)
        writers = Writers(here, await small_table(here))
        chance = random.Random(f"{seed}/roll")
        await asyncio.sleep(1.0 + chance.random())
        world.crash(chance.choice(here.cluster.backups), restart=False)
        await asyncio.sleep(6.0)
        await writers.end()
        assert writers.longest_s < most_s

    world.run(story(), limit_s=300.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_writers_do_not_wait_for_backups_that_are_started_again_one_by_one(seed: int) -> None:
    """One that is back is told to free the head that was made again elsewhere. Until that is
    answered, and no longer, it takes no replica of this head: the next backups end meanwhile."""
    world = World(seed, Options(servers=Servers(tservers=2, backups=4), unnoticed_end_rate=0.0))
    here = SimClusterFixture(
        *(world,), append_timeout_s=2.0, call_timeout_s=5.0, segment_bytes=1 << 20
    )

    async def story() -> None:
        await here.start()
        await asyncio.sleep(1.0)
        writers = Writers(here, await small_table(here))
        await asyncio.sleep(2.0)
        for name in [*here.cluster.backups, *here.cluster.backups]:
            await world.stop(name)
            await asyncio.sleep(1.0)
            world.restart(name)
            await here.until(lambda: here.cluster.is_whole(3, 2), "full strength")
            await asyncio.sleep(0.5)
        await writers.end()
        assert writers.longest_s < 0.6

    world.run(story(), limit_s=300.0)


async def small_table(here: SimClusterFixture) -> AsyncTable:
    """With three tablets."""
    return await here.database.create_table(
        *("t", SCHEMA), key="id", partition=hash_partition("id", 3), timeout=30.0
    )


class Writers:
    """Two that write all the time, and how long a write took at most."""

    def __init__(self, here: SimClusterFixture, table: AsyncTable) -> None:
        self.longest_s = 0.0
        self._here, self._table, self._goes_on = here, table, True
        self._tasks = [asyncio.create_task(self._write(1000 * number)) for number in range(2)]

    async def _write(self, first: int) -> None:
        time, number = self._here.world.loop.time, 0
        while self._goes_on:
            began = time()
            rows = [{"id": first + (number + n) % 100, "text": "x" * 20} for n in range(4)]
            await self._table.upsert(rows, timeout=CALL_S)
            self.longest_s = max(self.longest_s, time() - began)
            number += 1
            await asyncio.sleep(0.04)

    async def end(self) -> None:
        """Let each finish its write."""
        self._goes_on = False
        await asyncio.gather(*self._tasks)
