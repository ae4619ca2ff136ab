"""A client finds the leader of a tablet's group, whatever has become of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import DeadlineExpired, OutcomeUnknown, TableNotFound, TooStale
from stelae.core.ids import TabletId
from stelae.simulation import Options, World
from tests.simulation.replicated.fake_group import MASTER, Group, database, fail_over, start

ELECTION_S = 1.5
SEEDS = range(6)
NAMES = ("s1", "s2", "s3")


def play(
    seed: int,
    scene: Callable[[World, Group, AsyncTable], Awaitable[Any]],
    *names: str,
    spare: tuple[str, ...] = (),
    options: Options | None = None,
) -> None:
    """Run a scene with a group whose first member leads, and a client that knows its table."""
    world = World(seed, options)

    async def main() -> None:
        group = await start(world, *(names or NAMES), spare=spare)
        await scene(world, group, await database(world).table("t"))

    world.run(main())


async def write_on(world: World, table: AsyncTable, until_s: float) -> tuple[list[int], float]:
    """Write one row after the other: their numbers, and the longest that one took."""
    done: list[int] = []
    longest_s = 0.0
    while (begun := world.loop.time()) < until_s:
        await table.upsert({"id": len(done), "value": len(done)}, timeout=20.0)
        longest_s = max(longest_s, world.loop.time() - begun)
        done.append(len(done))
        await asyncio.sleep(0.01)
    return done, longest_s


def check_once(group: Group, done: list[int]) -> None:
    """Every acknowledged write was done, once."""
    assert [group.rows[number][0] for number in done] == done
    assert group.version == len(done) == len(group.results)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["crash", "pause", "partition"])
def test_writes_go_on_in_about_the_time_an_election_takes(seed: int, how: str) -> None:
    """Whether the leader died, hangs, or cannot be reached; each write is done exactly once."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        begun = world.loop.time()
        writing = asyncio.create_task(write_on(world, table, begun + 5.0))
        await asyncio.sleep(0.5)
        if how == "crash":
            world.crash("s1", restart=False)
        elif how == "pause":
            world.pause("s1")
        else:
            everyone = [name for name in world.nodes if name != "s1"]
            world.partition(["s1"], everyone)
            world.partition(everyone, ["s1"])
        await fail_over(world, group, "s3", ELECTION_S)
        done, longest_s = await writing
        assert longest_s < ELECTION_S + 0.35, longest_s
        check_once(group, done)
        if how == "pause":
            world.resume("s1")

    play(seed, scene)


def test_a_hint_is_followed_at_once_and_remembered() -> None:
    """One more call, no search, no look-up; the next call goes straight."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 1, "value": 1})
        look_ups = group.look_ups
        group.elect("s2")
        group.asked.clear()
        begun = world.loop.time()
        await table.upsert({"id": 2, "value": 2})
        assert group.asked == [("s1", "write"), ("s2", "write")]
        assert world.loop.time() - begun < 0.05
        assert await table.get(2) == {"id": 2, "value": 2}
        assert group.asked[2:] == [("s2", "get")]
        assert group.look_ups == look_ups

    play(1, scene)


def test_hints_in_a_circle_end_at_the_deadline_and_are_asked_for_at_a_pace() -> None:
    """No leader at all: surely not done, whom it waits for is said, and nobody is flooded."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        group.leader = None
        group.believed.update(s1="s2", s2="s3", s3="s1")
        begun = world.loop.time()
        with pytest.raises(DeadlineExpired, match=r"a leader of tablet a+: .*not the leader"):
            await table.upsert({"id": 1, "value": 1}, timeout=4.0)
        assert begun + 4.0 <= world.loop.time() < begun + 4.2  # as deadlines are reckoned
        assert group.count("write") <= 6
        assert group.count("question") < 150
        assert group.look_ups < 30
        group.elect("s2")
        await table.upsert({"id": 1, "value": 1}, timeout=1.0)

    play(2, scene)


