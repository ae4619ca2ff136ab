"""What the leader master does about safekeepers and timelines: placement, replacement, orders."""

from __future__ import annotations

import random

import msgspec
import pytest

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.decide import Learn, Open, decide
from stelae.coordinator.timelines.duties import (
    creations,
    decides,
    is_void,
    left_to_do,
    supersedes,
    timeline_tablet,
)
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    FinishPending,
    MoveTo,
    Remove,
    Request,
    Verdict,
)
from stelae.coordinator.timelines.placement import (
    draft_notified,
    draft_status,
    first_timelines,
    fleet_of,
    source_of,
)
from stelae.core.errors import InvalidArgument, NotEnoughServers, TabletNotFound, TooFewServers
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.configurations import MigrationOrder, TimelineId, TimelineRecord
from stelae.core.records.records import (
    TabletState,
)
from stelae.core.records.timelines import SafekeeperStatus, TimelineConfiguration
from stelae.core.schema.durability import segments, wal
from tests.unit.coordinator.timelines.timeline_world import (
    SILENCE_S,
    A,
    DrivenLeader,
    configuration,
    ids,
    order,
    say,
)

# ---- placement ----------------------------------------------------------------------------------


def test_new_timelines_are_spread_evenly() -> None:
    """Each on as many safekeepers as its table says; those with the fewest first."""
    here = DrivenLeader(count=5)
    fleet = fleet_of(here.catalog, here.liveness, here.now)

    def choose(
        count: int, tablets: int, *, knows_all: bool = False
    ) -> tuple[TimelineConfiguration, ...]:
        return first_timelines(
            here.catalog,
            fleet,
            wal(count, ["disk"]),
            tablets,
            what="a table",
            now=here.now,
            silence_s=SILENCE_S,
            knows_all=knows_all,
        )

    chosen = choose(3, 4)
    load = {number: 0 for number in range(1, 6)} | {1: 1, 2: 1, 3: 1}
    for each in chosen:
        assert (each.generation, each.new_sk_set, len(set(each.sk_set))) == (1, None, 3)
        for member in each.sk_set:
            load[member] += 1
    assert set(load.values()) == {3}
    with pytest.raises(NotEnoughServers, match="a table needs 7 live safekeepers, there are 5"):
        choose(7, 1)
    with pytest.raises(TooFewServers, match=r"set safekeepers.count in cluster.yaml to 7"):
        choose(7, 1, knows_all=True)
    assert (
        first_timelines(
            here.catalog, {}, segments("disk"), 4, what="", now=here.now, silence_s=SILENCE_S
        )
        == ()
    )


def test_safekeepers_that_failed_a_tablet_are_chosen_last_for_it_alone() -> None:
    """They would be chosen again and again, as those that never take a log have least to do; where
    the others are too few, one of them is taken."""
    here = DrivenLeader(count=7)
    fleet = fleet_of(here.catalog, here.liveness, here.now)

    def choose(*avoid: tuple[str, ...]) -> list[tuple[int, ...]]:
        failed = [tuple(ServerUuid(f"u-{name}") for name in names) for names in avoid]
        chosen = first_timelines(
            here.catalog,
            fleet,
            wal(3, ["disk"]),
            len(avoid),
            what="",
            now=here.now,
            silence_s=SILENCE_S,
            avoid=failed,
        )
        return [tuple(sorted(each.sk_set)) for each in chosen]

    assert choose(()) == [(4, 5, 6)]
    assert choose(("k4", "k5")) == [(1, 6, 7)]
    assert choose(("k4", "k5"), ()) == [(1, 6, 7), (2, 4, 5)]
    assert choose(("k1", "k2", "k3", "k4", "k5")) == [(4, 6, 7)]


def test_an_owner_is_told_where_its_timeline_lies() -> None:
    """The members of whom anything was heard, each with its server and address."""
    here = DrivenLeader(count=2)
    source = source_of(here.catalog, here.liveness, here.tablet)
    assert source is not None
    assert source.configuration == configuration(1, 1, 2, 3)
    assert [(p.safekeeper_id, p.uuid, p.address) for p in source.safekeepers] == [
        (1, "u-k1", "k1:1"),
        (2, "u-k2", "k2:1"),
    ]
    plain = msgspec.structs.replace(here.tablet, timeline=None)
    assert source_of(here.catalog, here.liveness, plain) is None


