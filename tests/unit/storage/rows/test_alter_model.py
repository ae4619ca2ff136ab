"""A tablet whose schema changes does what dicts of columns do, and comes back from its log."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.alter import altered, schema_change
from stelae.core.schema.schema import COLUMN_ID_KEY, TableSchema
from stelae.core.schema.values import batch_to_rows, rows_to_batch
from stelae.storage.entries.entry import Entry, EntryKind, Prologue, encode_prologue
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image
from stelae.storage.segments.layout import Layout
from tests.unit.storage.rows.tablet_model import LoggedSegment

KEYS = 6
NAMES = ("a", "b", "c", "d")
KINDS = (pa.int64(), pa.string(), pa.date32())
START = TableSchema.of(
    pa.schema([pa.field("a", pa.string()), pa.field("id", pa.int64()), pa.field("b", pa.int64())]),
    ["id"],
)


def value_of(kind: pa.DataType, salt: int) -> Any:
    return f"s{salt}" if kind == pa.string() else salt


class Model:
    """Rows as dicts from column name to value: what an alter does, done to each row."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[dict[str, Any], int]] = {}
        self.defaults: dict[str, Any] = dict.fromkeys(START.arrow.names)
        self.next_version = 1

    def add(self, name: str, default: Any) -> None:
        self.defaults[name] = default
        for row, _ in self.rows.values():
            row[name] = default

    def drop(self, name: str) -> None:
        del self.defaults[name]
        for row, _ in self.rows.values():
            del row[name]

    def rename(self, old: str, new: str) -> None:
        self.defaults[new] = self.defaults.pop(old)
        for row, _ in self.rows.values():
            row[new] = row.pop(old)

    def write(self, op: WriteOp, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            key = row["id"]
            if op is WriteOp.DELETE:
                self.rows.pop(key, None)
            else:
                before = self.rows[key][0] if op is WriteOp.UPDATE else self.defaults
                self.rows[key] = ({**before, **row}, self.next_version)
            self.next_version += 1


class World:
    """A tablet, its model, and its log."""

    def __init__(self) -> None:
        self.schema = START
        self.tablet = TabletMemory(START, "table")
        self.model = Model()
        self.log: dict[int, LoggedSegment] = {}
        self.slots: dict[int, int] = {}
        self.index = 0
        self.roll()

    def roll(self) -> None:
        segment_id = max(self.log, default=0) + 1
        version = self.tablet.next_version
        prologue = Prologue("t", "tablet", segment_id, 1, (segment_id,), version, self.schema, ())
        self.slots[segment_id] = self.tablet.new_head(segment_id)
        self.log[segment_id] = LoggedSegment(segment_id)
        payload = encode_prologue(prologue)
        self.log[segment_id].append(Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), payload))

    def alter(self, **change: Any) -> None:
        self.schema = altered(self.schema, schema_change(**change), "table")
        self.tablet.use_schema(self.schema)
        self.roll()

    def seal(self) -> None:
        for segment_id in sorted(self.log)[:-1]:
            logged = self.log[segment_id]
            if logged.image is None:
                slot = self.slots[segment_id]
                logged.image = self.tablet.seal(slot, "table", "tablet", 1)
                image = Image.open(logged.image, f"segment {segment_id}")
                self.tablet.install_sealed(slot, image)
                return

    def recover(self, salt: int) -> None:
        """Begin again with what the log holds, in any order, some of it in both its forms."""
        rng = random.Random(salt)
        found = [
            (segment_id, logged.recovered(self.schema, self.tablet.codec, rng.random() < 0.3))
            for segment_id, logged in self.log.items()
        ]
        rng.shuffle(found)
        self.tablet = TabletMemory(self.schema, "table")
        self.tablet.adopt([segment for _, segment in found], None, 0.0)
        self.slots = {segment_id: slot for slot, (segment_id, _) in enumerate(found)}
        self.roll()

    def write(self, op: WriteOp, rows: list[dict[str, Any]], as_batch: bool) -> None:
        self.index += 1
        columns = [name for name in self.schema.arrow.names if name in rows[0]]
        data: Any = [tuple(row[name] for name in columns) for row in rows]
        if as_batch:
            data = rows_to_batch(data, pa.schema([self.schema.arrow.field(n) for n in columns]))
        executed = self.tablet.execute(op, data, None, self.index, columns)
        entry = Entry(
            1,
            self.index,
            executed.kind,
            executed.first_version,
            executed.row_count,
            (),
            executed.payload(),
        )
        self.log[max(self.log)].append(entry)
        self.model.write(op, rows)

    def check(self) -> None:
        """get, get_many and scans (filtered, too) show what the dicts hold, by column name."""
        names = self.schema.arrow.names
        wanted = {key: tuple(row[n] for n in names) for key, (row, _) in self.model.rows.items()}
        for key in range(KEYS):
            found = self.tablet.get((key,))
            assert (None if found is None else found.row) == wanted.get(key)
        keys = rows_to_batch([(key,) for key in range(KEYS)], self.schema.key_schema)
        batch, at, _ = self.tablet.get_many(keys)
        assert batch.schema.names == [*names, "_version"]
        rows = {int(k): row[:-1] for k, row in zip(at, batch_to_rows(batch), strict=True)}
        assert rows == wanted
        for name in names:
            some, at, _ = self.tablet.get_many(keys, [name])
            place = names.index(name)
            column = [row[0] for row in batch_to_rows(some)]
            assert column == [wanted[int(key)][place] for key in at]
        for name in names:
            value = next((row[names.index(name)] for row in wanted.values()), None)
            if value is not None:
                parts = self.tablet.scan_snapshot().batches(where=[[(name, "=", value)]])
                scanned = sorted((row for part in parts for row in batch_to_rows(part)), key=repr)
                chosen = [row for row in wanted.values() if row[names.index(name)] == value]
                assert scanned == sorted(chosen, key=repr)


