"""Eight planted bugs of replicated tablets: each is found, and what finds it is fine without it.

Chance hardly makes most of these histories: a voter must forget at the one moment at which somebody
else asks for the same vote. They are told as stories, on real servers in the simulated world.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.client.table.table import AsyncTable
from stelae.consensus.raft.raft import Raft
from stelae.core.errors import ConfigurationMismatch, StelaeError, TabletNotReady
from stelae.core.ids import Address, OpId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    TRANSFER_LEADERSHIP,
    ChangeKind,
    ChangeReplicas,
    DataState,
    TransferLeadership,
)
from stelae.core.messages.rows import WriteOp
from stelae.core.records.replication import Configuration
from stelae.core.schema.durability import replicas
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.copies.copied_cluster import SINGLE_ENTRIES, Cluster, resume_elsewhere
from tests.simulation.replicated.planted_replicas import BUGS, planted
from tests.simulation.replicated.tablet_group import SCHEMA, SETTINGS, TABLET, Caller, Group

TICK_S = 0.1
ELECTION_S = 10 * TICK_S


@contextlib.contextmanager
def one_leader_a_term() -> Iterator[None]:
    """Whoever becomes leader is the first of its group in that term."""
    led: dict[tuple[str, int], str] = {}
    real = Raft._become_leader

    def judged(core: Raft) -> None:
        real(core)
        first = led.setdefault((core.group_id, core.term), core.uuid)
        assert first == core.uuid, f"{first} and {core.uuid} lead term {core.term}"

    with patch.object(Raft, "_become_leader", judged):
        yield


def play(
    story: Callable[[World, Group, Caller], Coroutine[Any, Any, None]],
    seed: int,
    *,
    options: Options | None = None,
    servers: int = 3,
    count: int = 3,
    **settings: Any,
) -> None:
    """Tell a story of some servers with one tablet, which has a leader, and a client."""
    world = World(seed, options or Options())
    changed = msgspec.structs.replace(SETTINGS, **settings)
    group = Group(world, servers=servers, count=count, settings=changed)

    async def told() -> None:
        await group.start()
        await group.wait_leader()
        await story(world, group, Caller(group, "client"))

    with one_leader_a_term():
        world.run(told(), limit_s=300.0)


def cut(world: World, one: str, *others: str) -> None:
    world.partition([one], others)
    world.partition(others, [one])


def mend(world: World, one: str, *others: str) -> None:
    world.unpartition([one], others)
    world.unpartition(others, [one])


# ---- a voter that forgets: two leaders of one term -------------------------------------------


async def bury(group: Group, name: str) -> None:
    """Make a tombstone of a replica, as a copy does that then breaks off."""
    server = group.server(name)
    assert server is not None
    await server.replicas.stop_for_copy(TABLET)
    await server.replicas.store.tombstone(TABLET, server.replicas.last_op_id(TABLET))
    await server.replicas.settle(TABLET)


def has_voted(group: Group, voter: str, candidate: str) -> bool:
    """Whether it has given its vote to that candidate, as a replica or as a tombstone."""
    server = group.server(voter)
    assert server is not None
    tablet, tombstone = group.tablet(voter), server.replicas._tombstones.get(TABLET)
    if tablet is not None:
        return tablet.replica.core.voted_for == group.uuid(candidate)
    return tombstone is not None and tombstone._kept.voted_for == group.uuid(candidate)


async def hand_over(world: World, group: Group, old: str, voter: str, new: str) -> None:
    """A second leader is elected by one voter, and then nobody hears of it."""
    world.partition([new], [old])
    target = group.tablet(new)
    assert target is not None
    order = TransferLeadership(TABLET, group.uuid(new))
    await group.order(old, TRANSFER_LEADERSHIP, order)
    await world.wait_until(lambda: has_voted(group, voter, new), 5.0, "a vote", poll_s=0.0001)
    world.partition([new], [voter])
    await world.wait_until(lambda: target.replica.is_leader, 5.0, "it leads", poll_s=0.0001)
    cut(world, new, old, voter)


async def agree_in_the_end(world: World, group: Group, client: Caller) -> None:
    await group.wait_leader()
    await client.write(WriteOp.UPSERT, [(1, "later")], attempts=300)
    world.heal()
    await group.wait_agreement(group.names)
    assert (await client.get(1) or ("",))[0] == "later"


def vote_of_one_who_restarts(seed: int) -> None:
    """A voter restarts, and is then asked for the vote that it has given."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        old = await group.wait_leader()
        new, voter = [name for name in group.names if name != old]
        await hand_over(world, group, old, voter, new)
        cut(world, old, voter)
        world.restart(voter)
        await world.wait_ready(voter)
        await asyncio.sleep(1.05 * ELECTION_S)
        mend(world, old, voter)
        await agree_in_the_end(world, group, client)

    play(story, seed, raft_tick_s=TICK_S)


