"""Rows by key: written, bound to conditions, read back; the same for every durability."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    RowExists,
    RowNotFound,
    StelaeError,
    VersionMismatch,
)
from stelae.core.schema.partition import (
    Partitioning,
    hash_and_range,
    hash_partition,
    range_partition,
)
from stelae.database.api import Database, Table
from tests.tables.conftest import SCHEMA, Make

EVERY_TYPE = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("large", pa.uint64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
    ]
)
ROW = {
    "id": 2**53 + 1,
    "flag": True,
    "small": -128,
    "large": 2**64 - 1,
    "real": math.inf,
    "text": "é\0😀",
    "raw": b"\xff\0",
    "day": datetime.date(1969, 12, 31),
    "moment": datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
}


def rows_of(*ids: int, reading: float = 0.0) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"row {n}", "reading": reading} for n in ids]


def ids_of(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


# ---- what goes in comes out -------------------------------------------------------------------


def test_every_type_comes_back_as_it_was(make: Make) -> None:
    """One row as a dict, the same as Arrow, and one of nulls."""
    table = make(EVERY_TYPE)
    table.upsert(ROW)
    assert table.get(ROW["id"]) == ROW
    table.upsert(pa.Table.from_pylist([{**ROW, "id": n} for n in range(200)], EVERY_TYPE))
    assert table.get(7) == {**ROW, "id": 7}
    table.upsert({"id": -1})
    assert table.get(-1) == {"id": -1, **dict.fromkeys(EVERY_TYPE.names[1:])}
    assert table.get_many([7, -1]).schema == EVERY_TYPE


PLAIN = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("int", pa.int64()),
        ("float", pa.float32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("moment", pa.timestamp("us")),
        ("day", pa.date32()),
    ]
)
NESTED = pa.schema(
    [
        *PLAIN,
        ("amount", pa.decimal128(10, 2)),
        ("list", pa.list_(pa.float32())),
        ("pair", pa.struct([("a", pa.int64())])),
    ]
)
UNFIT: dict[str, list[Any]] = {
    "int": [1.5, True, 2**63, b"1"],
    "float": [1e300, 16777217],
    "text": [b"x", 5],
    "raw": ["x"],
    "moment": [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)],
    "day": [datetime.datetime(2020, 1, 1, 12)],
    "amount": [Decimal("1.005"), 1.5],
    "list": [[1e300], ["x"]],
    "pair": [{"A": 1}, {"a": 1, "b": 2}, {"a": 1.5}],
}


@pytest.mark.parametrize("schema", [PLAIN, NESTED], ids=["plain", "nested"])
def test_a_value_that_does_not_fit_is_refused_whatever_the_number_of_rows(
    make: Make, schema: pa.Schema
) -> None:
    """As one row and among many: by its column, and nothing is written."""
    table = make(schema)
    for name in schema.names[1:]:
        for value in UNFIT[name]:
            for count in (1, 150):
                rows = [{"id": n} for n in range(count)]
                rows[-1][name] = value
                with pytest.raises(InvalidArgument, match=name):
                    table.upsert(rows if count > 1 else rows[0])
    assert table.count() == 0


def test_rows_in_any_form_are_the_same_rows(table: Table) -> None:
    """Dicts, Arrow, pandas, polars."""
    rows = rows_of(1, 2)
    for form in (rows, pa.Table.from_pylist(rows, SCHEMA), pd.DataFrame(rows), pl.DataFrame(rows)):
        table.delete([1, 2])
        table.insert(form)
        assert [table.get(1), table.get(2)] == rows


@pytest.mark.parametrize("count", [1, 50, 3000])
def test_versions_come_in_the_order_of_the_rows(make: Make, count: int) -> None:
    """One for each row of a call, whether it travels as rows or as Arrow; they grow."""
    table = make(partition=hash_partition("id", 3))
    ids = [n * 7919 % 10007 for n in range(count)]
    first = table.upsert(rows_of(*ids))
    found = table.get_many(ids, with_versions=True)
    assert found["id"].to_pylist() == ids
    assert found["_version"].to_pylist() == first.tolist()
    second = table.upsert(rows_of(*ids))
    assert (second > first).all()


def test_many_writes_of_one_call_apply_in_their_order(table: Table) -> None:
    """The last row of a key wins."""
    versions = table.upsert([{"id": 1, "reading": float(n)} for n in range(300)])
    assert table.get(1, with_version=True) == {
        "id": 1,
        "name": None,
        "reading": 299.0,
        "_version": int(versions[-1]),
    }
    assert table.count() == 1


# ---- insert, update, delete -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 300])
def test_an_insert_is_refused_as_a_whole_if_one_row_is_there(table: Table, count: int) -> None:
    """And says which, in which version."""
    (version,) = table.upsert({"id": count, "name": "here"})
    with pytest.raises(RowExists) as caught:
        table.insert(rows_of(*range(1, count + 1)))
    assert caught.value.args == (table.name, str(count), int(version))
    assert table.count() == 1
    assert len(table.insert(rows_of(*range(count + 1, 2 * count + 1)))) == count


@pytest.mark.parametrize("count", [1, 300])
def test_an_update_changes_its_columns_of_rows_that_are_there(table: Table, count: int) -> None:
    """Other columns stay; where one row is missing nothing changes."""
    ids = range(count)
    table.upsert(rows_of(*ids))
    table.update([{"id": n, "reading": 1.5} for n in ids])
    assert table.get(0) == {"id": 0, "name": "row 0", "reading": 1.5}
    with pytest.raises(RowNotFound) as caught:
        table.update([{"id": n, "reading": 2.5} for n in range(1, count + 1)])
    assert caught.value.args == (table.name, str(count))
    assert table.count(where=[("reading", "=", 1.5)]) == count


def test_deleted_rows_are_gone_and_come_back_in_higher_versions(table: Table) -> None:
    """By one key, by many, and where there was none."""
    (first,) = table.upsert({"id": 1})
    (deleted,) = table.delete(1)
    assert table.get(1) is None
    assert deleted > first
    assert table.delete([1, 5, 6]).shape == (3,)
    (again,) = table.insert({"id": 1})
    assert again > deleted
    table.upsert(rows_of(*range(500)))
    table.delete(pa.table({"id": range(0, 500, 2)}))
    assert ids_of(table.scan()) == list(range(1, 500, 2))
    assert table.get_many([1, 2, 3])["id"].to_pylist() == [1, 3]


# ---- conditions -------------------------------------------------------------------------------


def test_a_condition_holds_for_the_version_that_was_read(table: Table) -> None:
    """Upsert, update and delete; 0 is an absent row. The error names both versions."""
    (first,) = table.upsert({"id": 1, "name": "a"}, if_version=0)
    writes: list[Callable[[], object]] = [
        lambda: table.upsert({"id": 1, "name": "b"}, if_version=0),
        lambda: table.upsert({"id": 1, "name": "b"}, if_version=int(first) + 9),
        lambda: table.update({"id": 1, "name": "b"}, if_version=int(first) + 9),
        lambda: table.delete(1, if_version=int(first) + 9),
    ]
    for write in writes:
        with pytest.raises(VersionMismatch) as caught:
            write()
        assert caught.value.args[0] == table.name
        assert caught.value.args[3] == first
    (second,) = table.update({"id": 1, "name": "c"}, if_version=int(first))
    (third,) = table.upsert({"id": 1, "name": "d"}, if_version=second)
    table.delete(1, if_version=third)
    with pytest.raises(VersionMismatch) as caught:
        table.delete(1, if_version=third)
    assert caught.value.args[3] == 0


def test_conditions_of_many_rows_hold_together_or_not_at_all(table: Table) -> None:
    """In Arrow too: one that fails leaves all rows of the tablet as they were."""
    ids = list(range(400))
    versions = table.upsert(rows_of(*ids))
    wrong = versions.copy()
    wrong[399] += 1
    with pytest.raises(VersionMismatch):
        table.upsert(rows_of(*ids, reading=1.0), if_version=wrong)
    assert table.count(where=[("reading", "=", 0.0)]) == 400
    later = table.upsert(rows_of(*ids, reading=1.0), if_version=versions)
    table.delete(ids, if_version=later)
    assert table.count() == 0
    table.upsert(rows_of(*ids), if_version=np.zeros(400, np.uint64))


# ---- reads ------------------------------------------------------------------------------------


def test_reads_choose_columns_filters_and_limits(make: Make) -> None:
    """The same of `get`, `get_many`, `scan` and `count`."""
    table = make(partition=hash_partition("id", 3))
    table.upsert(rows_of(*range(300), reading=1.0))
    table.upsert(rows_of(*range(300, 400), reading=2.0))
    table.update([{"id": n, "name": None} for n in range(10)])
    assert table.get(5, columns=["reading"]) == {"reading": 1.0}
    assert table.get_many([2, 1000, 1, 2], columns=["id"]).to_pylist() == [
        {"id": n} for n in (2, 1, 2)
    ]
    where = [("reading", ">", 1.0), ("id", "<", 310)]
    assert ids_of(table.scan(columns=["id"], where=where)) == list(range(300, 310))
    either = [[("id", "in", [1, 2])], [("name", "=", "row 399")]]
    assert ids_of(table.scan(where=either)) == [1, 2, 399]
    assert table.count(where=[("id", "!=", 7)]) == 399
    assert table.scan(limit=7).num_rows == 7
    assert table.scan(limit=7, where=[("id", ">=", 398)]).num_rows == 2
    assert table.scan(columns=["name"]).column_names == ["name"]
    versions = table.scan(columns=["id"], with_versions=True)
    assert versions.column_names == ["id", "_version"]
    one = table.get(5, with_version=True)
    assert one is not None
    known = dict(zip(*versions.to_pydict().values(), strict=True))
    assert known[5] == one["_version"]
    assert len(table) == 400


def test_reads_that_may_be_old_are_as_new_as_they_say(table: Table) -> None:
    """What was written long before is there; without bound on age, whatever a replica has."""
    table.upsert(rows_of(*range(20)))
    wanted = list(range(20))
    for age in (0.001, 5.0, 60.0):
        found = table.get_many(wanted, max_staleness=age)
        assert found.num_rows in (0, 20)
        assert table.count(max_staleness=age) in (0, 20)
        assert table.get(3, max_staleness=age) in (None, rows_of(3)[0])
    for age in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument):
            table.get(3, max_staleness=age)


def test_a_scan_is_of_one_moment_of_each_tablet(table: Table) -> None:
    """And goes on over many pieces, head and segments alike."""
    table.upsert(pa.table({"id": range(20_000), "name": ["x" * 200] * 20_000}))
    table.upsert(rows_of(*range(100), reading=5.0))
    table.delete(list(range(19_000, 20_000)))
    found = table.scan()
    assert ids_of(found) == list(range(19_000))
    assert found.filter(pa.compute.equal(found["reading"], 5.0)).num_rows == 100


# ---- partitionings ----------------------------------------------------------------------------

PAIR = pa.schema(
    [pa.field("day", pa.date32(), False), pa.field("id", pa.int64(), False), ("v", pa.string())]
)
PARTITIONINGS: dict[str, tuple[Partitioning | None, int]] = {
    "one tablet": (None, 1),
    "hash": (hash_partition("id", 4), 4),
    "hash of all": (hash_partition(["day", "id"], 3), 3),
    "ranges": (range_partition("day", [datetime.date(2020, 2, 1), datetime.date(2020, 3, 1)]), 3),
    "ranges of two": (range_partition(["day", "id"], [(datetime.date(2020, 2, 1), 5)]), 2),
    "both": (
        hash_and_range(
            hash_partition("id", 2), range_partition("day", [datetime.date(2020, 2, 10)])
        ),
        4,
    ),
}


@pytest.mark.parametrize("shape", PARTITIONINGS)
def test_tables_cut_in_any_way_hold_every_row_once(make: Make, db: Database, shape: str) -> None:
    """Writes, reads by key, scans and deletes find the tablet that a key is in."""
    partition, tablets = PARTITIONINGS[shape]
    table = make(PAIR, ["day", "id"], partition)
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=n) for n in range(120)]
    rows = [{"day": day, "id": n, "v": str(n)} for n, day in enumerate(days)]
    table.insert(rows)
    located = db.locate_table(table.name)
    assert [each.tablet.number for each in located] == list(range(tablets))
    assert all(each.address for each in located)
    assert sorted(table.scan().to_pylist(), key=lambda row: row["id"]) == rows
    assert table.get((days[60], 60)) == rows[60]
    assert table.get({"id": 60, "day": days[60]}) == rows[60]
    assert table.get((days[60], 61)) is None
    assert table.get_many([(days[n], n) for n in (100, 3)]).to_pylist() == [rows[100], rows[3]]
    table.delete([(day, n) for n, day in enumerate(days) if n % 2])
    assert table.count() == 60


# ---- what is refused --------------------------------------------------------------------------

REFUSED: dict[str, tuple[type[StelaeError], Any]] = {
    "a column that is none": (ColumnNotFound, lambda t: t.upsert({"id": 1, "nmae": "x"})),
    "a value of another type": (InvalidArgument, lambda t: t.upsert({"id": 1, "reading": "x"})),
    "no key": (InvalidArgument, lambda t: t.upsert({"name": "x"})),
    "a key that is null": (InvalidArgument, lambda t: t.upsert({"id": None})),
    "a null among many": (
        InvalidArgument,
        lambda t: t.upsert(pa.table({"id": pa.array([*range(200), None])})),
    ),
    "a column that is none, in Arrow": (
        ColumnNotFound,
        lambda t: t.upsert(pa.table({"id": range(200), "zz": range(200)})),
    ),
    "one key twice": (InvalidArgument, lambda t: t.insert(rows_of(5, 5))),
    "a key of another type": (InvalidArgument, lambda t: t.get("x")),
    "a key too long": (InvalidArgument, lambda t: t.delete((1, 2))),
    "conditions of another number": (
        InvalidArgument,
        lambda t: t.upsert(rows_of(1, 2), if_version=[1, 2, 3]),
    ),
    "a filter of a column that is none": (
        ColumnNotFound,
        lambda t: t.scan(where=[("zz", "=", 1)]),
    ),
    "a limit below nothing": (InvalidArgument, lambda t: t.scan(columns=[])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_leaves_no_trace(table: Table, what: str) -> None:
    """The error is of its kind, and rows and versions stay as they were."""
    kind, call = REFUSED[what]
    table.upsert(rows_of(1, 2, 3))
    before = table.scan(with_versions=True).sort_by("id")
    with pytest.raises(kind) as caught:
        call(table)
    assert type(caught.value) is kind
    assert table.scan(with_versions=True).sort_by("id").equals(before)
    (version,) = table.upsert({"id": 4})
    assert version == max(before["_version"].to_pylist()) + 1
