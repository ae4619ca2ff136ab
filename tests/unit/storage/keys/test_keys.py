"""Key hashes and encodings: batch and single agree, encodings are injective, forms never change."""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import FIRST_KEY_SEED, TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.kernels import compiled as kernels
from stelae.storage.kernels import reference as kernels_reference
from stelae.storage.kernels.api import Kernels
from stelae.storage.keys.codec import MASK, KeyCodec, mix
from stelae.storage.keys.decoding import exact_value

BOTH = pytest.mark.parametrize("module", [kernels, kernels_reference], ids=["numba", "reference"])


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(1 << bits - 1) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): integers(8, True),
    pa.int16(): integers(16, True),
    pa.int32(): integers(32, True),
    pa.int64(): integers(64, True),
    pa.uint8(): integers(8, False),
    pa.uint32(): integers(32, False),
    pa.uint64(): integers(64, False),
    pa.bool_(): st.booleans(),
    pa.date32(): integers(32, True),
    pa.date64(): st.integers(-1000, 1000).map(lambda day: day * 86_400_000),
    pa.timestamp("us"): integers(64, True),
    pa.timestamp("ns", "UTC"): integers(64, True),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
}
EXACT = [kind for kind in KINDS if kind not in (pa.string(), pa.binary())]


def schema_of(*kinds: pa.DataType) -> TableSchema:
    """A table whose key columns, in reverse order of the columns, have these types."""
    names = [f"k{i}" for i in range(len(kinds))]
    fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return TableSchema.of(pa.schema([*reversed(fields), pa.field("v", pa.float64())]), names)


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[TableSchema, list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(KINDS[kind] for kind in kinds)), max_size=12))
    return schema_of(*kinds), rows


@BOTH
@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn=keyed_rows(), cut=st.integers(0, 3))
def test_batch_and_single_agree_also_on_slices(
    module: Kernels, drawn: tuple[TableSchema, list[tuple[Any, ...]]], cut: int
) -> None:
    """Hashes and encodings of a (sliced) batch are those of each key alone."""
    schema, rows = drawn
    codec = KeyCodec(schema, kernels=module)
    batch = rows_to_batch(rows, schema.key_schema).slice(cut)
    assert codec.hash_batch(batch).tolist() == [codec.hash_one(row) for row in rows[cut:]]
    assert codec.encode_batch(batch).to_pylist() == [codec.encode_one(row) for row in rows[cut:]]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(keyed_rows())
def test_encodings_are_injective(drawn: tuple[TableSchema, list[tuple[Any, ...]]]) -> None:
    """Two keys have one encoding exactly if they are equal."""
    schema, rows = drawn
    codec = KeyCodec(schema)
    assert len({codec.encode_one(row) for row in rows}) == len(set(rows))
    if codec.exact:
        assert len({codec.hash_one(row) for row in rows}) == len(set(rows))


def test_text_that_runs_over_columns_is_told_apart() -> None:
    """("ab", "c") and ("a", "bc") differ in encoding and hash."""
    codec = KeyCodec(schema_of(pa.string(), pa.string()))
    assert codec.encode_one(("ab", "c")) != codec.encode_one(("a", "bc"))
    assert codec.hash_one(("ab", "c")) != codec.hash_one(("a", "bc"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_single_fixed_width_columns_are_exact(kind: pa.DataType) -> None:
    """Exact: one column of anything but text and bytes; never several columns."""
    assert KeyCodec(schema_of(kind)).exact == (kind in EXACT)
    assert not KeyCodec(schema_of(kind, pa.int64())).exact


@settings(deadline=None, derandomize=True)
@given(integers(64, False), integers(64, False))
def test_mixing_is_a_bijection(value: int, seed: int) -> None:
    """Each step of `mix` can be undone: the inverse gives the value back."""
    x = mix(value, seed)
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, 1 << 64) % (1 << 64)
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) % (1 << 64)
    x ^= x >> 30 ^ x >> 60
    assert (x - seed) % (1 << 64) == value


@pytest.mark.parametrize(
    ("kinds", "key", "hashed", "encoded"),
    [
        ((pa.int64(),), (-1,), 0xE4D971771B652C20, b"\xff" * 8),
        ((pa.string(),), ("Zürich",), None, "Zürich".encode()),
        (
            (pa.string(), pa.int32(), pa.binary()),
            ("ab", -2, b"\0c"),
            None,
            b"\x02\0\0\0ab" + b"\xfe" + b"\xff" * 7 + b"\0c",
        ),
    ],
)
def test_forms_on_disk_do_not_change(
    kinds: tuple[pa.DataType, ...], key: tuple[Any, ...], hashed: int | None, encoded: bytes
) -> None:
    """Golden encodings and hashes: summaries on disk hold them."""
    import xxhash

    codec = KeyCodec(schema_of(*kinds))
    assert codec.encode_one(key) == encoded
    expected = xxhash.xxh64_intdigest(encoded, 0x9E3779B97F4A7C15) if hashed is None else hashed
    assert codec.hash_one(key) == expected


def test_hash_bits_force_collisions_but_keep_equality() -> None:
    """With 3 bits 100 keys share at most 8 hashes, the codec is not exact, and both ways agree."""
    schema = schema_of(pa.int64())
    codec = KeyCodec(schema, hash_bits=3)
    rows = [(i,) for i in range(100)]
    hashes = codec.hash_batch(rows_to_batch(rows, schema.key_schema)).tolist()
    assert hashes == [codec.hash_one(row) for row in rows]
    assert len(set(hashes)) == 8
    assert not codec.exact