def test_many_calls_share_one_search_and_large_ones_are_sent_to_leaders() -> None:
    """An election is not met by a storm, nor by megabytes that nobody can use."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 0, "value": 0})
        rows = pa.table({"id": list(range(10)), "value": list(range(10))})
        world.crash("s1", restart=False)
        election = asyncio.create_task(fail_over(world, group, "s2", ELECTION_S))
        await asyncio.gather(*[table.upsert(rows, timeout=10.0) for _ in range(32)])
        await election
        assert len(group.results) == 33
        assert group.count("write", "s3") == 0
        assert group.count("write", "s2") == 32
        assert group.count("question") < 100

    play(3, scene)


def test_a_leader_that_is_slow_is_not_given_up() -> None:
    """The others say that it leads: its answer is waited for, and the write sent once."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        group.slow_s["s1"] = 3.0
        await table.upsert({"id": 1, "value": 1}, timeout=10.0)
        assert group.count("write") == 1
        assert 3 <= group.count("question") < 20

    play(4, scene)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_tablet_that_has_moved_altogether_is_looked_up(renamed: bool) -> None:
    """Nobody of those known has it: the masters are asked, and may name another tablet."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 1, "value": 1})
        group.names = ["s4", "s5", "s6"]
        group.here = {name: False for name in NAMES}
        group.leader = "s5"
        if renamed:
            group.tablet_id = TabletId("b" * 32)
        begun = world.loop.time()
        await table.upsert({"id": 2, "value": 2}, timeout=5.0)
        assert world.loop.time() - begun < 0.5
        group.asked.clear()
        assert await table.get(2) == {"id": 2, "value": 2}
        assert group.asked == [("s5", "get")]

    play(5, scene, spare=("s4", "s5", "s6"))


def test_a_server_with_a_new_identity_at_the_same_address_is_told_apart() -> None:
    """Calls name whom they are meant for: it refuses, and is known anew by a look-up."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 1, "value": 1})
        group.lives["s1"] = 1
        world.crash("s1", restart=False)
        world.restart("s1")
        await world.wait_ready("s1")
        group.asked.clear()
        await table.upsert({"id": 2, "value": 2}, timeout=2.0)
        route = table.cache.group(0)
        assert route is not None
        leader = route.leader
        assert leader is not None
        assert leader.server == group.uuid("s1")
        assert group.count("write") == 1

    play(6, scene)


def test_a_client_finds_the_leader_while_the_masters_are_gone() -> None:
    """The replicas know; only who has replicas is the masters' to say."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        world.crash(MASTER, restart=False)
        world.crash("s1", restart=False)
        election = asyncio.create_task(fail_over(world, group, "s2", ELECTION_S))
        begun = world.loop.time()
        await table.upsert({"id": 1, "value": 1}, timeout=10.0)
        assert world.loop.time() - begun < ELECTION_S + 0.35
        await election

    play(7, scene)


def test_a_leader_that_came_in_later_is_known_by_its_followers() -> None:
    """A member that the client has never heard of, while the masters are gone."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        world.crash(MASTER, restart=False)
        world.crash("s1", restart=False)
        group.here["s4"] = True
        group.elect("s4")
        await table.upsert({"id": 1, "value": 1}, timeout=2.0)
        assert group.count("write", "s4") == 1

    play(7, scene, spare=("s4",))


def test_a_table_that_was_deleted_ends_the_search() -> None:
    """The masters say so."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        group.here = {name: False for name in NAMES}

        async def gone() -> None:
            raise TableNotFound("t")

        table.cache.refresh = gone  # type: ignore[method-assign]
        with pytest.raises(TableNotFound):
            await table.upsert({"id": 1, "value": 1}, timeout=10.0)

    play(8, scene)


def test_reads_of_many_rows_survive_a_failover() -> None:
    """Each row once, from one replica: a scan begins anew with the next leader."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        rows = pa.table({"id": list(range(20)), "value": list(range(20))})
        await table.upsert(rows)
        group.slow_s["s1"] = 0.1
        scan = asyncio.create_task(table.scan(timeout=20.0))
        many = asyncio.create_task(table.get_many([3, 99, 5], timeout=20.0))
        await asyncio.sleep(0.05)
        world.crash("s1", restart=False)
        await fail_over(world, group, "s2", ELECTION_S)
        assert (await scan).column("id").to_pylist() == list(range(20))
        assert (await many).column("value").to_pylist() == [3, 5]
        assert group.count("scan", "s3") == 0

    play(9, scene)


