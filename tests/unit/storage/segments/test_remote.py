"""A tablet whose rows are elsewhere does what one does that has them, once they are fetched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import END, IndexId
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows
from stelae.storage.indexes.log_entries import LogEntries, with_ids
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.decoding import decode_keys
from stelae.storage.keys.merge import Summary
from stelae.storage.rows.gather import Snapshot
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.row_entries import TableCodecs, check_here, tablet_entries
from stelae.storage.rows.transfer import Changes
from stelae.storage.segments.image import (
    IMAGE_TRAILER_BYTES,
    Image,
    build_image,
    read_tail,
    summary_range,
)
from stelae.storage.segments.image_rows import ImageRows
from stelae.storage.segments.layout import Row
from stelae.storage.segments.partial_image import PartialImage
from stelae.storage.segments.recovered import RecoveredSegment
from stelae.storage.segments.remote import Piece, RemoteRun, RowsAbsent, cut_piece
from tests.unit.storage.rows.tablet_model import INT_KEY, WIDE_KEY, World, make_key, state_of
from tests.unit.storage.rows.test_tablet_model import MOVES, play

T = TypeVar("T")


def remote_segment(image: pa.Buffer) -> RecoveredSegment:
    """What phase 1 of a recovery knows of a sealed segment."""
    view = memoryview(image)
    start, _ = summary_range(view[-IMAGE_TRAILER_BYTES:], len(view), "image")
    tail = read_tail(image.slice(start), "image")
    columns = tail.meta.stored_columns("image")
    assert columns is not None, "images say what columns they have"
    return RecoveredSegment.from_tail(tail, image.size, columns)


def opened(run: RemoteRun, view: memoryview) -> PartialImage | None:
    """A run's image, to be read in part."""
    image = run.partial_image("image")
    while image is not None and (ranges := image.lacks_to_open()):
        for start, length in ranges:
            image.put(start, view[start : start + length])
    return image


def single_row(run: RemoteRun, data: pa.Buffer, number: int) -> list[Piece]:
    """One row of an image, read from its bytes; nothing if it cannot be."""
    view = memoryview(data).cast("B")
    image = opened(run, view)
    rows = None if image is None else run.single_rows(image)
    if rows is None:
        return []
    row = rows.row(lambda start, end: view[start:end], number)
    return [run.show_row(number, row)]


def served_rows(run: RemoteRun, data: pa.Buffer, *numbers: int) -> list[tuple[int, Row]]:
    """Rows of an image by themselves, as a backup serves them."""
    view = memoryview(data).cast("B")
    image = opened(run, view)
    assert image is not None
    rows = ImageRows.of(image, {place: lambda i: None for place in run.known})
    assert rows is not None

    def read(start: int, end: int) -> memoryview:
        return view[start:end]

    return [(rows.version(read, i), rows.row(read, i)) for i in numbers]


class Elsewhere(TabletMemory):
    """A tablet that fetches what it is told to, and does the call again.

    What it has fetched stays here until the next call, or for good: chance decides.
    """

    images: dict[int, pa.Buffer]
    rng: random.Random
    fetched = 0
    single = 0
    """Rows that came by themselves."""

    def bring(self, absent: RowsAbsent) -> list[Piece]:
        held = []
        for wanted in absent.wanted:
            run = wanted.run
            image = Image.open(self.images[run.segment_id], "image")
            if wanted.row >= 0 and self.rng.random() < 0.5:
                held += single_row(run, image.buffer, wanted.row)
                if held and held[-1].first == wanted.row:
                    self.single += 1
                    continue
            if wanted.row >= 0 and run.comes_in_rows and self.rng.random() < 0.5:
                rows = served_rows(run, image.buffer, wanted.row)
                held += run.take_rows([wanted.row], image.trailer, rows, "row")
                continue
            if wanted.pieces is None or self.rng.random() < 0.2:
                held.append(run.take_image(image))
                if self.rng.random() < 0.3:
                    (segment,) = [s for s in self.remote if s.remote is run]
                    self.arrive(segment, held[-1])
                continue
            for number in wanted.pieces:
                data = cut_piece(image.batch, number, run.piece_rows)
                held.append(run.take_piece(number, image.trailer, crc32c(data), data, "piece"))
        self.fetched += 1
        return held

    def again(self, call: Callable[[], T]) -> T:
        held: list[Piece] = []
        for _ in range(50):
            before = (self.next_version, self.last_index, self.row_count)
            try:
                return call()
            except RowsAbsent as absent:
                assert (self.next_version, self.last_index, self.row_count) == before
                held += self.bring(absent)
        raise AssertionError("fetched 50 times")

    def get(self, key: Any) -> Any:
        return self.again(lambda: super(Elsewhere, self).get(key))

    def get_many(self, keys: pa.RecordBatch, columns: Sequence[str] = ()) -> Any:
        def call() -> Any:
            self.locate(keys).check_here()
            return super(Elsewhere, self).get_many(keys, columns)

        return self.again(call)

    def execute(self, *call: Any) -> Any:
        return self.again(lambda: super(Elsewhere, self).execute(*call))

    def changes_since(self, *call: Any) -> Changes | None:
        return self.again(lambda: super(Elsewhere, self).changes_since(*call))

    def scan_snapshot(self) -> Any:
        return FetchingSnapshot(self, super().scan_snapshot())


