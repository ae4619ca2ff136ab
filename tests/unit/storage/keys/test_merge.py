"""Recovery's merge against a dict: the highest version of each key wins."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.schema.schema import RowKind
from stelae.storage.kernels import compiled as kernels
from stelae.storage.kernels import reference as kernels_reference
from stelae.storage.kernels.api import Kernels
from stelae.storage.keys.merge import (
    Merged,
    Summary,
    compact_versions,
    marked,
    merge,
    winners_as_bits,
    winners_of_bits,
)

BOTH = pytest.mark.parametrize("module", [kernels, kernels_reference], ids=["numba", "reference"])

Row = tuple[int, bytes, int, int]
"""(hash, key, version, kind)"""


@pytest.fixture(autouse=True, scope="module")
def _tables_grow() -> Iterator[None]:
    """Merges begin with half the room, as large ones do: so that growing is covered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stelae.storage.keys.merge.FIRST_ROWS", 0)
        yield


def summary(rows: Sequence[Row], with_keys: bool) -> Summary:
    """A segment's summary; its keys are a slice of a longer array, as they may be in life. Versions
    and kinds are as short as they can be, but not in segments of three rows."""
    keys = pa.array([b"before", *(row[1] for row in rows)], pa.binary()).slice(1)
    hashes = np.array([row[0] for row in rows], np.uint64)
    kinds: Any = np.array([row[3] for row in rows], np.uint8)
    versions, first = compact_versions(np.array([row[2] for row in rows], np.uint64))
    if len(rows) == 3:
        versions, first = np.array([row[2] for row in rows], np.uint64), 0
    elif not any(row[3] for row in rows):
        kinds = None
    return Summary(hashes, versions, kinds, keys if with_keys else None, first)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=6), st.integers(0, 2**60))
def test_versions_in_short_are_the_same_versions(values: list[int], first: int) -> None:
    """Whether they rise one by one, or lie near each other, or neither."""
    near = [first + value % 1000 for value in sorted(values)]
    for numbers in (values, near, list(range(first, first + len(values)))):
        versions = np.array(numbers, np.uint64)
        found, least = compact_versions(versions)
        short = Summary(versions, found, None, None, least)
        assert short.versions_of(slice(None)).tolist() == numbers
        assert short.versions_of(np.arange(len(numbers))).tolist() == numbers
        assert [short.version_of(row) for row in range(len(numbers))] == numbers
        assert short.last_version == max(numbers, default=0)
        assert short.versions_of(slice(1, 3)).tolist() == numbers[1:3]


@st.composite
def logs(draw: st.DrawFn) -> list[list[Row]]:
    """Segments of writes to few keys, some of which collide; versions rise along the log."""
    weak = draw(st.booleans())
    names = [b"", b"a", b"ab", b"b", b"ba", b"long key %d" % draw(st.integers(0, 9)), b"c", b"d"]
    segments, version = [], draw(st.integers(0, 2**63))
    for size in draw(st.lists(st.integers(0, 12), max_size=6)):
        rows = []
        for _ in range(size):
            number = draw(st.integers(0, len(names) - 1))
            version += draw(st.integers(1, 3))
            hashed = (number % 3 if weak else number) * 0x9E3779B97F4A7C15 % 2**64
            rows.append((hashed, names[number], version, draw(st.sampled_from([0, 0, 1]))))
        segments.append(rows)
    return segments


def winners(segments: Sequence[Sequence[Row]]) -> dict[bytes, tuple[int, int, int, int]]:
    """The model: key → (version, kind, slot, row) of the newest row, tombstones left out."""
    newest: dict[bytes, tuple[int, int, int, int]] = {}
    for slot, rows in enumerate(segments):
        for row, (_hash, key, version, kind) in enumerate(rows):
            if key not in newest or version > newest[key][0]:
                newest[key] = (version, kind, slot, row)
    return {key: found for key, found in newest.items() if found[1] == RowKind.ROW}