def test_the_catalog_is_told_what_is_newer_and_nothing_of_what_is_gone() -> None:
    """Told twice, or late, nothing changes."""
    here = DrivenLeader()
    record = TimelineRecord(A, configuration(1, 1, 2, 3)).joint_with(ids(2, 3, 4))
    here.put(draft_notified(here.catalog, record))
    assert here.tablet.timeline == record.configuration
    assert draft_notified(here.catalog, record) is None
    here.put(draft_notified(here.catalog, record.switched()))
    assert draft_notified(here.catalog, record) is None
    assert here.tablet.timeline == configuration(3, 2, 3, 4)
    here.set_tablet(state=TabletState.DELETED)
    later = record.switched().joint_with(ids(1, 2, 3))
    assert draft_notified(here.catalog, later) is None


# ---- duties -------------------------------------------------------------------------------------


def test_what_is_created_and_what_is_removed_follows_from_the_tablet() -> None:
    """CREATING: its timeline is wanted; gone: its timeline is to go; RUNNING: neither."""
    here = DrivenLeader()
    statuses = here.fleet()
    record = TimelineRecord(A, configuration(1, 1, 2, 3), 1, 1)
    assert [duty.request for duty in creations(here.catalog)] == [Create(ids(1, 2, 3))]
    assert left_to_do(here.catalog, [record], statuses) == []
    here.set_tablet(state=TabletState.RUNNING)
    assert creations(here.catalog) == []
    here.set_tablet(state=TabletState.DELETED)
    assert [d.request for d in left_to_do(here.catalog, [record], statuses)] == [Remove()]
    removed = record.removed()
    assert [d.request for d in left_to_do(here.catalog, [removed], statuses)] == [FinishPending()]
    done = msgspec.structs.replace(removed, departed=(), notified_generation=removed.generation)
    assert left_to_do(here.catalog, [done], statuses) == []
    with pytest.raises(InvalidArgument, match="deleted"):
        timeline_tablet(here.catalog, TabletId("a"))
    with pytest.raises(TabletNotFound):
        timeline_tablet(here.catalog, TabletId("never was"))


def test_what_waits_for_a_safekeeper_that_is_away_is_left_until_it_is_back() -> None:
    """Nobody drives in vain; as soon as it is heard, it is finished."""
    here = DrivenLeader()
    record = TimelineRecord(A, configuration(3, 2, 3, 4), 3, 3, departed=ids(1))
    here.now += 10.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert left_to_do(here.catalog, [record], here.fleet()) == []
    here.beat("k1")
    assert [d.request for d in left_to_do(here.catalog, [record], here.fleet())] == [
        FinishPending()
    ]


def test_a_lost_member_gives_way_after_the_grace_time_and_one_without_disk_at_once() -> None:
    """Silence alone waits: it may be restarted. Its successor of that name shows that its disk is
    gone."""
    here = DrivenLeader()
    record = TimelineRecord(A, configuration(1, 1, 2, 3), 1, 1)
    here.now += 10.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert here.replacements([record]) == []
    here.now += 30.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert [d.request for d in here.replacements([record])] == [MoveTo(ids(4, 2, 3))]
    again = DrivenLeader()
    again.now += 10.0
    for name in ("k2", "k3", "k4"):
        again.beat(name)
    again.beat("k1", uuid=ServerUuid("another disk"))
    assert [d.request for d in again.replacements([record])] == [MoveTo(ids(4, 2, 3))]


def test_what_merely_finishes_keeps_no_replacement_waiting() -> None:
    """The lost member has never been told of the last change, so that is never finished; any other
    request is waited for."""
    here = DrivenLeader()
    record = TimelineRecord(A, configuration(3, 1, 2, 3), 3, 1)
    here.now += 40.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert left_to_do(here.catalog, [record], here.fleet()) != []
    move = MoveTo(ids(4, 2, 3))
    found = here.replacements([record], under_way=FinishPending())
    assert [duty.request for duty in found] == [move]
    for other in (move, MoveTo(ids(1, 2, 4)), Abort(), Remove()):
        assert here.replacements([record], under_way=other) == []


def test_a_change_whose_new_members_are_lost_is_taken_back() -> None:
    """Only then, only after the grace time, and only if the old ones can go on."""
    record = TimelineRecord(A, configuration(1, 1, 2, 3)).joint_with(ids(3, 4, 5))

    def after(silence_s: float, *heard: int) -> list[Request]:
        here = DrivenLeader(count=5)
        here.now += silence_s
        for number in heard:
            here.beat(f"k{number}")
        return [duty.request for duty in here.replacements([record])]

    assert after(40.0, 1, 2, 3) == [Abort()]
    assert after(10.0, 1, 2, 3) == []
    assert after(40.0, 1, 2, 3, 4) == []
    assert after(40.0, 3) == []
    here = DrivenLeader(count=5)
    for number in (4, 5):
        here.put(draft_status(here.catalog, say(number, SafekeeperStatus.OFFLINE, number=number)))
    here.now += 40.0
    for number in (1, 2, 3):
        here.beat(f"k{number}")
    assert here.replacements([record]) == [], "they are expected back"


