"""Winners found without an index are those of the merge, and of a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.buffers import BufferPool
from stelae.core.schema.schema import RowKind
from stelae.storage.keys.merge import Summary, compact_versions, merge
from stelae.storage.keys.winners import find_winners

POOL = BufferPool(1 << 20)
"""What is in its memory is of other merges."""

Row = tuple[int, bytes, int, int]
"""(hash, key, version, kind)"""


def summary(rows: Sequence[Row], with_keys: bool) -> Summary:
    """A segment's: versions and kinds are as short as they can be."""
    versions, first = compact_versions(np.array([row[2] for row in rows], np.uint64))
    kinds: Any = np.array([row[3] for row in rows], np.uint8) if any(r[3] for r in rows) else None
    keys = pa.array([row[1] for row in rows], pa.binary()) if with_keys else None
    return Summary(np.array([row[0] for row in rows], np.uint64), versions, kinds, keys, first)


@st.composite
def logs(draw: st.DrawFn) -> list[list[Row]]:
    """Segments in any order, some read twice; keys of equal hashes, and of other upper bits."""
    weak = draw(st.booleans())
    segments, version = [], draw(st.integers(0, 2**63))
    for size in draw(st.lists(st.integers(0, 12), max_size=6)):
        rows = []
        for _ in range(size):
            number = draw(st.integers(0, 9))
            version += draw(st.integers(1, 3))
            hashed = (number % 3 if weak else number) * 0x9E3779B97F4A7C15 % 2**64
            rows.append((hashed, b"key %d" % number, version, draw(st.sampled_from([0, 0, 1]))))
        segments.append(rows)
    again = segments + [rows for rows in segments if draw(st.booleans())]
    return draw(st.permutations(again))


def model(segments: Sequence[Sequence[Row]], with_keys: bool) -> list[list[bool]]:
    """Plain Python: the first of a key's rows with the highest version, unless a tombstone."""
    newest: dict[Any, tuple[int, int, int]] = {}
    for slot, rows in enumerate(segments):
        for row, (hashed, key, version, _kind) in enumerate(rows):
            name = (hashed, key) if with_keys else hashed
            if name not in newest or version > newest[name][0]:
                newest[name] = (version, slot, row)
    live = [[False] * len(rows) for rows in segments]
    for _version, slot, row in newest.values():
        live[slot][row] = segments[slot][row][3] == RowKind.ROW
    return live


@settings(max_examples=200, deadline=None, derandomize=True)
@given(segments=logs(), with_keys=st.booleans(), part_rows=st.sampled_from([1, 4, 1 << 16]))
def test_the_same_rows_win_as_in_a_merge_however_many_parts_there_are(
    segments: list[list[Row]], with_keys: bool, part_rows: int
) -> None:
    """With colliding hashes, deletes, empty segments, copies of one row, and in any order."""
    log = [summary(rows, with_keys) for rows in segments]
    found = [mask.tolist() for mask in find_winners(log, POOL, part_rows)]
    assert found == model(segments, with_keys)
    assert found == [mask.tolist() for mask in merge(log).live]


@pytest.mark.parametrize("part_rows", [100, 5_000, 1 << 16])
def test_many_rows_have_the_same_winners_as_in_a_merge(part_rows: int) -> None:
    """More parts than there are at most, some, and one; views into a mask are what comes back."""
    rng, log = np.random.default_rng(3), []
    for start in range(0, 120_000, 10_000):
        hashes = rng.integers(0, 80_000, 10_000).astype(np.uint64)
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        kinds = (rng.random(10_000) < 0.1).astype(np.uint8)
        log.append(Summary(hashes, None, kinds if start % 20_000 else None, None, start + 1))
    found, expected = find_winners(log, POOL, part_rows), merge(log).live
    assert len(found) == len(expected)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_a_log_of_one_key_has_one_winner() -> None:
    """All rows fall into one part, and wait for the same place in its table."""
    same = np.full(50_000, 7, np.uint64)
    live = find_winners([Summary(same, None, None, None, 1), Summary(same, None, None, None, 1)])
    assert live[0].tolist() == [False] * 49_999 + [True]
    assert not live[1].any()


def test_no_rows_have_no_winners() -> None:
    """Of no segments, and of empty ones."""
    assert find_winners([]) == []
    nothing = Summary(np.zeros(0, np.uint64), None, None)
    assert [len(mask) for mask in find_winners([nothing, nothing])] == [0, 0]


def test_summaries_of_unequal_shape_are_refused() -> None:
    """As by a merge."""
    good = summary([(1, b"a", 1, 0)], True)
    with pytest.raises(AssertionError, match="other lengths"):
        find_winners([Summary(good.hashes, good.versions_of(slice(0)), good.kinds)])
    with pytest.raises(AssertionError, match="some"):
        find_winners([good, summary([(1, b"a", 1, 0)], False)])
