"""Backups that masters hear, and that do not answer those who write to them."""

from __future__ import annotations

from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.liveness.shunned_backups import GoneBackups, avoided_by, shunned_backups
from stelae.coordinator.placement.copysets import draft_copysets
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import Copysets, ServerKind
from tests.unit.coordinator.decide_world import World, run, server

A, B = ServerUuid("a"), ServerUuid("b")


def beat(world: World, name: str, *avoids: ServerUuid) -> None:
    world.liveness.heartbeat(Heartbeat(server(name), world.now, avoids=avoids), world.now)


def test_what_most_live_tservers_avoid_is_shunned() -> None:
    """One of many may itself be cut off; who is dead has no say."""
    world = World()
    for name in ("s1", "s2", "s3", "s4"):
        beat(world, name, *([A] if name == "s1" else []))
    ((backup, (by,)),) = avoided_by(world.liveness, world.now).items()
    assert (backup, by.server.name) == (A, "s1")
    assert shunned_backups(world.liveness, world.now) == ()
    beat(world, "s2", A, B)
    assert shunned_backups(world.liveness, world.now) == (), "half may be on one side of a cut"
    beat(world, "s3", A)
    assert shunned_backups(world.liveness, world.now) == (A,)
    world.now += 10.0
    for name in ("s2", "s3", "s4"):
        beat(world, name, *([B] if name == "s2" else []))
    assert shunned_backups(world.liveness, world.now) == ()


def test_one_tserver_decides_for_others_only_where_it_is_the_only_one() -> None:
    """Of two either may be the one that is cut off."""
    world = World()
    beat(world, "s1", A)
    assert shunned_backups(world.liveness, world.now) == (A,)
    beat(world, "s2")
    assert shunned_backups(world.liveness, world.now) == ()
    beat(world, "s2", A)
    assert shunned_backups(world.liveness, world.now) == (A,)


def test_who_avoids_whom_is_worked_out_only_when_that_changes() -> None:
    """Every heartbeat of a tserver is answered with it."""
    world = World()
    for name in ("s1", "s2", "s3"):
        beat(world, name, A)
    found = avoided_by(world.liveness, world.now)
    for name in ("s1", "s2", "s3"):
        beat(world, name, A)
    assert avoided_by(world.liveness, world.now) is found
    beat(world, "s1", A, B)
    assert [len(by) for by in avoided_by(world.liveness, world.now).values()] == [3, 1]
    world.liveness.process_gone(run("s1"))
    assert [len(by) for by in avoided_by(world.liveness, world.now).values()] == [2]


def test_a_backup_is_gone_and_comes_back_after_the_same_time() -> None:
    """A connection that comes and goes dissolves a group once, not each time."""
    gone = GoneBackups()
    assert gone.look((A,), 0.0, 30.0) == ()
    assert gone.look((), 20.0, 30.0) == ()
    assert gone.look((A, B), 25.0, 30.0) == ()
    assert gone.look((A,), 54.0, 30.0) == (), "it answered in between"
    assert gone.look((A,), 55.0, 30.0) == (A,)
    assert gone.look((), 84.0, 30.0) == (A,)
    assert gone.look((A,), 84.5, 30.0) == (A,), "it stays gone at once"
    assert gone.look((), 114.0, 30.0) == (A,)
    assert gone.look((), 114.5, 30.0) == ()
    assert gone.look((A,), 115.0, 30.0) == ()


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
