"""The hash index against a plain dict of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.storage.kernels import compiled as kernels
from stelae.storage.kernels import reference as kernels_reference
from stelae.storage.kernels.api import EMPTY, Kernels
from stelae.storage.keys.hash_index import MAX_LOAD, SLOTS_AT_ONCE, SLOTS_PER_ROW, HashIndex

BOTH = pytest.mark.parametrize("module", [kernels, kernels_reference], ids=["numba", "reference"])
# The first kind collides all the time and crowds few homes; the last is what real hashes are like.
HASHES = st.integers(0, 5).map(lambda n: n << 61) | st.integers(0, 2**64 - 1)
BATCHES = st.lists(st.lists(st.tuples(HASHES, st.sampled_from("wwd")), max_size=30), max_size=6)


def u64(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@BOTH
@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches=BATCHES, one_by_one=st.booleans())
def test_planned_batches_keep_the_index_equal_to_a_dict(
    module: Kernels, batches: list[list[tuple[int, str]]], one_by_one: bool
) -> None:
    """Writes and deletes with keys repeated within a batch: plan tells exactly what is before each
    row, and replace, all at once or row by row, leaves one entry for each key that is there."""
    index, model = HashIndex(module), dict[int, int]()
    position = 0
    for batch in batches:
        hashes = u64([key_hash for key_hash, _what in batch])
        prior = index.plan(hashes).tolist()
        old, new = list[int](), list[int]()
        earlier: dict[int, int] = {}
        for row, (key_hash, what) in enumerate(batch):
            if key_hash in earlier:
                assert prior[row] == -(earlier[key_hash] + 2)
                old.append(new[earlier[key_hash]])
            else:
                assert prior[row] == model.get(key_hash, -1)
                old.append(prior[row])
            new.append(position if what == "w" else -1)
            earlier[key_hash] = row
            position += 1
        if one_by_one:
            for key_hash, before, after in zip(hashes.tolist(), old, new, strict=True):
                index.replace_one(key_hash, before, after)
        else:
            index.replace(hashes, np.array(old, np.int64), np.array(new, np.int64))
        model.update(zip(hashes.tolist(), new, strict=True))
        model = {key_hash: place for key_hash, place in model.items() if place != -1}
        assert len(index) == len(model)
        wanted = [model.get(key_hash, -1) for key_hash in hashes.tolist()]
        assert index.find(hashes).tolist() == wanted
        assert [index.find_one(key_hash) for key_hash in hashes.tolist()] == wanted


@BOTH
@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(HASHES, st.sampled_from("iirm")), max_size=120))
def test_colliding_keys_coexist(module: Kernels, steps: list[tuple[int, str]]) -> None:
    """Entries with one hash are told apart by position: each moves and goes alone."""
    index, model = HashIndex(module), dict[int, list[int]]()
    for position, (key_hash, what) in enumerate(steps):
        places = model.setdefault(key_hash, [])
        if what == "i" or not places:
            index.replace_one(key_hash, -1, position)
            places.append(position)
        else:
            old = places.pop(position % len(places))
            index.replace(
                u64([key_hash]), np.array([old]), np.array([position if what == "m" else -1])
            )
            if what == "m":
                places.append(position)
        assert sorted(index.candidates(key_hash)) == sorted(places)
        found = index.find_one(key_hash)
        assert found == int(index.find(u64([key_hash]))[0])
        assert found in places or (found, places) == (-1, [])
    assert len(index) == sum(map(len, model.values()))


@BOTH
def test_build_holds_exactly_what_it_was_given(module: Kernels) -> None:
    """Every pair is found, in whatever order it came, also at the largest positions."""
    rng = np.random.default_rng(7)
    hashes = rng.integers(0, 1 << 64, 2000, dtype=np.uint64)
    positions = rng.permutation(2000) + ((1 << 62) | 5)
    for order in (np.arange(2000), np.argsort(hashes)):
        index = HashIndex.build(hashes[order], positions[order], module)
        assert len(index) == 2000
        assert (index.find(hashes) == positions).all()
        assert (index.find(hashes + np.uint64(1)) == -1).all()


@BOTH
def test_removing_everything_leaves_an_empty_table(module: Kernels) -> None:
    """No gravestones remain: after as many removals as insertions each slot is free again."""
    index = HashIndex(module)
    hashes = np.random.default_rng(8).integers(0, 1 << 64, 3000, dtype=np.uint64)
    places, none = np.arange(3000), np.full(3000, -1)
    for _ in range(3):
        index.replace(hashes, none, places)
        index.replace(hashes[::-1].copy(), places[::-1].copy(), none)
        assert len(index) == 0
        assert (index._slots == np.uint64(2**64 - 1)).all()


def test_memory_stays_within_32_bytes_an_entry_at_every_size() -> None:
    """Growing by small steps never leaves the load above the limit, nor memory above 32 bytes
    an entry and a page."""
    index, start = HashIndex(), 0
    hashes = np.random.default_rng(9).integers(0, 1 << 64, 60_000, dtype=np.uint64)
    for end in range(500, 60_001, 500):
        index.replace(hashes[start:end], np.full(500, -1), np.arange(start, end))
        start = end
        assert len(index) * 16 / MAX_LOAD <= index.nbytes <= 32 * max(len(index), 600) + 4096
    assert (index.find(hashes) == np.arange(60_000)).all()


@BOTH
@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data(), first=st.integers(20, 40), pace=st.integers(2, 40))
def test_an_index_that_grows_bit_by_bit_loses_and_doubles_nothing(
    module: Kernels, data: st.DataObject, first: int, pace: int
) -> None:
    """Entries come, move and go while the table becomes longer and its border wanders to the start:
    every entry is found at every step, and none is there twice at the end. Homes are crowded, at
    both ends of the table too."""
    crowded = st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**64 - 2**59]) | st.integers(0, 2**64 - 1)
    entries = data.draw(st.lists(crowded, min_size=first, max_size=first))
    index = HashIndex(module, 60)
    index.replace(u64(entries), np.full(first, -1), np.arange(first))
    model = {(key_hash, position) for position, key_hash in enumerate(entries)}
    index._begin_growth(80)
    position = first
    while index._target:
        index._grow(pace)
        for key_hash in {key_hash for key_hash, _ in model}:
            found = sorted((key_hash, place) for place in index.candidates(key_hash))
            assert found == sorted(entry for entry in model if entry[0] == key_hash)
            assert int(index.find(u64([key_hash]))[0]) == found[0][1] or len(found) > 1
        what = data.draw(st.sampled_from("imr-"))
        if what == "-" or (what != "i" and not model):
            continue
        key_hash, before = data.draw(crowded), -1
        if what != "i":
            key_hash, before = data.draw(st.sampled_from(sorted(model)))
            model.discard((key_hash, before))
        after = -1 if what == "r" or len(model) > 38 else position
        if data.draw(st.booleans()):
            index.replace_one(key_hash, before, after)
        else:
            index.replace(u64([key_hash]), np.array([before]), np.array([after]))
        if after != -1:
            model.add((key_hash, after))
        position += 1
    assert len(index) == len(model)
    words = [(h, p) for h, p in index._slots.reshape(-1, 2).tolist() if p != EMPTY]
    assert sorted(words) == sorted(model)


@BOTH
def test_growing_is_spread_over_the_rows_that_come(module: Kernels) -> None:
    """No row of many has more to do for it than its share: a table never grows at once."""
    index, done = HashIndex(module), list[int]()
    hashes = np.random.default_rng(10).integers(0, 1 << 64, 20_000, dtype=np.uint64)
    grow = HashIndex._grow

    def counted(index: HashIndex, slots: int) -> None:
        done.append(slots)
        grow(index, slots)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashIndex, "_grow", counted)
        for start in range(0, 20_000, 10):
            part = np.arange(start, start + 10)
            index.replace(hashes[part], np.full(10, -1), part)
    assert (index.find(hashes) == np.arange(20_000)).all()
    late = done[-8:]
    assert max(late) < SLOTS_AT_ONCE + 10 * SLOTS_PER_ROW < index._capacity / 4


@BOTH
def test_a_missing_entry_is_a_broken_invariant(module: Kernels) -> None:
    """Replacing (hash, old) that is not there stops with AssertionError, in bulk and for one."""
    index = HashIndex(module)
    index.replace_one(5, -1, 7)
    index.replace_one(6, -1, 8)  # the same home: neither hash nor position alone names an entry
    with pytest.raises(AssertionError, match="no index entry"):
        index.replace(u64([5]), np.array([8]), np.array([9]))
    for new in (9, -1):
        with pytest.raises(AssertionError, match="no index entry"):
            index.replace_one(5, 8, new)
    assert (index.find_one(5), index.find_one(6), len(index)) == (7, 8, 2)


def test_inputs_may_be_strided_or_read_only_but_not_of_another_type() -> None:
    """Sliced and read-only arrays work; float hashes or short positions are refused."""
    hashes = np.arange(20, dtype=np.uint64)[::2]
    hashes.flags.writeable = False
    index = HashIndex()
    index.replace(hashes, np.full(10, -1), np.arange(20)[::2])
    assert index.find(hashes).tolist() == list(range(0, 20, 2))
    with pytest.raises(AssertionError):
        index.find(np.array([1.0]))
    with pytest.raises(AssertionError):
        index.replace(hashes, np.full(9, -1), np.arange(10))
