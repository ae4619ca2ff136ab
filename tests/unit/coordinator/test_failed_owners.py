"""Owners that cannot open their tablets, or write their logs: whom the leader gives up."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from stelae.coordinator.backoff.owners import (
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    LONGEST_SERVER_PAUSE_S,
    PATIENCE_S,
    PRUNE_PERIOD_S,
    SERVER_PAUSE_S,
    FailedOwners,
)
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.tables import draft_replace
from stelae.coordinator.decide import Action, Move, Recover, Replace, note_replaced
from stelae.coordinator.liveness.liveness import NEVER
from stelae.coordinator.moves.departures import Close
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import (
    SafekeeperRecord,
    ServerKind,
    TabletRecord,
    TabletState,
)
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.schema.durability import wal
from tests.unit.coordinator.decide_world import P, World, kinds, report, run, server, tablet

BACKUPS = (ServerUuid("b1"), ServerUuid("b2"))

OTHER = TabletId("other")


def hear(
    world: World,
    *reports: TabletReport,
    with_backups: bool = True,
    names: Sequence[str] = ("s1", "s2", "s3"),
    avoid: Collection[str] = (),
    step_s: float = 0.1,
) -> list[Action]:
    """One tenth of a second: all servers are heard, and the leader decides. Reports are their
    owner's, and those named in ``avoid`` avoid both backups."""
    world.now += step_s
    for name in names:
        mine = [each for each in reports if world.catalog.tablets[each.tablet_id].owner == name]
        avoids = BACKUPS if name in avoid else ()
        beat = Heartbeat(server(name), world.now, tuple(mine), avoids=avoids)
        assert world.liveness.heartbeat(beat, world.now).processed
        world.liveness.grant(run(name), world.now)
    for uuid in BACKUPS if with_backups else ():
        world.liveness.heartbeat(
            Heartbeat(server(uuid, kind=ServerKind.BACKUP), world.now), world.now
        )
    actions = world.decide()
    for action in actions:
        if isinstance(action, Move):
            for tablet_id, uuid in action.failed_at.items():
                world.pacing.owners.failed(tablet_id, (uuid,), world.now)
    return actions


def waiting(
    world: World,
    progress: TabletProgress = P.OPENING,
    unreached: Sequence[ServerUuid] | None = None,
) -> TabletReport:
    """By default for as many backups as an owner may not miss in that state."""
    if unreached is None:
        unreached = BACKUPS if progress is P.SERVING else BACKUPS[:1]
    told = report("a", world.tablet.term, progress)
    return msgspec.structs.replace(told, problem="waits for b1", unreached=tuple(unreached))


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
        hear(world, waiting(world), with_backups=False)
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


def test_who_serves_and_misses_one_server_alone_keeps_its_tablet() -> None:
    """That server may hang, and nobody else writes to it: no other owner could open the tablet."""
    world = World(tablet())
    for _ in range(1000):
        assert hear(world, waiting(world, P.SERVING, BACKUPS[:1])) == []
    for _ in range(1000):  # of the second one the masters hear nothing, so others do not reach it
        told = waiting(world, P.SERVING, (BACKUPS[0], ServerUuid("b3")))
        assert hear(world, told) == []
    for _ in range(1000):  # named twice, it is one
        assert hear(world, waiting(world, P.SERVING, BACKUPS[:1] * 2)) == []
    assert world.tablet.owner == "s1"


def test_who_opens_and_misses_one_server_is_replaced() -> None:
    """Nobody reads a tablet that is not open: nothing is lost by another try elsewhere."""
    world = World(tablet("s1", TabletState.RECOVERING))
    assert len(waiting(world).unreached) == 1
    assert until_moved(world) < 2 * PATIENCE_S


def test_a_tablet_that_is_being_created_is_not_given_to_another_for_it() -> None:
    """It is empty, and is replaced as a whole if it takes too long."""
    world = World(tablet("s1", TabletState.CREATING))
    for _ in range(round(20 * PATIENCE_S)):
        assert Move not in kinds(hear(world, waiting(world)))
    assert world.tablet.owner == "s1"


