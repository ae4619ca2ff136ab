"""Scans: one point of the log, nothing copied where nothing died, filters as pyarrow has them."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.actors.tserver.tablet.rows_then import RowsThen
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.ids import TabletId
from stelae.core.messages.rows import Scan, WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.rows.filters import OPERATORS, Filter
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image

SCHEMA = TableSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("name", pa.string()),
            pa.field("x", pa.float64()),
            pa.field("day", pa.date32()),
            pa.field("ok", pa.bool_()),
        ]
    ),
    ["id"],
)


def rows_of(*ids: int, name: str = "n") -> list[tuple[Any, ...]]:
    return [(i, name, i / 2, i, i % 2 == 0) for i in ids]


def fresh() -> TabletMemory:
    tablet = TabletMemory(SCHEMA, "table")
    tablet.new_head(1)
    return tablet


def seal(tablet: TabletMemory, slot: int) -> None:
    tablet.install_sealed(slot, Image.open(tablet.seal(slot, "t", "t", 1), "image"))


def ids_in(snapshot: Any, **options: Any) -> list[int]:
    return [i for batch in snapshot.batches(**options) for i in batch.column("id").to_pylist()]


def test_a_scan_sees_one_point_of_the_log() -> None:
    """Writes, deletes, rolls and sealings after the snapshot change nothing in it."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_of(1, 2, 3), None, 1)
    tablet.execute(WriteOp.UPSERT, rows_to_batch(rows_of(3, 4, 5), SCHEMA.arrow), None, 2)
    tablet.new_head(2)
    seal(tablet, 0)
    tablet.execute(WriteOp.UPSERT, rows_of(6, 1), None, 3)
    snapshots = [tablet.scan_snapshot()]
    tablet.execute(WriteOp.DELETE, [(2,), (6,)], None, 4)
    snapshots.append(tablet.scan_snapshot())
    tablet.execute(WriteOp.UPSERT, rows_of(2, 4, 9, name="later"), None, 5)
    tablet.new_head(3)
    snapshots.append(tablet.scan_snapshot())
    tablet.execute(WriteOp.DELETE, rows_to_batch([(9,), (4,), (5,)], SCHEMA.key_schema), None, 6)
    seal(tablet, 1)
    expected = [[1, 2, 3, 4, 5, 6], [1, 3, 4, 5], [1, 2, 3, 4, 5, 9]]
    for _ in range(2):
        assert [sorted(ids_in(snapshot)) for snapshot in snapshots] == expected
        assert [snapshot.row_count for snapshot in snapshots] == [6, 4, 6]
        assert [snapshot.index for snapshot in snapshots] == [3, 4, 5]
    assert sorted(ids_in(tablet.scan_snapshot())) == [1, 2, 3]


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 50])
def test_shares_of_a_snapshot_are_the_snapshot_in_order(shares: int) -> None:
    """Each row is in just one of them, and none is much more than its part."""
    tablet = fresh()
    for n in range(20):
        rows = rows_to_batch(rows_of(*range(10 * n, 10 * n + 10)), SCHEMA.arrow)
        tablet.execute(WriteOp.UPSERT, rows, None, n + 1)
        tablet.new_head(n + 2)
        seal(tablet, n)
    tablet.execute(WriteOp.DELETE, [(3,), (77,)], None, 21)
    whole = tablet.scan_snapshot()
    parts = [whole.share(n, shares) for n in range(shares)]
    assert [i for part in parts for i in ids_in(part)] == ids_in(whole)
    assert sum(part.row_count for part in parts) == whole.row_count == 198
    assert max(part.row_count for part in parts) <= 200 / shares + 10
    assert ids_in(fresh().scan_snapshot().share(0, shares)) == []
    with pytest.raises(InvalidArgument, match="count from 0"):
        whole.share(shares, shares)


def test_a_sealed_segment_without_dead_rows_is_not_copied() -> None:
    """Its batch's buffers are the image's; once a row died, its rows are filtered."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_to_batch(rows_of(*range(1000)), SCHEMA.arrow), None, 1)
    tablet.new_head(2)
    image = Image.open(tablet.seal(0, "t", "t", 1), "image")
    tablet.install_sealed(0, image)
    (batch,) = tablet.scan_snapshot().batches(columns=["x", "id"])
    low, high = image.buffer.address, image.buffer.address + image.buffer.size
    assert all(low <= column.buffers()[1].address < high for column in batch.columns)
    tablet.execute(WriteOp.DELETE, [(5,)], None, 2)
    (batch,) = tablet.scan_snapshot().batches()
    assert batch.num_rows == 999
    assert batch.schema.equals(SCHEMA.arrow)


def test_a_growing_head_is_converted_once() -> None:
    """A second scan gives the very buffers of the first for rows that were converted then."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_of(*range(64)), None, 1)
    (first,) = tablet.scan_snapshot().batches()
    tablet.execute(WriteOp.UPSERT, rows_of(100), None, 2)
    second = list(tablet.scan_snapshot().batches())
    assert second[0].column("x").buffers()[1].address == first.column("x").buffers()[1].address
    for i in range(101, 200):
        tablet.execute(WriteOp.UPSERT, rows_of(i), None, i)
        batches = list(tablet.scan_snapshot().batches())
        assert sum(batch.num_rows for batch in batches) == 64 + i - 99
        assert len(batches) <= 8


