"""Indexes in the catalog, and what the leader does for indexlets, as conversations in seconds."""

from __future__ import annotations

import random

import msgspec
import pytest

from stelae.coordinator.backoff.owners import FIRST_PAUSE_S, PATIENCE_S, SERVER_PAUSE_S
from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl.indexes import draft_create_index, draft_drop_index
from stelae.coordinator.decide_indexes import (
    ChangeIndexlets,
    CloseIndexletAt,
    HandOverAt,
    MakeSuccessors,
    OpenIndexletAt,
    ServeIndexletAt,
    draft_change,
    gone,
)
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Run
from stelae.coordinator.liveness.standing import standing_of
from stelae.coordinator.status.indexes import locations_of, views_of
from stelae.core.errors import (
    ColumnNotFound,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
)
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.index_catalog import CreateIndex, DropIndex
from stelae.core.messages.indexes import (
    NOT_IN_PLACE,
    HandOverStage,
    IndexletReport,
)
from stelae.core.records.records import (
    ServerKind,
    ServerMark,
    TableState,
)
from stelae.core.schema.alter import with_index
from stelae.core.schema.durability import wal
from stelae.core.schema.indexes import IndexId, IndexletId, IndexletState
from tests.unit.coordinator.index_world import P, World, X, indexlet, kinds, request, says

# ---- decisions --------------------------------------------------------------------------------


def test_an_indexlet_goes_from_filling_to_serving() -> None:
    """Golden conversation: open, fill, complete, one catalog entry, the word to serve, nothing."""
    world = World(indexlet())
    world.beat("s0")
    world.beat("s1")
    assert kinds(world.decide()) == [OpenIndexletAt]
    world.now += 0.1
    world.beat("s1", says("X", P.FILLING))
    assert world.decide() == []
    world.now += 0.1
    world.beat("s1", says("X", P.COMPLETE))
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert (world.first.state, world.first.term) == (IndexletState.SERVING, 1)
    assert kinds(world.decide()) == [ServeIndexletAt]
    seen = world.liveness.find(Run(ServerUuid("s1"), 1))
    assert seen is not None
    assert standing_of(world.catalog, seen).serve_indexlets == ((X, 1),)
    world.now += 0.1
    world.beat("s1", says("X", P.SERVING))
    assert world.decide() == []


@pytest.mark.parametrize("state", [IndexletState.FILLING, IndexletState.SERVING])
def test_a_lost_indexlet_goes_to_another_server_once_no_lease_is_left(
    state: IndexletState,
) -> None:
    """Also one that is being filled: its owner takes entries. In the next term, filled anew, on a
    server without tablets of the table where there is one."""
    world = World(indexlet(state=state))
    for name in ("s0", "s2"):
        world.beat(name)
    assert world.beat("s1", says("X", P.SERVING)) > 0
    world.now += 0.5
    world.liveness.server_died(Run(ServerUuid("s1"), 1))
    for name in ("s0", "s2"):
        world.beat(name)
    assert world.decide() == []
    world.now += 1.1
    for name in ("s0", "s2"):
        world.beat(name)
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert (world.first.owner, world.first.term) == ("s2", 2)
    assert world.first.state is IndexletState.FILLING
    assert world.liveness.is_given_up(Run(ServerUuid("s1"), 1))


def test_a_server_gets_no_lease_while_it_has_an_indexlet_that_is_anothers() -> None:
    """Nor while it has one that nobody knows any more, until it has closed it."""
    world = World(indexlet(owner="s2", term=2))
    assert world.beat("s1", says("X", P.SERVING)) == 0.0
    world.beat("s2", says("X", P.SERVING, 2))
    assert kinds(world.decide(obey=False)).count(CloseIndexletAt) == 1
    assert world.beat("s0", says("unknown", P.SERVING)) == 0.0
    world.now += 0.1
    assert world.beat("s0", says("unknown", P.CLOSED)) > 0
    assert world.beat("s1") > 0


def test_what_its_server_no_longer_has_is_filled_anew() -> None:
    """After a while: a live server that leaves out a SERVING indexlet has lost it."""
    world = World(indexlet(state=IndexletState.SERVING))
    world.beat("s1")
    assert world.decide() == []
    world.now += 2.0
    world.beat("s1")
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert (world.first.term, world.first.state) == (2, IndexletState.FILLING)