class FetchingSnapshot:
    """A scan of which each next batch is fetched when it is read."""

    def __init__(self, tablet: Elsewhere, snapshot: Snapshot) -> None:
        self._tablet, self._snapshot = tablet, snapshot

    def batches(self, *columns: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        reader = self._snapshot.batches(*columns, **more)
        while (batch := self._tablet.again(lambda: next(reader, None))) is not None:
            yield batch


def elsewhere(world: World, rng: random.Random) -> Elsewhere:
    """The tablet of ``world``, recovered with some of its segments remote."""
    segments, images = [], {}
    for segment_id, logged in world.log.items():
        whole = logged.recovered(world.schema, world.codec, rows=True)
        if rng.random() < 0.2:
            segments.append(whole)
            continue
        assert whole.batch is not None
        images[segment_id] = build_image(whole.batch, whole.meta, world.codec)
        segments.append(remote_segment(images[segment_id]))
    tablet = Elsewhere(world.schema, "table", world.codec)
    tablet.images, tablet.rng = images, rng
    tablet.adopt(segments, None, 0.0)
    # Sealed segments have no results: those are in heads, and here all were made of rows.
    for logged in world.log.values():
        found = logged.recovered(world.schema, world.codec, rows=True).results
        tablet.results.restore(found, 0.0)
    for segment in tablet.remote:
        segment.remote.piece_rows = rng.randint(1, 4)
    return tablet


@pytest.mark.parametrize(
    ("schema", "hash_bits"), [(INT_KEY, 64), (INT_KEY, 1), (WIDE_KEY, 64), (WIDE_KEY, 2)]
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES, min_size=5, max_size=25),
    seed=st.integers(0, 1 << 16),
    more=st.lists(MOVES, max_size=10),
)
def test_a_tablet_with_rows_elsewhere_does_what_a_dict_does(
    schema: TableSchema, hash_bits: int, moves: list[Any], seed: int, more: list[Any]
) -> None:
    """Whatever segments are remote: every call, refusal, version and scan agrees with a dict."""
    world = World(schema, hash_bits)
    play(world, moves)
    tablet = elsewhere(world, random.Random(seed))
    if not seed % 2:
        assert state_of(tablet) == world.state()
    world.tablet = tablet
    world.slots.clear()
    for logged in world.log.values():
        logged.image = logged.image or pa.py_buffer(b"")
    world.roll()
    play(world, [move for move in more if move[0] not in ("seal", "scan")])
    world.check(tablet)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, min_size=5, max_size=25), seed=st.integers(0, 1 << 16))
def test_what_changes_hands_is_the_same_with_rows_elsewhere(moves: list[Any], seed: int) -> None:
    """`changes_since` of a tablet with remote segments gives what it gives of one without."""
    world = World(WIDE_KEY, 64)
    play(world, moves)
    tablet = elsewhere(world, random.Random(seed))
    start = 1 + seed % world.tablet.next_version
    assert all_since(tablet, start) == all_since(world.tablet, start)


