"""What a tablet refuses, which types it takes, what readers are told, what it weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stelae.core.errors import (
    ColumnNotFound,
    CorruptData,
    InvalidArgument,
    RowExists,
    RowNotFound,
    TooLarge,
    VersionMismatch,
)
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    encode_prologue,
)
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.rows.memory import Executed, TabletMemory, group_payload
from stelae.storage.segments.image import Image
from stelae.storage.segments.recovered import RecoveredSegment
from tests.unit.storage.rows.tablet_model import (
    INT_KEY,
    WIDE_KEY,
    World,
    batch_of,
    make_key,
    make_row,
    state_of,
)


def fresh(schema: TableSchema = INT_KEY) -> TabletMemory:
    tablet = TabletMemory(schema, "table")
    tablet.new_head(1)
    return tablet


def test_errors_name_table_key_and_versions() -> None:
    """The refusals carry what their messages promise, on both paths."""
    tablet = fresh(WIDE_KEY)
    row = ("n", "town", 1.5, None, 7)
    names = WIDE_KEY.arrow.names
    tablet.execute(WriteOp.INSERT, [row], None, 1)
    text = "(7, 'town')"
    for data in ([row], batch_of(WIDE_KEY, [row], names)):
        with pytest.raises(RowExists) as exists:
            tablet.execute(WriteOp.INSERT, data, None, 2)
        assert exists.value.args == ("table", text, 1)
        with pytest.raises(VersionMismatch) as mismatch:
            tablet.execute(WriteOp.UPSERT, data, [3], 2)
        assert mismatch.value.args == ("table", text, 3, 1)
    other = ("n", "village", 1.5, None, 7)
    for data in ([other], batch_of(WIDE_KEY, [other], names)):
        with pytest.raises(RowNotFound) as absent:
            tablet.execute(WriteOp.UPDATE, data, None, 2)
        assert absent.value.args == ("table", "(7, 'village')")
        with pytest.raises(VersionMismatch) as mismatch:
            tablet.execute(WriteOp.UPDATE, data, [9], 2)
        assert mismatch.value.args == ("table", "(7, 'village')", 9, 0)
    for data in ([other, other], batch_of(WIDE_KEY, [other, other], names)):
        with pytest.raises(InvalidArgument, match=r"\(7, 'village'\) is given twice"):
            tablet.execute(WriteOp.INSERT, data, None, 2)
    assert (tablet.row_count, tablet.next_version) == (1, 2)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("a", "5", 1.0, None), r"row 0, column 'id' \(int64\)"),
        (("a", 5, None, None), r"row 0, column 'x' \(double\)"),
        (("a", 1 << 63, 1.0, None), r"column 'id'"),
        (("a", 5, 1.0, 1 << 31), r"column 'day'"),
        (("a", None, 1.0, None), r"column 'id'"),
        ((b"a", 5, 1.0, None), r"column 'name'"),
        (("a", True, 1.0, None), r"column 'id'"),
        (("a", 5, 1.0), r"row 0"),
        ("abcd", r"row 0"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_name(row: Any, words: str) -> None:
    """A wrong type, range, null or length is refused before anything is done."""
    tablet = fresh()
    with pytest.raises(InvalidArgument, match=words):
        tablet.execute(WriteOp.UPSERT, [row], None, 1)
    assert tablet.next_version == 1


def test_columns_are_checked() -> None:
    """Unknown, repeated and missing columns are refused."""
    tablet = fresh()
    with pytest.raises(ColumnNotFound):
        tablet.execute(WriteOp.UPSERT, [(1, 2)], None, 1, ["id", "nosuch"])
    with pytest.raises(InvalidArgument, match="at most once"):
        tablet.execute(WriteOp.UPSERT, [(1, 2)], None, 1, ["id", "id"])
    with pytest.raises(InvalidArgument, match="'id' is left out"):
        tablet.execute(WriteOp.UPDATE, [("a",)], None, 1, ["name"])
    with pytest.raises(InvalidArgument, match="'x' may not be null"):
        tablet.execute(WriteOp.UPSERT, [(1,)], None, 1, ["id"])
    with pytest.raises(InvalidArgument, match="a delete takes the key"):
        tablet.execute(WriteOp.DELETE, [(1, 2.0)], None, 1, ["id", "x"])
    with pytest.raises(InvalidArgument, match="2 if_versions for 1 rows"):
        tablet.execute(WriteOp.DELETE, [(1,)], [1, 2], 1)
    with pytest.raises(ColumnNotFound):
        tablet.get_many(rows_to_batch([(1,)], INT_KEY.key_schema), ["nosuch"])


def test_a_row_over_the_limit_is_refused() -> None:
    """One row takes at most a mebibyte."""
    tablet = fresh()
    with pytest.raises(TooLarge, match="row"):
        tablet.execute(WriteOp.UPSERT, [("a" * (1 << 20) + "b", 1, 1.0, None)], None, 1)


def test_every_plain_type_comes_back_from_head_and_image() -> None:
    """A row of every plain type reads the same from tuples, bulk batches and images."""
    kinds = [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.bool_(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.date64(),
        pa.timestamp("s"),
        pa.timestamp("ns", tz="UTC"),
    ]
    names = [f"c{i}" for i in range(len(kinds))]
    schema = TableSchema.of(
        pa.schema([pa.field("id", pa.string()), *map(pa.field, names, kinds)]), ["id"]
    )
    one = (
        -7,
        -300,
        1 << 30,
        -(1 << 40),
        200,
        60000,
        1 << 31,
        (1 << 64) - 1,
        True,
        0.5,
        1.25,
        "häß",
        b"\0\xff",
        19000,
        86400000,
        1 << 40,
        1 << 60,
    )
    zero = tuple(type(value)() for value in one)
    rows = [("a", *one), ("b", *zero), ("c", *([None] * len(one))), ("d", *one)]
    sliced = rows_to_batch([rows[0]] * 3 + rows, schema.arrow).slice(3)
    for data in (rows, rows_to_batch(rows, schema.arrow), sliced):
        tablet = fresh(schema)
        tablet.execute(WriteOp.UPSERT, data, None, 1)
        tablet.new_head(2)
        read = [tablet.get((row[0],)) for row in rows]
        image = Image.open(tablet.seal(0, "t", "t", 1), "x")
        tablet.install_sealed(0, image)
        sealed = [tablet.get((row[0],)) for row in rows]
        assert [f.row for f in read if f] == [f.row for f in sealed if f] == rows


def test_types_beyond_the_plain_ones_travel_as_batches() -> None:
    """Lists, structs and decimals are written, filled in by update, sealed and read as Arrow."""
    arrow = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("price", pa.decimal128(10, 2)),
        ]
    )
    schema = TableSchema.of(arrow, ["id"])
    tablet = fresh(schema)
    data = pa.RecordBatch.from_pylist(
        [{"id": i, "tags": ["a"] * i, "price": None} for i in range(5)], schema=schema.arrow
    )
    tablet.execute(WriteOp.INSERT, data, None, 1)
    tablet.new_head(2)
    tablet.install_sealed(0, Image.open(tablet.seal(0, "t", "t", 1), "x"))
    prices = pa.array([3, 1], pa.decimal128(10, 2))
    tablet.execute(
        WriteOp.UPDATE, pa.record_batch({"id": pa.array([3, 1]), "price": prices}), None, 2
    )
    rows, at, _ = tablet.get_many(pa.record_batch({"id": pa.array([1, 9, 3, 0])}))
    assert at.tolist() == [0, 2, 3]
    assert rows.column("tags").to_pylist() == [["a"], ["a", "a", "a"], []]
    assert [str(p) for p in rows.column("price").to_pylist()] == ["1.00", "3.00", "None"]
    with pytest.raises(InvalidArgument, match="travels as Arrow only"):
        tablet.execute(WriteOp.UPSERT, [(1, ["a"], None)], None, 3)


def test_readers_are_told_which_index_to_wait_for() -> None:
    """A row names its own entry, absence the newest delete, a sealed row nothing."""
    tablet = fresh()
    tablet.execute(WriteOp.UPSERT, [("a", 1, 1.0, None)], None, 3)
    tablet.execute(WriteOp.UPSERT, [("a", 2, 1.0, None), ("a", 3, 1.0, None)], None, 4)
    tablet.execute(WriteOp.DELETE, [(3,)], None, 6)
    indexes = [found.index if (found := tablet.get((i,))) else None for i in (1, 2, 3)]
    assert indexes == [3, 4, None]
    assert tablet.last_delete_index == 6
    schema = INT_KEY.key_schema
    assert tablet.get_many(rows_to_batch([(1,)], schema))[2] == 3
    assert tablet.get_many(rows_to_batch([(1,), (2,)], schema))[2] == 4
    assert tablet.get_many(rows_to_batch([(3,)], schema))[2] == 6
    assert tablet.scan_snapshot().index == 6
    tablet.new_head(2)
    tablet.install_sealed(0, Image.open(tablet.seal(0, "t", "t", 1), "x"))
    found = tablet.get((2,))
    assert found is not None
    assert found.index == 0


def test_several_small_writes_make_one_entry() -> None:
    """Group commit: the payload of several calls reads back as their rows in order."""
    world = World(INT_KEY, 64)
    names = list(INT_KEY.arrow.names)
    world.index = 1
    group = []
    for n in range(3):
        row = make_row(INT_KEY, n, n)
        group.append(world.tablet.execute(WriteOp.UPSERT, [row], None, 1, names))
    group.append(world.tablet.execute(WriteOp.DELETE, [make_key(INT_KEY, 0)], None, 1))
    payload = group_payload(group)
    world.log[1].append(Entry(1, 1, EntryKind.ROWS, 1, 4, (), payload))
    tablet = TabletMemory(INT_KEY, "table")
    tablet.adopt([world.log[1].recovered(INT_KEY, world.codec, rows=True)], None, 0.0)
    assert state_of(tablet) == state_of(world.tablet)


def test_a_dead_segment_can_be_dropped_and_a_live_one_not() -> None:
    """Statistics count down to a dead segment, which then goes, while its slot stays retired."""
    tablet = fresh()
    rows = [("a", i, 1.0, None) for i in range(10)]
    tablet.execute(WriteOp.UPSERT, rows, None, 1)
    tablet.new_head(2)
    with pytest.raises(AssertionError):
        tablet.drop(0)
    tablet.install_sealed(0, Image.open(tablet.seal(0, "t", "t", 1), "x"))
    before = tablet.memory_bytes
    for i in range(10):
        assert tablet.statistics()[0].live_rows == 10 - i
        tablet.execute(WriteOp.UPSERT, [rows[i]], None, 2 + i)
    tablet.drop(0)
    assert [s.segment_id for s in tablet.statistics()] == [2]
    assert tablet.memory_bytes < before + 10 * 400
    assert [f.row for i in range(10) if (f := tablet.get((i,)))] == rows
    with pytest.raises(AssertionError):
        tablet.drop(1)


def test_memory_for_each_row_is_bounded() -> None:
    """A sealed row takes at most twice its Arrow size and 40 bytes, the index included."""
    schema = TableSchema.of(pa.schema([("id", pa.int64()), ("v", pa.float64())]), ["id"])
    tablet = TabletMemory(schema, "table")
    arrow_bytes = 0
    for slot in range(4):
        tablet.new_head(slot + 1)
        ids = np.arange(slot * 20000, slot * 20000 + 20000)
        batch = pa.record_batch({"id": ids, "v": ids / 2})
        arrow_bytes += batch.nbytes
        tablet.execute(WriteOp.INSERT, batch, None, slot + 1)
        tablet.new_head(100 + slot)
        tablet.install_sealed(
            2 * slot, Image.open(tablet.seal(2 * slot, "t", "t", 1), "x", check_rows=False)
        )
    tablet.execute(WriteOp.UPSERT, pa.record_batch({"id": ids, "v": ids / 3}), None, 9)
    tablet.new_head(200)
    tablet.install_sealed(7, Image.open(tablet.seal(7, "t", "t", 1), "x"))
    arrow_bytes += 20000 * 16
    assert tablet.memory_bytes <= 2 * arrow_bytes + 40 * 100000


def test_recovery_refuses_entries_that_are_no_segment() -> None:
    """No prologue, two prologues, versions that go back and wrong row counts are corrupt."""
    codec = KeyCodec(INT_KEY)
    head = Entry(
        1,
        0,
        EntryKind.PROLOGUE,
        0,
        0,
        (),
        encode_prologue(Prologue("t", "t", 1, 1, (1,), 5, INT_KEY, ())),
    )
    rows = Executed(EntryKind.ROWS, 5, 1, b"\0", [("a", 1, 1.0, None)]).payload()
    good = Entry(1, 1, EntryKind.ROWS, 5, 1, (), rows)
    old = Entry(1, 2, EntryKind.ROWS, 4, 1, (), rows)
    short = Entry(1, 2, EntryKind.ROWS, 6, 2, (), rows)
    assert RecoveredSegment.from_entries([head, good], codec, "x").meta.next_version == 6
    for entries in ([], [good], [head, head], [head, old], [head, good, good], [head, short]):
        with pytest.raises(CorruptData):
            RecoveredSegment.from_entries(entries, codec, "x")