def vote_of_a_tombstone(seed: int) -> None:
    """The same of one whose data is deleted after the vote."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        old = await group.wait_leader()
        new, voter = [name for name in group.names if name != old]
        await hand_over(world, group, old, voter, new)
        cut(world, old, voter)
        await bury(group, voter)
        await asyncio.sleep(1.05 * ELECTION_S)
        mend(world, old, voter)
        await agree_in_the_end(world, group, client)

    play(story, seed, raft_tick_s=TICK_S)


def vote_while_copied(seed: int) -> None:
    """The same of one that votes while it is copied from a server that knows nothing of it."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for number in range(40):
            await client.upsert(number, "x" * 300)
        await group.wait_agreement(group.names)
        old = await group.wait_leader()
        new, voter = [name for name in group.names if name != old]
        server = group.server(voter)
        assert server is not None
        await bury(group, voter)
        await world.wait_until(
            lambda: server.replicas.copy_progress(TABLET)[0] > 0, 30.0, "a copy", poll_s=0.001
        )
        await hand_over(world, group, old, voter, new)
        assert server.replicas.data_state(TABLET) is DataState.COPYING
        await agree_in_the_end(world, group, client)

    slow = Options(bandwidth_bytes_s=50_000.0)
    play(story, seed, options=slow, raft_tick_s=TICK_S, copy_piece_bytes=2000, copy_pause_s=0.05)


# ---- members ---------------------------------------------------------------------------------


def change(group: Group, kind: ChangeKind, name: str, expected: OpId) -> ChangeReplicas:
    address = group.world.address(name) if kind is ChangeKind.ADD else Address("")
    return ChangeReplicas(TABLET, kind, group.uuid(name), address, name, expected)


def members(group: Group, name: str) -> Configuration:
    tablet = group.tablet(name)
    assert tablet is not None
    return tablet.replica.members


def one_dies_while_another_is_added(seed: int) -> None:
    """Of three members one dies while a fourth has nothing yet: two of three go on."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        leader = await group.wait_leader()
        follower = next(name for name in group.first if name != leader)
        world.nodes["t4"].disk.full = True
        add = change(group, ChangeKind.ADD, "t4", OpId(0, 0))
        await group.order(leader, CHANGE_REPLICAS, add)
        await asyncio.sleep(1.0)
        world.crash(follower, restart=False)
        world.nodes[follower].auto_restart = False
        began_s = world.loop.time()
        await client.upsert(1, "two")
        assert world.loop.time() - began_s < 3.0
        assert not members(group, leader).non_voters or "t4" not in members(group, leader).voters
        world.nodes["t4"].disk.full = False
        await world.wait_until(
            lambda: group.uuid("t4") in members(group, leader).voters, 60.0, "it is a voter"
        )
        world.restart(follower)
        await group.wait_agreement(group.names)

    play(story, seed, servers=4)


def two_masters_decide_by_one_look(seed: int) -> None:
    """Of four voters one is too many: one master evicts one, the next master another, as neither
    knows of the other's order. One of them is late, and there are three at any time."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        await client.upsert(1, "one")
        looked_at = members(group, leader).op_id
        first, second, _ = [name for name in group.names if name != leader]
        orders = [change(group, ChangeKind.REMOVE, name, looked_at) for name in (first, second)]
        results = await asyncio.gather(
            *(group.order(leader, CHANGE_REPLICAS, order) for order in orders),
            return_exceptions=True,
        )
        refused = [each for each in results if isinstance(each, BaseException)]
        assert all(isinstance(each, ConfigurationMismatch | TabletNotReady) for each in refused)
        with contextlib.suppress(ConfigurationMismatch):  # the same, repeated until it is answered
            await group.order(leader, CHANGE_REPLICAS, orders[1])
        assert len(members(group, leader).voters) == 3, "a member too many was let go"
        assert len(refused) == 1

    play(story, seed, servers=4, count=4)


