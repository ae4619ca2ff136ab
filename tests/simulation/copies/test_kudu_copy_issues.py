"""What went wrong in Kudu with copies, tombstones and deletions, and cannot here.

Each story runs on real tablet servers in the simulated world, and fails without the protection it
is about: the last test takes each protection away and sees that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.tserver.replicated_tablet.requests import ReplicaOrders
from stelae.actors.tserver.tablet_copy.receiver import CopyJob, CopyJobs
from stelae.actors.tserver.tablet_copy.receiver_files import TabletCopies
from stelae.actors.tserver.tablet_copy.session import SourceSession
from stelae.consensus.raft.progress import Progress
from stelae.coordinator import decide_groups as group_decisions
from stelae.coordinator.groups import group as groups
from stelae.core.errors import StaleTerm, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    START_TABLET_COPY,
    ChangeKind,
    CreateReplica,
    DataState,
    DeleteReplica,
    StartTabletCopy,
)
from stelae.core.messages.rows import WriteOp
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.replication import Configuration, Peer
from stelae.core.rpc import Call, Empty, Reply
from stelae.simulation import Options, World
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.recovery import healed_cluster
from tests.simulation.recovery.healed_cluster import Healed
from tests.simulation.replicated import test_replica_healing
from tests.simulation.replicated.tablet_group import TABLE, TABLET, Caller, Group
from tests.simulation.replicated.test_planted_replicas import bury, change, cut, members, play
from tests.simulation.replicated.test_replica_faults import others, wait_leader_of

UNKNOWN = TabletId("d" * 32)


def order_of(group: Group, source: str, term: int, state: DataState) -> StartTabletCopy:
    return StartTabletCopy(
        TABLET, group.uuid(source), group.world.address(source), term, state, None
    )


def kudu_951() -> None:
    """Many order one copy at the same time: one is begun, the others hear that it is under way."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for number in range(40):
            await client.upsert(number, "x" * 300)
        await group.wait_agreement(group.first)
        leader = await group.wait_leader()
        tablet = group.tablet(leader)
        assert tablet is not None
        orders = [
            order_of(group, source, tablet.replica.term, DataState.ABSENT)
            for source in group.first * 3
        ]
        results = await asyncio.gather(
            *(group.order("t4", START_TABLET_COPY, order) for order in orders),
            return_exceptions=True,
        )
        refused = [each for each in results if isinstance(each, BaseException)]
        assert all(isinstance(each, TabletNotReady) for each in refused), refused
        assert len(refused) == len(orders) - 1
        add = change(group, ChangeKind.ADD, "t4", OpId(0, 0))
        await group.order(leader, CHANGE_REPLICAS, add)
        await group.wait_agreement(group.names)

    slow = Options(bandwidth_bytes_s=50_000.0)
    play(story, 1, servers=4, options=slow, copy_piece_bytes=2000, copy_pause_s=0.05)


def kudu_rogue_source() -> None:
    """An order in the present term that names an outdated source is found out: the tombstone stays
    as it is (Kudu's second check of a rogue leader)."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        stale = await group.wait_leader()
        target, other = others(group, stale)
        cut(world, stale, target, other)
        cut(world, other, target)
        world.unpartition([other], [target])
        world.unpartition([target], [other])
        await wait_leader_of(group, target, other)
        await client.write(WriteOp.UPSERT, [(1, "two")], attempts=300)
        await group.wait_agreement([target, other])
        server = group.server(target)
        assert server is not None
        cut(world, target, other)
        world.unpartition([stale], [target])
        world.unpartition([target], [stale])
        await bury(group, target)
        last, term = server.replicas.last_op_id(TABLET), server.replicas.term(TABLET)
        order = order_of(group, stale, term - 1, DataState.DELETED)
        with pytest.raises(StaleTerm):
            await group.order(target, START_TABLET_COPY, order)
        await group.order(
            target, START_TABLET_COPY, order_of(group, stale, term, DataState.DELETED)
        )
        await asyncio.sleep(0.5)
        assert server.replicas.data_state(TABLET) is DataState.DELETED
        assert server.replicas.last_op_id(TABLET) == last
        world.heal()
        await group.wait_agreement(group.names)
        assert (await client.get(1) or ("",))[0] == "two"

    play(story, 1, raft_tick_s=0.1, copy_pause_s=0.05)


def kudu_unknown_tablets() -> None:
    """Masters that have no record of a tablet leave its replicas alone: only what is known to be
    deleted is deleted."""

    async def story(healed: Healed) -> None:
        world, names = healed.world, healed.cluster.tservers
        client = world.client("stranger")
        peers = [Peer(healed.uuid(n), world.server(n).info.address, True, n) for n in names]
        configuration = Configuration(OpId(0, 0), tuple(sorted(peers, key=lambda p: p.uuid)))
        for name in names:
            order = CreateReplica(UNKNOWN, TABLE, configuration)
            address = world.server(name).info.address
            await client.peers.call(address, CREATE_REPLICA, order, timeout_s=5.0)
        await asyncio.sleep(10.0)
        roles = [
            report.group.role
            for name in names
            for report in world.server(name).reports()
            if report.tablet_id == UNKNOWN
        ]
        assert len(roles) == 3
        assert ReplicaRole.LEADER in roles
        await healed.check()

    healed_cluster.play(story)


def kudu_821() -> None:
    """To a member that has nothing a leader sends no more than heartbeats, however many writes
    there are meanwhile: nobody asks in a tight loop for what is not there."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        world.nodes["t4"].disk.full = True
        add = change(group, ChangeKind.ADD, "t4", OpId(0, 0))
        await group.order(leader, CHANGE_REPLICAS, add)
        began_s, counts = world.loop.time(), world.metrics[leader].counts
        key = f"raft_messages_lost{{peer={group.uuid('t4')}}}"
        before = counts.get(key, 0)
        for number in range(100):
            await client.upsert(number % 10, f"{number}")
        elapsed_s = world.loop.time() - began_s
        beats = elapsed_s / (group.settings.raft_tick_s * group.settings.raft_heartbeat_ticks)
        assert counts.get(key, 0) - before < 1.5 * beats + 10
        assert group.uuid("t4") not in members(group, leader).voters

    play(story, 1, servers=4)