def test_an_abort_or_a_removal_ends_what_runs() -> None:
    """And a move ends what only finishes; nothing else ends anything."""
    move, other = MoveTo(ids(1, 2, 3)), MoveTo(ids(2, 3, 4))
    assert supersedes(Abort(), move)
    assert supersedes(Remove(), Abort())
    assert supersedes(move, FinishPending())
    for new, old in (
        (other, move),
        (FinishPending(), move),
        (Abort(), Remove()),
        (move, Remove()),
        (Remove(), Remove()),
        (move, Abort()),
        (move, Create(ids(1, 2, 3))),
    ):
        assert not supersedes(new, old), (new, old)


def test_the_catalog_keeps_the_last_order_until_that_very_one_is_decided() -> None:
    """Also through a snapshot; what is said of an earlier order does not touch a later one."""
    here = DrivenLeader()
    move, back = order(1, ids(2, 3, 4)), order(2, None)
    here.put(CatalogBatch(orders=(move,), request=move.request))
    assert here.catalog.timelines.orders == {A: move}
    here.put(CatalogBatch(orders=(back,), request=back.request))
    here.put(CatalogBatch(orders=(move,), request=move.request))  # a copy that comes late
    here.put(CatalogBatch(decided=(move,)))
    again = Catalog()
    again.restore(here.catalog.snapshot())
    for catalog in (here.catalog, again):
        assert catalog.timelines.orders == {A: back}
        catalog.apply(1, 1, CatalogBatch(decided=(back,)).encode())
        assert catalog.timelines.orders == {}


def test_an_order_is_void_once_its_tablet_is_gone() -> None:
    """However that came: then nobody moves its log."""
    here, move = DrivenLeader(), order(1, ids(2, 3, 4))
    assert not is_void(here.catalog, move)
    here.set_tablet(state=TabletState.DELETED)
    assert is_void(here.catalog, move)
    stranger = MigrationOrder(TimelineId(TableId("T"), TabletId("x")), None, move.request)
    assert is_void(here.catalog, stranger)


@pytest.mark.parametrize("verdict", Verdict)
def test_what_decides_an_order_is_its_own_end_or_that_it_was_taken_back(verdict: Verdict) -> None:
    """Not a run that gave up, nor what somebody else wanted of the timeline."""
    move, back = order(1, ids(2, 3, 4)), order(2, None)
    gave_up = verdict in (Verdict.WAITING, Verdict.OVERTAKEN)
    assert decides(MoveTo(ids(2, 3, 4)), verdict, move) is not gave_up
    assert decides(Abort(), verdict, back) is not gave_up
    assert decides(Abort(), verdict, move) is (verdict is Verdict.ABORTED)
    for other in (MoveTo(ids(1, 2, 4)), FinishPending(), Create(ids(2, 3, 4))):
        assert not decides(other, verdict, move)
        assert not decides(other, verdict, back)


def test_an_owner_is_told_of_a_newer_configuration_until_it_says_that_it_knows() -> None:
    """Level-triggered, by the generation in its report."""
    here = DrivenLeader()

    def decided() -> list[object]:
        actions = decide(here.catalog, here.liveness, Pacing(), here.now, missing_after_s=2.0)
        return [type(action) for action in actions]

    def report(generation: int) -> TabletReport:
        return TabletReport(
            TabletId("a"), 1, TabletProgress.SERVING, timeline_generation=generation
        )

    here.beat("s1")
    assert decided() == [Open]
    here.set_tablet(state=TabletState.RUNNING)
    here.beat("s1", report(1))
    assert decided() == []
    here.set_tablet(timeline=configuration(3, 2, 3, 4))
    assert decided() == [Learn]
    here.beat("s1", report(3))
    assert decided() == []


def test_choices_do_not_depend_on_the_order_of_heartbeats() -> None:
    """The same servers give the same members."""
    chosen = set()
    for seed in range(5):
        here = DrivenLeader(count=5)
        names = [f"k{number}" for number in range(1, 6)]
        random.Random(seed).shuffle(names)
        for name in names:
            here.beat(name)
        fleet = fleet_of(here.catalog, here.liveness, here.now)
        chosen.add(
            first_timelines(
                here.catalog,
                fleet,
                wal(3, ["disk"]),
                3,
                what="",
                now=here.now,
                silence_s=SILENCE_S,
            )
        )
    assert len(chosen) == 1