def all_since(tablet: TabletMemory, version: int) -> tuple[list[Any], int]:
    """All changes from a version on, piece by piece."""
    rows: list[Any] = []
    while True:
        changes = tablet.changes_since(version, 200)
        assert changes is not None
        if changes.batch is not None:
            rows += batch_to_rows(changes.batch)
        version = changes.next_version
        if changes.is_last:
            return rows, version


def loaded(schema: TableSchema = INT_KEY, count: int = 200) -> tuple[World, Elsewhere]:
    """One closed segment of many rows, which is remote in the tablet returned."""
    world = World(schema, 64)
    names = list(schema.arrow.names)
    field = schema.arrow.get_field_index("id")
    for n in range(count):
        row = [f"name{n}", n, n / 2, None]
        assert names[field] == "id"
        world.index += 1
        world.append(world.tablet.execute(WriteOp.UPSERT, [tuple(row)], None, world.index), ())
    world.roll()
    rng = random.Random(1)
    images, segments = {}, []
    for segment_id, logged in world.log.items():
        whole = logged.recovered(schema, world.codec, rows=True)
        assert whole.batch is not None
        images[segment_id] = build_image(whole.batch, whole.meta, world.codec)
        segments.append(remote_segment(images[segment_id]))
    tablet = Elsewhere(schema, "table", world.codec)
    tablet.images, tablet.rng = images, rng
    tablet.adopt(segments, None, 0.0)
    return world, tablet


def first_run(tablet: Elsewhere) -> RemoteRun:
    return tablet.remote[0].remote


def test_writes_without_the_former_row_need_no_rows() -> None:
    """Upserts, inserts, deletes and conditions of versions go by the summary alone."""
    _, tablet = loaded()
    tablet.new_head(9)
    names = list(INT_KEY.arrow.names)
    row = ("new", 5, 1.0, None)
    TabletMemory.execute(tablet, WriteOp.UPSERT, [row], None, 900, names)
    TabletMemory.execute(tablet, WriteOp.UPSERT, [("new", 6, 1.0, None)], [7], 901, names)
    TabletMemory.execute(tablet, WriteOp.DELETE, [(7,)], None, 902, ["id"])
    full = [("new", 8, 1.0, None)]
    TabletMemory.execute(tablet, WriteOp.UPDATE, full, None, 903, names)
    assert tablet.fetched == 0
    assert tablet.row_count == 199
    with pytest.raises(RowsAbsent):
        TabletMemory.execute(tablet, WriteOp.UPDATE, [(9, 1.0)], None, 904, ["id", "x"])
    assert tablet.last_index == 903


def test_rows_come_with_their_neighbours_and_go_with_the_last_holder() -> None:
    """One piece serves its neighbours; once nobody holds it, it is to be fetched again."""
    _, tablet = loaded()
    run = first_run(tablet)
    run.piece_rows = 16
    with pytest.raises(RowsAbsent) as absent:
        TabletMemory.get(tablet, (33,))
    assert [w.pieces for w in absent.value.wanted] == [[2]]
    image = Image.open(tablet.images[run.segment_id], "image")
    data = cut_piece(image.batch, 2, 16)
    held = [run.take_piece(2, image.trailer, crc32c(data), data, "piece")]
    found = TabletMemory.get(tablet, (40,))
    assert found is not None
    assert found.row == ("name40", 40, 20.0, None)
    with pytest.raises(RowsAbsent):
        TabletMemory.get(tablet, (48,))
    held.clear()
    with pytest.raises(RowsAbsent):
        TabletMemory.get(tablet, (40,))


def test_a_piece_that_is_damaged_or_of_another_image_is_not_believed() -> None:
    """Checksum, rows and the image's own end are compared with what was merged."""
    _, tablet = loaded()
    run = first_run(tablet)
    image = Image.open(tablet.images[run.segment_id], "image")
    run.piece_rows = 16
    data = cut_piece(image.batch, 2, 16)
    crc = crc32c(data)
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(CorruptData, match="checksum"):
        run.take_piece(2, image.trailer, crc, bytes(damaged), "piece")
    with pytest.raises(CorruptData, match="other rows"):
        run.take_piece(3, image.trailer, crc, data, "piece")
    with pytest.raises(CorruptData, match="another replica"):
        run.take_piece(2, image.trailer[:-1] + b"x", crc, data, "piece")
    other = build_image(image.batch.slice(0, 100), _shorter(image, 100), tablet.codec)
    with pytest.raises(CorruptData, match="another replica"):
        run.take_image(Image.open(other, "other"))


