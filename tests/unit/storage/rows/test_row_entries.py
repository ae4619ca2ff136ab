"""Which entries the rows of a call need, and when a batch needs all of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stelae.core.messages.rows import WriteOp
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.schema import TableSchema
from stelae.storage.rows.row_entries import TableCodecs, new_entries_of_batch

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.string()),
        pa.field("n", pa.int32()),
    ]
)


def _codecs(*columns: str) -> TableCodecs:
    schema = TableSchema.of(SCHEMA, ["id"])
    for column in columns:
        schema = with_index(schema, column, IndexId(column), "t")
    return TableCodecs(schema)


@pytest.mark.parametrize("columns", [("value",), ("n",), ("value", "n"), ("n", "value")])
@pytest.mark.parametrize(
    ("rows", "is_distinct"),
    [
        ([(1, "a", 0), (2, "a", 0)], True),
        ([(1, "a", 0), (1, "b", 1)], False),
        ([(1, "a", 0), (1, None, 0)], False),
        ([(1, "a", 0), (1, "a", 1)], False),
        ([(1, "a", 0), (1, "a", 0)], False),
        ([], True),
    ],
)
def test_a_key_that_is_there_twice_is_seen_by_whatever_index(
    columns: tuple[str, ...], rows: list[tuple[int, str | None, int]], is_distinct: bool
) -> None:
    """Also if its rows have the same entry in one index, which is there only once."""
    ids, values, numbers = [list(column) for column in zip(*rows, strict=True)] or ([], [], [])
    batch = pa.record_batch([ids, values, numbers], schema=SCHEMA)
    many, found = new_entries_of_batch(_codecs(*columns), WriteOp.UPSERT, batch)
    assert found is is_distinct
    assert len(many) == len(columns)
