"""Rows found by the value of an indexed column; the same for every durability and by every door."""

from __future__ import annotations

import datetime
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import (
    ColumnNotFound,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
)
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Database, Table
from tests.tables.conftest import Make

DESTS = ("LAX", "SFO", None)


def fill(table: Table, count: int = 30) -> list[dict[str, Any]]:
    rows = [{"id": n, "name": DESTS[n % 3], "reading": n / 2} for n in range(count)]
    table.upsert(rows)
    return rows


def test_rows_are_found_by_value_null_and_range(make: Make) -> None:
    """In the order of value and key, each once; ranges include both ends and leave nulls out."""
    table = make(partition=hash_partition("id", 2))
    table.create_index("name")
    rows = fill(table)
    for dest in DESTS:
        assert table.find("name", dest).to_pylist() == [r for r in rows if r["name"] == dest]
    assert table.find("name", "OSL").num_rows == 0
    order = sorted((r for r in rows if r["name"]), key=lambda r: (r["name"], r["id"]))
    assert table.find("name", between=("A", "Z")).to_pylist() == order
    assert table.find("name", between=("LAX", "SFO")).to_pylist() == order
    assert table.find("name", between=(None, "LAX")).to_pylist() == order[:10]
    assert table.find("name", between=("LAX\0", None), reverse=True).to_pylist() == order[:9:-1]
    assert table.find("name", between=("Z", "A")).num_rows == 0
    found = table.find("name", "SFO", columns=["reading"], with_versions=True, limit=2)
    assert found.column_names == ["reading", "_version"]
    assert found["reading"].to_pylist() == [0.5, 2.0]


def test_an_index_follows_what_is_written(make: Make) -> None:
    """Inserts, upserts, updates and deletes, one by one and in batches."""
    table = make(partition=hash_partition("id", 2))
    table.create_index("name")
    table.insert({"id": 1, "name": "a"})
    table.upsert({"id": 2, "name": "a"})
    assert table.find("name", "a", columns=["id"])["id"].to_pylist() == [1, 2]
    table.update({"id": 1, "name": "b"})
    table.update({"id": 2, "reading": 1.0})
    assert table.find("name", "a")["id"].to_pylist() == [2]
    assert table.find("name", "b")["id"].to_pylist() == [1]
    table.upsert(pa.table({"id": range(500), "name": ["b"] * 500}))
    assert table.find("name", "b", columns=["id"])["id"].to_pylist() == list(range(500))
    table.delete(list(range(400)))
    table.upsert({"id": 450})
    found = table.find("name", "b", columns=["id"])["id"].to_pylist()
    assert found == [n for n in range(400, 500) if n != 450]
    assert table.find("name", None)["id"].to_pylist() == [450]


def test_an_index_is_made_of_rows_that_are_there_and_dropped(make: Make, db: Database) -> None:
    """With its progress shown; afterwards a find says how to make it."""
    table = make(partition=hash_partition("id", 2))
    rows = fill(table, 1000)
    seen: list[dict[str, Any]] = []
    db.create_index(table.name, "reading", progress=seen.append)
    assert seen[-1]["state"] == "serving"
    assert seen[-1]["filled"] == 1.0
    (index,) = table.indexes
    assert (index["column"], index["state"], index["table"]) == ("reading", "serving", table.name)
    assert index["indexlets"][0]["server"].startswith("tserver-")
    assert table.find("reading", between=(100.0, 101.0)).to_pylist() == rows[200:203]
    status = db.status()
    (shown,) = [each for each in status["tables"] if each["name"] == table.name]
    assert shown["indexes"] == ["reading"]
    assert [each["column"] for each in status["indexes"] if each["table"] == table.name]
    with pytest.raises(IndexExists):
        table.create_index("reading")
    db.drop_index(table.name, "reading")
    with pytest.raises(IndexNotFound, match="create_index makes one"):
        table.find("reading", 1.0)
    with pytest.raises(IndexNotFound):
        table.drop_index("reading")
    assert table.indexes == []
    table.upsert({"id": 0, "reading": 7.0})


