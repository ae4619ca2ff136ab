"""What tablet servers do with orders about their replicas, and with disks that fail under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from stelae.consensus.messages import READ_INDEX
from stelae.core.alter import altered, next_history, schema_change
from stelae.core.alter_messages import ALTER_TABLET, AlterTablet
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    NotLeader,
    OutOfMemory,
    RowExists,
    TabletDeleted,
    TabletNotHere,
    TabletNotReady,
    TooStale,
)
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TabletId
from stelae.core.messages import (
    GET,
    SCAN,
    WRITE,
    Get,
    ReplicaRole,
    Scan,
    TabletReport,
    Write,
    WriteOp,
)
from stelae.core.records import TableRecord
from stelae.core.replica_messages import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    TRANSFER_LEADERSHIP,
    ChangeKind,
    ChangeReplicas,
    CreateReplica,
    DataState,
    DeleteReplica,
    TransferLeadership,
)
from stelae.core.replication import Configuration
from stelae.simulation import Options, World
from tests.simulation import tablet_group
from tests.simulation.tablet_group import SCHEMA, TABLE, TABLET, Caller, Group

OTHER = TabletId("c" * 32)


def play(story: Callable[[World, Group, Caller], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Tell a story of three servers with one tablet, which has a leader, and a client."""
    world = World(seed, Options())
    group = Group(world)

    async def told() -> None:
        await group.start()
        await group.wait_leader()
        await group.wait_agreement(group.names)  # its leader has heard from everybody
        await story(world, group, Caller(group, "client"))

    world.run(told(), limit_s=300.0)


def report(group: Group, name: str, tablet_id: TabletId = TABLET) -> TabletReport | None:
    server = group.server(name)
    assert server is not None
    return next((r for r in server.reports() if r.tablet_id == tablet_id), None)


def role(group: Group, name: str, tablet_id: TabletId = TABLET) -> ReplicaRole | None:
    found = report(group, name, tablet_id)
    return found.group.role if found is not None and found.group is not None else None


def members(group: Group, name: str) -> Configuration:
    tablet = group.tablet(name)
    assert tablet is not None
    return tablet.replica.members


def removal(group: Group, name: str, expected: OpId) -> ChangeReplicas:
    uuid = group.uuid(name)
    return ChangeReplicas(TABLET, ChangeKind.REMOVE, uuid, Address(""), name, expected)


async def remove_one(world: World, group: Group) -> tuple[str, str, Configuration]:
    """(leader, a follower that is no member any more, the members since then)"""
    leader = await group.wait_leader()
    gone = next(name for name in group.names if name != leader)
    order = removal(group, gone, OpId(0, 0))
    changed = (await group.order(leader, CHANGE_REPLICAS, order)).configuration
    assert changed.peer(group.uuid(gone)) is None
    return leader, gone, changed


def test_a_replica_is_created_once_and_never_again_after_its_deletion() -> None:
    """CREATE_REPLICA leaves what is there alone, and a tombstone too; strangers get none."""

    async def story(world: World, group: Group, client: Caller) -> None:
        version = await client.upsert(1, "one")
        for name in group.names:
            await group.order(name, CREATE_REPLICA, group.creation())
        assert await client.get(1) == ("one", version)
        stranger = CreateReplica(OTHER, TABLE, Configuration(OpId(0, 0), ()))
        with pytest.raises(InvalidArgument, match="no member"):
            await group.order("t1", CREATE_REPLICA, stranger)
        await group.order("t1", DELETE_REPLICA, DeleteReplica(TABLET, True, OpId(0, 0)))
        with pytest.raises(TabletDeleted):
            await group.order("t1", CREATE_REPLICA, group.creation())

    play(story)


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


def test_members_change_by_compare_and_set_and_once() -> None:
    """A repeated removal is answered with the members as they are; others are told who leads."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader, gone, changed = await remove_one(world, group)
        again = await group.order(leader, CHANGE_REPLICAS, removal(group, gone, OpId(0, 0)))
        assert again.configuration == changed
        other = next(name for name in group.names if name not in (leader, gone))
        with pytest.raises(ConfigurationMismatch):
            await group.order(leader, CHANGE_REPLICAS, removal(group, other, OpId(0, 0)))
        with pytest.raises(NotLeader) as told:
            await group.order(other, CHANGE_REPLICAS, removal(group, gone, OpId(0, 0)))
        assert told.value.leader == world.address(leader)
        found = report(group, leader)
        assert found is not None
        assert found.group is not None
        assert found.group.configuration == changed
        assert [peer.uuid for peer in found.group.peers] == [group.uuid(other)]

    play(story)


def test_leadership_goes_where_it_is_ordered_to() -> None:
    """To the one named, or to any; writes go on there."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        target = next(name for name in group.names if name != leader)
        await group.order(
            leader, TRANSFER_LEADERSHIP, TransferLeadership(TABLET, group.uuid(target))
        )
        await world.wait_until(lambda: group.leader() == target, 10.0, "the target leads")
        await client.upsert(1, "there")
        await group.order(target, TRANSFER_LEADERSHIP, TransferLeadership(TABLET))
        assert await group.wait_leader() != target
        with pytest.raises(InvalidArgument):
            await group.order(
                await group.wait_leader(),
                TRANSFER_LEADERSHIP,
                TransferLeadership(TABLET, ServerUuid("nobody")),
            )

    play(story)