MOVES = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from(list(WriteOp)),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4, unique=True),
        st.booleans(),
        st.sets(st.sampled_from(NAMES)),
    ),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("default"), st.sampled_from(NAMES)),
    st.tuples(st.just("roll")),
    st.tuples(st.just("seal")),
    st.tuples(st.just("recover")),
)


def write(world: World, move: Any, salt: int) -> None:
    _, op, keys, as_batch, left_out = move
    if op is WriteOp.UPDATE:
        keys = [key for key in keys if key in world.model.rows]
    elif op is WriteOp.INSERT:
        keys = [key for key in keys if key not in world.model.rows]
    fields = [field for field in world.schema.arrow if field.name not in left_out]
    if op is WriteOp.DELETE:
        fields = [world.schema.arrow.field("id")]
    rows = [
        {f.name: key if f.name == "id" else value_of(f.type, salt + key) for f in fields}
        for key in keys
    ]
    if rows:
        world.write(op, rows, as_batch)


def play(world: World, moves: list[Any]) -> None:
    for salt, move in enumerate(moves, 1):
        names = world.schema.arrow.names
        match move:
            case ("write", *_):
                write(world, move, salt)
            case ("add", name, kind_number, with_default) if name not in names:
                kind = KINDS[kind_number]
                value = value_of(kind, salt) if with_default else None
                defaults = {name: pa.scalar(value, kind)} if with_default else None
                field = pa.field(name, kind, nullable=not with_default)
                world.alter(add=[field], defaults=defaults)
                world.model.add(name, value)
            case ("drop", name) if name in names:
                world.alter(drop=[name])
                world.model.drop(name)
            case ("rename", old, new) if old in names and new not in names:
                world.alter(rename={old: new})
                world.model.rename(old, new)
            case ("default", name) if name in names:
                kind = world.schema.arrow.field(name).type
                value = value_of(kind, salt)
                world.alter(defaults={name: pa.scalar(value, kind)})
                world.model.defaults[name] = value
            case ("roll",):
                world.roll()
            case ("seal",):
                world.seal()
            case ("recover",):
                world.recover(salt)
            case _:
                pass


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, max_size=30))
def test_a_tablet_that_is_altered_does_what_dicts_do(moves: list[Any]) -> None:
    """Through alters, writes, seals and recoveries rows show what the model's dicts hold."""
    world = World()
    play(world, moves)
    world.check()
    world.recover(7)
    world.check()


