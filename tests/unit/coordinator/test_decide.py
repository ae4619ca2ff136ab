"""`stelae.coordinator.decide` and `liveness`: what the leader does, as conversations in
seconds."""

from __future__ import annotations

import random

import msgspec

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.catalog.graveyard import Records
from stelae.coordinator.ddl.tables import draft_replace
from stelae.coordinator.decide import (
    GiveUp,
    HandOver,
    Move,
    Open,
    Recover,
    Replace,
    Serve,
)
from stelae.coordinator.liveness.standing import standing_of, to_drop
from stelae.coordinator.moves.departures import Close
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import NO_REPORT, Heartbeat
from stelae.core.records.losses import KeptLog
from stelae.core.records.records import (
    TabletRecord,
    TabletState,
)
from tests.unit.coordinator.decide_world import P, World, kinds, report, run, server, tablet


def test_a_tablet_goes_from_creating_to_serving() -> None:
    """Golden conversation: open, prepared, hand-over with the new head as mark, serve, nothing."""
    world = World(tablet(state=TabletState.CREATING))
    world.beat("s1")
    assert kinds(world.decide()) == [Open]
    world.beat("s1", report("a", 1, P.OPENING))
    assert world.decide() == []
    world.now += 0.1
    world.beat("s1", report("a", 1, P.PREPARED, head=7))
    assert kinds(world.decide()) == [HandOver]
    assert (world.tablet.state, world.tablet.valid_segment) == (TabletState.RUNNING, 7)
    assert kinds(world.decide()) == [Serve]
    assert standing_of(world.catalog, world.seen("s1")).serve == (("a", 1),)
    world.now += 0.1
    world.beat("s1", report("a", 1, P.SERVING))
    assert world.decide() == []


def test_a_hand_over_keeps_an_epoch_that_was_raised_for_the_same_head() -> None:
    """The owner replaced a replica before it was handed the tablet."""
    raised = msgspec.structs.replace(
        tablet(state=TabletState.CREATING), valid_segment=7, valid_epoch=2
    )
    world = World(raised)
    world.beat("s1", report("a", 1, P.PREPARED, head=7))
    world.decide()
    assert (world.tablet.valid_segment, world.tablet.valid_epoch) == (7, 2)


def test_a_silent_owner_is_given_up_and_its_tablet_recovered_elsewhere() -> None:
    """Golden conversation of a hung server: dead after 2 s, fenced for ever, next term."""
    world = World(tablet())
    assert world.beat("s1", report("a", 1, P.SERVING)) == 1.5
    for number in range(1, 11):
        world.now = 100 + 0.2 * number
        world.beat("s2")
        others = [each for each in world.decide() if not isinstance(each, GiveUp)]
        assert bool(others) == (number == 10)
    assert world.tablet.owner == "s2"
    assert (world.tablet.state, world.tablet.term) == (TabletState.RECOVERING, 2)
    assert Recover(world.tablet, server("s2")) in world.decide()
    assert world.beat("s1", report("a", 1, P.SERVING)) == 0.0
    assert world.liveness.is_given_up(run("s1"))
    world.beat("s2", report("a", 2, P.PREPARED, head=9))
    assert HandOver in kinds(world.decide())


def test_a_process_surely_gone_costs_no_wait_for_its_lease() -> None:
    """SIGKILL on a visible node: the tablet moves in the same look."""
    world = World(tablet())
    world.now += 10  # long since leader: leases of former leaders are over
    world.beat("s1", report("a", 1, P.SERVING))
    world.beat("s2")
    world.liveness.process_gone(run("s1"))
    assert kinds(world.decide()) == [Move]


def test_a_process_surely_gone_needs_no_wait_under_a_new_leader_either() -> None:
    """The fear of a former leader's lease is for processes that may still run."""
    world = World(tablet())
    world.beat("s1")
    world.beat("s2")
    world.liveness.process_gone(run("s1"))
    assert Move in kinds(world.decide())


def test_rays_notice_alone_waits_for_the_end_of_the_lease() -> None:
    """Ray has been seen to run the old and the new copy of an actor side by side."""
    world = World(tablet())
    world.now += 10
    world.beat("s1", report("a", 1, P.SERVING))
    world.beat("s2")
    world.liveness.server_died(run("s1"))
    assert kinds(world.decide()) == [GiveUp]
    world.now += 1.4
    world.beat("s2")
    assert world.decide() == []
    assert world.beat("s1", report("a", 1, P.SERVING)) == 0.0
    world.now += 0.12
    assert Move in kinds(world.decide())