def test_limit_and_versions() -> None:
    """A limit counts kept rows over all segments; versions come when asked for."""
    tablet = fresh()
    for i in range(5):
        tablet.execute(WriteOp.UPSERT, rows_of(i, i + 10), None, i + 1)
        tablet.new_head(i + 2)
    snapshot = tablet.scan_snapshot()
    assert len(ids_in(snapshot, limit=3)) == 3
    assert sorted(ids_in(snapshot, limit=99)) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert ids_in(snapshot, where=[[("id", ">", 11)]], limit=2) == [12, 13]
    batch = next(snapshot.batches(columns=["x"], with_versions=True))
    assert batch.schema.names == ["x", "_version"]
    assert batch.column("_version").to_pylist() == [1, 2]


def test_unknown_columns_and_wrong_filters_are_refused_at_the_call() -> None:
    """The refusal names column, operator, value and type, before any row is read."""
    snapshot = fresh().scan_snapshot()
    with pytest.raises(ColumnNotFound):
        snapshot.batches(columns=["nosuch"])
    with pytest.raises(ColumnNotFound):
        snapshot.batches(where=[[("nosuch", "=", 1)]])
    refused: list[tuple[Any, list[str]]] = [
        (("id", "=", "abc"), ["id", "int64", "abc"]),
        (("id", "in", [1, "abc"]), ["id", "int64", "abc"]),
        (("name", "<", 5), ["name", "string", "5"]),
        (("day", "=", "yesterday"), ["day", "yesterday"]),
        (("id", "in", 5), ["id", "list"]),
        (("name", "in", "abc"), ["name", "list"]),
        (("id", "like", 5), ["like"]),
        (("id", "="), ["id"]),
    ]
    for predicate, words in refused:
        with pytest.raises(InvalidArgument) as caught:
            snapshot.batches(where=[[predicate]])
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(InvalidArgument, match="empty list"):
        snapshot.batches(where=[[]])
    with pytest.raises(InvalidArgument, match="1000 predicates"):
        snapshot.batches(where=[[("id", "=", 1)] * 1001])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-3, 3),
    "name": st.sampled_from(["", "a", "b", "ä"]),
    "x": st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "day": st.integers(0, 3).map(lambda d: datetime.date(1970, 1, 1 + d)),
    "ok": st.booleans(),
}


@st.composite
def predicates(draw: st.DrawFn) -> tuple[str, str, Any]:
    column = draw(st.sampled_from(list(VALUES)))
    op = draw(st.sampled_from(OPERATORS))
    if op.endswith("in"):
        return column, op, draw(st.lists(VALUES[column], min_size=1, max_size=3))
    return column, op, draw(VALUES[column])