def renamed_column(table: TableRecord) -> TableRecord:
    schema = altered(table.schema, schema_change(rename={"value": "text"}), table.name)
    return msgspec.structs.replace(
        table,
        schema=schema,
        generation=table.generation + 1,
        history=next_history(table.schema, table.history),
    )


def test_an_alter_goes_through_the_log_of_the_leader() -> None:
    """All replicas have it in one place of their logs; it is kept over restarts, and may be told
    again; calls with the older schema are still understood."""

    async def story(world: World, group: Group, client: Caller) -> None:
        version = await client.upsert(1, "one")
        leader = await group.wait_leader()
        table = renamed_column(TABLE)
        follower = next(name for name in group.names if name != leader)
        with pytest.raises(NotLeader):
            await group.order(follower, ALTER_TABLET, AlterTablet(TABLET, 0, table))
        for _ in range(2):
            told = await group.order(leader, ALTER_TABLET, AlterTablet(TABLET, 0, table))
            assert told.schema_version == table.schema.version
        old = await group.order(leader, ALTER_TABLET, AlterTablet(TABLET, 0, TABLE))
        assert old.schema_version == table.schema.version
        await group.wait_agreement(group.names)
        for name in group.names:
            world.crash(name)
        row = await client.call(GET, Get(TABLET, ((1,),), ("text",)), attempts=100)
        assert row.rows == ((("one",), version),)
        row = await client.call(GET, Get(TABLET, ((1,),), ("value",), SCHEMA.version), attempts=10)
        assert row.rows == ((("one",), version),)

    play(story)


def test_a_request_is_carried_out_once_whoever_leads_by_then() -> None:
    """Its second copy gets the first answer: from another leader, and after all have restarted."""

    async def story(world: World, group: Group, client: Caller) -> None:
        request = RequestId(ClientId("impatient"), 1, 1)
        call = Write(TABLET, 0, WriteOp.INSERT, request, ((7, "seven"),))
        refusal = RequestId(ClientId("impatient"), 2, 1)
        second = Write(TABLET, 0, WriteOp.INSERT, refusal, ((7, "again"),))
        first = await client.call(WRITE, call, attempts=10)
        with pytest.raises(RowExists):
            await client.call(WRITE, second, attempts=10)
        await client.write(WriteOp.DELETE, [(7,)])
        world.crash(await group.wait_leader())
        assert await client.call(WRITE, call, attempts=100) == first
        with pytest.raises(RowExists):
            await client.call(WRITE, second, attempts=100)
        for name in group.names:
            world.crash(name)
        assert await client.call(WRITE, call, attempts=100) == first
        assert await client.get(7) is None

    play(story)


def test_followers_answer_reads_of_bounded_age_and_no_others() -> None:
    """A follower names the leader to linearizable reads, and proves its age for others; cut off
    from the leader it refuses."""

    async def story(world: World, group: Group, client: Caller) -> None:
        version = await client.upsert(1, "one")
        leader = await group.wait_leader()
        follower = next(name for name in group.names if name != leader)
        with pytest.raises(NotLeader) as told:
            await group.order(follower, GET, Get(TABLET, ((1,),)))
        assert told.value.leader == world.address(leader)
        read = Get(TABLET, ((1,),), max_staleness_s=0.01)
        found = await group.order(follower, GET, read)
        assert found.rows == (((1, "one"), version),)
        scan = Scan(TABLET, max_staleness_s=0.01)
        assert (await group.order(follower, SCAN, scan)).row_count == 1
        with pytest.raises(NotLeader):
            await group.order(follower, SCAN, Scan(TABLET))
        others = [name for name in group.names if name != follower]
        world.partition([follower], others)
        world.partition(others, [follower])
        await asyncio.sleep(0.1)
        with pytest.raises(TooStale):
            await group.order(follower, GET, read)
        world.heal()

    play(story)


def test_a_leader_is_asked_for_its_index_by_name() -> None:
    """Whoever else listens there by now is not who was asked."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        follower = next(name for name in group.names if name != leader)
        tablet = group.tablet(follower)
        assert tablet is not None
        peers, asked = tablet._runtime.peers, []
        ask = peers.call

        async def call(address: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
            if method is READ_INDEX:
                asked.append(kwargs.get("destination"))
            return await ask(address, method, *args, **kwargs)

        peers.call = call  # type: ignore[method-assign]
        await group.order(follower, GET, Get(TABLET, ((1,),), max_staleness_s=0.1))
        assert asked == [group.uuid(leader)]

    play(story)


def test_writes_are_refused_where_memory_is_used_up_and_deletes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit counts replicas' rows."""
    monkeypatch.setattr(tablet_group, "MEMORY_LIMIT_BYTES", 60_000)

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()

        def write(op: WriteOp, key: int, *values: str) -> Write:
            request = RequestId(ClientId("greedy"), key, key)
            return Write(TABLET, 0, op, request, ((key, *values),))

        async def fill() -> None:
            for key in range(1, 200):
                await group.order(leader, WRITE, write(WriteOp.UPSERT, key, "x" * 2000))

        with pytest.raises(OutOfMemory):
            await fill()
        await group.order(leader, WRITE, write(WriteOp.DELETE, 200))

    play(story)