def test_who_was_served_before_a_loss_was_accepted_waits_for_the_end_of_the_lease() -> None:
    """Its owner is told to recover it anew, and may not have heard of it: in the former term it
    answers for as long as its lease lasts."""
    accepted = msgspec.structs.replace(
        tablet(state=TabletState.RECOVERING), kept=KeptLog(1, (), given_up=(5,))
    )
    world = World(accepted)
    world.now += 10
    assert world.beat("s1", report("a", 0, P.SERVING)) == 0.0, "not before it has closed it"
    assert {Recover, Close} <= set(kinds(world.decide()))
    assert world.beat("s1") == 1.5
    world.beat("s2")
    world.liveness.server_died(run("s1"))
    assert Move not in kinds(world.decide())
    world.now += 1.52
    world.beat("s2")
    assert Move in kinds(world.decide())
    assert (world.tablet.term, world.tablet.kept) == (2, accepted.kept)


def test_a_new_leader_fears_leases_granted_by_the_former() -> None:
    """An owner it has never heard, announced dead or silent, is waited for."""
    world = World(tablet())
    world.beat("s2")
    for _ in range(19):
        world.now += 0.1
        world.beat("s2")
        assert world.decide() == []
    world.now += 0.11
    world.beat("s2")
    actions = world.decide()
    assert kinds(actions) == [GiveUp, Move]
    assert world.beat("s1", report("a", 1, P.SERVING)) == 0.0, "first heard after it was given up"


def test_a_newer_incarnation_proves_the_older_one_gone() -> None:
    """It holds the lock of the data directory; the restarted server may recover its own tablet."""
    world = World(tablet())
    world.beat("s1", report("a", 1, P.SERVING))
    world.now += 0.1
    world.beat("s1", incarnation=2)
    assert Move in kinds(world.decide())
    assert (world.tablet.owner_incarnation, world.tablet.term) == (2, 2)
    assert world.liveness.is_given_up(run("s1", 1))


def test_a_recovering_tablet_whose_new_owner_dies_moves_on_at_once() -> None:
    """It was not served in that term, so there is no lease to wait for."""
    world = World(tablet("s2", TabletState.RECOVERING))
    world.beat("s2", report("a", 1, P.OPENING))
    world.beat("s3")
    world.liveness.server_died(run("s2"))
    assert Move in kinds(world.decide())
    assert (world.tablet.owner, world.tablet.term) == ("s3", 2)
    assert world.tablet.state is TabletState.RECOVERING


def test_a_failed_opening_goes_elsewhere_and_then_waits() -> None:
    """A tablet that fails everywhere does not spin; the pause doubles."""
    world = World(tablet(state=TabletState.CREATING))
    moves = 0
    for _ in range(100):
        for name in ("s1", "s2"):
            if world.tablet.owner == name:
                world.beat(name, report("a", world.tablet.term, P.FAILED))
            else:
                world.beat(name)
        for action in world.decide():
            if isinstance(action, Move):
                moves += 1
                former = action.failed_at[TabletId("a")]
                assert action.tablets[0].owner != former
                assert action.tablets[0].state is TabletState.CREATING
                world.pacing.owners.failed(TabletId("a"), (former,), world.now)
        world.now += 0.1
    assert 4 <= moves <= 6


def test_a_tablet_that_vanished_from_a_live_owner_is_recovered() -> None:
    """Level-triggered: what should be is compared with what is reported."""
    world = World(tablet())
    for _ in range(21):
        world.beat("s1")
        world.now += 0.1
        moves = [a for a in world.decide() if isinstance(a, Move)]
    assert moves
    assert world.tablet.state is TabletState.RECOVERING


def test_tablets_given_away_are_closed_and_no_lease_is_granted_before() -> None:
    """A deposed owner that still holds the tablet whole cannot serve it by a later lease."""
    world = World(msgspec.structs.replace(tablet("s2"), term=2))
    assert world.beat("s1", report("a", 1, P.PREPARED)) == 0.0
    assert world.beat("s2", report("a", 2, P.SERVING)) == 1.5
    assert world.decide() == [Close(server("s1"), TabletId("a"), 1)]
    world.now += 0.1
    assert world.beat("s1") == 1.5