def grown(world: World) -> None:
    """Make successors of an indexlet with too many entries, and have them opened."""
    for name in ("s0", "s2"):
        world.beat(name)
    world.beat("s1", says("X", P.SERVING, entry_count=101, split_at=b"m"))
    assert kinds(world.decide()) == [MakeSuccessors]
    low, high = world.successors()
    assert [(low.low, low.high), (high.low, high.high)] == [(b"", b"m"), (b"m", b"")]
    assert kinds(world.decide()) == [OpenIndexletAt, OpenIndexletAt]
    beat_successors(world, P.FILLING)
    (order,) = world.decide()
    assert isinstance(order, HandOverAt)
    assert order.order.generation == world.first.generation


def beat_successors(world: World, progress: P, source: IndexletReport | None = None) -> None:
    """Heartbeats of all; one of the successors may be where their source is."""
    world.now += 0.1
    source = source or says("X", P.SERVING, entry_count=101, split_at=b"m")
    reports: dict[str, list[IndexletReport]] = {"s0": [], "s1": [source], "s2": []}
    for each in world.successors():
        reports.setdefault(each.owner, []).append(says(each.indexlet_id, progress))
    for name, said in reports.items():
        world.beat(name, *said)


def handing_over(world: World, stage: HandOverStage, progress: P = P.SERVING) -> IndexletReport:
    ids = tuple(each.indexlet_id for each in world.successors())
    return says("X", progress, hand_over=stage, successors=ids)


def test_a_large_indexlet_is_split() -> None:
    """Golden conversation: successors, opened; entries brought; closed; in place by one entry."""
    world = World(indexlet(state=IndexletState.SERVING))
    grown(world)
    beat_successors(world, P.COMPLETE, handing_over(world, HandOverStage.COMPLETE))
    (close,) = world.decide()
    assert isinstance(close, CloseIndexletAt)
    assert not close.order.drop
    assert close.order.hand_over == world.first.generation
    assert world.first.state is IndexletState.SERVING
    closed = handing_over(world, HandOverStage.COMPLETE, P.CLOSED)
    beat_successors(world, P.COMPLETE, closed)
    assert kinds(world.decide()) == [ChangeIndexlets]
    found = world.catalog.indexes.of_index(IndexId("I"))
    assert [each.state for each in found] == [IndexletState.SERVING] * 2
    assert X not in world.catalog.indexes.indexlets
    closes = [a for a in world.decide() if isinstance(a, CloseIndexletAt)]
    assert [(c.order.indexlet_id, c.order.drop) for c in closes] == [(X, True)]


def test_successors_are_given_up_when_one_is_lost() -> None:
    """The source is told, and goes on; one that is closed already is filled anew."""
    world = World(indexlet(state=IndexletState.SERVING))
    grown(world)
    beat_successors(world, P.FILLING, handing_over(world, HandOverStage.FAILED))
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert world.successors() == []
    world.now += 0.1
    world.beat("s1", says("X", P.SERVING, hand_over=HandOverStage.FAILED, successors=(X,)))
    (release,) = [a for a in world.decide() if isinstance(a, HandOverAt)]
    assert release.order.successors == ()
    assert release.order.generation == world.first.generation == 2
    world.now += FIRST_PAUSE_S
    grown(world)
    assert world.first.generation == 3, "the next hand-over has another name"
    world = World(indexlet(state=IndexletState.SERVING))
    grown(world)
    beat_successors(world, P.FILLING, handing_over(world, HandOverStage.FAILED, P.CLOSED))
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert (world.first.term, world.first.state) == (2, IndexletState.FILLING)
    assert world.successors() == []


def test_giving_up_and_taking_the_place_exclude_each_other() -> None:
    """Both compare the records they were decided from: the second entry changes nothing."""
    world = World(indexlet(state=IndexletState.SERVING))
    grown(world)
    given_up = ChangeIndexlets(tuple(map(gone, world.successors())), "lost")
    in_place = tuple(
        msgspec.structs.replace(
            each, state=IndexletState.SERVING, succeeds=IndexletId(""), generation=2
        )
        for each in world.successors()
    )
    swap = CatalogBatch(indexlets=(gone(world.first), *in_place))
    first, second = draft_change(world.catalog, given_up), swap
    assert first is not None
    assert isinstance(world.put(first), Applied)
    assert isinstance(world.put(second), Conflict)
    assert world.first.state is IndexletState.SERVING


