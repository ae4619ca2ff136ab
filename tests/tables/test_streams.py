"""Tables as streams: Arrow readers, the C stream, polars; the same through every door."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stelae
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Table
from tests.front.pages import DOCS, Reader
from tests.tables.conftest import SCHEMA, Doors, Make
from tests.until import until

ROWS = 3000


@pytest.fixture
def filled(make: Make) -> Table:
    """Four tablets of rows; every tenth name is null."""
    table = make(partition=hash_partition("id", 4))
    names = [None if n % 10 == 0 else f"n{n % 7}" for n in range(ROWS)]
    readings = [n / 2 for n in range(ROWS)]
    table.upsert(pa.table({"id": range(ROWS), "name": names, "reading": readings}, schema=SCHEMA))
    return table


def pin_count(doors: Doors) -> int:
    return sum(len(server._pins) for server in doors.cluster.tservers)


def test_a_reader_has_every_row_once(doors: Doors, filled: Table) -> None:
    """In the table's schema, which is known before the first row; no pin is left after."""
    reader = filled.scan_batches()
    assert reader.schema == SCHEMA
    assert reader.read_all().sort_by("id") == filled.scan().sort_by("id")
    until(lambda: pin_count(doors) == 0, 20.0, "no pin")


def test_columns_conditions_limits_and_sizes_hold(filled: Table) -> None:
    """``batch_rows`` is the largest batch; a limit is of the whole table; versions come along."""
    reader = filled.scan_batches(
        columns=["id"], where=[("id", "<", 500)], batch_rows=64, with_versions=True
    )
    batches = list(reader)
    assert max(batch.num_rows for batch in batches) <= 64
    found = pa.Table.from_batches(batches)
    assert found.column_names == ["id", "_version"]
    assert sorted(found["id"].to_pylist()) == list(range(500))
    assert filled.scan_batches(limit=1234).read_all().num_rows == 1234
    empty = filled.scan_batches(limit=0, columns=["name"])
    assert empty.schema.names == ["name"]
    assert empty.read_all().num_rows == 0


def test_wrong_arguments_are_refused_before_the_first_row(filled: Table) -> None:
    """By the call itself."""
    for arguments, error in (
        ({"columns": ["nope"]}, ColumnNotFound),
        ({"where": [("nope", "=", 1)]}, ColumnNotFound),
        ({"batch_rows": 0}, InvalidArgument),
        ({"limit": -1}, InvalidArgument),
        ({"where": pc.field("nope") > 1}, InvalidArgument),
        ({"where": pc.field("name") > 1}, InvalidArgument),
        ({"where": pc.field(0) > 1, "columns": ["name"]}, InvalidArgument),
    ):
        with pytest.raises(error):
            filled.scan_batches(**arguments)


def test_a_reader_that_is_dropped_half_read_leaves_no_pin(doors: Doors, filled: Table) -> None:
    """Nor does an async stream that is closed."""
    reader = filled.scan_batches(batch_rows=1, columns=["id"])
    assert reader.read_next_batch().num_rows == 1
    del reader
    until(lambda: pin_count(doors) == 0, 20.0, "no pin")

    async def some() -> int:
        async with await filled.aio.scan_batches(batch_rows=1) as stream:
            assert stream.schema == SCHEMA
            return (await anext(stream)).num_rows

    assert asyncio.run(some()) == 1
    until(lambda: pin_count(doors) == 0, 20.0, "no pin")


def test_an_expression_keeps_the_rows_that_pyarrow_keeps(filled: Table) -> None:
    """Nulls and functions included; columns that only it needs are not handed out."""
    everything = filled.scan()
    for expression in (
        (pc.field("reading") > 3) & (pc.field("id") < 100),
        pc.field("name").is_null() | pc.field("name").isin(["n1", "n2"]),
        ~(pc.field("name") == "n3"),
        pc.starts_with(pc.field("name"), "n"),
    ):
        found = filled.scan_batches(where=expression, columns=["id"]).read_all()
        assert found.column_names == ["id"]
        wanted = everything.filter(expression)["id"].to_pylist()
        assert sorted(found["id"].to_pylist()) == sorted(wanted)
        assert filled.scan_batches(where=expression, limit=5).read_all().num_rows == 5
    with pytest.raises(InvalidArgument, match="scan_batches"):
        filled.scan(where=pc.field("id") > 3)


def test_arrow_and_polars_take_a_table_as_it_is(filled: Table) -> None:
    """By its C stream."""
    assert pa.table(filled).sort_by("id") == filled.scan().sort_by("id")
    assert pl.DataFrame(filled).sort("id").equals(filled.to_polars().sort("id"))
    text = pa.schema([SCHEMA.field("id"), ("name", pa.large_string()), SCHEMA.field("reading")])
    assert pa.table(filled, schema=text).schema == text


def test_a_lazy_frame_is_what_polars_makes_of_all_rows(
    filled: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns and heads reach the servers, conditions are polars's; nothing is read too early."""
    asked: list[dict[str, Any]] = []
    real = Table.scan_batches

    def scan_batches(self: Table, **arguments: Any) -> pa.RecordBatchReader:
        asked.append(arguments)
        return real(self, **arguments)

    monkeypatch.setattr(Table, "scan_batches", scan_batches)
    lazy = filled.scan_polars()
    assert not asked
    whole = filled.to_polars()
    queries: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda f: f.sort("id"),
        lambda f: f.filter(pl.col("reading") > 100).select("id").sort("id"),
        lambda f: f.filter(pl.col("name").is_null()).select(pl.len()),
        lambda f: f.group_by("name").agg(pl.col("reading").sum()).sort("name"),
    ]
    for query in queries:
        assert query(lazy).collect().equals(query(whole.lazy()).collect())
    del asked[:]
    assert lazy.select("id").head(7).collect().shape == (7, 1)
    assert [(each["columns"], each["limit"]) for each in asked] == [(["id"], 7)]
    few = filled.scan_polars(where=[("id", "<", 10)]).select(pl.len()).collect()
    assert few.item() == 10


def test_without_polars_the_error_names_the_extra(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `InvalidArgument`, with the command."""
    real = builtins.__import__

    def no_polars(name: str, *rest: Any, **others: Any) -> Any:
        if name == "polars":
            raise ImportError("No module named 'polars'")
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", no_polars)
    with pytest.raises(InvalidArgument, match=r"stelae\[polars\]"):
        table.to_polars()
    with pytest.raises(InvalidArgument, match=r"stelae\[polars\]"):
        table.scan_polars()


def test_the_page_on_arrow_does_what_it_says(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of it, DuckDB's and DataFusion's included; no pin is left."""
    database = doors.databases["direct"]
    monkeypatch.setattr(stelae, "connect", lambda folder: database)
    reader = Reader(tmp_path)
    try:
        assert reader.follow(DOCS / "how-to" / "arrow.md") > 5
    finally:
        database.delete_table("readings")
    reader.names.clear()
    until(lambda: pin_count(doors) == 0, 20.0, "no pin")