def check(merged: Merged, segments: Sequence[Sequence[Row]]) -> None:
    expected = winners(segments)
    pairs = sorted(zip(hashes_of(merged).tolist(), positions_of(merged).tolist(), strict=True))
    places = [(slot << 32 | row, segments[slot][row][0]) for _v, _k, slot, row in expected.values()]
    assert pairs == sorted((hashed, place) for place, hashed in places)
    assert [len(mask) for mask in merged.live] == [len(rows) for rows in segments]
    live = [
        slot << 32 | row
        for slot, mask in enumerate(merged.live)
        for row in np.flatnonzero(mask).tolist()
    ]
    assert sorted(live) == sorted(place for place, _hash in places)
    highest = max((row[2] for rows in segments for row in rows), default=0)
    assert merged.next_version == highest + 1


@BOTH
@settings(max_examples=150, deadline=None, derandomize=True)
@given(segments=logs())
def test_the_newest_row_of_each_key_wins(module: Kernels, segments: list[list[Row]]) -> None:
    """With colliding hashes, deletes and empty segments the merge equals the dict."""
    check(merge([summary(rows, True) for rows in segments], module), segments)


@BOTH
@settings(max_examples=100, deadline=None, derandomize=True)
@given(segments=logs(), seed=st.randoms(use_true_random=False))
def test_order_and_repetition_of_segments_change_no_winner(
    module: Kernels, segments: list[list[Row]], seed: random.Random
) -> None:
    """Segments in another order, some read twice: the same rows win, with the same versions."""
    again = segments + [rows for rows in segments if seed.random() < 0.5]
    seed.shuffle(again)
    merged = merge([summary(rows, True) for rows in again], module)
    check(merged, again)
    newest = {key: found[:2] for key, found in winners(segments).items()}
    assert newest == {key: found[:2] for key, found in winners(again).items()}
    assert len(merged.index) == len(newest)


@BOTH
@settings(max_examples=100, deadline=None, derandomize=True)
@given(segments=logs())
def test_exact_hashes_need_no_keys(module: Kernels, segments: list[list[Row]]) -> None:
    """Where the hash identifies the key, summaries without keys give the dict's winners."""
    exact = [[(h, str(h).encode(), v, k) for h, _key, v, k in rows] for rows in segments]
    check(merge([summary(rows, False) for rows in exact], module), exact)


def test_no_segments_give_an_empty_tablet_at_version_1() -> None:
    """Nothing merged: no winners, and the first version is 1, as 0 means absent."""
    merged = merge([])
    assert (len(merged.index), merged.live, merged.next_version) == (0, [], 1)
    assert len(merged.index) == 0


def test_a_tombstone_raises_the_next_version() -> None:
    """A log that ends in a delete gives later writes higher versions than the delete had."""
    merged = merge([summary([(1, b"a", 5, 0), (1, b"a", 9, 1)], True)])
    assert (len(merged.index), merged.next_version) == (0, 10)


def hashes_of(merged: Merged) -> Any:
    """Of the winners, in the order of the index's table, as `positions_of`."""
    return merged.index.entries()[0]


def positions_of(merged: Merged) -> Any:
    return merged.index.entries()[1]