async def second_tablet(group: Group) -> None:
    for name in group.names:
        order = CreateReplica(OTHER, TABLE, group.configuration)
        await group.order(name, CREATE_REPLICA, order)


def test_a_failed_sync_ends_one_replica_and_nothing_else() -> None:
    """The replica is reported FAILED at once and answers nothing; the server's other tablet goes
    on, the group goes on without it, and it is there again after the server's next start."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await second_tablet(group)
        await client.upsert(1, "one")
        await asyncio.sleep(5.0)  # the other tablet has its leader, and leaves the disk alone
        victim = next(name for name in group.names if name != group.leader())
        world.nodes[victim].disk.fail_next_sync = True
        version = await client.upsert(1, "two")
        failed = lambda: role(group, victim) is ReplicaRole.FAILED  # noqa: E731
        await world.wait_until(failed, 10.0, "it failed")
        found = report(group, victim)
        assert found is not None
        assert "Input/output error" in found.problem
        with pytest.raises(TabletNotHere):
            await group.order(victim, GET, Get(TABLET, ((1,),), max_staleness_s=10.0))
        with pytest.raises(TabletNotReady, match="failed"):
            await group.order(victim, CREATE_REPLICA, group.creation())
        server = group.server(victim)
        assert server is not None
        assert server.replicas.tablet(OTHER) is not None
        assert await client.get(1) == ("two", version)
        world.crash(victim)
        await group.wait_agreement(group.names)

    play(story)


def test_a_replica_on_a_full_disk_begins_again_once_there_is_room() -> None:
    """What a full disk stops goes on by itself later, flushes included."""

    async def story(world: World, group: Group, client: Caller) -> None:
        victim = next(name for name in group.names if name != group.leader())
        world.nodes[victim].disk.full = True
        for n in range(40):
            await client.upsert(n, f"value {n}")
        assert role(group, victim) is ReplicaRole.FAILED
        told, began_s = 0, world.loop.time()
        while world.loop.time() < began_s + 20.0:
            await client.upsert(1, "more")
            await asyncio.sleep(0.5)
            found = report(group, victim)
            assert found is not None
            assert found.group is not None
            if found.group.role is ReplicaRole.FAILED:
                assert found.group.no_room, "it says that it tries again"
                told += 1
        assert told > 25, "it seldom reads all its images in vain"
        world.nodes[victim].disk.full = False
        await group.wait_agreement(group.names)
        assert role(group, victim) is ReplicaRole.FOLLOWER

    play(story)


@pytest.mark.parametrize("log", ["whole", "damaged"])
def test_a_damaged_image_fails_one_replica_which_can_then_be_deleted(log: str) -> None:
    """It is reported with the file; its tombstone votes by its log, unless that is damaged too."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for n in range(40):
            await client.upsert(n, "x" * 100)
        victim = next(name for name in group.names if name != group.leader())
        disk = world.nodes[victim].disk
        await world.wait_until(
            lambda: any(path.startswith(f"data/{TABLET}/") for path in disk.paths()), 10.0, "images"
        )
        last = group.tablet(victim).end_of_log
        world.crash(victim, restart=False)
        if log == "damaged":
            disk.corrupt(next(p for p in disk.paths() if p.startswith(f"wals/{TABLET}/")), 30)
        image = next(path for path in disk.paths() if path.startswith(f"data/{TABLET}/"))
        disk.corrupt(image, 200)
        world.restart(victim)
        await world.wait_ready(victim)
        failed = lambda: role(group, victim) is ReplicaRole.FAILED  # noqa: E731
        await world.wait_until(failed, 10.0, "it failed")
        found = report(group, victim)
        assert found is not None
        assert "image" in found.problem
        assert found.group is not None
        assert (found.term > 0) is (log == "whole")
        assert found.group.last == (last if log == "whole" else OpId(0, 0))
        await group.order(victim, DELETE_REPLICA, DeleteReplica(TABLET, False, OpId(9, 999)))
        assert role(group, victim) is ReplicaRole.TOMBSTONE
        server = group.server(victim)
        assert server is not None
        assert server.replicas.last_op_id(TABLET) == (last if log == "whole" else None)

    play(story)


def test_a_leader_reports_whom_it_does_not_hear() -> None:
    """Until it hears that one again; what follows from it is for the masters to decide."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        victim = next(name for name in group.names if name != leader)
        uuid = group.uuid(victim)
        world.crash(victim, restart=False)

        def is_heard() -> bool:
            found = report(group, leader)
            assert found is not None
            assert found.group is not None
            return next(peer for peer in found.group.peers if peer.uuid == uuid).is_heard

        await world.wait_until(lambda: not is_heard(), 10.0, "it is not heard")
        world.restart(victim)
        await world.wait_until(is_heard, 20.0, "it is heard again")

    play(story)
