"""Owners that cannot open their tablets, or write their logs: whom the leader gives up."""

from __future__ import annotations

import msgspec

from stelae.coordinator.backoff.owners import PATIENCE_S
from stelae.coordinator.decide import Action, Move, Recover
from stelae.coordinator.liveness.liveness import NEVER
from stelae.coordinator.moves.departures import Close
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import ServerKind, TabletState
from tests.unit.coordinator.decide_world import P, World, kinds, report, server, tablet

BACKUP = ServerUuid("b1")


def hear(world: World, *reports: TabletReport, with_backup: bool = True) -> list[Action]:
    """One tenth of a second: all servers are heard, and the leader decides."""
    world.now += 0.1
    for name in ("s1", "s2", "s3"):
        mine = [each for each in reports if world.tablet.owner == name]
        world.beat(name, *mine)
    if with_backup:
        beat = Heartbeat(server("b1", kind=ServerKind.BACKUP), world.now)
        world.liveness.heartbeat(beat, world.now)
    actions = world.decide()
    for action in actions:
        if isinstance(action, Move):
            for tablet_id, uuid in action.failed_at.items():
                world.pacing.owners.failed(tablet_id, uuid, world.now)
    return actions


def waiting(world: World, progress: TabletProgress = P.OPENING) -> TabletReport:
    told = report("a", world.tablet.term, progress)
    return msgspec.structs.replace(told, problem="waits for b1", unreached=(BACKUP,))


def until_moved(world: World, limit_s: float = 200.0) -> float:
    """The seconds until the tablet, whose owners all wait in vain, is given to another."""
    began, owner = world.now, world.tablet.owner
    while world.now < began + limit_s:
        hear(world, waiting(world))
        if world.tablet.owner != owner:
            return world.now - began
    return NEVER


def test_an_owner_that_waits_for_whom_masters_hear_is_given_up_later_each_time() -> None:
    """Each server is tried before one is tried again; patience doubles."""
    world = World(tablet("s1", TabletState.RECOVERING))
    owners, pauses = [], []
    for _ in range(4):
        owners.append(world.tablet.owner)
        pauses.append(until_moved(world))
    assert sorted(owners[:3]) == ["s1", "s2", "s3"]
    assert owners[3] == owners[0], "the one whose pause ends first"
    assert [round(pause / PATIENCE_S) for pause in pauses] == [1, 2, 4, 8]
    assert world.tablet.state is TabletState.RECOVERING


def test_an_owner_that_waits_for_the_dead_keeps_its_tablet() -> None:
    """Another one would wait for them as well."""
    world = World(tablet("s1", TabletState.RECOVERING))
    for _ in range(1000):
        hear(world, waiting(world), with_backup=False)
    assert world.tablet.owner == "s1"


def test_an_owner_that_gets_on_in_between_begins_to_wait_anew() -> None:
    """Only what lasts is held against it."""
    world = World(tablet("s1", TabletState.RECOVERING))
    for step in range(600):
        is_on = step % 90 == 0
        hear(world, report("a", 1, P.OPENING) if is_on else waiting(world))
    assert world.tablet.owner == "s1"


def test_who_serves_in_vain_closes_the_tablet_before_another_has_it() -> None:
    """It may answer reads by its lease: the next owner begins once it holds it no more."""
    world = World(tablet())
    actions: list[Action] = []
    while not actions:
        actions = hear(world, waiting(world, P.SERVING))
    assert actions == [Close(server("s1"), TabletId("a"), 1)]
    assert hear(world, waiting(world, P.SERVING)) == actions, "until it is closed"
    assert Move in kinds(hear(world))
    assert world.tablet.owner != "s1"
    assert (world.tablet.state, world.tablet.term) == (TabletState.RECOVERING, 2)


def test_an_owner_that_cannot_be_told_anything_is_given_up() -> None:
    """Masters hear it; what they tell it does not arrive."""
    world = World(tablet("s1", TabletState.RECOVERING))
    began = world.now
    while world.tablet.owner == "s1":
        assert world.now < began + 2 * PATIENCE_S
        if Recover in kinds(hear(world)):
            world.pacing.owners.untold(TabletId("a"), 1, world.now)
    assert world.now >= began + PATIENCE_S
