"""Single rows over HTTP from the caller's thread: the same values as by every other way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import ColumnNotFound, InvalidArgument, TableNotFound, Unauthorized
from stelae.database.api import Database
from stelae.database.origins import HttpOrigin
from tests.front.doors import Doors, doors

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("u", pa.uint64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("raw", pa.binary()),
    ]
)
KEY = ["id", "name"]
ROWS: list[dict[str, Any]] = [
    {"id": 2**63 - 1, "name": "plain", "u": 2**64 - 1, "x": 0.1, "f": 0.1, "b": True, "raw": b""},
    {"id": -(2**63), "name": "..", "u": 0, "x": -0.0, "f": 1.5, "b": False, "raw": b"\x00\xff"},
    {"id": 0, "name": "a/b,c&d=e%2F ?#", "u": 1, "x": math.inf, "f": -math.inf, "b": None},
    {"id": 1, "name": "ä–𝄞\n", "u": None, "x": 5e-324, "f": None, "b": None, "raw": None},
    {"id": 2, "name": "", "u": 3, "x": 1e308, "f": 2.0, "b": True, "raw": b"x"},
    {"id": 3, "name": "n" * 2000, "u": 3, "x": 1.0, "f": 2.0, "b": True, "raw": b"x"},
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors(tmp_path_factory.mktemp("direct"), tservers=2) as made:
        yield made


@pytest.fixture(scope="module")
def database(here: Doors) -> Iterator[Database]:
    with Database.open(here.http, "direct") as made:
        yield made


def direct_calls(database: Database) -> list[str]:
    """From now on, the paths that are asked for from the caller's thread and are answered."""
    transport: Any = database._database._transport  # type: ignore[attr-defined]
    asked: list[str] = []
    before = transport._direct.get

    def get(path: str, *arguments: Any) -> Any:
        answer = before(path, *arguments)
        if answer is not None:
            asked.append(path)
        return answer

    transport._direct.get = get
    return asked


def test_a_row_is_the_same_as_over_the_loop(database: Database) -> None:
    """Whatever its key and its values are; and each of the usual ones is one GET."""
    table = database.create_table("same", SCHEMA, key=KEY)
    table.upsert([{**dict.fromkeys(SCHEMA.names), **row} for row in ROWS])
    asked = direct_calls(database)
    for row in ROWS:
        key = (row["id"], row["name"])
        several: list[dict[str, Any]] = [{}, {"columns": ["x", "id"]}, {"with_version": True}]
        for options in several:
            found = table.get(key, **options)
            over_loop = database._loop.run(table._table.get(key, **options))
            assert found == over_loop
            assert found is not None
            assert over_loop is not None
            assert list(found) == list(over_loop)
            assert [type(value) for value in found.values()] == [
                type(value) for value in over_loop.values()
            ]
    assert len(asked) == 3 * 4  # not for an empty string, nor for a long one
    assert table.get((7, "none")) is None
    assert len(asked) == 13
    nan = {"id": 9, "name": "nan", "x": math.nan}
    table.upsert({**dict.fromkeys(SCHEMA.names), **nan})
    assert math.isnan(table.get((9, "nan"))["x"])  # type: ignore[index]


def test_a_table_of_other_types_is_read_over_the_loop(database: Database) -> None:
    """Times and decimals have more than one form in Python."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("t", pa.timestamp("us"))])
    table = database.create_table("other", schema, key="id")
    table.upsert(pa.table({"id": [1], "t": pa.array([5], pa.timestamp("us"))}))
    asked = direct_calls(database)
    assert table.get(1)["t"].microsecond == 5  # type: ignore[index]
    assert asked == []


def test_what_is_wrong_is_told_in_the_same_words(here: Doors, database: Database) -> None:
    """Keys, columns, tokens, and a table that is gone."""
    table = database.create_table("wrong", SCHEMA, key=KEY)
    for options, kind in (
        ({"key": (1,)}, InvalidArgument),
        ({"key": ("1", "a")}, InvalidArgument),
        ({"key": (1, "a"), "columns": ["nothing"]}, ColumnNotFound),
    ):
        with pytest.raises(kind) as caught:
            table.get(**options)
        with pytest.raises(kind) as expected:
            database._loop.run(table._table.get(**options))
        assert str(caught.value) == str(expected.value)
    with Database.open(HttpOrigin(here.http.url, "wrong"), "direct") as stranger:
        foreign = stranger._connection.wrapped(table._table)
        assert foreign is not None
        with pytest.raises(Unauthorized):
            stranger.table("wrong")
    database.delete_table("wrong")
    with pytest.raises(TableNotFound):
        table.get((1, "a"))


def test_an_alter_is_noticed(here: Doors, database: Database) -> None:
    """Made by another client: this one goes on with the columns that it knows, as over the loop."""
    table = database.create_table("altered", SCHEMA, key=KEY)
    table.upsert({**dict.fromkeys(SCHEMA.names), **ROWS[0]})
    with Database.open(here.tcp, "direct") as other:
        other.table("altered").alter(add_columns={"seats": pa.int16()}, defaults={"seats": 180})
    key = (ROWS[0]["id"], "plain")
    assert table.get(key) == database._loop.run(table._table.get(key))


def test_threads_share_connections(database: Database) -> None:
    """Each call has one for itself; what was kept is used again."""
    table = database.create_table("shared", SCHEMA, key=KEY)
    blank = dict.fromkeys(SCHEMA.names)
    table.upsert([{**blank, "id": n, "name": "n", "u": n} for n in range(200)])

    def read(number: int) -> int:
        row = table.get((number, "n"))
        assert row is not None
        return int(row["u"])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(200))) == list(range(200))
    transport: Any = database._database._transport  # type: ignore[attr-defined]
    assert 1 <= len(transport._direct._idle) <= 16