def test_deleted_tablets_are_closed_and_dropped_unknown_ones_left_alone() -> None:
    """Seed, appendix A: only what the catalog says is deleted is ever deleted."""
    world = World(tablet(state=TabletState.DELETED))
    world.beat("s1", report("a", 1, P.SERVING), report("unknown", 1, P.SERVING))
    assert world.decide() == [Close(server("s1"), TabletId("a"), 1)]
    assert to_drop(world.catalog, [TabletId("unknown"), TabletId("a")]) == ("a",)


def test_no_live_tserver_means_waiting() -> None:
    """And the moment one comes, everything goes on."""
    world = World(tablet())
    world.now += 10
    assert kinds(world.decide()) == [GiveUp]
    assert world.tablet.term == 1
    world.beat("s3")
    assert Move in kinds(world.decide())
    assert world.tablet.owner == "s3"


def test_a_heartbeat_that_was_overtaken_adds_nothing() -> None:
    """Reports are ordered by the sender's clock."""
    world = World(tablet(state=TabletState.CREATING))
    late = Heartbeat(server("s1"), 50.0)
    world.beat("s1", report("a", 1, P.PREPARED))
    world.liveness.heartbeat(late, world.now)
    assert kinds(world.decide()) == [HandOver]


def test_a_dead_servers_tablets_are_spread_evenly() -> None:
    """All survivors take part in the recovery."""
    records = [
        msgspec.structs.replace(tablet(), tablet_id=TabletId(f"{n:02}"), number=n) for n in range(8)
    ]
    world = World(*records)
    world.now += 10
    world.beat("s1")
    for name in ("s2", "s3", "s4"):
        world.beat(name)
    world.liveness.process_gone(run("s1"))
    world.decide()
    owners = [t.owner for t in world.catalog.tablets.values()]
    assert sorted(owners.count(ServerUuid(name)) for name in ("s2", "s3", "s4")) == [2, 3, 3]


def test_a_master_that_stalled_itself_gives_nobody_up() -> None:
    """After a pause of its own process the silence was not the others'."""
    world = World(tablet())
    world.beat("s1", report("a", 1, P.SERVING))
    world.beat("s2")
    world.now += 5
    world.liveness.stalled(world.now, 5.0)
    assert world.decide() == []
    world.now += 2
    assert kinds(world.decide()) == [GiveUp, GiveUp]


# ---- creation that takes too long -----------------------------------------------------------


def creating(attempt: int = 0) -> TabletRecord:
    return msgspec.structs.replace(tablet(state=TabletState.CREATING), attempt=attempt)


def replacements(world: World) -> list[Replace]:
    return [action for action in world.decide() if isinstance(action, Replace)]


def test_a_tablet_in_creation_for_too_long_is_to_be_replaced_elsewhere() -> None:
    """After 30 s, on another server; the next attempt may take twice as long."""
    for attempt, allowed_s in ((0, 30.0), (1, 60.0), (6, 1920.0), (9, 1920.0)):
        world = World(creating(attempt))
        world.beat("s1", report("a", 1, P.OPENING))
        world.beat("s2")
        assert replacements(world) == []
        world.now += allowed_s - 0.1
        world.beat("s1", report("a", 1, P.OPENING))
        world.beat("s2")
        assert replacements(world) == []
        world.now += 0.1
        (found,) = replacements(world)
        assert [owner.name for (owner,) in found.holders] == ["s2"]
        assert found.stuck == (world.tablet,)


def test_a_tablet_that_is_ready_in_time_or_late_is_handed_over_not_replaced() -> None:
    """What is PREPARED is wanted, however long it took."""
    world = World(creating())
    world.beat("s1")
    world.decide()
    world.now += 100
    world.beat("s1", report("a", 1, P.PREPARED))
    assert kinds(world.decide()) == [HandOver]


def test_nothing_is_replaced_while_there_is_nobody_to_take_it() -> None:
    """Without live tservers records do not pile up."""
    world = World(creating())
    world.decide()
    world.now += 100
    assert replacements(world) == []