def kudu_2114() -> None:
    """A server that has deleted its replica is not told so again, at every report, for ever."""
    orders: list[str] = []
    real = ReplicaOrders._on_delete

    async def counted(self: ReplicaOrders, call: Call[DeleteReplica]) -> Reply[Empty]:
        orders.append(call.body.tablet_id)
        return await real(self, call)

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        test_replica_healing.damage(healed, victim, "wals")
        await healed.until(lambda: healed.role(victim) is ReplicaRole.TOMBSTONE, "it is replaced")
        await healed.until(healed.is_whole, "whole")
        orders.clear()
        await asyncio.sleep(10.0)
        assert orders == []
        disk = world.nodes[victim].disk
        syncs = 0
        sync = disk.sync

        async def counting(content: Any, path: str) -> None:
            nonlocal syncs
            syncs += 1
            await sync(content, path)

        disk.sync = counting  # type: ignore[method-assign]
        again = DeleteReplica(healed.tablet, False, OpId(9, 999))
        address = world.server(victim).info.address
        await world.client("stranger").peers.call(address, DELETE_REPLICA, again, timeout_s=5.0)
        assert syncs == 0, "what is deleted already costs nothing (KUDU-2126)"

    with patch.object(ReplicaOrders, "_on_delete", counted):
        healed_cluster.play(story, tservers=4)


STORIES = [kudu_951, kudu_rogue_source, kudu_unknown_tablets, kudu_821, kudu_2114]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_went_wrong_in_kudu_does_not_here(story: Callable[[], None]) -> None:
    """See the story's own words."""
    story()


def _no_slot() -> Any:
    return patch.object(CopyJobs, "_check", lambda self, order: None)


def _trusting() -> Any:
    """Neither the plan's term, nor its first term, nor its end is compared with anything."""
    begin = CopyJobs._open

    async def trusting(self: CopyJobs, job: CopyJob) -> SourceSession:
        order, job.order = job.order, msgspec.structs.replace(job.order, term=0)
        try:
            return await begin(self, job)
        finally:
            job.order = order

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(CopyJobs, "_open", trusting))
    stack.enter_context(patch.object(CopyJobs, "_check_reaches", lambda *args: None))
    for check in ("_check_may_begin", "_check_remembers"):
        stack.enter_context(patch.object(TabletCopies, check, lambda *args: None))
    return stack


def _no_pause() -> Any:
    def unreachable(self: Progress) -> None:
        self._waiting = False

    return patch.object(Progress, "unreachable", unreachable)


def _tombstones_are_replicas() -> Any:
    blind = SimpleNamespace(**{**ReplicaRole.__members__, "TOMBSTONE": None})
    stack = contextlib.ExitStack()
    for module in (groups, group_decisions):
        stack.enter_context(patch.object(module, "ReplicaRole", blind))
    return stack


@pytest.mark.parametrize(
    ("story", "remove"),
    [
        (kudu_951, _no_slot),
        (kudu_rogue_source, _trusting),
        (kudu_821, _no_pause),
        (kudu_2114, _tombstones_are_replicas),
    ],
    ids=lambda value: value.__name__.strip("_"),
)
def test_without_its_protection_each_issue_is_back(
    story: Callable[[], None], remove: Callable[[], Any]
) -> None:
    """The stories can fail: they do, once what they are about is taken away."""
    with remove(), pytest.raises(SimulationFailure):
        story()
