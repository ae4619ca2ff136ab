"""`stelae.coordinator.ddl.succession`: who gives way to whom, when, and what every entry
compares."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.coordinator.catalog.catalog import Catalog, Conflict
from stelae.coordinator.ddl.alter import FinishAlter, alter_actions, draft_finish
from stelae.coordinator.ddl.succession import (
    SUCCESSIONS_MAX,
    BeginSuccession,
    GiveUpSuccessor,
    OrderTransfer,
    Swap,
    draft_begin,
    draft_give_up,
    draft_swap,
)
from stelae.coordinator.ddl.tables import draft_delete, draft_replace
from stelae.coordinator.liveness.liveness import Run, Seen
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ClientId, RequestId, ServerUuid, TabletId
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import (
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.succession import NO_SUCCESSION, Succession, SuccessionStage
from stelae.core.schema.durability import Durability, Replicas, Wal, replicas, segments, wal
from tests.unit.coordinator.ddl.succession_world import (
    ADD,
    CLOSED,
    FENCED,
    OPEN,
    T,
    World,
    kinds,
    server,
)

# ---- the way through ------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [wal(3, ("disk",)), replicas(3), segments("disk", "disk")])
def test_each_tablet_gives_way_to_a_hidden_one_a_few_at_a_time(wanted: Durability) -> None:
    """Golden conversation: begun, created, brought over, closed, swapped; and so on to the end."""
    world = World()
    world.alter(wanted)
    table = world.table
    assert (table.state, table.durability) == (TableState.ALTERING, segments("disk"))
    assert (table.becoming, table.change) == (wanted, 1)
    assert kinds(world.actions()) == ["BeginSuccession"] * SUCCESSIONS_MAX
    world.begin()
    assert [t.tablet_id for t in world.catalog.tablets_of(T)] == ["t0", "t1", "t2"]
    first = world.successor(0)
    assert (first.number, first.succeeds, first.change) == (0, "t0", 1)
    assert first.is_group == isinstance(wanted, Replicas)
    assert (first.timeline is not None) == isinstance(wanted, Wal)
    assert table.durability_of(first) == wanted
    assert table.durability_of(world.tablet(0)) == segments("disk")
    assert kinds(world.actions()) == ["OrderTransfer"] * SUCCESSIONS_MAX
    world.say(0, FENCED)
    assert kinds(world.actions()) == ["OrderTransfer"] * SUCCESSIONS_MAX
    world.say(0, CLOSED)
    assert kinds(world.actions()) == ["Swap", "OrderTransfer"]
    assert world.swap() == [first.tablet_id, "t1", "t2"]
    gone = world.catalog.tablets[TabletId("t0")]
    assert (gone.state, gone.replaced_by) == (TabletState.REPLACED, first.tablet_id)
    for number in (1, 2):
        world.begin()
        world.say(number, CLOSED)
        world.swap()
    assert world.actions() == []
    finish = [a for a in alter_actions(world.catalog, {}) if isinstance(a, FinishAlter)]
    assert finish == [], "nobody has said yet that they follow"


def test_the_alter_is_done_once_every_tablet_has_the_new_durability() -> None:
    """Not before; then the table has it, and is RUNNING."""
    world = World()
    world.alter(wal(3, ("disk",)))

    def finish() -> list[FinishAlter]:
        live = {
            Run(seen.server.uuid, 1): seen
            for tablet in world.catalog.tablets_of(T)
            if (seen := _serves(world, tablet)) is not None
        }
        found = alter_actions(world.catalog, live)
        return [action for action in found if isinstance(action, FinishAlter)]

    for number in range(3):
        assert finish() == []
        world.begin()
        world.say(number, CLOSED)
        world.swap()
    (done,) = finish()
    world.put(draft_finish(world.catalog, done))
    assert world.table.state is TableState.RUNNING
    assert (world.table.durability, world.table.becoming) == (wal(3, ("disk",)), None)
    assert all(
        world.table.durability_of(t) == wal(3, ("disk",)) for t in world.catalog.tablets_of(T)
    )


def _serves(world: World, tablet: TabletRecord) -> Seen | None:
    """Its owner, who reports all tablets that it owns."""
    owner = server(tablet.owner)
    seen = Seen(Heartbeat(owner, 0.0), 0.0, 0.0)
    for each in world.catalog.owned_by(tablet.owner, 1):
        report = world.report_of(each)[1]
        assert report is not None
        seen.picture.reports[each.tablet_id] = report
    return seen


# ---- before the commit point all can be taken back ---------------------------------------------


def test_a_swap_counts_only_for_the_very_owner_whose_word_it_was() -> None:
    """The owner dies between its word and the entry: the next one is not fenced."""
    world = World()
    world.alter(replicas(3))
    world.begin()
    world.say(0, CLOSED)
    (swap,) = [action for action in world.actions() if isinstance(action, Swap)]
    batch = draft_swap(world.catalog, swap)
    world.change(world.tablet(0), term=2, owner=ServerUuid("s4"))
    assert draft_swap(world.catalog, swap) is None
    assert isinstance(world.put(batch), Conflict), "also if the entry was on its way already"
    assert world.tablet(0).tablet_id == "t0"


def test_a_successor_that_cannot_be_is_given_up_and_another_one_begun() -> None:
    """It is lost, or does not run once the tablet is closed; the tablet is told to go on."""
    for stage, more, state in (
        (OPEN, {"is_lost": True}, TabletState.RUNNING),
        (CLOSED, {}, TabletState.RECOVERING),
    ):
        world = World()
        world.alter(replicas(3))
        world.begin()
        former = world.successor(0)
        if state is not former.state:
            world.change(former, state=state)
        world.say(0, stage, **more)
        (give_up,) = [a for a in world.actions() if isinstance(a, GiveUpSuccessor)]
        world.put(draft_give_up(world.catalog, give_up))
        assert world.catalog.successor_of(TabletId("t0")) is None
        assert world.catalog.tablets[former.tablet_id].state is TabletState.REPLACED
        release, *rest = world.actions()
        assert isinstance(release, OrderTransfer)
        assert (release.order.release, release.order.successor) == (former.tablet_id, "")
        assert "BeginSuccession" in kinds(rest)
        world.begin()
        assert world.successor(0).tablet_id != former.tablet_id


def test_nobody_is_told_to_go_on_for_a_successor_that_may_yet_be_swapped_in() -> None:
    """Only whom the catalog has given up for good may be released."""
    world = World()
    world.alter(replicas(3))
    world.begin()
    world.say(0, CLOSED)
    assert not any(isinstance(a, OrderTransfer) and a.order.release for a in world.actions())


def test_a_successor_that_is_not_created_in_time_is_replaced_as_one() -> None:
    """The next one is hidden too, for the same tablet."""
    world = World()
    world.alter(segments("disk", "disk"))
    action = world.actions()[0]
    assert isinstance(action, BeginSuccession)
    world.put(draft_begin(world.catalog, action, world.rng))
    stuck = world.successor(0)
    world.put(draft_replace(world.catalog, [stuck], [[server("s4")]], world.rng))
    again = world.successor(0)
    assert (again.succeeds, again.change, again.attempt) == ("t0", 1, 1)
    assert again.tablet_id != stuck.tablet_id
    assert [t.tablet_id for t in world.catalog.tablets_of(T)] == ["t0", "t1", "t2"]


def test_an_alter_back_takes_the_first_one_back() -> None:
    """What has changed changes again, what has not is as it should be; successors are given up."""
    world = World()
    world.alter(replicas(3))
    world.begin()
    world.say(0, CLOSED)
    world.swap()
    changed, waiting = world.tablet(0).tablet_id, world.successor(1).tablet_id
    world.alter(segments("disk"))
    assert (world.table.durability, world.table.becoming) == (replicas(3), segments("disk"))
    assert world.catalog.tablets[waiting].state is TabletState.REPLACED
    assert world.catalog.successors() == []
    (begun,) = world.actions()
    assert isinstance(begun, BeginSuccession)
    assert (begun.tablet.tablet_id, begun.durability) == (changed, segments("disk"))
    assert world.table.durability_of(world.tablet(0)) == replicas(3)
    assert world.table.durability_of(world.tablet(1)) == segments("disk")


def test_every_record_of_a_tablet_names_the_durability_that_it_has() -> None:
    """However often an alter is taken back: of tablets that change and of those that do not, with
    the newest record of the table, and any that a tablet ever had. A recovery may hold an old one.
    """
    world = World()
    begun = [t.tablet_id for t in world.catalog.tablets_of(T)]
    has: dict[TabletId, Durability] = dict.fromkeys(begun, segments("disk"))
    read: list[TabletRecord] = []
    for _ in range(12):
        wanted = segments("disk") if world.table.becoming == replicas(3) else replicas(3)
        world.alter(wanted)
        world.begin()
        has.update((each.tablet_id, wanted) for each in world.catalog.successors())
        for number in range(3):
            successor = world.catalog.successor_of(world.tablet(number).tablet_id)
            if successor is not None and world.rng.random() < 0.6:
                world.say(number, CLOSED)
                world.swap()
        read += world.catalog.tablets.values()
        assert all(world.table.durability_of(each) == has[each.tablet_id] for each in read)
    assert len(has) > 10, "many have been begun"
    assert len({each.change for each in read}) > 6, "records of many changes were read"
    made_with = {each.tablet_id: each.change for each in read}
    assert all(each.change == made_with[each.tablet_id] for each in read), "it is kept for life"


@pytest.mark.parametrize("what", ["another", "columns", "both"])
def test_what_does_not_go_together_is_refused(what: str) -> None:
    """A third durability, or other columns, while a table changes; and both in one call."""
    world = World()
    if what != "both":
        world.alter(replicas(3))
    before = world.table
    wanted: Any = None if what == "columns" else wal(3)
    more = {} if what == "another" else {"change": ADD}
    with pytest.raises(InvalidArgument):
        world.alter(wanted, **more)
    assert world.table == before


def test_the_same_again_is_no_error() -> None:
    """Whoever asks twice has what he wants."""
    world = World()
    world.alter(replicas(3))
    world.begin()
    world.alter(replicas(3))
    assert (world.table.becoming, world.table.change) == (replicas(3), 1)
    assert len(world.catalog.successors()) == SUCCESSIONS_MAX


def test_a_table_that_changes_is_dropped_with_all_its_tablets() -> None:
    """Nothing of it is left, hidden or not; entries that were on their way bring nothing back."""
    world = World()
    world.alter(replicas(3))
    begin = world.actions()[0]
    assert isinstance(begin, BeginSuccession)
    late = draft_begin(world.catalog, begin, world.rng)
    world.begin()
    world.say(0, CLOSED)
    (swap,) = [action for action in world.actions() if isinstance(action, Swap)]
    swapped = draft_swap(world.catalog, swap)
    hidden = world.successor(0).tablet_id
    world.put(draft_delete(world.catalog, RequestId(ClientId("d"), 1, 0), T, "t"))
    assert isinstance(world.put(late), Conflict)
    assert isinstance(world.put(swapped), Conflict)
    assert world.catalog.tablets[hidden].state.is_gone
    assert list(world.catalog.live_tablets()) == []
    assert list(world.catalog.tables) == [], "it is packed away, with all tablets"


def test_a_snapshot_of_the_catalog_has_who_succeeds_whom() -> None:
    """A new master knows the same of every tablet."""
    world = World()
    world.alter(wal(3))
    world.begin()
    world.say(0, CLOSED)
    world.swap()
    other = Catalog()
    other.restore(world.catalog.snapshot())
    assert other.tablets_of(T) == world.catalog.tablets_of(T)
    assert other.successors() == world.catalog.successors()
    assert other.snapshot() == world.catalog.snapshot()


def test_without_enough_servers_it_waits() -> None:
    """Nothing is begun that could not be created; it goes on once they are there."""
    world = World()
    world.alter(wal(3))
    world.safekeepers = False
    assert world.actions() == []
    world.safekeepers = True
    assert kinds(world.actions()) == ["BeginSuccession"] * SUCCESSIONS_MAX


# ---- how a source makes way -----------------------------------------------------------------

S1, S2 = TabletId("one"), TabletId("two")


@pytest.mark.parametrize(
    ("before", "order", "after"),
    [
        (NO_SUCCESSION, (S1, FENCED, False), Succession(S1, FENCED)),
        (NO_SUCCESSION, (S1, CLOSED, False), NO_SUCCESSION),
        (Succession(S1, FENCED), (S1, CLOSED, False), Succession(S1, CLOSED)),
        (Succession(S1, FENCED), (S2, CLOSED, False), Succession(S1, FENCED)),
        (Succession(S1, FENCED), (S2, FENCED, False), Succession(S2, FENCED)),
        (Succession(S1, FENCED), (S1, OPEN, False), NO_SUCCESSION),
        (Succession(S1, FENCED), (S2, OPEN, True), Succession(S1, FENCED)),
        (Succession(S1, CLOSED), (S1, OPEN, False), Succession(S1, CLOSED)),
        (Succession(S1, CLOSED), (S1, FENCED, False), Succession(S1, CLOSED)),
        (Succession(S1, CLOSED), (S2, FENCED, False), Succession(S1, CLOSED)),
        (Succession(S1, CLOSED), (S2, OPEN, True), Succession(S1, CLOSED)),
        (Succession(S1, CLOSED), (S1, OPEN, True), NO_SUCCESSION),
    ],
)
def test_what_an_order_makes_of_a_source(
    before: Succession, order: tuple[TabletId, SuccessionStage, bool], after: Succession
) -> None:
    """What is closed only the masters open, for that very successor; late orders do nothing."""
    successor, stage, by_masters = order
    assert before.after(successor, stage, by_masters=by_masters) == after