def test_what_replaces_a_tablet_is_one_entry_with_both_records() -> None:
    """The old record stays, and names the new one; a late report of the old one closes it."""
    world = World(creating())
    world.beat("s1")
    world.beat("s2")
    world.decide()
    world.now += 30
    world.beat("s1")
    world.beat("s2")
    (found,) = replacements(world)
    batch = draft_replace(world.catalog, found.stuck, found.holders, random.Random(1))
    assert batch is not None
    world.put(batch)
    old = world.tablet
    assert old.state is TabletState.REPLACED
    (new,) = world.catalog.tablets_of(TableId("T"))
    assert old.replaced_by == new.tablet_id
    assert (new.number, new.state, new.term, new.attempt) == (0, TabletState.CREATING, 1, 1)
    assert draft_replace(world.catalog, found.stuck, found.holders, random.Random(1)) is None
    restored = Catalog()
    restored.restore(world.catalog.snapshot())
    assert restored.tablets_of(TableId("T")) == [new]
    assert restored.snapshot() == world.catalog.snapshot()
    world.beat("s1", report("a", 1, P.PREPARED))
    assert Close(server("s1"), TabletId("a"), 1) in world.decide()
    assert standing_of(world.catalog, world.seen("s1")).drop == ("a",)
    assert standing_of(world.catalog, world.seen("s1")).may_have_lease, "it never ran"


def test_a_live_server_that_has_not_told_this_leader_what_it_holds_is_waited_for() -> None:
    """No order and no move on the strength of what is merely not known."""
    world = World(msgspec.structs.replace(tablet(), state=TabletState.RECOVERING))
    silent = Heartbeat(server("s1"), world.now, since=NO_REPORT, number=1)
    assert not world.liveness.heartbeat(silent, world.now).processed
    for _ in range(10):
        world.now += 0.5
        late = msgspec.structs.replace(silent, sent=world.now, number=2)
        world.liveness.heartbeat(late, world.now)
        assert world.decide() == []
    world.beat("s1")
    assert kinds(world.decide()) == [Recover]


def test_a_look_at_a_cluster_at_rest_looks_at_no_tablet() -> None:
    """Ten thousand tablets that are served cost what their servers cost, look after look."""
    records = [
        msgspec.structs.replace(tablet(), tablet_id=TabletId(f"{n:05}"), number=n)
        for n in range(1000)
    ]
    world = World(*records)
    world.beat("s1", *(report(t.tablet_id, 1, P.SERVING) for t in records))
    assert world.decide() == []
    looked_at: list[TabletId] = []

    class Watched(Records[TabletId, TabletRecord]):
        def __getitem__(self, key: TabletId) -> TabletRecord:
            looked_at.append(key)
            return super().__getitem__(key)

    watched = Watched(lambda _: None)
    watched.update(world.catalog.tablets)
    world.catalog.tablets = watched
    for number in range(1, 6):
        world.now += 0.2
        beat = Heartbeat(server("s1"), world.now, number=number, since=number - 1 or NO_REPORT)
        world.liveness.heartbeat(beat, world.now)
        assert world.decide() == []
    assert looked_at == []


# ---- the list of live servers ---------------------------------------------------------------


def test_the_roster_changes_exactly_when_somebody_comes_or_goes() -> None:
    """Its version is made from the content, and it is never older than the truth."""
    world = World()
    world.beat("s1")
    world.beat("s2")
    both = world.liveness.roster(world.now)
    assert [info.name for info in both.servers] == ["s1", "s2"]
    for _ in range(20):
        world.now += 0.1
        world.beat("s1")
        now = world.liveness.roster(world.now)
        live = [name for name in ("s1", "s2") if world.liveness.is_live(run(name), world.now)]
        assert [info.name for info in now.servers] == live
    world.now += 0.1
    world.beat("s1")
    assert [info.name for info in world.liveness.roster(world.now).servers] == ["s1"]
    assert world.liveness.roster(world.now).version != both.version
    world.beat("s2")
    assert world.liveness.roster(world.now).version == both.version
    world.liveness.process_gone(run("s2"))
    assert [i.name for i in world.liveness.roster(world.now).servers] == ["s1"]
    world.beat("s2", incarnation=2)
    assert len(world.liveness.roster(world.now).servers) == 2
    assert world.liveness.roster(world.now).version != both.version