def test_a_column_dropped_and_added_again_comes_back_empty() -> None:
    """A column is known by its id: its namesake shows nothing of it, also after a recovery."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "old", "b": 1}], False)
    world.alter(drop=["a"])
    world.alter(add=[pa.field("a", pa.string())])
    world.write(WriteOp.UPSERT, [{"id": 2, "a": "new", "b": 2}], True)
    for _ in range(2):
        found = [world.tablet.get((key,)) for key in (1, 2)]
        assert [f.row for f in found if f is not None] == [(1, 1, None), (2, 2, "new")]
        world.seal()
        world.seal()
        world.recover(3)


def test_a_snapshot_taken_before_an_alter_shows_the_columns_of_its_moment() -> None:
    """A scan that is under way goes on in the schema that it began with."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "x", "b": 5}], False)
    snapshot = world.tablet.scan_snapshot()
    world.alter(drop=["a"], add=[pa.field("c", pa.int64())])
    world.seal()
    assert [b.to_pylist() for b in snapshot.batches()] == [[{"a": "x", "id": 1, "b": 5}]]


def test_segments_of_the_present_schema_are_not_wrapped_and_old_ones_are_once() -> None:
    """Reading rows of the present schema costs nothing more, after any number of alters."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "x", "b": 5}], False)
    for name in ("c", "d"):
        world.alter(add=[pa.field(name, pa.int64())])
    world.alter(defaults={"d": pa.scalar(4)})
    world.write(WriteOp.UPSERT, [{"id": 2, "a": "y", "b": 6}], False)
    kinds = [
        [type(run).__name__ for run in segment.runs]
        for segment in world.tablet._store.segments
        if segment is not None and segment.runs
    ]
    assert kinds == [["ProjectedRun"], ["RowRun"]]
    assert [type(s.runs[0].own).__name__ for s in world.tablet._store.segments[:1]] == ["RowRun"]  # type: ignore[union-attr]


def test_an_image_keeps_the_schema_that_it_was_written_with() -> None:
    """Sealing an older segment changes neither its columns nor its schema version; each column of
    an image carries its id."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "x", "b": 5}], False)
    world.alter(drop=["a"], rename={"b": "n"})
    world.seal()
    image = Image.open(world.log[1].image, "here")
    assert image.meta.schema_version == 1
    assert image.batch.schema.names == ["a", "id", "b", "_op", "_version"]
    ids = [field.metadata[COLUMN_ID_KEY] for field in list(image.batch.schema)[:3]]
    assert ids == [b"1", b"2", b"3"]
    assert Layout(image.batch.schema, ["id"]).column_ids == (1, 2, 3)
    found = world.tablet.get((1,))
    assert found is not None
    assert found.row == (1, 5)


def test_a_recovered_segment_without_column_ids_is_refused() -> None:
    """A segment that does not say which columns it has is damaged, whatever their names are."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "x", "b": 5}], False)
    segment = world.log[1].recovered(START, world.tablet.codec, True)
    assert segment.batch is not None
    bare = segment.batch.schema.remove_metadata()
    fields = [field.remove_metadata() for field in bare]
    object.__setattr__(segment, "batch", segment.batch.cast(pa.schema(fields)))
    with pytest.raises(CorruptData, match="has no id"):
        TabletMemory(START, "table").adopt([segment], None, 0.0)


def test_results_of_requests_outlive_an_alter() -> None:
    """Exactly-once answers belong to clients, not to schemas."""
    world = World()
    request = RequestId(ClientId("c"), 1, 1)
    world.tablet.results.record(request, b"done", 1, 0.0)
    world.alter(add=[pa.field("c", pa.int64())])
    known = world.tablet.results.check(request)
    assert known is not None
    assert known.result.outcome == b"done"