# ---- reads that may be a little old -----------------------------------------------------------


def test_any_replica_answers_a_read_that_may_be_old_and_they_take_turns() -> None:
    """Also while there is no leader; a linearizable read waits for one."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert([{"id": n, "value": n} for n in range(3)])
        group.elect(None)
        group.asked.clear()
        for _ in range(2):
            assert await table.get(1, max_staleness=1.0) == {"id": 1, "value": 1}
            found = await table.get_many([0, 2], max_staleness=1.0)
            assert found.column("id").to_pylist() == [0, 2]
            assert await table.count(max_staleness=1.0) == 3
        calls = [(name, method) for name, method in group.asked if method != "scan"]
        assert len(calls) == 4
        scans = [name for name, method in group.asked if method == "scan"]
        assert len(scans) == 6
        assert {name for name, _ in group.asked} == set(NAMES)
        with pytest.raises(DeadlineExpired):
            await table.get(1, timeout=0.5)

    play(10, scene)


def test_a_replica_that_is_too_stale_is_passed_over() -> None:
    """Also one that is gone; the leader always will do; if none will, that is what is said."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 1, "value": 1})
        group.age_s.update(s2=5.0, s3=5.0)
        for _ in range(4):
            assert await table.get(1, max_staleness=1.0, timeout=2.0) is not None
        assert {name for name, method in group.asked if method == "get"} >= {"s1"}
        group.asked.clear()
        world.crash("s1", restart=False)
        group.leader = None
        assert await table.get(1, max_staleness=6.0, timeout=2.0) is not None
        begun = world.loop.time()
        with pytest.raises(TooStale):
            await table.get(1, max_staleness=1.0, timeout=2.0)
        assert 1.999 < world.loop.time() - begun < 2.2
        assert len(group.asked) < 60

    play(11, scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_hangs_delays_one_read_and_not_the_next(seed: int) -> None:
    """It is asked last for a while."""

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        await table.upsert({"id": 1, "value": 1})
        world.pause("s2")
        slow = 0
        begun_all = world.loop.time()
        for _ in range(9):
            begun = world.loop.time()
            assert await table.get(1, max_staleness=1.0, timeout=10.0) is not None
            slow += world.loop.time() - begun > 0.5
        assert slow == 1
        assert world.loop.time() - begun_all < 3.0
        world.resume("s2")

    play(seed, scene)


# ---- under faults of the network --------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_no_write_is_lost_or_done_twice_while_leaders_come_and_go(seed: int) -> None:
    """Lost, late and repeated messages included; what has an unknown end may be done, or not."""
    options = Options(
        drop_request_rate=0.05, drop_reply_rate=0.05, duplicate_rate=0.05, slow_message_rate=0.05
    )

    async def scene(world: World, group: Group, table: AsyncTable) -> None:
        rng = world.rng("scene")
        sure: dict[int, None] = {}
        unsure: dict[int, None] = {}

        async def writer(first: int) -> None:
            for number in range(first, first + 40):
                try:
                    await table.upsert({"id": number, "value": number}, timeout=8.0)
                except OutcomeUnknown:
                    unsure[number] = None
                else:
                    sure[number] = None

        async def leaders() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0.05, 1.0))
                await fail_over(world, group, rng.choice(NAMES), rng.uniform(0.0, 0.8))

        changing = asyncio.create_task(leaders())
        await asyncio.gather(*[writer(1000 * n) for n in range(4)])
        changing.cancel()
        assert all(number in group.rows for number in sure)
        assert all(number in sure or number in unsure for number in group.rows)
        assert len(group.results) == group.version == len(group.rows)
        assert len(sure) > 150

    play(seed, scene, options=options)