def test_an_indexlet_leaves_a_server_that_is_retired() -> None:
    """To one successor with the same range, elsewhere."""
    world = World(indexlet(state=IndexletState.SERVING))
    world.put(CatalogBatch(marks=(ServerMark(ServerUuid("s1"), "s1", retiring=True),)))
    world.beat("s2")
    world.beat("s1", says("X", P.SERVING))
    assert kinds(world.decide()) == [MakeSuccessors]
    (successor,) = world.successors()
    assert (successor.owner, successor.low, successor.high) == ("s2", b"", b"")


# ---- the catalog --------------------------------------------------------------------------------


def test_an_entry_that_would_leave_a_hole_changes_nothing() -> None:
    """Nor one with keys twice; an index without any indexlet neither."""
    world = World(indexlet())
    assert isinstance(world.put(CatalogBatch(indexlets=(gone(world.first),))), Conflict)
    second = CatalogBatch(indexlets=(indexlet("Y", low=b"m"),))
    assert isinstance(world.put(second), Conflict)
    table = world.catalog.tables[TableId("T")]
    bare = msgspec.structs.replace(
        table, schema=with_index(table.schema, "b", IndexId("J"), "t"), generation=2
    )
    assert isinstance(world.put(CatalogBatch((bare,))), Conflict)
    assert list(world.catalog.indexes.indexlets) == [X]


def test_a_snapshot_has_the_indexlets() -> None:
    """And a catalog of before there were any is read."""
    world = World(indexlet())
    other = Catalog()
    other.restore(world.catalog.snapshot())
    assert other.indexes.indexlets == world.catalog.indexes.indexlets
    fields = msgspec.msgpack.decode(world.catalog.snapshot())
    fields[0] = 5
    older = Catalog()
    older.restore(msgspec.msgpack.encode(fields[:8]))  # up to timelines
    assert older.indexes.indexlets == {}


def test_an_index_is_made_and_dropped_in_one_entry_each() -> None:
    """With its first indexlet, beside the table's tablets if it can; what cannot be is refused."""
    world = World(indexlet())
    for name in ("s0", "s1", "s2"):
        world.beat(name)
    loads = tserver_loads(world.catalog, world.liveness.live(ServerKind.TSERVER, world.now))
    order = CreateIndex(request(1), TableId("T"), "t", "b")
    batch = draft_create_index(world.catalog, order, loads, random.Random(1))
    assert isinstance(world.put(batch), Applied)
    table = world.catalog.tables[TableId("T")]
    index = table.schema.index_of("b")
    assert index is not None
    assert (table.schema.version, table.state) == (3, TableState.ALTERING)
    (made,) = world.catalog.indexes.of_index(index.index_id)
    assert made.owner == "s2", "s0 has the tablet, s1 an indexlet"
    for column, kind in (("a", IndexExists), ("z", ColumnNotFound)):
        order = CreateIndex(request(2), TableId("T"), "t", column)
        with pytest.raises(kind):
            draft_create_index(world.catalog, order, loads, random.Random(1))
    drop = DropIndex(request(3), TableId("T"), "t", "b")
    assert isinstance(world.put(draft_drop_index(world.catalog, drop)), Applied)
    assert world.catalog.indexes.of_index(index.index_id)[0].state is IndexletState.CLOSING
    with pytest.raises(IndexNotFound):
        draft_drop_index(world.catalog, drop)


def test_indexes_are_not_altered_while_the_durability_is() -> None:
    """As columns are not: tablets give way to others meanwhile."""
    world = World(indexlet())
    table = world.catalog.tables[TableId("T")]
    becoming = msgspec.structs.replace(table, becoming=wal(3, ("disk",)), generation=2)
    world.put(CatalogBatch((becoming,)))
    with pytest.raises(InvalidArgument, match="once that is done"):
        draft_drop_index(world.catalog, DropIndex(request(1), TableId("T"), "t", "a"))


def test_whoever_asks_is_told_where_indexlets_are_and_how_far() -> None:
    """Tablets also whether they are in their place."""
    world = World(indexlet())
    world.beat("s1", says("X", P.FILLING, tablets=4, tablets_filled=1, entry_count=9))
    table = world.catalog.tables[TableId("T")]
    found = locations_of(world.catalog, world.liveness, world.now, table, TabletId("0"))
    assert (found.schema_version, found.tablet_change) == (2, 0)
    (location,) = found.indexlets
    assert (location.address, location.problem) == (
        "s1:1", "1 of 4 tablets have given their entries",
    )  # fmt: skip
    other = locations_of(world.catalog, world.liveness, world.now, table, TabletId("none"))
    assert other.tablet_change == NOT_IN_PLACE
    (view,) = views_of(world.catalog, world.liveness, world.now, table)
    assert (view.column, view.state, view.filled) == ("a", IndexletState.FILLING, 0.25)
    assert view.entry_count == 9


