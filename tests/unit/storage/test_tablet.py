"""TabletMemory against a plain dict: operations, versions, sealing, recovery in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import (
    ColumnNotFound,
    CorruptData,
    InvalidArgument,
    RowExists,
    RowNotFound,
    StelaeError,
    TooLarge,
    VersionMismatch,
)
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages import WriteOp
from stelae.core.schema import TableSchema
from stelae.core.values import batch_to_rows, rows_to_batch
from stelae.storage.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    Result,
    encode_entry,
    encode_prologue,
    entry_length,
    read_entries,
)
from stelae.storage.image import Image, build_image
from stelae.storage.keys import KeyCodec
from stelae.storage.recovered import RecoveredSegment
from stelae.storage.tablet import Executed, TabletMemory, group_payload

INT_KEY = TableSchema.of(
    pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("id", pa.int64()),
            pa.field("x", pa.float64(), nullable=False),
            pa.field("day", pa.date32()),
        ]
    ),
    ["id"],
)
WIDE_KEY = TableSchema.of(
    pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("town", pa.string()),
            pa.field("x", pa.float64(), nullable=False),
            pa.field("flag", pa.bool_()),
            pa.field("number", pa.int16()),
        ]
    ),
    ["number", "town"],
)
Key = tuple[Any, ...]
Row = tuple[Any, ...]


def key_of(schema: TableSchema, row: Row) -> Key:
    return tuple(row[i] for i in schema.key_positions)


def make_key(schema: TableSchema, n: int) -> Key:
    return (n - 4,) if schema is INT_KEY else (n % 3, "town" * (n % 2) + str(n))


def make_row(schema: TableSchema, n: int, salt: int) -> Row:
    name = None if salt % 5 == 0 else f"näme{salt}"
    if schema is INT_KEY:
        return (name, *make_key(schema, n), salt / 4, None if salt % 3 == 0 else salt)
    number, town = make_key(schema, n)
    return (name, town, salt / 4, None if salt % 3 == 0 else salt % 2 == 0, number)


def batch_of(schema: TableSchema, rows: list[Row], columns: list[str]) -> pa.RecordBatch:
    return rows_to_batch(rows, pa.schema([schema.arrow.field(name) for name in columns]))


@dataclass
class Model:
    """What a tablet is: a dict from key to (row, version), and the next version."""

    schema: TableSchema
    rows: dict[Key, tuple[Row, int]] = field(default_factory=dict)
    next_version: int = 1

    def write(
        self, op: WriteOp, rows: list[Row], columns: list[str], if_versions: list[int] | None
    ) -> type[StelaeError] | None:
        """Apply a call to the dict, or return the class of its refusal and change nothing."""
        state = dict(self.rows)
        names = self.schema.arrow.names
        seen: set[Key] = set()
        refusals: list[type[StelaeError]] = []
        for i, given_row in enumerate(rows):
            values = dict(zip(columns, given_row, strict=True))
            key = tuple(values[name] for name in self.schema.key)
            present, version = state.get(key, (None, 0))
            if op is WriteOp.INSERT and key in seen:
                refusals.append(InvalidArgument)
                break
            if if_versions is not None and if_versions[i] != version:
                refusals.append(VersionMismatch)
                break
            if op is WriteOp.INSERT and present is not None:
                refusals.append(RowExists)
                break
            if op is WriteOp.UPDATE and present is None:
                refusals.append(RowNotFound)
                break
            seen.add(key)
            if op is WriteOp.DELETE:
                state.pop(key, None)
                continue
            old = dict(zip(names, present, strict=True)) if present and op is WriteOp.UPDATE else {}
            full = tuple(values[n] if n in values else old.get(n) for n in names)
            state[key] = (full, self.next_version + i)
        if refusals:
            return refusals[0]
        self.rows = state
        self.next_version += len(rows)
        return None


@dataclass
class LoggedSegment:
    """What backups would hold of one segment."""

    segment_id: int
    data: bytearray = field(default_factory=bytearray)
    certificate: CertificateBuilder = field(default_factory=CertificateBuilder)
    image: pa.Buffer | None = None

    def append(self, entry: Entry) -> None:
        buffers = encode_entry(entry)
        for buffer in buffers:
            self.data += memoryview(buffer)
        self.certificate.extend(buffers[0], entry_length(buffers[0]))

    def recovered(self, schema: TableSchema, codec: KeyCodec, rows: bool) -> RecoveredSegment:
        where = f"segment {self.segment_id}"
        if self.image is not None and not rows:
            return RecoveredSegment.from_image(Image.open(self.image, where))
        entries = read_entries(bytes(self.data), self.certificate.certificate, where)
        return RecoveredSegment.from_entries(entries, codec, schema, where)


class World:
    """A tablet, its model, and its log."""

    def __init__(self, schema: TableSchema, hash_bits: int) -> None:
        self.schema = schema
        self.codec = KeyCodec(schema, hash_bits=hash_bits)
        self.tablet = TabletMemory(schema, "table", self.codec)
        self.model = Model(schema)
        self.log: dict[int, LoggedSegment] = {}
        self.slots: dict[int, int] = {}
        self.index = 0
        self.roll()

    def roll(self) -> None:
        """Open a new head."""
        segment_id = max(self.log, default=0) + 1
        prologue = Prologue(
            "table",
            "tablet",
            segment_id,
            1,
            (*self.log, segment_id),
            self.tablet.next_version,
            self.schema,
            self.tablet.results.snapshot(),
        )
        self.slots[segment_id] = self.tablet.new_head(segment_id)
        self.log[segment_id] = LoggedSegment(segment_id)
        payload = encode_prologue(prologue)
        self.log[segment_id].append(Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), payload))

    def seal(self) -> None:
        """Seal the oldest segment that is closed and not sealed."""
        for segment_id in sorted(self.log)[:-1]:
            logged = self.log[segment_id]
            if logged.image is None:
                slot = self.slots[segment_id]
                logged.image = self.tablet.seal(slot, "table", "tablet", 1)
                image = Image.open(logged.image, f"segment {segment_id}")
                self.tablet.install_sealed(slot, image)
                return

    def write(
        self,
        op: WriteOp,
        rows: list[Row],
        columns: list[str],
        if_versions: list[int] | None,
        as_batch: bool,
        request: RequestId,
    ) -> None:
        """Make one call, hold it against the model, and log it."""
        wanted = self.model.next_version
        refusal = self.model.write(op, rows, columns, if_versions)
        data = batch_of(self.schema, rows, columns) if as_batch else rows
        self.index += 1
        before = self.state()
        if refusal is not None:
            with pytest.raises(refusal) as caught:
                self.tablet.execute(op, data, if_versions, self.index, columns)
            assert type(caught.value) is refusal
            assert self.state() == before
            return
        executed = self.tablet.execute(op, data, if_versions, self.index, columns)
        assert (executed.first_version, executed.row_count) == (wanted, len(rows))
        outcome = b"%d" % executed.first_version
        result = self.tablet.results.record(request, outcome, self.index, 0.0)
        self.append(executed, (result,))

    def append(self, executed: Executed, results: tuple[Result, ...]) -> None:
        payload = executed.payload()
        entry = Entry(
            1,
            self.index,
            executed.kind,
            executed.first_version,
            executed.row_count,
            results,
            payload,
        )
        self.log[max(self.log)].append(entry)

    def state(self) -> tuple[Any, ...]:
        return state_of(self.tablet)

    def check(self, tablet: TabletMemory) -> None:
        """Everything readable of ``tablet`` is what the model says."""
        rows = self.model.rows
        keys = [make_key(self.schema, n) for n in range(KEYS)]
        for key in keys:
            found = tablet.get(key)
            assert (None if found is None else (found.row, found.version)) == rows.get(key)
        asked = rows_to_batch(keys + keys[:2], self.schema.key_schema)
        batch, at, _ = tablet.get_many(asked)
        want = [(i, *rows[k][0], rows[k][1]) for i, k in enumerate(keys + keys[:2]) if k in rows]
        assert [(i, *row) for i, row in zip(at.tolist(), batch_to_rows(batch), strict=True)] == want
        scanned = [
            row
            for part in tablet.scan_snapshot().batches(with_versions=True)
            for row in batch_to_rows(part)
        ]
        assert sorted(scanned, key=lambda r: r[-1]) == sorted(
            ((*row, version) for row, version in rows.values()), key=lambda r: r[-1]
        )
        assert tablet.row_count == len(rows)
        assert sum(s.live_rows for s in tablet.statistics()) == len(rows)
        assert all(s.dead_rows >= 0 for s in tablet.statistics())


def state_of(tablet: TabletMemory) -> tuple[Any, ...]:
    rows = [
        row
        for part in tablet.scan_snapshot().batches(with_versions=True)
        for row in batch_to_rows(part)
    ]
    return (
        sorted(rows, key=lambda r: r[-1]),
        tablet.next_version,
        tablet.results.snapshot(),
        tablet.row_count,
    )


KEYS = 9
MOVES = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from(list(WriteOp)),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=5),
        st.booleans(),
        st.sampled_from(["none", "right", "wrong"]),
        st.sampled_from(["full", "some", "swapped"]),
        st.integers(0, 2),
    ),
    st.tuples(st.just("roll")),
    st.tuples(st.just("seal")),
    st.tuples(st.just("scan")),
)


def right_versions(world: World, op: WriteOp, keys: list[Key]) -> list[int]:
    """The versions that the rows of a call will meet, each at its turn."""
    versions = {key: version for key, (_, version) in world.model.rows.items()}
    found = []
    for i, key in enumerate(keys):
        found.append(versions.get(key, 0))
        versions[key] = 0 if op is WriteOp.DELETE else world.model.next_version + i
    return found


def play(world: World, moves: list[Any]) -> None:
    """Carry out the moves, each held against the model."""
    sequences = [0, 0, 0]
    for salt, move in enumerate(moves):
        if move[0] == "roll":
            world.roll()
        elif move[0] == "seal":
            world.seal()
        elif move[0] == "scan":
            world.check(world.tablet)
        else:
            _, op, numbers, as_batch, conditions, form, client = move
            schema = world.schema
            names = list(schema.arrow.names)
            columns = list(schema.key) if op is WriteOp.DELETE else names
            if form == "some" and op is not WriteOp.DELETE:
                columns = [n for n in names if n != "name" and (n != "x" or op is WriteOp.UPSERT)]
                if op is WriteOp.INSERT:
                    columns = [n for n in names if n != "name"]
            if form == "swapped":
                columns = columns[::-1]
            full = [
                dict(zip(names, make_row(schema, n, salt + i), strict=True))
                for i, n in enumerate(numbers)
            ]
            rows = [tuple(values[c] for c in columns) for values in full]
            keys = [make_key(schema, n) for n in numbers]
            if_versions = None if conditions == "none" else right_versions(world, op, keys)
            if conditions == "wrong" and if_versions:
                if_versions[-1] += 1 + salt % 2
            sequences[client] += 1
            request = RequestId(
                ClientId(f"client{client}"), sequences[client], max(1, sequences[client] - 2)
            )
            world.write(op, rows, columns, if_versions, as_batch, request)


@pytest.mark.parametrize(
    ("schema", "hash_bits"), [(INT_KEY, 64), (INT_KEY, 1), (WIDE_KEY, 64), (WIDE_KEY, 1)]
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, max_size=25))
def test_a_tablet_does_what_a_dict_does(
    schema: TableSchema, hash_bits: int, moves: list[Any]
) -> None:
    """Every call, refusal, version, get, get_many and scan agree with a dict, collisions or not."""
    world = World(schema, hash_bits)
    play(world, moves)
    world.check(world.tablet)


@pytest.mark.parametrize(("schema", "hash_bits"), [(INT_KEY, 64), (WIDE_KEY, 64), (WIDE_KEY, 2)])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES, min_size=5, max_size=25),
    seed=st.integers(0, 1 << 16),
    more=st.lists(MOVES, max_size=6),
)
def test_recovery_in_any_order_gives_the_same_tablet(
    schema: TableSchema, hash_bits: int, moves: list[Any], seed: int, more: list[Any]
) -> None:
    """Images and row forms, shuffled and some given twice, bring back rows, versions, results."""
    world = World(schema, hash_bits)
    play(world, moves)
    rng = random.Random(seed)
    ids = list(world.log)
    given_ids = ids + rng.sample(ids, rng.randint(0, len(ids)))
    rng.shuffle(given_ids)
    segments = [
        world.log[i].recovered(schema, world.codec, rows=rng.random() < 0.5) for i in given_ids
    ]
    tablet = TabletMemory(schema, "table", world.codec)
    tablet.adopt(segments, None, 0.0)
    tablet.adopt(segments, None, 0.0)
    assert state_of(tablet) == world.state()
    world.check(tablet)
    world.tablet = tablet
    world.slots.clear()
    for logged in world.log.values():
        logged.image = logged.image or pa.py_buffer(b"")
    world.roll()
    play(world, [move for move in more if move[0] != "seal"])
    world.check(tablet)


def fresh(schema: TableSchema = INT_KEY) -> TabletMemory:
    tablet = TabletMemory(schema, "table")
    tablet.new_head(1)
    return tablet


def test_a_tombstone_raises_the_version_across_recovery() -> None:
    """A key deleted last, and deletes of keys that never were, still push next_version on."""
    world = World(INT_KEY, 64)
    request = RequestId(ClientId("c"), 1, 1)
    world.write(
        WriteOp.UPSERT, [make_row(INT_KEY, 1, 1)], list(INT_KEY.arrow.names), None, False, request
    )
    keys = [make_key(INT_KEY, n) for n in (1, 7, 8)]
    world.write(WriteOp.DELETE, keys, ["id"], None, True, request)
    assert world.tablet.next_version == 5
    tablet = TabletMemory(INT_KEY, "table")
    tablet.adopt([world.log[1].recovered(INT_KEY, world.codec, rows=True)], None, 0.0)
    assert (tablet.next_version, tablet.row_count) == (5, 0)


def test_the_safe_version_counts_where_no_rows_are_left() -> None:
    """A recovery from an empty head alone gives no version below the head's safe version."""
    tablet = TabletMemory(INT_KEY, "table")
    prologue = Prologue("t", "t", 9, 1, (9,), 500, INT_KEY, ())
    entry = Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), encode_prologue(prologue))
    segment = RecoveredSegment.from_entries([entry], tablet.codec, INT_KEY, "head")
    tablet.adopt([segment], None, 0.0)
    assert tablet.next_version == 500
    image = build_image(segment.batch, segment.meta, tablet.codec)
    tablet.adopt([RecoveredSegment.from_image(Image.open(image, "head"))], None, 0.0)
    assert tablet.next_version == 500


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
    assert RecoveredSegment.from_entries([head, good], codec, INT_KEY, "x").meta.next_version == 6
    for entries in ([], [good], [head, head], [head, old], [head, good, good], [head, short]):
        with pytest.raises(CorruptData):
            RecoveredSegment.from_entries(entries, codec, INT_KEY, "x")