async def _rows(cluster: SimCluster, count: int) -> AsyncTable:
    table = await cluster.database("client").create_table(
        "t", SCHEMA.arrow, key=["id"], durability=replicas(3), timeout=30.0
    )
    for number in range(count):
        await table.upsert({"id": number, "value": str(number)}, timeout=10.0)
    return table


def one_comes_back_when_another_dies(seed: int) -> None:
    """There is no fourth server, and one of three is away for long. It has not been let go: when
    it comes back and another one dies in the same moment, there are two of three."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        table = await _rows(cluster, 10)
        away, other, _ = cluster.tservers
        world.crash(away, restart=False)
        await asyncio.sleep(40.0)
        await table.upsert({"id": 10, "value": "10"}, timeout=10.0)
        world.crash(other, restart=False)
        world.restart(away)
        await world.wait_ready(away)
        await table.upsert({"id": 11, "value": "11"}, timeout=10.0)
        assert (await table.scan(timeout=10.0)).num_rows == 12

    world = World(seed, Options())
    with one_leader_a_term():
        world.run(story(world), limit_s=300.0)


# ---- what was acknowledged -------------------------------------------------------------------


def one_crashes_while_it_syncs(seed: int) -> None:
    """Of two that hold a write one crashes right after it was acknowledged, and the other is cut
    off: the one that crashed has it all the same, and leads."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        leader = await group.wait_leader()
        slow, deaf = [name for name in group.names if name != leader]
        cut(world, deaf, leader, slow)
        world.nodes[slow].disk.slowness = 100.0
        reply = await client.write(WriteOp.UPSERT, [(1, "two")], attempts=500)
        world.crash(slow, restart=False)
        world.nodes[slow].disk.slowness = 1.0
        cut(world, leader, slow, deaf, "client")
        mend(world, deaf, slow)
        world.restart(slow)
        await world.wait_until(lambda: group.leader() in (slow, deaf), 30.0, "another leader")
        assert await client.get(1) == ("two", reply.first_version)
        world.heal()
        await group.wait_agreement(group.names)

    play(story, seed, options=Options(keep_unsynced_rate=0.0), raft_tick_s=TICK_S)


def copy_goes_on_elsewhere(seed: int) -> None:
    """See `tests.simulation.copies.copied_cluster.resume_elsewhere`."""
    cluster = Cluster(seed=seed, settings=SINGLE_ENTRIES, flush_every_s=1000.0)
    cluster.run(resume_elsewhere)


FINDERS: dict[str, Callable[[int], None]] = {
    "vote not persisted": vote_of_one_who_restarts,
    "tombstone forgets its vote": vote_of_a_tombstone,
    "copy overwrites term": vote_while_copied,
    "promoted too early": one_dies_while_another_is_added,
    "evicted before promoted": one_comes_back_when_another_dies,
    "acknowledged before synced": one_crashes_while_it_syncs,
    "changed without compare-and-set": two_masters_decide_by_one_look,
    "resume uses a stale session": copy_goes_on_elsewhere,
}
SEEDS = 40


def failure_of(finder: Callable[[int], None], seed: int) -> BaseException | None:
    try:
        finder(seed)
    except SimulationFailure as failure:
        return failure.error
    return None


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_replicas_is_found(bug: str) -> None:
    """Each of these mistakes breaks a promise, which is kept in the same worlds without it."""
    finder = FINDERS[bug]
    for seed in range(1, SEEDS):
        finder(seed)
        with planted(bug):
            found = failure_of(finder, seed)
        if found is not None:
            assert isinstance(found, AssertionError | StelaeError), found
            return
    pytest.fail(f"{bug}: not found")