def test_an_owner_that_cannot_be_told_anything_is_given_up() -> None:
    """Masters hear it; what they tell it does not arrive."""
    world = World(tablet("s1", TabletState.RECOVERING))
    began = world.now
    while world.tablet.owner == "s1":
        assert world.now < began + 2 * PATIENCE_S
        if Recover in kinds(hear(world)):
            world.pacing.owners.untold(TabletId("a"), 1, world.now)
    assert world.now >= began + PATIENCE_S


def settled(world: World) -> TabletReport:
    return report("a", world.tablet.term, P.SERVING)


def test_a_second_short_wait_is_not_counted_with_the_first() -> None:
    """In between the tablet is settled, and the leader does not even look at it."""
    world = World(tablet())
    for _ in range(3):
        for _ in range(50):
            assert hear(world, waiting(world, P.SERVING)) == []
        for _ in range(100):
            assert hear(world, settled(world)) == []
    assert world.tablet.owner == "s1"


def beside(owner: str, state: TabletState = TabletState.RUNNING) -> TabletRecord:
    return msgspec.structs.replace(tablet(owner, state), tablet_id=OTHER, number=1)


def test_nobody_closes_a_served_tablet_for_a_server_that_others_do_not_reach_either() -> None:
    """The backup answers masters and no tserver: all tablets would be closed, and none opened."""
    world = World(tablet(), beside("s2"))
    for _ in range(1000):
        theirs = msgspec.structs.replace(waiting(world, P.SERVING), tablet_id=OTHER)
        assert hear(world, waiting(world, P.SERVING), theirs) == []
    actions: list[Action] = []
    began = world.now
    while not actions:  # the other one gets on: it is this owner that is cut off
        assert world.now < began + 2 * PATIENCE_S
        actions = hear(world, waiting(world, P.SERVING), report("other", 1, P.SERVING))
    assert actions == [Close(server("s1"), TabletId("a"), 1)]
    assert world.now >= began + PATIENCE_S


def test_a_tablet_that_is_opened_waits_on_where_two_wait_for_the_same() -> None:
    """Both owners report the server: a third one would wait as well."""
    world = World(
        tablet("s1", TabletState.RECOVERING),
        beside("s2", TabletState.RECOVERING),
    )
    for _ in range(1000):
        theirs = msgspec.structs.replace(waiting(world), tablet_id=OTHER)
        assert Move not in kinds(hear(world, waiting(world), theirs))
    assert world.tablet.owner == "s1"
    assert world.catalog.tablets[OTHER].owner == "s2"


@pytest.mark.parametrize(
    ("names", "avoid", "serving", "opening"),
    [
        (("s1",), (), False, False),  # nobody else is there
        (("s1", "s2", "s3"), ("s1",), True, True),  # the owner alone avoids it
        (("s1", "s2"), ("s1",), True, True),  # one of two: the other reaches it
        (("s1", "s2", "s3", "s4", "s5"), ("s1", "s2"), False, True),  # another one, too
        (("s1", "s2", "s3"), ("s1", "s2"), False, False),  # most of them
    ],
)
def test_what_other_servers_avoid_counts(
    names: Sequence[str], avoid: Sequence[str], serving: bool, opening: bool
) -> None:
    """A served tablet is closed only if nobody else complains; one that is opened moves if the
    others are few."""
    for state, is_given_up in ((TabletState.RUNNING, serving), (TabletState.RECOVERING, opening)):
        world = World(tablet("s1", state))
        kind = P.SERVING if state is TabletState.RUNNING else P.OPENING
        found = [
            action
            for _ in range(round(15 * PATIENCE_S))
            for action in hear(world, waiting(world, kind), names=names, avoid=avoid)
            if isinstance(action, Close | Move)
        ]
        assert bool(found) is is_given_up, state


def test_failures_are_forgotten_once_the_tablet_was_settled_for_long() -> None:
    """A link that comes and goes moves it ever more rarely, also if it is served in between."""
    world = World(tablet("s1", TabletState.RECOVERING))
    first = until_moved(world)
    hear(world, report("a", world.tablet.term, P.PREPARED))  # handed over
    world.pacing.succeeded(TabletId("a"))
    assert world.tablet.state is TabletState.RUNNING
    for _ in range(round(FORGOTTEN_AFTER_S) - 10):
        hear(world, settled(world), step_s=1.0)
    assert world.pacing.owners.avoid(TabletId("a")), "it is remembered"
    began = world.now
    while not hear(world, waiting(world, P.SERVING)):
        pass
    assert round((world.now - began) / first) == 2
    for _ in range(round(FORGOTTEN_AFTER_S + PRUNE_PERIOD_S) + 1):
        hear(world, settled(world), step_s=1.0)
    assert not world.pacing.owners.avoid(TabletId("a"))


