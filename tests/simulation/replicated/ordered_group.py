"""A group of three on which orders are tried: stories upon it, and what they look at."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from stelae.core.ids import Address, OpId, TabletId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    ChangeKind,
    ChangeReplicas,
    CreateReplica,
)
from stelae.core.messages.servers import (
    ReplicaRole,
    TabletReport,
)
from stelae.core.records.replication import Configuration
from stelae.simulation import Options, World
from tests.simulation.replicated.tablet_group import TABLE, TABLET, Caller, Group

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


async def second_tablet(group: Group) -> None:
    for name in group.names:
        order = CreateReplica(OTHER, TABLE, group.configuration)
        await group.order(name, CREATE_REPLICA, order)