def test_what_was_put_into_service_is_not_shown_as_waiting_for_that() -> None:
    """Also while the newest word of its server is the one from before."""
    world = World(indexlet())
    waiting = says("X", P.COMPLETE, problem="to be put into service", tablets=1, tablets_filled=1)

    def shown() -> tuple[P | None, str]:
        table = world.catalog.tables[TableId("T")]
        (view,) = views_of(world.catalog, world.liveness, world.now, table)
        return view.indexlets[0].progress, view.indexlets[0].problem

    world.beat("s1", waiting)
    assert shown() == (P.COMPLETE, "to be put into service")
    assert kinds(world.decide()) == [ChangeIndexlets]
    assert shown() == (P.SERVING, "")
    world.beat("s1", says("X", P.SERVING))
    assert shown() == (P.SERVING, "")


def failing(world: World) -> list[str]:
    """Make successors, of which all fail; where they were."""
    for name in ("s0", "s2", "s3"):
        world.beat(name)
    world.beat("s1", says("X", P.SERVING, entry_count=101, split_at=b"m"))
    if kinds(world.decide()) != [MakeSuccessors]:
        return []
    owners = [str(each.owner) for each in world.successors()]
    beat_successors(world, P.FILLING, handing_over(world, HandOverStage.FAILED))
    assert kinds(world.decide()) == [ChangeIndexlets]
    return owners


def test_successors_are_made_elsewhere_after_they_failed() -> None:
    """Last where they failed, and there only after the pause; pauses grow."""
    world = World(indexlet(state=IndexletState.SERVING))
    world.put(CatalogBatch(marks=(ServerMark(ServerUuid("s0"), "s0", retiring=True),)))
    first = failing(world)
    assert sorted(first) == ["s2", "s3"], "where no tablets of the table are"
    assert failing(world) == [], "not at once"
    world.now += 2 * FIRST_PAUSE_S
    second = failing(world)
    assert second == ["s1", "s1"], "where the indexlet is itself"
    failed_at, again = world.now, []
    while not (again := failing(world)):
        world.now += 1.0
    assert world.now >= failed_at + SERVER_PAUSE_S - 3.0
    assert sorted(again) == ["s2", "s3"]


def test_a_successor_that_is_not_opened_is_given_up() -> None:
    """Its server is heard, and does not do what it is told: the few turns are for others too. The
    one that was open is not to blame."""
    world = World(indexlet(state=IndexletState.SERVING))
    source = says("X", P.SERVING, entry_count=101, split_at=b"m")
    for name in ("s0", "s2"):
        world.beat(name)
    world.beat("s1", source)
    world.decide()
    low, high = world.successors()
    assert low.owner != high.owner
    began = world.now
    while world.successors():
        assert world.now < began + 2 * PATIENCE_S
        world.now += 1.0
        for name in ("s0", "s1", "s2"):
            reports = [source] if name == "s1" else []
            reports += [says(low.indexlet_id, P.FILLING)] if name == low.owner else []
            world.beat(name, *reports)
        world.decide()
    assert world.now >= began + PATIENCE_S
    assert list(world.pacing.indexlets.avoid(X)) == [high.owner]


def test_an_indexlet_that_is_being_filled_stays_with_its_live_owner() -> None:
    """However long it takes: the owner takes entries until its lease ends, which would be lost."""
    world = World(indexlet())
    for _ in range(1000):
        world.now += 1.0
        world.beat("s0")
        world.beat("s1", says("X", P.FILLING))
        assert world.decide() == []
    assert (world.first.owner, world.first.term) == ("s1", 1)


def test_what_a_server_lost_is_filled_elsewhere_and_parts_remember_that() -> None:
    """An indexlet that a live server no longer has goes there last."""
    world = World(indexlet(state=IndexletState.SERVING))
    for _ in range(5):
        for name in ("s1", "s2"):
            world.beat(name)
        world.decide()
        world.now += 0.5
    assert world.first.owner == "s2"
    assert list(world.pacing.indexlets.avoid(X)) == ["s1"]