def test_a_tablet_that_stays_in_trouble_is_not_forgotten() -> None:
    """However long ago its last failure was."""
    world = World(tablet("s1", TabletState.RECOVERING))
    until_moved(world)
    for _ in range(round(3 * FORGOTTEN_AFTER_S)):
        hear(world, report("a", world.tablet.term, P.OPENING), step_s=1.0)
    assert world.pacing.owners.avoid(TabletId("a"))


def test_what_is_held_against_an_owner_ends_with_its_term() -> None:
    """The next one was told nothing yet, and has closed nothing: else it would be given up before
    it is told to open the tablet, and so would all others."""
    owners: FailedOwners[TabletId] = FailedOwners()
    tablet_id, now = TabletId("a"), 100.0
    owners.give_up(tablet_id, 1, "cut off", now)
    assert owners.given_up(tablet_id, 1) == "cut off"
    assert owners.given_up(tablet_id, 2) == ""
    owners.untold(tablet_id, 1, now)
    later = now + PATIENCE_S
    assert owners.is_untold(tablet_id, 1, later)
    assert not owners.is_untold(tablet_id, 2, later)
    owners.untold(tablet_id, 2, later)
    assert not owners.is_untold(tablet_id, 2, later + PATIENCE_S / 2), "it begins to wait anew"
    assert owners.is_untold(tablet_id, 2, later + PATIENCE_S)


def test_what_is_remembered_is_searched_once_in_a_while() -> None:
    """Not with each failure: the leader's loop would stand still when thousands fail."""
    owners: FailedOwners[TabletId] = FailedOwners()
    searches = 0

    class Counted(dict):  # type: ignore[type-arg]
        def items(self):  # type: ignore[no-untyped-def]
            nonlocal searches
            searches += 1
            return super().items()

    owners._failures = Counted()
    for number in range(3000):
        owners.begin_round(100.0 + number / 1000)
        owners.failed(TabletId(f"{number}"), (ServerUuid("s1"),), 100.0 + number / 1000)
        owners.waits_in_vain(TabletId(f"{number}"), 1, 100.0)
        owners.untold(TabletId(f"{number}"), 1, 100.0)
    assert searches == 1
    owners.begin_round(100.0 + FORGOTTEN_AFTER_S + PRUNE_PERIOD_S)
    assert len(owners._failures) == 3000, "the pauses of servers were not over for so long"
    owners.begin_round(100.0 + SERVER_PAUSE_S + FORGOTTEN_AFTER_S + PRUNE_PERIOD_S)
    assert not owners._failures
    assert not owners._untold
    assert not owners._waiting


def test_the_server_that_just_failed_comes_after_all_others() -> None:
    """Also if all others have failed before, and are paused for longer than it would be."""
    world = World(tablet("s1", TabletState.RECOVERING))
    for _ in range(5):
        for name in ("s2", "s3"):
            world.pacing.owners.failed(TabletId("a"), (ServerUuid(name),), world.now)
    world.now += LONGEST_PAUSE_S
    while world.tablet.owner == "s1":
        failed = report("a", world.tablet.term, P.FAILED)
        actions = hear(world, failed)
    assert Move in kinds(actions)
    assert world.pacing.owners.avoid(TabletId("a"))[ServerUuid("s1")] < math.inf


def test_a_failure_counts_for_its_own_tablet_and_for_what_takes_its_place() -> None:
    """Parts and replacements inherit it; other tablets may go to the same server at once."""
    owners: FailedOwners[TabletId] = FailedOwners()
    old, parts, bad = TabletId("old"), [TabletId("p1"), TabletId("p2")], ServerUuid("s1")
    owners.failed(old, (bad,), 100.0)
    owners.failed(old, (bad,), 120.0)
    owners.inherit(old, parts, 130.0)
    assert not owners.avoid(OTHER)
    assert owners.avoid(parts[0]) == owners.avoid(parts[1]) == owners.avoid(old) == {bad: 140.0}
    assert owners.may_move(parts[0], 130.0), "the pause was the old tablet's"
    owners.untold(parts[1], 1, 140.0)
    assert not owners.is_untold(parts[1], 1, 140.0 + 2 * PATIENCE_S), "patience is inherited too"
    assert owners.is_untold(parts[1], 1, 140.0 + 4 * PATIENCE_S)
    owners.failed(parts[0], (bad,), 140.0)
    assert owners.avoid(parts[0])[bad] == 180.0, "a third pause, and not a first one"
    assert owners.avoid(parts[1])[bad] == 140.0


