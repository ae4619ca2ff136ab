"""A tablet does what a dict does, and comes back from its log."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    encode_prologue,
)
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image, build_image
from stelae.storage.segments.recovered import RecoveredSegment
from tests.unit.storage.rows.tablet_model import (
    INT_KEY,
    KEYS,
    WIDE_KEY,
    Key,
    World,
    make_key,
    make_row,
    state_of,
)

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
    segment = RecoveredSegment.from_entries([entry], tablet.codec, "head")
    tablet.adopt([segment], None, 0.0)
    assert tablet.next_version == 500
    assert segment.batch is not None
    image = build_image(segment.batch, segment.meta, tablet.codec)
    tablet.adopt([RecoveredSegment.from_image(Image.open(image, "head"))], None, 0.0)
    assert tablet.next_version == 500
