"""What tablet servers do with orders about their replicas, and what leaders do with calls."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stelae.consensus.raft.messages import READ_INDEX
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    NotLeader,
    OutOfMemory,
    RowExists,
    TabletDeleted,
    TooStale,
)
from stelae.core.ids import ClientId, OpId, RequestId, ServerUuid
from stelae.core.messages.alter import ALTER_TABLET, AlterTablet
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    TRANSFER_LEADERSHIP,
    CreateReplica,
    DeleteReplica,
    TransferLeadership,
)
from stelae.core.messages.rows import GET, SCAN, WRITE, Get, Scan, Write, WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration
from stelae.core.schema.alter import altered, next_history, schema_change
from stelae.simulation import World
from tests.simulation.replicated import tablet_group
from tests.simulation.replicated.ordered_group import OTHER, play, removal, remove_one, report
from tests.simulation.replicated.tablet_group import SCHEMA, TABLE, TABLET, Caller, Group


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
