"""How an index is dropped: whoever holds it is waited for, and nothing brings it back."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl.alter import draft_alter, told
from stelae.coordinator.ddl.index_records import new_indexlet
from stelae.coordinator.ddl.indexes import draft_create_index, draft_drop_index
from stelae.coordinator.decide_indexes import (
    ChangeIndexlets,
    CloseIndexletAt,
    IndexAction,
)
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Run
from stelae.coordinator.status.indexes import locations_of
from stelae.core.errors import (
    IndexletNotReady,
)
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.alter import AlterTable
from stelae.core.messages.index_catalog import CreateIndex, DropIndex
from stelae.core.records.records import (
    ServerKind,
    TableState,
)
from stelae.core.schema.alter import MAX_HISTORY, schema_change
from stelae.core.schema.indexes import IndexId, IndexletState
from tests.unit.coordinator.index_world import (
    SETTINGS,
    P,
    World,
    X,
    drop_index,
    indexlet,
    kinds,
    request,
    says,
    server,
)


def test_indexlets_of_a_dropped_index_close_and_nothing_brings_them_back() -> None:
    """They are there until nobody has them; of a table that goes, they go with it."""
    world = World(indexlet())
    late = CatalogBatch(indexlets=(msgspec.structs.replace(world.first, generation=2),))
    drop_index(world)
    assert world.first.state is IndexletState.CLOSING
    assert isinstance(world.put(late), Conflict)
    again = msgspec.structs.replace(world.first, state=IndexletState.FILLING, generation=3)
    assert isinstance(world.put(CatalogBatch(indexlets=(again,))), Conflict)
    orphan = new_indexlet(TableId("T"), IndexId("I"), (b"", b""), server("s1"), random.Random(1), X)
    assert isinstance(world.put(CatalogBatch(indexlets=(orphan,))), Conflict)
    other = Catalog()
    other.restore(world.catalog.snapshot())
    for catalog in (world.catalog, other):
        table = catalog.tables[TableId("T")]
        deleted = msgspec.structs.replace(
            table, state=TableState.DELETED, generation=table.generation + 1
        )
        assert isinstance(catalog.apply(1, 1, CatalogBatch((deleted,)).encode()), Applied)
        assert catalog.indexes.indexlets == {}
        assert catalog.indexes.closing_tables() == []


def test_tablets_hear_of_a_dropped_index_once_nobody_answers_for_it() -> None:
    """Until then they put in what they write; clients hear of it at once."""
    world = World(indexlet())
    world.now += 2 * SETTINGS.lease_s  # leases of former leaders have ended
    for name in ("s0", "s1", "s2"):
        world.beat(name)
    world.beat("s1", says("X", P.SERVING))
    drop_index(world)
    tablet = world.catalog.tablets[TabletId("0")]

    def known() -> tuple[int, int, int]:
        """Versions that tablets and clients are told, and indexlets that tablets are told."""
        table = world.catalog.tables[TableId("T")]
        where = locations_of(world.catalog, world.liveness, world.now, table, tablet.tablet_id)
        theirs = locations_of(world.catalog, world.liveness, world.now, table, TabletId(""))
        assert theirs.indexlets == ()
        version = told(world.catalog, tablet).schema.version
        return version, where.schema_version, len(where.indexlets)

    assert known() == (2, 3, 1)
    assert kinds(world.decide()) == [CloseIndexletAt]
    world.beat("s1")
    (change,) = world.decide()
    assert isinstance(change, ChangeIndexlets)
    assert [record.state for record in change.records] == [IndexletState.GONE]
    assert known() == (3, 3, 0)
    assert world.catalog.indexes.closing_tables() == []


def test_who_holds_a_dropped_index_and_is_silent_is_waited_for() -> None:
    """For as long as it may answer by its lease."""
    world = World(indexlet())
    for name in ("s0", "s1", "s2"):
        world.beat(name)
    world.beat("s1", says("X", P.SERVING))
    drop_index(world)
    waited_s, actions = 0.0, list[IndexAction]()
    while not any(isinstance(action, ChangeIndexlets) for action in actions):
        world.now += 0.1
        waited_s += 0.1
        world.beat("s0")
        world.beat("s2")
        actions = world.decide()
        assert waited_s < 10.0
    assert waited_s >= SETTINGS.lease_s


def test_who_holds_a_dropped_index_and_hears_no_order_is_waited_for() -> None:
    """It is heard, so it is live; but by no lease that it gets may it answer any more."""
    world = World(indexlet())
    for name in ("s0", "s2"):
        world.beat(name)
    assert world.beat("s1", says("X", P.SERVING)) > 0
    drop_index(world)
    granted_at, actions = world.now, world.decide()
    while not any(isinstance(action, ChangeIndexlets) for action in actions):
        world.now += 0.1
        assert world.beat("s1", says("X", P.SERVING)) == 0.0
        actions = world.decide()
        assert world.now < granted_at + 2 * SETTINGS.lease_s
    assert world.now >= granted_at + SETTINGS.lease_s
    assert world.catalog.indexes.closing_tables() == []
    assert world.beat("s1", says("X", P.SERVING)) == 0.0, "it has not closed it"
    assert CloseIndexletAt in kinds(world.decide())
    assert world.beat("s1") > 0


def test_a_report_that_a_hint_has_overtaken_does_not_say_that_an_indexlet_is_closed() -> None:
    """It was sent before the indexlet was opened; the next one was sent after."""
    world = World(indexlet())
    world.now += 2 * SETTINGS.lease_s
    for name in ("s0", "s1", "s2"):
        world.beat(name)
    hint = says("X", P.COMPLETE, as_of=world.now + 0.1)
    world.liveness.indexlet_report(Run(ServerUuid("s1"), 1), hint, world.now + 0.1)
    assert ChangeIndexlets in kinds(world.decide())
    assert world.first.state is IndexletState.SERVING
    drop_index(world)
    world.now += 0.2
    world.beat("s1", sent=world.now - 0.15)
    assert kinds(world.decide()) == [CloseIndexletAt]
    older = says("X", P.FILLING, as_of=hint.as_of - 0.05)
    world.liveness.indexlet_report(Run(ServerUuid("s1"), 1), older, world.now)
    seen = world.liveness.find(Run(ServerUuid("s1"), 1))
    assert seen is not None
    assert seen.picture.indexlets == {X: hint}, "hints overtake each other, too"
    seen.picture.reset()
    world.beat("s1", sent=world.now - 0.12)
    assert kinds(world.decide()) == [CloseIndexletAt], "nor does the first report after a reset"
    world.now += 0.01
    world.beat("s1")
    assert kinds(world.decide()) == [ChangeIndexlets]


def test_a_new_leader_waits_for_former_leases_before_it_believes_that_an_indexlet_is_closed() -> (
    None
):
    """The first report that it hears may be older than the indexlet, of which a former leader
    knew; under a lease of that one its owner still answers."""
    world = World(indexlet(state=IndexletState.SERVING))
    led_at = world.now
    drop_index(world)
    actions = list[IndexAction]()
    while ChangeIndexlets not in kinds(actions):
        world.now += 0.1
        for name in ("s0", "s1", "s2"):
            world.beat(name)
        actions = world.decide()
        assert world.now < led_at + 2 * SETTINGS.lease_s
    assert world.now >= led_at + SETTINGS.lease_s


def test_alters_wait_before_the_version_that_tablets_know_is_forgotten() -> None:
    """Only so many are remembered."""
    world = World(indexlet())
    drop_index(world)

    def alter(number: int) -> CatalogBatch:
        change = schema_change(add=[pa.field(f"c{number}", pa.int64())])
        order = AlterTable(request(20 + number), TableId("T"), "t", change=change)
        return draft_alter(world.catalog, order)

    for number in range(MAX_HISTORY - 1):
        assert isinstance(world.put(alter(number)), Applied)
    with pytest.raises(IndexletNotReady, match="X is closing"):
        alter(MAX_HISTORY)


def test_an_index_made_while_another_closes_is_not_dropped_before_that_is_gone() -> None:
    """Tablets are told the version with the first one, so they never knew of the second; no version
    has both, and one is to be told for as long as somebody may look into either."""
    world = World(indexlet())
    world.now += 2 * SETTINGS.lease_s  # leases of former leaders have ended
    for name in ("s0", "s1", "s2"):
        world.beat(name)
    drop_index(world)
    loads = tserver_loads(world.catalog, world.liveness.live(ServerKind.TSERVER, world.now))
    order = CreateIndex(request(10), TableId("T"), "t", "b")
    batch = draft_create_index(world.catalog, order, loads, random.Random(1))
    assert isinstance(world.put(batch), Applied)
    drop = DropIndex(request(11), TableId("T"), "t", "b")
    with pytest.raises(IndexletNotReady, match="X is closing"):
        draft_drop_index(world.catalog, drop)
    assert ChangeIndexlets in kinds(world.decide())
    assert world.catalog.indexes.closing_tables() == []
    assert isinstance(world.put(draft_drop_index(world.catalog, drop)), Applied)
    tablet = world.catalog.tablets[TabletId("0")]
    assert told(world.catalog, tablet).schema.index_of("b") is not None
