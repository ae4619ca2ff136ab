"""Tables made, found, altered, renamed and deleted; the same for every durability."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    TableExists,
    TableNotFound,
    TabletNotFound,
)
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Database, Table
from tests.tables.conftest import SCHEMA, Make

# ---- made and deleted -------------------------------------------------------------------------


def test_a_table_is_made_once_listed_found_and_deleted(
    make: Make, db: Database, durability: Durability
) -> None:
    """And one that is made under its name is another one, without its rows."""
    table = make(partition=hash_partition("id", 2))
    table.upsert([{"id": n} for n in range(10)])
    assert table.name in db.tables()
    found = db.table(table.name)
    assert (found.schema, found.key) == (SCHEMA, ("id",))
    assert found._table.record.durability == durability
    with pytest.raises(TableExists):
        db.create_table(table.name, SCHEMA, key="id", durability=durability)
    (tablet,) = {each.tablet.table_id for each in db.locate_table(table.name)}
    assert tablet == table._table.record.table_id
    db.delete_table(table.name)
    assert table.name not in db.tables()
    for gone in (
        lambda: db.table(table.name),
        lambda: db.delete_table(table.name),
        lambda: table.upsert({"id": 1}),
        lambda: table.get(1),
        lambda: table.scan(),
    ):
        with pytest.raises(TableNotFound):
            gone()
    again = db.create_table(table.name, SCHEMA, key="id", durability=durability)
    assert again.count() == 0
    (version,) = again.insert({"id": 1})
    assert version > 0


def test_a_table_made_without_waiting_is_whole_a_moment_later(
    make: Make, db: Database, durability: Durability
) -> None:
    """What is written meanwhile waits for it."""
    name = make().name + "-soon"
    table = db.create_table(name, SCHEMA, key="id", durability=durability, wait=False)
    table.upsert({"id": 1})
    while not db.is_create_done(name):  # replicas can serve before the masters have heard of it
        assert table.count() == 1
    assert table.get(1) is not None
    db.delete_table(name)


def test_tablets_are_located_by_id_also_when_gone(make: Make, db: Database) -> None:
    """Where they are, and why they are nowhere."""
    table = make()
    (here,) = db.locate_table(table.name)
    assert db.locate([here.tablet.tablet_id])[0].address == here.address != ""
    db.delete_table(table.name)
    (gone,) = db.locate([here.tablet.tablet_id])
    assert (gone.tablet.state, gone.address) == ("deleted", "")
    with pytest.raises(TabletNotFound):
        db.locate(["none"])


def test_status_shows_table_and_tablets(make: Make, db: Database, durability: Durability) -> None:
    """With who serves each, and how many rows there are."""
    table = make(partition=hash_partition("id", 2))
    table.upsert([{"id": n} for n in range(50)])
    status = db.status()
    (shown,) = [each for each in status["tables"] if each["name"] == table.name]
    assert (shown["durability"], shown["tablets"]) == (str(durability), 2)
    tablets = [each for each in status["tablets"] if each["table"] == table.name]
    assert [each["state"] for each in tablets] == ["running"] * 2
    assert {each["leader"][:8] for each in tablets} == {"tserver-"}
    assert [each["problem"] for each in tablets] == ["", ""]


# ---- altered ----------------------------------------------------------------------------------


def test_columns_are_added_dropped_renamed_and_given_defaults(make: Make) -> None:
    """At once for rows that are there, in head and segments, and for rows to come."""
    table = make(partition=hash_partition("id", 2))
    table.upsert(pa.table({"id": range(3000), "name": ["x" * 500] * 3000}))
    table.alter(
        add_columns=[pa.field("seats", pa.int16(), False), pa.field("note", pa.string())],
        defaults={"seats": 180},
        drop_columns="reading",
        rename_columns={"name": "title"},
    )
    assert table.schema.names == ["id", "title", "seats", "note"]
    assert table.get(7) == {"id": 7, "title": "x" * 500, "seats": 180, "note": None}
    table.upsert({"id": 7, "title": "y"})
    assert table.get(7) == {"id": 7, "title": "y", "seats": 180, "note": None}
    table.update({"id": 8, "seats": 3})
    assert table.count(where=[("seats", "=", 180)]) == 2999
    assert table.is_alter_done()
    table.alter(defaults={"seats": 9}, drop_columns=["note"])
    table.upsert({"id": 9})
    assert table.get(9) == {"id": 9, "title": None, "seats": 9}
    table.alter(add_columns={"reading": pa.string()})
    assert table.get(10, columns=["reading"]) == {"reading": None}
    assert table.scan(columns=["id", "reading"]).num_rows == 3000


def test_older_handles_go_on_after_an_alter(
    make: Make, db: Database, way: tuple[str, Durability]
) -> None:
    """They see the newer columns with their next call, or over HTTP, where no answer says that
    there are newer ones, go on with theirs; a column that is gone they are told of."""
    table = make()
    table.upsert([{"id": n, "name": "a", "reading": 1.0} for n in range(200)])
    older = db.table(table.name)
    table.alter(rename_columns={"name": "title"}, add_columns={"more": pa.int64()})
    older.upsert({"id": 1, "reading": 2.0})
    older.update([{"id": n, "reading": 3.0} for n in range(2, 150)])
    if way[0] == "http":
        assert older.get(2) == {"id": 2, "name": "a", "reading": 3.0}
    else:
        assert older.get(2) == {"id": 2, "title": "a", "reading": 3.0, "more": None}
        assert older.schema.names == ["id", "title", "reading", "more"]
    table.alter(drop_columns="reading")
    with pytest.raises(ColumnNotFound):
        older.scan(where=[("reading", "=", 3.0)])
    assert older.scan().column_names == ["id", "title", "more"]


def test_a_table_is_renamed_and_its_handles_go_on(make: Make, db: Database) -> None:
    """Under the new name it is found, under the old one no more."""
    table, other = make(), make()
    older = db.table(table.name)
    old, new = table.name, table.name + "-renamed"
    table.upsert({"id": 1})
    table.rename(new)
    assert table.name == new
    with pytest.raises(TableNotFound):
        db.table(old)
    assert db.table(new).get(1) == older.get(1) == {"id": 1, "name": None, "reading": None}
    with pytest.raises(TableExists):
        table.rename(other.name)
    db.rename_table(new, old)
    assert older.get(1) is not None
    db.alter_table(old, add_columns={"more": pa.int64()}, rename_to=new)
    assert db.table(new).schema.names[-1] == "more"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"drop_columns": "id"}, InvalidArgument),
        ({"drop_columns": "zz"}, ColumnNotFound),
        ({"rename_columns": {"name": "reading"}}, InvalidArgument),
        ({"add_columns": {"name": pa.int64()}}, InvalidArgument),
        ({"add_columns": [pa.field("n", pa.int64(), False)]}, InvalidArgument),
        ({"defaults": {"name": 5}}, InvalidArgument),
        ({"rename_to": "a/b"}, InvalidArgument),
        ({}, InvalidArgument),
    ],
)
def test_alters_that_cannot_be_are_refused(
    table: Table, change: dict[str, object], kind: type[Exception]
) -> None:
    """And nothing changes."""
    with pytest.raises(kind):
        table.alter(**change)  # type: ignore[arg-type]
    assert table.schema == SCHEMA


def test_writes_go_on_while_a_table_is_altered(make: Make) -> None:
    """Every write through alter after alter is there, once, in the columns of the end."""
    table = make(partition=hash_partition("id", 2))
    done: list[int] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(200):
                table.insert({"id": number, "reading": float(number)})
                done.append(number)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(4):
        table.alter(add_columns={f"c{number}": pa.int64()}, defaults={f"c{number}": number})
    writer.join()
    assert not failed
    found = table.scan().sort_by("id")
    assert found["id"].to_pylist() == done == list(range(200))
    assert found["reading"].to_pylist() == [float(n) for n in range(200)]
    assert [found[f"c{n}"].to_pylist()[0] for n in range(4)] == [0, 1, 2, 3]


# ---- where it is --------------------------------------------------------------------------------


def test_a_table_says_on_which_nodes_its_tablets_are(make: Make, durability: Durability) -> None:
    """In the order of their numbers; all replicas of one that has some."""
    table = make(partition=hash_partition("id", 3))
    places = table.locations()
    assert [place.number for place in places] == [0, 1, 2]
    assert len({place.tablet for place in places}) == 3
    assert all(place.node == "127.0.0.1" for place in places)
    assert all(place.replica_nodes == ("127.0.0.1",) for place in places)
