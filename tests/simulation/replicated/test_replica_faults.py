"""A replicated tablet on real tablet servers when something goes wrong: one story of each kind.

Without masters: what they would order is ordered by hand. Whole clusters that heal themselves are
in `tests.simulation.replicated.test_replica_healing`, single copies in
`tests.simulation.copies.test_tablet_copies`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.core.errors import (
    NotLeader,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StaleTerm,
    WrongServer,
)
from stelae.core.ids import ClientId, OpId, RequestId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    DELETE_REPLICA,
    START_TABLET_COPY,
    ChangeKind,
    DataState,
    DeleteReplica,
    StartTabletCopy,
)
from stelae.core.messages.rows import GET, WRITE, Get, Write, WriteOp
from stelae.core.messages.servers import ReplicaRole
from stelae.simulation import Options, World
from tests.simulation.replicated.ordered_group import report, role
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group
from tests.simulation.replicated.test_planted_replicas import bury, change, cut, members, play

SLOW = Options(bandwidth_bytes_s=50_000.0)


def write_of(client: str, key: int, value: str) -> Write:
    request = RequestId(ClientId(client), 1, 1)
    return Write(TABLET, 0, WriteOp.UPSERT, request, ((key, value),))


def others(group: Group, *names: str) -> list[str]:
    return [name for name in group.names if name not in names]


async def wait_leader_of(group: Group, *names: str) -> str:
    """Wait until one of these leads, and commits; its name."""

    def leaders() -> list[str]:
        tablets = {name: group.tablet(name) for name in names}
        return [name for name, t in tablets.items() if t is not None and t.replica.leader_ready]

    await group.world.wait_until(lambda: bool(leaders()), 60.0, f"one of {names} leads")
    return leaders()[0]


def progress(group: Group, name: str) -> int:
    """Bytes of a copy that are there."""
    server = group.server(name)
    return 0 if server is None else server.replicas.copy_progress(TABLET)[0]


# ---- leaders ---------------------------------------------------------------------------------


def test_a_leader_that_is_cut_off_answers_no_reads_once_its_lease_is_over() -> None:
    """As long as it answers, nobody else can have written; it goes silent before somebody can."""

    async def story(world: World, group: Group, client: Caller) -> None:
        version = await client.upsert(1, "old")
        old = await group.wait_leader()
        rest = others(group, old)
        cut(world, old, *rest, "client")
        answered = refused = 0
        writing: asyncio.Task[int] = asyncio.create_task(client.upsert(1, "new"))
        end_s = world.loop.time() + 2.0
        while world.loop.time() < end_s:
            acknowledged = writing.done()
            try:
                found = await group.order(old, GET, Get(TABLET, ((1,),)), timeout_s=0.05)
            except (RetryLater, RetryElsewhere, OutcomeUnknown):
                refused += 1
            else:
                answered += 1
                assert found.rows == (((1, "old"), version),)
                assert not acknowledged, "a read that began after a write was acknowledged"
            await asyncio.sleep(0.01)
        assert answered > 2, "it had a lease"
        assert refused > 10
        assert await writing > version
        world.heal()
        await group.wait_agreement(group.names)

    for seed in range(1, 3):
        play(story, seed)


def test_a_leader_that_hung_while_others_went_on_leads_no_more() -> None:
    """What it is told when it wakes up vanishes, or is refused; it deletes nothing anywhere. Its
    lease is over by its clock, so it answers no reads, though it has not heard of the others."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        old = await group.wait_leader()
        tablet = group.tablet(old)
        assert tablet is not None
        term = tablet.replica.term
        world.pause(old)
        calls = [
            asyncio.ensure_future(group.order(old, WRITE, write_of(f"rogue{n}", 1, "lost"), 30.0))
            for n in range(3)
        ]
        rest = others(group, old)
        leader = await wait_leader_of(group, *rest)
        gone = next(name for name in rest if name != leader)
        reply = await client.write(WriteOp.UPSERT, [(1, "two")], attempts=300)
        read = Get(TABLET, ((1,),))
        calls += [asyncio.ensure_future(group.order(old, GET, read, 30.0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        world.resume(old)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            is_surely_not_done = isinstance(result, RetryElsewhere | RetryLater)
            assert is_surely_not_done or isinstance(result, OutcomeUnknown), result
        order = StartTabletCopy(
            TABLET, group.uuid(old), world.address(old), term, DataState.READY, None
        )
        with pytest.raises(StaleTerm):
            await group.order(gone, START_TABLET_COPY, order)
        assert (await client.get(1) or ("", 0)) == ("two", reply.first_version)
        await group.wait_agreement(group.names)

    for seed in range(1, 3):
        play(story, seed)


def test_a_leader_acknowledges_nothing_once_a_sync_has_failed() -> None:
    """The call that met it is not answered with success by that server, nor is any later one. (If
    the two others had it before, it would be: a leader does not wait for its own disk.)"""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        old = await group.wait_leader()
        for name in others(group, old):
            world.nodes[name].disk.slowness = 30.0
        world.nodes[old].disk.fail_next_sync = True
        call = write_of("first", 1, "two")
        with pytest.raises((RetryLater, RetryElsewhere, OutcomeUnknown)):
            await group.order(old, WRITE, call, timeout_s=2.0)
        for name in others(group, old):
            world.nodes[name].disk.slowness = 1.0
        assert role(group, old) is ReplicaRole.FAILED
        for number in range(3):
            with pytest.raises(RetryElsewhere):
                await group.order(old, WRITE, write_of(f"later{number}", 1, "x"))
        done = await client.call(WRITE, call, attempts=300)
        assert (await client.get(1) or ("", 0)) == ("two", done.first_version)
        found = report(group, old)
        assert found is not None
        assert "Input/output error" in found.problem
        world.crash(old)
        await group.wait_agreement(group.names)

    for seed in range(1, 7):
        play(story, seed)


# ---- majorities ------------------------------------------------------------------------------


def test_without_a_majority_nothing_is_acknowledged_and_all_is_there_once_it_is_back() -> None:
    """Neither writes nor reads, by nobody; afterwards what was acknowledged before is there."""

    async def story(world: World, group: Group, client: Caller) -> None:
        version = await client.upsert(1, "one")
        down = group.names[:2]
        for name in down:
            world.crash(name, restart=False)
        await asyncio.sleep(1.0)
        for request in (write_of("nobody", 1, "two"), Get(TABLET, ((1,),))):
            method: Any = WRITE if isinstance(request, Write) else GET
            for name in others(group, *down):
                with pytest.raises((RetryLater, RetryElsewhere)):
                    await group.order(name, method, request, timeout_s=1.0)
        for name in down:
            world.restart(name)
        assert await client.get(1, attempts=300) == ("one", version)
        await client.upsert(1, "three")
        await group.wait_agreement(group.names)

    play(story, 1)


def test_a_server_that_lost_its_disk_is_no_majority_with_one_who_knows_it_by_its_old_name() -> None:
    """It has another UUID. An outdated member that calls it by the old one is refused, so the two
    can neither elect nor commit anything, though they are two of three (the seed's parallel
    universe)."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        outdated, lost, newest = group.names
        world.crash(outdated, restart=False)
        version = await client.upsert(1, "two")
        old_uuid = group.uuid(lost)
        world.crash(newest, restart=False)
        world.crash(lost, lose_disk=True)
        world.restart(outdated)
        await world.wait_ready(outdated, lost)
        assert group.uuid(lost) != old_uuid
        with pytest.raises(WrongServer):
            await group.driver.peers.call(
                world.address(lost), GET, Get(TABLET, ((1,),)), timeout_s=1.0, destination=old_uuid
            )
        await asyncio.sleep(3.0)
        tablet = group.tablet(outdated)
        assert tablet is not None
        assert not tablet.replica.is_leader
        server = group.server(lost)
        assert server is not None
        assert server.replicas.data_state(TABLET) is DataState.ABSENT
        world.restart(newest)
        await world.wait_ready(newest)
        assert await client.get(1, attempts=300) == ("two", version)
        leader = await group.wait_leader()
        expected = members(group, leader).op_id
        added = change(group, ChangeKind.ADD, lost, expected)
        await group.order(leader, CHANGE_REPLICAS, added)
        await world.wait_until(
            lambda: group.uuid(lost) in members(group, leader).voters, 30.0, "it votes"
        )
        await group.wait_agreement(group.names)

    play(story, 1)


# ---- tombstones and copies -------------------------------------------------------------------


def test_a_voter_that_crashes_while_it_is_copied_helps_to_elect_who_copies_it_anew() -> None:
    """The seed's case for tombstones that vote: one of three is being copied, crashes, is a
    tombstone when it comes back; and the leader dies for good. The two that are left go on."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for number in range(40):
            await client.upsert(number, "x" * 300)
        await group.wait_agreement(group.names)
        leader = await group.wait_leader()
        copied, other = others(group, leader)
        await bury(group, copied)
        await world.wait_until(lambda: progress(group, copied) > 0, 30.0, "a copy", poll_s=0.001)
        world.crash(copied, restart=False)
        world.crash(leader, restart=False)
        world.restart(copied)
        await world.wait_ready(copied)
        server = group.server(copied)
        assert server is not None
        assert server.replicas.data_state(TABLET) is DataState.DELETED
        await wait_leader_of(group, copied, other)
        version = await client.upsert(1, "goes on")
        assert await client.get(1) == ("goes on", version)
        await group.wait_agreement([copied, other])

    for seed in range(1, 3):
        play(story, seed, options=SLOW, copy_piece_bytes=2000, copy_pause_s=0.05)


def test_a_disk_that_fails_under_a_copy_fails_the_replica_and_nothing_else() -> None:
    """It is reported; the group goes on with those it has, and can let it go; and once the server
    was started again, it is copied to anew."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for number in range(40):
            await client.upsert(number, "x" * 300)
        leader = await group.wait_leader()
        add = change(group, ChangeKind.ADD, "t4", OpId(0, 0))
        await group.order(leader, CHANGE_REPLICAS, add)
        await world.wait_until(lambda: progress(group, "t4") > 0, 30.0, "a copy", poll_s=0.001)
        world.nodes["t4"].disk.fail_next_sync = True
        await world.wait_until(
            lambda: role(group, "t4") is ReplicaRole.FAILED, 30.0, "it has failed"
        )
        await client.upsert(1, "goes on")
        world.crash("t4")
        await group.wait_agreement(group.names)
        assert members(group, await group.wait_leader()).peer(group.uuid("t4")) is not None

    play(story, 1, servers=4, options=SLOW, copy_piece_bytes=2000, copy_pause_s=0.05)


def test_all_restart_while_a_member_is_brought_up_and_it_is_promoted_all_the_same() -> None:
    """That it is to vote is in the log, not in a leader's memory."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for number in range(40):
            await client.upsert(number, "x" * 300)
        leader = await group.wait_leader()
        add = change(group, ChangeKind.ADD, "t4", OpId(0, 0))
        await group.order(leader, CHANGE_REPLICAS, add)
        await world.wait_until(lambda: progress(group, "t4") > 0, 30.0, "a copy", poll_s=0.001)
        for name in group.names:
            world.crash(name)
        await world.wait_ready()

        def votes() -> bool:
            name = group.leader()
            return name is not None and group.uuid("t4") in members(group, name).voters

        await world.wait_until(votes, 60.0, "it votes")
        await group.wait_agreement(group.names)

    play(story, 1, servers=4, options=SLOW, copy_piece_bytes=2000, copy_pause_s=0.05)


def test_a_member_that_is_let_go_under_load_takes_nothing_along() -> None:
    """Deleted while entries are on their way to it (KUDU-987, KUDU-1678): they are the others',
    and the server starts again with its tombstone."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        gone, stays = others(group, leader)
        known = {}

        async def load() -> None:
            for number in range(200):
                known[number % 10] = await client.upsert(number % 10, f"value {number}")

        loading = asyncio.create_task(load())
        await asyncio.sleep(0.2)
        remove = change(group, ChangeKind.REMOVE, gone, OpId(0, 0))
        changed = (await group.order(leader, CHANGE_REPLICAS, remove)).configuration
        await group.order(gone, DELETE_REPLICA, DeleteReplica(TABLET, False, changed.op_id))
        world.crash(gone)
        await loading
        await world.wait_ready(gone)
        assert role(group, gone) is ReplicaRole.TOMBSTONE
        for key, version in known.items():
            assert (await client.get(key) or ("", 0))[1] == version
        await group.wait_agreement([leader, stays])
        with pytest.raises(NotLeader):
            await group.order(stays, GET, Get(TABLET, ((1,),)))

    play(story, 1)


def test_nobody_is_let_go_before_those_who_stay_have_answered_anew() -> None:
    """Of three, one has failed, and the other's disk was lost a moment ago, which nobody knows yet:
    were the first let go, the leader would wait for the second for ever. So it is not, and the
    group goes on once the first is back."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        failed, lost = others(group, leader)
        await client.upsert(1, "all three have it")
        remove = change(group, ChangeKind.REMOVE, failed, OpId(0, 0))
        world.crash(failed, restart=False)
        world.crash(lost, restart=False)
        with pytest.raises(NotLeader):
            await group.order(leader, CHANGE_REPLICAS, remove)
        assert members(group, leader).peer(remove.uuid) is not None
        world.restart(failed)
        await world.wait_ready(failed)
        await client.upsert(2, "two of three are enough")
        assert (await client.get(2) or ("", 0))[0] == "two of three are enough"

    play(story, 1)
