"""What a backup stores anew, against a plain dict: nothing is missing, twice, or stored in vain."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.archive.chunks import (
    Chunk,
    Cutter,
    Versions,
    pack_versions,
    plan,
    ranges_of,
    unpack_versions,
)
from stelae.archive.files import Part

VERSIONS = st.lists(st.integers(1, 1 << 62), unique=True, max_size=300)


@given(VERSIONS)
def test_versions_are_packed_without_loss(versions: list[int]) -> None:
    """In whatever order they come."""
    given_ = np.array(versions, np.uint64)
    assert unpack_versions(pack_versions(given_), len(given_)).tolist() == versions


def chunk(name: str, versions: list[int], row_bytes: int = 100) -> Chunk:
    part = Part(name, len(versions), 10 * len(versions), name)
    packed = pack_versions(np.array(versions, np.uint64))
    return Chunk(part, packed, row_bytes * len(versions), len(versions))


def live(found: Chunk) -> list[int]:
    versions = unpack_versions(found.versions, found.part.rows)
    mask = found.mask()
    return list(versions.tolist() if mask is None else versions[mask].tolist())


@given(data=st.data())
def test_each_row_is_in_one_kept_chunk_or_is_read(data: Any) -> None:
    """Whatever the chunks were, in whatever order, and whatever has gone or come since."""
    versions = data.draw(VERSIONS)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(versions)), max_size=12)))
    bounds = [0, *cuts, len(versions)]
    pieces = [versions[a:b] for a, b in itertools.pairwise(bounds) if a < b]
    base = [chunk(f"c{n}", piece) for n, piece in enumerate(pieces)]
    gone = set(data.draw(st.lists(st.sampled_from(versions), max_size=200)) if versions else [])
    new = data.draw(st.lists(st.integers((1 << 62) + 1, 1 << 63), unique=True, max_size=50))
    present = [version for version in versions if version not in gone] + new
    found = plan(base, np.array(present, np.uint64), chunk_bytes=2000)
    kept = [version for each in found.kept for version in live(each)]
    wanted = np.array(present, np.uint64)[found.wanted].tolist()
    assert sorted(kept + wanted) == sorted(present)
    assert all(each.live_rows == len(live(each)) for each in found.kept)
    assert all(each.live_rows * 2 > each.part.rows for each in found.kept)
    again = plan(found.kept, np.array(kept, np.uint64), chunk_bytes=2000)
    assert len(found.kept) > 8 or not again.wanted.any()


def test_a_row_that_comes_back_is_found_in_its_chunk() -> None:
    """After a loss that was accepted, rows that had been replaced are seen again."""
    base = [chunk("a", list(range(1, 101)))]
    without = plan(base, np.arange(1, 91, dtype=np.uint64)).kept
    assert without[0].live_rows == 90
    again = plan(without, np.arange(1, 101, dtype=np.uint64))
    assert again.kept[0].live_rows == 100
    assert not again.wanted.any()
    assert again.kept[0] == base[0]


def test_small_chunks_are_put_together_and_large_ones_left_alone() -> None:
    """A hundred small backups do not leave a hundred small files; a large file is not read."""
    large = [chunk(f"l{n}", list(range(n * 1000 + 1, n * 1000 + 1001))) for n in range(2)]
    small = [chunk(f"s{n}", list(range(10_000 + 10 * n, 10_010 + 10 * n))) for n in range(9)]
    versions = [v for each in (*large, *small) for v in live(each)]
    found = plan([*large, *small], np.array(versions, np.uint64), chunk_bytes=100_000)
    assert [each.part.name for each in found.kept] == ["l0", "l1"]
    assert int(found.wanted.sum()) == 90
    few = plan([*large, *small[:8]], np.array(versions, np.uint64), chunk_bytes=100_000)
    assert len(few.kept) == 10


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 20))
def test_ranges_have_all_that_is_wanted_and_few_gaps(wanted: list[bool], gap: int) -> None:
    """They ascend and do not touch; no gap in one is longer than allowed."""
    ranges = ranges_of(np.array(wanted, np.bool_), gap)
    covered = [n for first, count in ranges for n in range(first, first + count)]
    assert len(covered) == len(set(covered))
    assert covered == sorted(covered)
    assert {n for n, is_wanted in enumerate(wanted) if is_wanted} <= set(covered)
    for first, count in ranges:
        assert wanted[first]
        assert wanted[first + count - 1]
        at = [n for n in range(first, first + count) if wanted[n]]
        assert all(b - a <= max(gap, 1) for a, b in itertools.pairwise(at))


def cut(versions: Versions, step: int, row_bytes: int = 16) -> list[list[int]]:
    cutter, found = Cutter(row_bytes, 4096), []
    for start in range(0, len(versions), step):
        some = versions[start : start + step]
        batch = pa.record_batch([pa.array(some), pa.array(some)], names=["a", "b"])
        found += list(cutter.push(batch, some))
    found += list(cutter.rest())
    for rows, of_rows in found:
        assert rows["a"].to_pylist() == of_rows.tolist()
        assert rows.num_rows * 16 <= 4 * 4096
    return [of_rows.tolist() for _, of_rows in found]


@settings(deadline=None, max_examples=50)
@given(VERSIONS, st.integers(1, 400), st.integers(1, 400))
def test_cuts_do_not_depend_on_how_rows_come(versions: list[int], step: int, other: int) -> None:
    """Chunks have all rows in their order."""
    given_ = np.array(versions, np.uint64)
    found = cut(given_, step)
    assert [v for each in found for v in each] == versions
    assert found == cut(given_, other)


def test_most_cuts_stay_where_they_are_when_rows_go() -> None:
    """So what an interrupted backup stored is found by the next one."""
    versions = np.arange(1, 100_001, dtype=np.uint64)
    before = {tuple(each) for each in cut(versions, 5000)}
    sizes = [len(each) for each in before]
    assert 128 <= np.mean(sizes) <= 512
    kept = np.delete(versions, [17, 50_000, 77_777])
    after = {tuple(each) for each in cut(kept, 4096)}
    assert len(after - before) <= 3


def test_rows_far_larger_than_a_chunk_are_cut_one_by_one(tmp_path: Path) -> None:
    """Nothing ever holds more than four chunks' worth and a row."""
    cutter = Cutter(16, 4096)
    versions = np.arange(1, 41, dtype=np.uint64)
    batch = pa.record_batch([pa.array([b"x" * 20_000] * 40)], names=["a"])
    found = [*cutter.push(batch, versions), *cutter.rest()]
    assert [v for _, each in found for v in each.tolist()] == versions.tolist()
    assert all(rows.num_rows == 1 for rows, _ in found)