def large_log(segments: int, rows: int) -> list[Summary]:
    """Many writes to two thirds as many keys, so that the merge table has to grow."""
    rng = np.random.default_rng(11)
    made = []
    for i in range(segments):
        hashes = rng.integers(0, segments * rows * 2 // 3, rows).astype(np.uint64)
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        versions = np.arange(i * rows + 1, (i + 1) * rows + 1, dtype=np.uint64)
        made.append(Summary(hashes, versions, (rng.random(rows) < 0.1).astype(np.uint8)))
    return made


def test_a_large_merge_equals_numpy_and_gives_its_index() -> None:
    """200 000 rows in 20 segments: winners equal a sort by NumPy; the index finds each of them."""
    log = large_log(20, 10_000)
    merged = merge(log)
    hashes = np.concatenate([part.hashes for part in log])
    kinds = np.concatenate([part.kinds for part in log])
    _unique, from_end = np.unique(hashes[::-1], return_index=True)
    last = len(hashes) - 1 - from_end
    last = last[kinds[last] == 0]
    flat = (positions_of(merged) >> 32) * 10_000 + (positions_of(merged) & 0xFFFFFFFF)
    assert sorted(flat.tolist()) == sorted(last.tolist())
    assert (hashes[flat] == hashes_of(merged)).all()
    assert (np.flatnonzero(np.concatenate(merged.live)) == np.sort(last)).all()
    index = merged.index
    assert len(index) == len(last)
    assert (index.find(hashes_of(merged)) == positions_of(merged)).all()


def test_a_merge_with_room_for_all_rows_equals_one_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The room a merge begins with changes nothing but its speed."""
    log = large_log(4, 5_000)
    grown = merge(log)
    monkeypatch.setattr("stelae.storage.keys.merge.FIRST_ROWS", 1 << 22)
    roomy = merge(log)
    winners_of = [
        dict(zip(hashes_of(m).tolist(), positions_of(m).tolist(), strict=True))
        for m in (grown, roomy)
    ]
    assert winners_of[0] == winners_of[1]
    assert all((a == b).all() for a, b in zip(grown.live, roomy.live, strict=True))
    assert grown.next_version == roomy.next_version


@pytest.mark.parametrize("segments", [1, 3, 6])
def test_a_merge_is_the_same_of_marked_winners(segments: int) -> None:
    """What travels of a merge made elsewhere is a bit for each row; all else is here."""
    log = large_log(segments, 3_000)
    merged = merge(log)
    counts = [len(part) for part in log]
    bits = winners_as_bits(merged.live)
    assert len(bits) == -(-sum(counts) // 8)
    live = winners_of_bits(bits, counts)
    assert live is not None
    again = marked(log, live)
    assert again is not None
    assert again.next_version == merged.next_version
    assert all((a == b).all() for a, b in zip(again.live, merged.live, strict=True))
    assert len(again.index) == len(merged.index)
    index, hashes = again.index, np.unique(np.concatenate([part.hashes for part in log]))
    assert (index.find(hashes) == merged.index.find(hashes)).all()


def test_winners_of_other_segments_are_no_merge() -> None:
    """Rows that are not there, or are tombstones, would make readers fail later."""
    log = [summary([(1, b"a", 1, 0), (2, b"b", 2, 1)], False), summary([(3, b"c", 3, 0)], False)]
    yes, no = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    assert marked(log, [np.concatenate([yes, no]), yes]) is not None
    assert marked(log, [np.concatenate([yes, yes]), yes]) is None
    assert marked(log, [yes, yes]) is None
    assert marked(log, [np.concatenate([yes, no])]) is None
    assert winners_of_bits(b"\1", [9]) is None
    assert winners_of_bits(b"\1\1", [8]) is None
    assert winners_of_bits(b"", [-8, 8]) is None
    assert winners_of_bits(b"", []) == []


def test_merges_on_two_threads_do_not_disturb_each_other() -> None:
    """Two tablets merged at once, without the GIL, give what each gives alone."""
    logs_ = [large_log(5, 10_000), large_log(7, 8_000)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        together = list(pool.map(merge, logs_))
    for merged, log in zip(together, logs_, strict=True):
        alone = merge(log)
        assert np.array_equal(hashes_of(merged), hashes_of(alone))
        assert np.array_equal(positions_of(merged), positions_of(alone))


def test_summaries_of_unequal_shape_are_refused() -> None:
    """Columns of different lengths, or keys in only some summaries, are broken invariants."""
    good = summary([(1, b"a", 1, 0)], True)
    with pytest.raises(AssertionError, match="other lengths"):
        merge([Summary(good.hashes, good.versions_of(slice(0)), good.kinds)])
    with pytest.raises(AssertionError, match="some"):
        merge([good, summary([(1, b"a", 1, 0)], False)])