def test_another_row_or_one_of_another_image_is_not_believed() -> None:
    """Version, columns and the image's own end are compared."""
    _, tablet = loaded()
    run = first_run(tablet)
    image = Image.open(tablet.images[run.segment_id], "image")
    rows = served_rows(run, image.buffer, 40, 3)
    held = run.take_rows([40, 3], image.trailer, rows, "row")
    assert [piece.run.row(0) for piece in held] == [run.row(40), run.row(3)]
    assert run.row(40) == ("name40", 40, 20.0, None)

    def refused(
        match: str, numbers: list[int], trailer: bytes, rows: list[tuple[int, Row]]
    ) -> None:
        with pytest.raises(CorruptData, match=match):
            run.take_rows(numbers, trailer, rows, "row")

    refused("another row", [41, 3], image.trailer, rows)
    refused("2 rows for 1", [40], image.trailer, rows)
    refused("another replica", [40, 3], image.trailer[:-1] + b"x", rows)
    refused("another row", [40], image.trailer, [(rows[0][0], rows[0][1][:-1])])


def _shorter(image: Image, count: int) -> Any:
    import msgspec

    return msgspec.structs.replace(image.meta, row_count=count)


def test_entries_of_rows_elsewhere_are_those_of_the_rows_at_that_moment() -> None:
    """Made of some columns of each image, by the mask of then; of another image none are."""
    _, tablet = loaded(with_index(INT_KEY, "x", IndexId("i"), "table"))
    codecs = TableCodecs(tablet.schema)
    codec = codecs.codecs[IndexId("i")]
    made = LogEntries(tablet.schema, codecs.definition(IndexId("i")))
    tablet.new_head(9)
    TabletMemory.execute(tablet, WriteOp.DELETE, [(7,)], None, 900, ["id"])
    TabletMemory.execute(tablet, WriteOp.UPSERT, [("new", 8, -1.0, None)], None, 901)
    here, remote = TabletMemory.scan_snapshot(tablet).without_remote()
    assert (here.row_count, [live.sum() for _, live in remote]) == (1, [198])
    TabletMemory.execute(tablet, WriteOp.DELETE, [(9,)], None, 902, ["id"])
    others = []
    for run, live in remote:
        image = Image.open(tablet.images[run.segment_id], "image")
        columns = with_ids(image.batch, made.column_ids)
        others.append(made.of_segment(run.take_columns(image.trailer, columns, "image"), live))
        with pytest.raises(CorruptData, match="another replica"):
            run.take_columns(image.trailer[:-1] + b"x", columns, "image")
        with pytest.raises(CorruptData, match="rows of"):
            run.take_columns(image.trailer, columns.slice(1), "image")
    values = {n: n / 2 for n in range(200) if n != 7} | {8: -1.0}
    found = tablet_entries(codec, here, others, b"", END).entries().to_pylist()
    assert found == sorted([codec.encode_one(value, (key,)) for key, value in values.items()])


def test_a_write_to_a_table_with_indexes_says_which_rows_it_lacks() -> None:
    """All of its old rows at once, whatever it does to them; a key without a row needs none."""
    _, fetching = loaded(with_index(INT_KEY, "x", IndexId("i"), "table"))
    tablet = TabletMemory(fetching.schema, "table")
    tablet.adopt([remote_segment(image) for image in fetching.images.values()], None, 0.0)
    codecs = TableCodecs(tablet.schema)
    tablet.remote[0].remote.piece_rows = 16
    rows = [("new", key, 1.0, None) for key in (5, 40, 41, 1000)]
    names = tuple(INT_KEY.arrow.names)
    batch = pa.record_batch([list(column) for column in zip(*rows, strict=True)], INT_KEY.arrow)
    for op, written, columns in (
        (WriteOp.UPSERT, rows, names),
        (WriteOp.INSERT, batch, ()),
        (WriteOp.DELETE, [(5,), (40,), (1000,)], ("id",)),
    ):
        with pytest.raises(RowsAbsent) as absent:
            check_here(tablet, codecs, op, written, columns)
        pieces = {piece for wanted in absent.value.wanted for piece in wanted.pieces or ()}
        assert pieces == {0, 2}
    check_here(tablet, codecs, WriteOp.UPSERT, rows[3:], names)