def test_hashes_of_consecutive_keys_spread_evenly() -> None:
    """Upper bits, which choose the home, fill 64 equal parts to within six standard deviations."""
    for kind, value in ((pa.int64(), lambda i: i), (pa.string(), lambda i: f"key-{i}")):
        schema = schema_of(kind)
        rows = [(value(i),) for i in range(64_000)]
        hashes = KeyCodec(schema).hash_batch(rows_to_batch(rows, schema.key_schema))
        counts = np.bincount((hashes >> np.uint64(58)).astype(np.int64), minlength=64)
        assert abs(counts - 1000).max() < 6 * 1000**0.5


def test_nulls_and_other_types_are_refused_by_name() -> None:
    """A key column with nulls, or of another type than the schema's, is an InvalidArgument."""
    codec = KeyCodec(schema_of(pa.int64()))
    with pytest.raises(InvalidArgument, match=r"k0.*nulls"):
        codec.hash_batch(pa.record_batch({"k0": pa.array([1, None])}))
    with pytest.raises(InvalidArgument, match=r"k0.*int32"):
        codec.hash_batch(pa.record_batch({"k0": pa.array([1], pa.int32())}))


def test_one_key_needs_no_numba() -> None:
    """Hashing one key, finding it in an index and its tablet never import numba."""
    code = (
        "import sys, pyarrow as pa\n"
        "from stelae.core.schema.partition import hash_partition\n"
        "from stelae.core.schema.schema import TableSchema\n"
        "from stelae.storage.keys import merge\n"
        "from stelae.storage.keys.hash_index import HashIndex\n"
        "from stelae.storage.keys.codec import KeyCodec\n"
        "from stelae.storage.keys.partitioner import Partitioner\n"
        "schema = TableSchema.of(pa.schema([('id', pa.int64())]), ['id'])\n"
        "Partitioner(hash_partition('id', 8), schema).tablet_number((1,))\n"
        "index = HashIndex()\n"
        "index.replace_one(KeyCodec(schema).hash_one((1,)), -1, 7)\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_dates_and_times_hash_as_their_wire_values() -> None:
    """A date column built from Python dates hashes as the day numbers do."""
    schema = schema_of(pa.date32())
    batch = pa.record_batch({"k0": pa.array([datetime.date(1970, 1, 11)])})
    codec = KeyCodec(schema)
    assert codec.hash_batch(batch).tolist() == [codec.hash_one((10,))]


def unmixed(hashed: int, seed: int) -> int:
    """The int64 whose hash this is, for whoever knows the seed."""
    schema = TableSchema.of(pa.schema([pa.field("k", pa.int64(), False)]), ["k"])
    value = exact_value(schema.arrow.field("k").type, seed)
    assert value is not None
    return int(value(hashed))


def test_keys_chosen_for_one_seed_are_ordinary_with_another() -> None:
    """Keys whose hashes share their upper half lie in one chain of the index, which each probe
    passes. They can be chosen only by who knows the seed, and each table has its own."""
    chosen = [unmixed(0x12345678 << 32 | n, FIRST_KEY_SEED) for n in range(2000)]
    batch = pa.record_batch({"k": pa.array(chosen, pa.int64())})
    schema = TableSchema.of(pa.schema([pa.field("k", pa.int64(), False)]), ["k"])
    other = msgspec.structs.replace(schema, key_seed=0x0123456789ABCDEF)
    homes = [
        len(np.unique(KeyCodec(each).hash_batch(batch) >> np.uint64(32)))
        for each in (schema, other)
    ]
    assert homes[0] == 1
    assert homes[1] > 1990


def test_texts_that_collide_with_one_seed_do_not_with_another() -> None:
    """Two halves of 8 bytes can be chosen to any hash, where the seed is known."""
    schema = TableSchema.of(pa.schema([("a", pa.uint64()), ("b", pa.uint64())]), ["a", "b"])
    other = msgspec.structs.replace(schema, key_seed=0x0123456789ABCDEF)
    target = KeyCodec(schema).hash_one((1, 2))
    keys = [(first, second_half(first, target, FIRST_KEY_SEED)) for first in range(1, 40)]
    assert {KeyCodec(schema).hash_one(key) for key in keys} == {target}
    assert len({KeyCodec(other).hash_one(key) for key in keys}) == len(keys)


def second_half(first: int, target: int, seed: int) -> int:
    """The second word of 16 bytes whose XXH64 is ``target``: each step of the hash, undone."""
    p1, p2, p3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
    p4, p5 = 9650029242287828579, 2870177450012600261

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & MASK

    def round_of(word: int) -> int:
        return rotated(word * p2 & MASK, 31) * p1 & MASK

    def back(x: int, shift: int) -> int:
        found = x
        for _ in range(64 // shift):
            found = x ^ found >> shift
        return found

    h = back(target, 32) * pow(p3, -1, 1 << 64) & MASK
    h = back(h, 29) * pow(p2, -1, 1 << 64) & MASK
    after = back(h, 33)
    before = (seed + p5 + 16) & MASK
    before = (rotated(before ^ round_of(first), 27) * p1 + p4) & MASK
    mixed = rotated((after - p4) * pow(p1, -1, 1 << 64) & MASK, 64 - 27)
    word = (mixed ^ before) * pow(p1, -1, 1 << 64) & MASK
    return rotated(word, 64 - 31) * pow(p2, -1, 1 << 64) & MASK
