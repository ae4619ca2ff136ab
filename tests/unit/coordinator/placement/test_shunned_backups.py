"""Backups that masters hear, and that do not answer those who write to them."""

from __future__ import annotations

from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.liveness.shunned_backups import avoided_by, shunned_backups
from stelae.coordinator.placement.copysets import draft_copysets
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import Copysets, ServerKind
from tests.unit.coordinator.decide_world import World, server

A, B = ServerUuid("a"), ServerUuid("b")


def beat(world: World, name: str, *avoids: ServerUuid) -> None:
    world.liveness.heartbeat(Heartbeat(server(name), world.now, avoids=avoids), world.now)


def test_what_half_of_all_live_tservers_avoid_is_shunned() -> None:
    """One of many may itself be cut off; who is dead has no say."""
    world = World()
    for name in ("s1", "s2", "s3", "s4"):
        beat(world, name, *([A] if name == "s1" else []))
    ((backup, (by,)),) = avoided_by(world.liveness, world.now).items()
    assert (backup, by.server.name) == (A, "s1")
    assert shunned_backups(world.liveness, world.now) == ()
    beat(world, "s2", A, B)
    assert shunned_backups(world.liveness, world.now) == (A,)
    world.now += 10.0
    for name in ("s2", "s3", "s4"):
        beat(world, name, *([B] if name == "s2" else []))
    assert shunned_backups(world.liveness, world.now) == ()


def test_the_group_of_a_shunned_backup_is_dissolved() -> None:
    """Nothing could be written into it as a whole."""
    world = World()
    names = ("a", "b", "c", "d")
    for name in names:
        info = server(name, kind=ServerKind.BACKUP)
        world.liveness.heartbeat(Heartbeat(info, world.now), world.now)
    groups = ((A, ServerUuid("c")), (B, ServerUuid("d")))
    world.put(CatalogBatch(copysets=Copysets(groups, 1)))
    given = (world.catalog, world.liveness, world.now)
    assert draft_copysets(*given, size=2, gone_after_s=30.0) is None
    batch = draft_copysets(*given, size=2, gone_after_s=30.0, shunned=[A])
    assert batch is not None
    assert batch.copysets is not None
    assert batch.copysets.groups == ((B, ServerUuid("d")),)