def test_a_scan_that_began_before_the_rows_came_goes_on_with_them() -> None:
    """It raises where rows are missing, loses none, and sees none that came later."""
    world, tablet = loaded()
    reader = TabletMemory.scan_snapshot(tablet).batches()
    with pytest.raises(RowsAbsent) as absent:
        next(reader)
    (wanted,) = absent.value.wanted
    assert wanted.pieces is None
    (segment,) = [s for s in tablet.remote if s.remote is wanted.run]
    whole = wanted.run.take_image(Image.open(tablet.images[wanted.run.segment_id], "image"))
    tablet.arrive(segment, whole)
    tablet.new_head(9)
    tablet.execute(WriteOp.DELETE, [(1,)], None, 900, ["id"])
    del whole
    numbers: list[Any] = [row[1] for batch in reader for row in batch_to_rows(batch)]
    assert sorted(numbers) == list(range(200))
    assert state_of(tablet)[0][0][1] == 0
    assert len(state_of(tablet)[0]) == 199
    assert world.tablet.row_count == 200


KEY_TYPES = [
    pa.int8(),
    pa.int64(),
    pa.uint16(),
    pa.uint64(),
    pa.bool_(),
    pa.date32(),
    pa.date64(),
    pa.timestamp("us", "UTC"),
    pa.string(),
    pa.binary(),
]


@settings(max_examples=120, deadline=None)
@given(kinds=st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_keys_are_got_back_from_summaries(kinds: list[pa.DataType], seed: int) -> None:
    """Exact or encoded, of any types: the key is the one that the summary was made of."""
    rng = random.Random(seed)
    fields = [pa.field(f"k{i}", kind, False) for i, kind in enumerate(kinds)]
    schema = TableSchema.of(
        pa.schema([*fields, pa.field("v", pa.int8())]), [f.name for f in fields]
    )
    count = rng.randint(0, 20)
    columns = [pa.array([_value(rng, f.type) for _ in range(count)], f.type) for f in fields]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    codec = KeyCodec(schema)
    zeros = np.zeros(count, np.uint64)
    keys = None if codec.exact else codec.encode_batch(batch)
    summary = Summary(codec.hash_batch(batch), zeros, zeros.astype(np.uint8), keys)
    rows = np.array([rng.randrange(count) for _ in range(count)], np.int64)
    found = decode_keys(fields, summary, rows, codec.seed)
    assert found.equals(batch.take(pa.array(rows)))


def _value(rng: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_string(kind):
        return "é" * rng.randrange(4) + str(rng.randrange(10))
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(5))
    if pa.types.is_date(kind):
        return rng.randrange(-1000, 1000) * (86_400_000 if pa.types.is_date64(kind) else 1)
    if pa.types.is_timestamp(kind):
        return rng.randrange(-(1 << 50), 1 << 50)
    bits = kind.bit_width
    low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (bits - 1))
    return rng.randrange(low, low + (1 << bits))


def test_keys_decide_between_hashes_that_collide_without_rows() -> None:
    """With hashes of one bit, writes to a remote segment still find the right keys."""
    world = World(WIDE_KEY, 1)
    names = list(WIDE_KEY.arrow.names)
    for n in range(6):
        number, town = make_key(WIDE_KEY, n)
        world.index += 1
        row = ("a", town, float(n), None, number)
        world.append(world.tablet.execute(WriteOp.UPSERT, [row], None, world.index, names), ())
    whole = world.log[1].recovered(WIDE_KEY, world.codec, rows=True)
    assert whole.batch is not None
    tablet = TabletMemory(WIDE_KEY, "table", world.codec)
    tablet.adopt([remote_segment(build_image(whole.batch, whole.meta, world.codec))], None, 0.0)
    tablet.new_head(2)
    executed = tablet.execute(WriteOp.DELETE, [make_key(WIDE_KEY, 3)], None, 50, ["number", "town"])
    assert (executed.first_version, tablet.row_count) == (7, 5)
