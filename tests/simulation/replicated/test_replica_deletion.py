"""When a tablet server deletes a replica that it is told to delete, and what is left of it then."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import (
    ConfigurationMismatch,
    TabletDeleted,
    TabletNotHere,
)
from stelae.core.ids import OpId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    ChangeKind,
    ChangeReplicas,
    CreateReplica,
    DataState,
    DeleteReplica,
)
from stelae.core.messages.rows import GET, Get
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.replication import Configuration
from stelae.simulation import World
from tests.simulation.replicated.ordered_group import OTHER, play, remove_one, report, role
from tests.simulation.replicated.tablet_group import TABLE, TABLET, Caller, Group


def test_a_replica_is_deleted_only_when_it_is_no_member_of_what_it_knows() -> None:
    """An order with an older configuration is refused; the tombstone is reported, also after a
    restart, answers clients that the tablet is not here, and the order may come again."""

    async def story(world: World, group: Group, client: Caller) -> None:
        name = next(name for name in group.names if name != group.leader())
        order = DeleteReplica(TABLET, False, OpId(0, 0))
        with pytest.raises(ConfigurationMismatch):  # it is one of those very members
            await group.order(name, DELETE_REPLICA, order)
        leader, gone, changed = await remove_one(world, group)
        await world.wait_until(lambda: role(group, leader) is ReplicaRole.LEADER, 10.0, "it leads")
        with pytest.raises(ConfigurationMismatch):
            await group.order(leader, DELETE_REPLICA, DeleteReplica(TABLET, False, OpId(0, 0)))
        order = DeleteReplica(TABLET, False, changed.op_id)
        last = group.tablet(gone)
        assert last is not None
        await group.order(gone, DELETE_REPLICA, order)
        await group.order(gone, DELETE_REPLICA, order)
        assert role(group, gone) is ReplicaRole.TOMBSTONE
        with pytest.raises(TabletNotHere):
            await group.order(gone, GET, Get(TABLET, ((1,),)))
        world.crash(gone)
        await world.wait_ready(gone)
        server, found = group.server(gone), report(group, gone)
        assert server is not None
        assert server.replicas.data_state(TABLET) is DataState.DELETED
        assert found is not None
        assert found.group is not None
        assert found.group.role is ReplicaRole.TOMBSTONE
        assert found.group.last == last.end_of_log
        assert found.term > 0
        await client.upsert(1, "goes on")

    play(story)


async def add_back_unheard(world: World, group: Group) -> tuple[str, Configuration, OpId]:
    """(a member that does not know yet that it is one again, the members before, its addition)

    It was removed by a change that is committed, and added again by one that it has in its log, and
    that is not committed: the only other voter is not heard just now.
    """
    leader, gone, changed = await remove_one(world, group)
    other = next(name for name in group.names if name not in (leader, gone))
    tablet = group.tablet(gone)
    assert tablet is not None
    address = world.address(gone)
    added = ChangeReplicas(TABLET, ChangeKind.ADD, group.uuid(gone), address, gone, changed.op_id)
    world.network.block(leader, other)
    world.network.block(other, leader)
    asked = asyncio.create_task(group.order(leader, CHANGE_REPLICAS, added))

    def in_its_log() -> bool:
        return tablet.replica.core.configuration.peer(group.uuid(gone)) is not None and (
            tablet.replica.core.configuration.op_id > changed.op_id
        )

    await world.wait_until(in_its_log, 3.0, "it has the change in its log")
    assert tablet.replica.members.op_id <= changed.op_id, "and does not know it to be committed"
    asked.cancel()
    return gone, changed, tablet.replica.core.configuration.op_id


def test_a_replica_that_may_have_been_added_again_is_not_deleted_by_a_late_order() -> None:
    """Its log says so, though it is not known to be committed: others may count on what it has."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        gone, before, added = await add_back_unheard(world, group)
        for term in (0, added.term):
            order = DeleteReplica(TABLET, False, before.op_id, term)
            with pytest.raises(ConfigurationMismatch):
                await group.order(gone, DELETE_REPLICA, order)
        for name in group.names:
            for other in group.names:
                world.network.unblock(name, other)
        await group.wait_agreement(group.names)
        with pytest.raises(ConfigurationMismatch):
            await group.order(gone, DELETE_REPLICA, DeleteReplica(TABLET, False, before.op_id))

    play(story)


