"""Expressions of pyarrow as filters: which are refused, and tables that are altered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stelae.client.table.matching import Matching
from stelae.client.table.streams import Piece, open_stream
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.ids import TableId
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

ROWS = pa.table(
    {"id": [1, 2, 3], "a": [10, 0, 0], "b": [0, 10, 0], "c": [0, 0, 10]},
    schema=pa.schema(
        [pa.field("id", pa.int64(), False), *[(name, pa.int64()) for name in ("a", "b", "c")]]
    ),
)
RECORD = TableRecord(
    TableId("T"),
    "t",
    TableSchema.of(ROWS.schema, ["id"]),
    Partitioning(),
    segments("disk"),
    TableState.RUNNING,
)


def matching(expression: pc.Expression, columns: Sequence[str] | None = None) -> Matching:
    return Matching(expression, RECORD, columns, False)


def found(made: Matching, rows: pa.Table = ROWS) -> pa.Table:
    """Return what ``made`` finds. ``rows``: of the table as it is when the stream is opened."""

    async def pieces() -> AsyncGenerator[Piece, None]:
        read = rows.select(list(made.columns or rows.column_names))
        yield [pa.RecordBatch.from_pylist([], schema=read.schema)]
        yield read.to_batches()

    async def run() -> pa.Table:
        stream = await open_stream(made.pieces(await open_stream(pieces()), None))
        batches = [batch async for batch in stream]
        return pa.Table.from_batches(batches, schema=stream.schema)

    return asyncio.run(run())


@pytest.mark.parametrize("columns", [None, ["b"], ["id", "c"]])
@pytest.mark.parametrize(
    "expression",
    [
        pc.field(1) > 5,
        pc.field(0).is_null(),
        (pc.field("a") > 5) & ~pc.field(2).isin([1, 2]),
        pc.field(1).cast(pa.int32()) > 5,
        pc.field((1,)) > 5,
        pc.field("a", 0) > 5,
    ],
    ids=str,
)
def test_a_column_given_by_position_is_refused(
    expression: pc.Expression, columns: list[str] | None
) -> None:
    """Only some columns are read, so that the position would be another column's."""
    with pytest.raises(InvalidArgument, match="position; name each column"):
        matching(expression, columns)


@pytest.mark.parametrize("columns", [["id"], ["id", "c"], ["c", "id"], ["id", "a", "b", "c"]])
def test_a_column_given_by_name_is_the_same_whatever_is_read(columns: list[str]) -> None:
    """The columns come as they were asked for."""
    rows = found(matching(pc.field("b") > 5, columns))
    assert rows.column_names == columns
    assert rows["id"].to_pylist() == [2]


def test_a_needed_column_that_is_gone_meanwhile_is_named() -> None:
    """By `ColumnNotFound`, before the first row: renamed or dropped, handed out or not."""
    renamed = ROWS.rename_columns(["id", "x", "b", "c"])
    for rows in (renamed, ROWS.drop_columns(["a"])):
        with pytest.raises(ColumnNotFound, match="no column 'a'"):
            found(matching(pc.field("a") > 5), rows)
    text = ROWS.set_column(1, "a", pa.array(["", "", ""]))
    with pytest.raises(InvalidArgument, match="on table 't'"):
        found(matching(pc.field("a") > 5), text)


def test_all_columns_are_those_of_the_table_as_it_is_read() -> None:
    """One that the expression does not need may be dropped, renamed or added meanwhile."""
    rows = found(matching(pc.field("b") > 5), ROWS.drop_columns(["c"]))
    assert rows.to_pydict() == {"id": [2], "a": [0], "b": [10]}
    rows = found(matching(pc.field("b") > 5), ROWS.rename_columns(["id", "a", "b", "x"]))
    assert rows.to_pydict() == {"id": [2], "a": [0], "b": [10], "x": [0]}
    rows = found(matching(pc.field("b") > 5), ROWS.append_column("d", pa.array([7, 8, 9])))
    assert rows.to_pydict() == {"id": [2], "a": [0], "b": [10], "c": [0], "d": [8]}