def test_pauses_grow_also_where_each_failure_follows_a_long_rest() -> None:
    """A move that nobody waits for begins once its pause is over: by then it is not forgotten."""
    owners: FailedOwners[TabletId] = FailedOwners()
    bad, pauses, now = ServerUuid("s1"), [], 100.0
    for _ in range(9):
        owners.failed(TabletId("a"), (bad,), now)
        pauses.append(owners.avoid(TabletId("a"))[bad] - now)
        until = owners.avoid(TabletId("a"))[bad]
        while now < until:
            now += 5.0
            owners.begin_round(now)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_SERVER_PAUSE_S


def test_a_report_ends_the_wait_for_an_owner_that_could_not_be_told() -> None:
    """The order arrived, though its answer was lost: a later wait is counted by itself."""
    world = World(tablet("s1", TabletState.RECOVERING))
    hear(world)
    world.pacing.owners.untold(TabletId("a"), 1, world.now)
    hear(world, report("a", 1, P.OPENING))
    for _ in range(round(5 * PATIENCE_S)):
        hear(world, report("a", 1, P.OPENING), step_s=1.0)
    world.pacing.owners.untold(TabletId("a"), 1, world.now)
    hear(world)
    assert world.tablet.owner == "s1"


def test_a_tablet_that_cannot_be_created_is_not_created_there_again() -> None:
    """Nor is the replacement of its replacement. Once all have failed: where a pause ends first."""
    world = World(tablet("s1", TabletState.CREATING))
    owners = [world.tablet.owner]
    rng = random.Random(1)
    while len(owners) < 4:
        for action in hear(world, step_s=5.0):
            if isinstance(action, Replace):
                world.put(found(draft_replace(world.catalog, action.stuck, action.holders, rng)))
                note_replaced(world.catalog, world.pacing, action, world.now)
                ((holder,),) = action.holders
                owners.append(holder.uuid)
    assert sorted(owners[:3]) == ["s1", "s2", "s3"]
    assert owners[3] == owners[0]


def test_safekeepers_without_which_a_tablet_is_not_created_come_last_for_its_replacement() -> None:
    """Its owner does not reach them. They have least to do, and would be chosen again."""
    first = replace(
        tablet("s1", TabletState.CREATING),
        timeline=TimelineConfiguration(1, tuple(map(SafekeeperId, (1, 2, 3)))),
    )
    world = World(first)
    table = world.catalog.tables[first.table_id]
    numbers = [SafekeeperId(n) for n in range(1, 6)]
    keepers = [SafekeeperRecord(n, ServerUuid(f"k{n}"), f"k{n}", "n") for n in numbers]
    wanted = replace(table, durability=wal(3, ["disk"]), generation=table.generation + 1)
    world.put(CatalogBatch((wanted,), safekeepers=tuple(keepers)))
    missed = tuple(ServerUuid(f"k{n}") for n in (1, 4))
    said = TabletReport(first.tablet_id, 1, P.OPENING, unreached=missed)
    replaced: list[Replace] = []
    for _ in range(20):
        for keeper in keepers:
            at = server(keeper.name, kind=ServerKind.SAFEKEEPER)
            at = replace(at, safekeeper_id=keeper.safekeeper_id)
            world.liveness.heartbeat(Heartbeat(at, world.now + 2.0), world.now + 2.0)
        actions = hear(world, said, step_s=2.0)
        replaced += [action for action in actions if isinstance(action, Replace)]
    ((timeline,),) = {action.timelines for action in replaced}
    assert sorted(timeline.sk_set)[1:] == [3, 5]
    assert replaced[0].failed_at[first.tablet_id] == ("s1", *missed)


def found(batch: CatalogBatch | None) -> CatalogBatch:
    assert batch is not None
    return batch