def test_a_change_that_a_later_leader_does_not_have_does_not_keep_a_replica() -> None:
    """It was appended in an earlier term, and will never be committed."""

    async def story(world: World, group: Group, client: Caller) -> None:
        gone, before, added = await add_back_unheard(world, group)
        order = DeleteReplica(TABLET, False, before.op_id, added.term + 1)
        await group.order(gone, DELETE_REPLICA, order)
        assert role(group, gone) is ReplicaRole.TOMBSTONE

    play(story)


@pytest.mark.parametrize("how", ["failed", "stopped"])
def test_a_replica_that_does_not_run_still_knows_that_it_may_have_been_added_again(
    how: str,
) -> None:
    """Its disk failed, or it makes way for a copy: it goes by what its log had last."""

    async def story(world: World, group: Group, client: Caller) -> None:
        gone, before, _ = await add_back_unheard(world, group)
        server, tablet = group.server(gone), group.tablet(gone)
        assert server is not None
        assert tablet is not None
        if how == "failed":
            server.replicas.failed(TABLET, OSError(5, "Input/output error"))
            failed = lambda: role(group, gone) is ReplicaRole.FAILED  # noqa: E731
            await world.wait_until(failed, 3.0, "it failed")
        else:
            await server.replicas.stop_for_copy(TABLET)
        with pytest.raises(ConfigurationMismatch):
            await group.order(gone, DELETE_REPLICA, DeleteReplica(TABLET, False, before.op_id))
        await group.order(gone, DELETE_REPLICA, DeleteReplica(TABLET, False, OpId(9, 999)))
        assert role(group, gone) is ReplicaRole.TOMBSTONE

    play(story)


def test_a_tablet_deleted_for_ever_is_reported_no_more_whoever_says_it() -> None:
    """By an order, and by what a master's heartbeat reply says is to be dropped."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await group.order("t1", DELETE_REPLICA, DeleteReplica(TABLET, True, OpId(0, 0)))
        assert report(group, "t1") is None
        server = group.server("t2")
        assert server is not None
        for _ in range(3):
            server.replicas.drop(TABLET)
            server.replicas.drop(OTHER)
        await world.wait_until(lambda: report(group, "t2") is None, 10.0, "it is dropped")
        assert server.replicas.data_state(TABLET) is DataState.DELETED
        assert server.replicas.data_state(OTHER) is DataState.ABSENT
        await group.order("t3", DELETE_REPLICA, DeleteReplica(OTHER, True, OpId(0, 0)))
        late = CreateReplica(OTHER, TABLE, group.configuration)
        with pytest.raises(TabletDeleted):
            await group.order("t3", CREATE_REPLICA, late)

    play(story)


def test_a_tombstone_votes_for_those_who_have_what_it_had() -> None:
    """Of three members one is a tombstone and one dies: the third is elected by the tombstone. It
    can commit nothing with that, until the other is back."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        voter, other = [name for name in group.names if name != leader]
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        server = group.server(voter)
        assert server is not None
        await server.replicas.stop_for_copy(TABLET)  # as a copy does, which then breaks off
        last = server.replicas.last_op_id(TABLET)
        await server.replicas.store.tombstone(TABLET, last)
        world.crash(leader, restart=False)
        tablet = group.tablet(other)
        assert tablet is not None
        replica = tablet.replica
        await world.wait_until(lambda: replica.is_leader, 30.0, "the other is elected")
        assert server.replicas.term(TABLET) == replica.term
        assert not replica.leader_ready
        world.restart(leader)
        await client.upsert(1, "two")

    play(story)