ROWS = st.lists(
    st.tuples(*[VALUES["id"], *(st.none() | VALUES[n] for n in ("name", "x", "day", "ok"))]),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(
    where=st.lists(st.lists(predicates(), min_size=1, max_size=3), min_size=1, max_size=3),
    rows=ROWS,
)
def test_filters_keep_what_pyarrow_keeps(where: list[list[Any]], rows: list[Any]) -> None:
    """On any rows, nulls and NaN included, a where keeps what pyarrow's filters keep."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(SCHEMA.arrow)],
        schema=SCHEMA.arrow,
    )
    kept = batch.filter(Filter(where, SCHEMA, "table").mask(batch))
    table = pa.Table.from_batches([batch])
    expected = table.filter(pq.filters_to_expression(where))
    assert repr(pa.Table.from_batches([kept]).to_pylist()) == repr(expected.to_pylist())


def test_an_empty_list_holds_nothing() -> None:
    """``in []`` keeps no row and ``not in []`` every one (pyarrow itself fails on either)."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, [*rows_of(1, 2), (3, None, None, None, None)], None, 1)
    snapshot = tablet.scan_snapshot()
    assert ids_in(snapshot, where=[[("name", "in", [])]]) == []
    assert ids_in(snapshot, where=[[("name", "not in", [])]]) == [1, 2, 3]


def test_long_lists_hold_what_short_ones_do() -> None:
    """Lists far longer than a batch take another way: the same rows, nulls as in pyarrow."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, [*rows_of(*range(20)), (99, None, None, None, None)], None, 1)
    snapshot = tablet.scan_snapshot()
    ids, days = list(range(5, 5000)), list(range(3, 3000))
    assert ids_in(snapshot, where=[[("id", "in", ids)]]) == [*range(5, 20), 99]
    assert ids_in(snapshot, where=[[("id", "not in", ids)]]) == [0, 1, 2, 3, 4]
    assert ids_in(snapshot, where=[[("day", "in", days)]]) == list(range(3, 20))
    assert ids_in(snapshot, where=[[("day", "not in", days)]]) == [0, 1, 2, 99]
    names = [f"no {n}" for n in range(1000)]
    assert ids_in(snapshot, where=[[("name", "in", [*names, None])]]) == [99]
    assert ids_in(snapshot, where=[[("name", "not in", names)]]) == [*range(20), 99]


def test_alternatives_of_one_column_are_one_list_of_any_length() -> None:
    """``id = 1 or id = 2 or …`` costs what a list costs; other alternatives are bounded."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_of(*range(10)), None, 1)
    snapshot = tablet.scan_snapshot()
    many = [[("id", "=", n)] for n in range(7, 5000)]
    assert ids_in(snapshot, where=[*many, [("day", "==", 2)], [("id", "<", 1)]]) == [0, 2, 7, 8, 9]
    assert ids_in(snapshot, where=[[("x", "=", n + 0.5)] for n in range(2, 4)]) == [5, 7]
    with pytest.raises(InvalidArgument, match="one list"):
        snapshot.batches(where=[[("id", "<", n)] for n in range(1001)])


def test_the_values_of_a_filter_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lists and predicates count; the refusal names the way out."""
    monkeypatch.setattr("stelae.storage.rows.filters.MAX_VALUES", 10)
    snapshot = fresh().scan_snapshot()
    snapshot.batches(where=[[("id", "in", list(range(9)))]])
    one_list: Any = [[("id", "in", list(range(10)))]]
    two_lists: Any = [[("id", "in", [1] * 5)], [("x", "in", [1.0] * 5)]]
    for where in (one_list, two_lists):
        with pytest.raises(InvalidArgument, match="get_many"):
            snapshot.batches(where=where)


def test_a_long_filter_is_compiled_off_the_event_loop() -> None:
    """A list of a million values once held a server's loop until the server was given up."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_of(*range(10)), None, 1)
    rows = RowsThen(tablet.scan_snapshot(), SCHEMA, None, "table", 11, 100)
    threads: list[int] = []

    class Threads:
        async def offload(self, fn: Any, *args: Any) -> Any:
            def noted() -> Any:
                threads.append(threading.get_ident())
                return fn(*args)

            return await asyncio.to_thread(noted)

    runtime: Any = Threads()
    for count in (3, 100_000):
        where = ((("id", "in", tuple(range(8, 8 + count))),),)
        _, batches = asyncio.run(rows.open(Scan(TabletId("t"), where=where), runtime))
        assert [row for batch in batches for row in batch["id"].to_pylist()] == [8, 9]
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_filters_take_wire_values() -> None:
    """A date may be given as its wire value, the number of days."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, rows_of(*range(10)), None, 1)
    snapshot = tablet.scan_snapshot()
    assert ids_in(snapshot, where=[[("day", ">=", 8)]]) == [8, 9]
    assert ids_in(snapshot, where=[[("day", "in", [1, datetime.date(1970, 1, 3)])]]) == [1, 2]
    assert ids_in(snapshot, where=[[("id", "<", 3), ("ok", "=", True)], [("x", "=", 4.5)]]) == [
        0,
        2,
        9,
    ]


def test_get_many_reads_across_segments_in_the_order_of_the_keys() -> None:
    """Keys spread over sealed segments, bulk and small rows of the head come back in order."""
    tablet = fresh()
    for slot in range(4):
        ids = range(slot * 100, slot * 100 + 100)
        tablet.execute(WriteOp.UPSERT, rows_to_batch(rows_of(*ids), SCHEMA.arrow), None, slot + 1)
        tablet.new_head(slot + 2)
        seal(tablet, slot)
    tablet.execute(WriteOp.UPSERT, rows_of(7, 5, name="new"), None, 9)
    tablet.execute(WriteOp.UPSERT, rows_to_batch(rows_of(6, name="bulk"), SCHEMA.arrow), None, 10)
    rng = np.random.default_rng(5)
    keys = rng.integers(-50, 450, 1000)
    keys[:3] = (7, 6, 5)
    batch, at, index = tablet.get_many(pa.record_batch({"id": keys}), ["name", "id"])
    assert batch.schema.names == ["name", "id", "_version"]
    assert np.array_equal(batch.column("id").to_numpy(), keys[at])
    assert np.array_equal(at, np.flatnonzero((keys >= 0) & (keys < 400)))
    assert batch.column("name").to_pylist()[:3] == ["new", "bulk", "new"]
    assert batch.column("_version").to_pylist()[:3] == [401, 403, 402]
    assert index == 10
    empty, none, _ = tablet.get_many(pa.record_batch({"id": pa.array([], pa.int64())}))
    assert (empty.num_rows, len(none)) == (0, 0)
    assert empty.schema.names == [*SCHEMA.arrow.names, "_version"]
