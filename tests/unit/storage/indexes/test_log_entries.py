"""Index entries out of a log: what Spark makes of segments, what a tablet tells of its rows, and
what plain Python makes of a dict are the same, range by range."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.messages.rows import WriteOp
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import END, IndexId, covers, in_range
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.indexes import log_entries
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.indexes.log_entries import LogEntries, with_ids
from stelae.storage.kernels import index_reference as index_kernels_reference
from stelae.storage.keys.merge import merge
from stelae.storage.rows.row_entries import tablet_entries
from tests.unit.storage.rows.test_alter_model import MOVES, World, play

Range = tuple[bytes, bytes]


def plain(world: World, codec: EntryCodec, ranges: list[Range]) -> list[list[bytes]]:
    """Of each range the entries of the model's rows, in order."""
    entries = sorted(
        codec.encode_one(row[codec.column], (key,)) for key, (row, _) in world.model.rows.items()
    )
    return [[entry for entry in entries if in_range(entry, *bounds)] for bounds in ranges]


def native(world: World, codec: EntryCodec, ranges: list[Range]) -> list[list[bytes]]:
    """What the tablet tells of its rows."""
    snapshot = world.tablet.scan_snapshot()
    return [
        tablet_entries(codec, snapshot, [], low, high).entries().to_pylist() for low, high in ranges
    ]


def by_log(world: World, made: LogEntries, ranges: list[Range], salt: int) -> list[list[bytes]]:
    """What a recovery job makes of the log's segments, in any order, some of them twice; of the
    columns it reads nothing but those of the index."""
    rng = random.Random(salt)
    codec = world.tablet.codec
    found = [
        logged.recovered(world.schema, codec, rng.random() < 0.5)
        for logged in [*world.log.values(), *rng.sample(list(world.log.values()), 1)]
    ]
    rng.shuffle(found)
    merged = merge([segment.summary for segment in found])
    entries = [
        made.of_segment(with_ids(segment.batch, made.column_ids), mask)
        for segment, mask in zip(found, merged.live, strict=True)
        if segment.batch is not None
    ]
    parts = made.partitions(entries, ranges)
    for arrays in parts:
        for array in arrays:
            assert array.to_pylist() == sorted(set(array.to_pylist()))
    return [sorted(entry for array in arrays for entry in array.to_pylist()) for arrays in parts]


def cut(entries: list[bytes], places: list[int]) -> list[Range]:
    """Ranges that cover everything, cut at or within some of the entries."""
    bounds = {entries[place % len(entries)] for place in places} if entries else set()
    bounds |= {entry[:-1] for entry in bounds if place_is_odd(entry)}
    edges = [b"", *sorted(bounds - {b""}), END]
    ranges = list(itertools.pairwise(edges))
    assert covers(ranges)
    return ranges


def place_is_odd(entry: bytes) -> bool:
    return entry[-1] % 2 == 1


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES, max_size=25),
    places=st.lists(st.integers(0, 30), max_size=4),
    salt=st.integers(0, 1000),
    data=st.data(),
)
def test_log_tablet_and_plain_python_give_the_same_entries(
    moves: list[Any], places: list[int], salt: int, data: st.DataObject
) -> None:
    """Through alters, deletes, seals and recoveries, and whatever the indexed column is."""
    world = World()
    play(world, moves)
    column = data.draw(st.sampled_from(world.schema.arrow.names))
    schema = with_index(world.schema, column, IndexId("1" * 32), "table")
    codec, made = EntryCodec(schema, schema.indexes[0]), LogEntries(schema, schema.indexes[0])
    ranges = cut(plain(world, codec, [(b"", END)])[0], places)
    expected = plain(world, codec, ranges)
    assert native(world, codec, ranges) == expected
    assert by_log(world, made, ranges, salt) == expected


def indexed(world: World, column: str) -> tuple[TableSchema, LogEntries]:
    schema = with_index(world.schema, column, IndexId("1" * 32), "table")
    return schema, LogEntries(schema, schema.indexes[0])


def test_large_logs_are_sorted_in_parts_that_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several arrays for a range, each sorted, with all entries between them."""
    monkeypatch.setattr(log_entries, "SORTED_BYTES_MAX", 64)
    world = World()
    for number in range(8):
        world.write(WriteOp.UPSERT, [{"id": number % 6, "a": f"text {number}", "b": 1}], True)
        world.roll()
    schema, made = indexed(world, "a")
    codec = EntryCodec(schema, schema.indexes[0])
    ranges = [(b"", END)]
    assert by_log(world, made, ranges, 1) == plain(world, codec, ranges)
    batches = [
        logged.recovered(world.schema, world.tablet.codec, False).batch
        for logged in world.log.values()
    ]
    masks = merge(
        [
            logged.recovered(world.schema, world.tablet.codec, False).summary
            for logged in world.log.values()
        ]
    ).live
    entries = [made.of_segment(b, m) for b, m in zip(batches, masks, strict=True) if b is not None]
    assert len(made.partitions(entries, ranges)[0]) >= 2


def test_both_sets_of_kernels_make_the_same_partitions() -> None:
    """The compiled ones and their plain reference."""
    world = World()
    rows = [{"id": n, "a": ["x", "", "x\0y", None][n % 4], "b": n} for n in range(6)]
    world.write(WriteOp.UPSERT, rows, True)
    world.write(WriteOp.DELETE, [{"id": 3}], False)
    schema, compiled = indexed(world, "a")
    reference = LogEntries(schema, schema.indexes[0], index_kernels_reference)
    ranges = [(b"", b"\x01x"), (b"\x01x", END)]
    assert by_log(world, compiled, ranges, 2) == by_log(world, reference, ranges, 2)


def test_a_column_that_a_segment_has_not_is_its_default_and_is_not_asked_for_by_name() -> None:
    """By id: a namesake that was dropped says nothing about the column of today."""
    world = World()
    world.write(WriteOp.UPSERT, [{"id": 1, "a": "old", "b": 1}], False)
    world.alter(drop=["a"])
    field = pa.field("a", pa.string(), nullable=False)
    world.alter(add=[field], defaults={"a": pa.scalar("new")})
    schema, made = indexed(world, "a")
    segment = world.log[1].recovered(world.schema, world.tablet.codec, False)
    assert segment.batch is not None
    batch = with_ids(segment.batch, made.column_ids)
    assert batch.schema.names == ["id"]
    live = merge([segment.summary]).live[0]
    codec = EntryCodec(schema, schema.indexes[0])
    row = rows_to_batch([(1, "new")], pa.schema([schema.arrow.field("id"), field]))
    assert made.of_segment(batch, live).equals(codec.encode_batch(row))
