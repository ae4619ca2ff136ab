"""Keys, columns, filters and limits in whatever container people have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stelae.core.errors import InvalidArgument, StelaeError
from stelae.database.api import Table
from tests.tables.conftest import Make

KEYS: list[Any] = [
    [1, 2],
    (1, 2),
    {1, 2},
    range(1, 3),
    np.array([1, 2]),
    pd.Series([1, 2]),
    pd.Index([1, 2]),
    pl.Series([1, 2]),
    pa.array([1, 2]),
    pa.chunked_array([[1], [2]]),
    pd.DataFrame({"id": [1, 2]}),
    [{"id": 1}, {"id": np.int64(2)}],
]


def test_keys_columns_and_lists_come_in_any_container(table: Table) -> None:
    """One rule for all: what can be read is read, and found the same."""
    table.upsert([{"id": n, "name": f"n{n}", "reading": None} for n in range(1, 6)])
    for keys in KEYS:
        assert table.get_many(keys)["id"].to_pylist() == [1, 2], type(keys)
        if not isinstance(keys, list | pd.DataFrame):
            where = [("id", "in", keys)]
            assert table.scan(where=where, columns=["id"])["id"].to_pylist() == [1, 2], type(keys)
    containers: list[Any] = [["id"], ("id",), np.array(["id"]), pd.Index(["id"]), pl.Series(["id"])]
    limit: Any = np.int64(2)
    for columns in containers:
        assert table.scan(columns=columns, limit=limit).column_names == ["id"]
    many = list(range(1, 200))
    assert table.get_many(many)["id"].to_pylist() == [1, 2, 3, 4, 5]
    for keys in (np.array([1]), pd.Series([2]), pa.array([3]), pl.Series([4]), [5], 6):
        table.delete(keys)
    assert table.count() == 0


def test_nulls_are_found_by_name(table: Table) -> None:
    """Nothing equals null, so there are words for it."""
    table.upsert([{"id": 1, "name": None}, {"id": 2, "name": "b"}])
    assert table.scan(where=[("name", "is null")])["id"].to_pylist() == [1]
    assert table.scan(where=[("name", "is not null", None)])["id"].to_pylist() == [2]
    either: Any = [[("name", "is null")], [("id", ">", 1)]]
    assert table.count(where=either) == 2
    for where in ([("name", "=", None)], [("name", "is null", 3)]):
        with pytest.raises(InvalidArgument, match="null"):
            table.scan(where=where)


def test_what_cannot_be_read_is_an_invalid_argument(table: Table) -> None:
    """With what to give in its place, and never an error of Python, pandas or Arrow."""
    table.upsert({"id": 1, "name": "a"})
    number: Any = 3
    half: Any = 1.5
    calls: list[Any] = [
        lambda: table.scan(where=pc.field("id") > 3),
        lambda: table.scan(columns="id"),
        lambda: table.scan(columns=[]),
        lambda: table.scan(columns=["id", "id"]),
        lambda: table.scan(columns=[number]),
        lambda: table.scan(limit=True),
        lambda: table.scan(limit=-1),
        lambda: table.scan(limit=half),
        lambda: table.get_many(1),
        lambda: table.get_many([1, None]),
        lambda: table.get_many([*range(100), None]),
        lambda: table.get_many([*range(100), "x"]),
        lambda: table.get_many([*range(100), True]),
        lambda: table.delete(iter([1])),
        lambda: table.delete(pd.Series([{"a": 1}, 2])),
        lambda: table.upsert(pd.Series({"id": 1})),
        lambda: table.upsert(pa.array([1])),
        lambda: table.upsert({"id": n} for n in range(3)),
    ]
    for place, call in enumerate(calls):
        with pytest.raises(StelaeError) as caught:
            call()
        assert caught.value.args, place
    assert table.count() == 1


def test_a_number_of_tablets_alone_is_no_partition(make: Make) -> None:
    """The refusal says what to write in its place."""
    four: Any = 4
    with pytest.raises(InvalidArgument, match=r"hash_partition\('id', buckets=4\)"):
        make(partition=four)
