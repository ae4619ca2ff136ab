"""`graveyard`: deleted records stay, are found by their ids, and cost a restart little."""

from __future__ import annotations

import random

import msgspec
import pytest

from stelae.coordinator.catalog.catalog import (
    _ENCODER,
    Applied,
    Catalog,
    CatalogBatch,
    Conflict,
    _Snapshot,
)
from stelae.coordinator.ddl.tables import draft_create, draft_delete, draft_replace
from stelae.coordinator.placement.assignment import Load
from stelae.core.ids import ClientId, RequestId, TableId, TabletId
from stelae.core.records.records import TableState, TabletState
from tests.unit.coordinator.catalog.test_operations import info, order

RNG = random.Random(8)


def create(catalog: Catalog, name: str, sequence: int) -> TableId:
    batch = draft_create(catalog, order(name, sequence), [Load(info("s1"))], RNG)
    done = catalog.apply(0, 1, batch.encode())
    assert isinstance(done, Applied)
    return done.result


def delete(catalog: Catalog, name: str, sequence: int) -> CatalogBatch:
    table = catalog.find(name)
    assert table is not None
    request = RequestId(ClientId("d"), sequence, sequence)
    batch = draft_delete(catalog, request, table.table_id, name)
    assert isinstance(catalog.apply(0, 1, batch.encode()), Applied)
    return batch


def some_history() -> tuple[Catalog, dict[TableId, list[TabletId]]]:
    """Two deleted tables, one of which had a tablet replaced, and one that lives."""
    catalog = Catalog()
    had: dict[TableId, list[TabletId]] = {}
    for number, name in enumerate(("a", "b", "c")):
        table_id = create(catalog, name, number)
        had[table_id] = [tablet.tablet_id for tablet in catalog.tablets_of(table_id)]
        if name == "b":
            old = catalog.tablets_of(table_id)[1]
            batch = draft_replace(catalog, [old], [[info("s2")]], RNG)
            assert batch is not None
            catalog.apply(0, 1, batch.encode())
            had[table_id].append(batch.tablets[1].tablet_id)
    for number, name in enumerate(("a", "b")):
        delete(catalog, name, number + 1)
    return catalog, had


@pytest.mark.parametrize("restored", [False, True])
def test_every_deleted_record_is_found_by_its_id(restored: bool) -> None:
    """Also after a restart; and what lives is not among the dead."""
    catalog, had = some_history()
    if restored:
        again = Catalog()
        again.restore(catalog.snapshot())
        assert again.snapshot() == catalog.snapshot()
        catalog = again
    live = [table.table_id for table in catalog.live_tables()]
    assert [*catalog.tables] == live
    assert [table.table_id for table in catalog.every_table()] == [*had]
    for table_id, tablet_ids in had.items():
        gone = table_id not in live
        assert table_id in catalog.tables
        assert (catalog.tables[table_id].state is TableState.DELETED) == gone
        for tablet_id in tablet_ids:
            record = catalog.tablets.get(tablet_id)
            assert record is not None
            assert record == catalog.tablets[tablet_id]
            assert (record.tablet_id, record.table_id) == (tablet_id, table_id)
            assert record.state.is_gone == gone
        numbers = [tablet.number for tablet in catalog.tablets_of(table_id)]
        assert numbers == [0, 1, 2, 3]
    replaced = [catalog.tablets[i] for ids in had.values() for i in ids]
    assert sum(tablet.state is TabletState.REPLACED for tablet in replaced) == 1
    assert "nobody" not in catalog.tablets
    assert catalog.tablets.get(TabletId("nobody")) is None
    with pytest.raises(KeyError):
        catalog.tablets[TabletId("nobody")]


def test_nothing_rises_from_a_grave() -> None:
    """A late entry about a deleted table or tablet changes nothing."""
    catalog = Catalog()
    create(catalog, "t", 1)
    table = catalog.find("t")
    assert table is not None
    tablets = catalog.tablets_of(table.table_id)
    delete(catalog, "t", 1)
    before = catalog.snapshot()
    late = [
        msgspec.structs.replace(tablets[0], state=TabletState.RUNNING, generation=generation)
        for generation in (1, 2)
    ]
    for tablet in late:
        assert isinstance(catalog.apply(0, 1, CatalogBatch(tablets=(tablet,)).encode()), Conflict)
    renamed = msgspec.structs.replace(table, name="u", generation=2)
    assert isinstance(catalog.apply(0, 1, CatalogBatch((renamed,)).encode()), Conflict)
    assert catalog.snapshot() == before


def test_a_snapshot_of_the_version_before_is_read() -> None:
    """It has deleted tables among the others; they are buried as they come."""
    catalog, _ = some_history()
    tables = list(catalog.every_table())
    tablets = [
        tablet for table in tables for tablet in catalog._graveyard.tablets_of(table.table_id)
    ]
    clients = list(catalog._clients.items())
    old = _Snapshot(2, tables, [*tablets, *catalog.tablets.values()], clients)
    read = Catalog()
    read.restore(_ENCODER.encode(old))
    assert read.snapshot() == catalog.snapshot()


def test_a_deleted_table_costs_a_restart_no_records() -> None:
    """What a restart makes of it is one grave, whatever the number of its tablets."""
    catalog = Catalog()
    for number in range(50):
        create(catalog, "t", number)
        delete(catalog, "t", number + 1)
    read = Catalog()
    read.restore(catalog.snapshot())
    assert len(read.tables) == len(read.tablets) == 0
    assert len(read._graveyard.graves) == 50
    assert [*read._of_table, *read._of_owner, *read._opening, *read._replaced] == []
