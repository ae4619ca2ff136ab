"""What deleted replicas leave on a tserver: how long it is known to be there, and how it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from stelae.actors.tserver.tablet_store.quarantine import SINCE, SWEEP_S, decode_since, encode_since
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import (
    DELETE_REPLICA,
    LIST_QUARANTINE,
    PURGE_QUARANTINE,
    DeleteReplica,
    ListQuarantine,
    PurgeQuarantine,
    QuarantineEntry,
)
from stelae.simulation import Options, World
from tests.simulation.replicated.tablet_group import SETTINGS, TABLET, Caller, Group

DELETION = DeleteReplica(TABLET, True, OpId(0, 0))


def play(story: Callable[[World, Group], Coroutine[Any, Any, None]], keep_s: float) -> None:
    """Tell a story of three servers with a tablet that has rows."""
    world = World(5, Options())
    calm = dict.fromkeys(("lease_s", "dead_after_s", "replica_dead_after_s"), 60.0)
    settings = msgspec.structs.replace(SETTINGS, quarantine_keep_s=keep_s, heartbeat_s=20.0, **calm)
    group = Group(world, settings=settings)

    async def told() -> None:
        await group.start()
        await group.wait_leader()
        await Caller(group, "client").upsert(1, "one")
        await story(world, group)

    world.run(told(), limit_s=20_000.0)


async def delete(group: Group) -> None:
    """Everywhere: no replica is left to be busy for long."""
    for name in group.names:
        await group.order(name, DELETE_REPLICA, DELETION)


async def listed(group: Group, name: str) -> list[QuarantineEntry]:
    return list((await group.order(name, LIST_QUARANTINE, ListQuarantine())).entries)


async def purged(group: Group, name: str, order: PurgeQuarantine) -> list[QuarantineEntry]:
    return list((await group.order(name, PURGE_QUARANTINE, order)).entries)


def test_deleted_replicas_are_listed_with_their_age_and_purged_once_old_enough() -> None:
    """The age goes on over restarts; other tablets' orders, and younger ages, remove nothing."""

    async def story(world: World, group: Group) -> None:
        assert await listed(group, "t1") == []
        await delete(group)
        (entry,) = await listed(group, "t1")
        assert (entry.tablet_id, entry.table, entry.age_s) == (TABLET, "rows", 0.0)
        assert entry.size_bytes > 0
        assert [p for p in world.nodes["t1"].disk.paths() if p.startswith(entry.folder)]
        await asyncio.sleep(100.0)
        world.crash("t1")
        await world.wait_ready("t1")
        (entry,) = await listed(group, "t1")
        assert 100.0 <= entry.age_s < 160.0
        assert await purged(group, "t1", PurgeQuarantine(older_than_s=200.0)) == []
        assert await purged(group, "t1", PurgeQuarantine(TabletId("c" * 32))) == []
        (gone,) = await purged(group, "t1", PurgeQuarantine(TABLET, 50.0))
        assert gone.folder == entry.folder
        assert await listed(group, "t1") == []
        assert not [p for p in world.nodes["t1"].disk.paths() if p.startswith(entry.folder)]

    play(story, keep_s=0.0)


def test_nothing_stays_in_the_quarantine_for_ever_unless_it_is_to() -> None:
    """What is older than the setting goes by itself, not before; 0 keeps it for operators."""

    async def expires(world: World, group: Group) -> None:
        await delete(group)
        await asyncio.sleep(SWEEP_S)
        assert [entry.tablet_id for entry in await listed(group, "t1")] == [TABLET]
        await asyncio.sleep(3 * SWEEP_S)
        assert await listed(group, "t1") == []

    play(expires, keep_s=SWEEP_S + 10.0)

    async def stays(world: World, group: Group) -> None:
        await delete(group)
        await asyncio.sleep(4 * SWEEP_S)
        assert [entry.tablet_id for entry in await listed(group, "t1")] == [TABLET]

    play(stays, keep_s=0.0)


def test_an_age_that_was_damaged_begins_anew() -> None:
    """A damaged note never makes anything older than it is."""

    async def story(world: World, group: Group) -> None:
        await delete(group)
        (entry,) = await listed(group, "t1")
        await asyncio.sleep(1000.0)
        world.nodes["t1"].disk.corrupt(f"{entry.folder}/{SINCE}", 9)
        (entry,) = await listed(group, "t1")
        assert entry.age_s == 0.0

    play(story, keep_s=0.0)
    assert decode_since(encode_since(12.5)) == 12.5
    assert [decode_since(data) for data in (None, b"", b"x" * 13)] == [None] * 3