def test_a_table_is_made_with_indexes(db: Database, durability: Durability, make: Make) -> None:
    """Of every type that can be indexed."""
    kinds: dict[str, tuple[pa.DataType, list[Any]]] = {
        "i": (pa.int8(), [-1, 0, 5]),
        "u": (pa.uint64(), [0, 1, 1 << 63]),
        "b": (pa.bool_(), [False, True, True]),
        "s": (pa.string(), ["", "a\0b", "é"]),
        "y": (pa.binary(), [b"", b"\0", b"\xff"]),
        "d": (pa.date32(), [datetime.date(1969, 1, 1), datetime.date(1970, 1, 1)] * 2),
        "t": (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, n + 1) for n in range(3)]),
        "m": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.25"), Decimal("3.00")]),
        "f": (pa.float32(), [-0.5, 0.0, 2.0]),
    }
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in kinds.items())])
    name = make().name + "-kinds"
    table = db.create_table(
        name, schema, key="id", durability=durability, indexes=list(kinds), timeout=60.0
    )
    try:
        data = {name: pa.array(values[:3], kind) for name, (kind, values) in kinds.items()}
        table.upsert(pa.table({"id": range(3), **data}))
        for column in kinds:
            for value in dict.fromkeys(data[column].to_pylist()):
                wanted = [n for n in range(3) if data[column][n].as_py() == value]
                assert table.find(column, value)["id"].to_pylist() == wanted, (column, value)
            ids = table.find(column, between=(None, None), columns=["id"])["id"].to_pylist()
            assert ids == sorted(range(3), key=lambda n: (data[column].to_pylist()[n], n))
    finally:
        db.delete_table(name)


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"column": "zz", "value": 1}, ColumnNotFound, "zz"),
        ({"column": "reading", "value": 1.0}, IndexNotFound, "create_index"),
        ({"column": "name"}, InvalidArgument, "between"),
        ({"column": "name", "value": "a", "between": ("a", "b")}, InvalidArgument, "between"),
        ({"column": "name", "between": "ab"}, InvalidArgument, "between"),
        ({"column": "name", "value": 5}, InvalidArgument, "name"),
        ({"column": "name", "value": "a", "limit": -1}, InvalidArgument, "limit"),
        ({"column": "name", "value": "a", "if_filling": "no"}, InvalidArgument, "if_filling"),
        ({"column": "name", "value": "a", "columns": ["q"]}, ColumnNotFound, "q"),
    ],
)
def test_finds_that_cannot_be_are_refused(
    make: Make, asked: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """In words that say what can be done."""
    table = make()
    table.create_index("name")
    with pytest.raises(kind, match=text):
        table.find(**asked)


def test_indexes_that_cannot_be_are_refused(make: Make) -> None:
    """Of unknown columns and unsupported types; unique ones, with the way around."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("name", pa.string())])
    table = make(schema)
    with pytest.raises(ColumnNotFound):
        table.create_index("zz")
    with pytest.raises(InvalidArgument, match="can be indexed"):
        table.create_index("tags")
    with pytest.raises(InvalidArgument, match="if_version=0"):
        table.create_index("name", unique=True)
    assert table.indexes == []


def test_pages_go_on_where_the_one_before_ended(make: Make) -> None:
    """In both directions, with every row once; a token of another find is refused."""
    table = make(partition=hash_partition("id", 2))
    table.create_index("name")
    rows = fill(table, 50)
    order = sorted((r for r in rows if r["name"]), key=lambda r: (r["name"], r["id"]))
    for reverse in (False, True):
        pages = list(table.find_pages("name", between=(None, None), page_rows=7, reverse=reverse))
        assert [page.num_rows for page in pages[:-1]] == [7] * (len(pages) - 1)
        found = [row for page in pages for row in page.to_pylist()]
        assert found == (order[::-1] if reverse else order)
    page = table.find_page("name", "SFO", limit=3)
    assert page.token is not None
    rest = table.find_page("name", "SFO", limit=1000, after=page.token)
    assert rest.token is None
    assert page.rows.num_rows + rest.rows.num_rows == sum(r["name"] == "SFO" for r in rows)
    for wrong in (page.token[:-3], "nonsense", ""):
        with pytest.raises(InvalidArgument, match="token"):
            table.find_page("name", "SFO", after=wrong)
    with pytest.raises(InvalidArgument, match="token"):
        table.find_page("name", "LAX", after=page.token)


def test_an_index_stays_with_its_column(make: Make, db: Database) -> None:
    """Whatever that is called; it goes with it, and older handles are told."""
    table = make()
    table.create_index("name")
    older = db.table(table.name)
    fill(table)
    table.rename(table.name + "-r")
    table.alter(rename_columns={"name": "dest"}, add_columns={"more": pa.int64()})
    assert table.find("dest", "LAX").num_rows == 10
    assert older.find("dest", "LAX").num_rows == 10
    table.alter(drop_columns="dest")
    assert table.indexes == []
    table.alter(add_columns={"dest": pa.string()})
    with pytest.raises(IndexNotFound):
        older.find("dest", "LAX")


def test_rows_are_found_while_they_are_written_and_indexes_made(make: Make) -> None:
    """Each row as soon as its write is acknowledged, index made before or meanwhile."""
    table = make(partition=hash_partition("id", 2))
    failed: list[BaseException] = []
    written = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                table.upsert({"id": number % 40, "name": f"n{number}"})
                if number == 30:
                    written.set()
        except BaseException as error:
            failed.append(error)
            written.set()

    writer = threading.Thread(target=write)
    writer.start()
    written.wait(60.0)
    table.create_index("name")
    for number in range(50):
        row = {"id": 1000 + number, "name": "mine", "reading": None}
        table.insert(row)
        assert row in table.find("name", "mine").to_pylist()
    writer.join()
    assert not failed
    newest = {n % 40: f"n{n}" for n in range(150)}
    for key, name in newest.items():
        assert table.find("name", name, if_filling="scan")["id"].to_pylist() == [key]
    assert table.find("name", "n0").num_rows == 0
