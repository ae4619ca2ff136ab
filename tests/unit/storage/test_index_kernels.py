"""The numba kernels of indexes equal their plain-Python reference, bit for bit."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.storage.kernels import index_compiled as index_kernels
from stelae.storage.kernels import index_reference as index_kernels_reference
from stelae.storage.kernels.index_api import IndexKernels
from stelae.storage.keys.codec import binary_parts

NAMES = [name for name in vars(IndexKernels) if not name.startswith("_")]
# Many with the same beginning, of which heads of eight bytes tell nothing; zeros and ends of text.
ENTRY = st.lists(st.sampled_from([0, 1, 97, 255]), max_size=12).map(bytes) | st.binary(max_size=20)
BOTH = (index_kernels, index_kernels_reference)


def parts(entries: list[bytes]) -> tuple[Any, Any]:
    """Offsets and data, read-only as Arrow's are; not from the beginning of their buffer."""
    return binary_parts(pa.array([b"before", *entries], pa.binary())[1:])


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_a_reference_with_the_same_parameters(name: str) -> None:
    """Each function of the protocol is in both modules, with the protocol's parameters."""
    expected = list(inspect.signature(getattr(IndexKernels, name)).parameters)[1:]
    compiled = getattr(index_kernels, name)
    assert list(inspect.signature(compiled.py_func).parameters) == expected
    assert list(inspect.signature(getattr(index_kernels_reference, name)).parameters) == expected
    assert len(compiled.signatures) == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(ENTRY, max_size=8), st.binary(min_size=2, max_size=2))
def test_text_is_written_and_read_alike(texts: list[bytes], mark: bytes) -> None:
    """Lengths, bytes and cursors agree, and the text comes back."""
    offsets, data = parts(texts)
    marks = np.frombuffer(mark * len(texts), np.uint8)
    results = []
    for kernels in BOTH:
        lengths = np.full(len(texts), 2, np.int64)
        kernels.text_lengths(offsets, data, lengths)
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        out, cursor = np.zeros(int(ends[-1]), np.uint8), ends[:-1].copy()
        kernels.put_parts(marks, 2, cursor, out)
        kernels.put_text(offsets, data, cursor, out)
        assert cursor.tolist() == ends[1:].tolist()
        begins, found = ends[:-1] + 2, np.zeros(len(texts), np.int64)
        cursor = begins.copy()
        assert kernels.find_text(out, ends[1:], cursor, found) == -1
        assert cursor.tolist() == ends[1:].tolist()
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(found))).astype(np.int32)
        back = np.zeros(int(starts[-1]), np.uint8)
        kernels.take_text(out, begins, starts, back)
        assert back.tobytes() == b"".join(texts)
        results.append((out.tobytes(), found.tolist()))
    assert results[0] == results[1]


@settings(deadline=None, derandomize=True)
@given(st.lists(ENTRY, max_size=8))
def test_what_is_no_text_is_found(contents: list[bytes]) -> None:
    """The first place without an end is the same for both."""
    offsets, data = parts(contents)
    found = []
    for kernels in BOTH:
        cursor, out = offsets[:-1].astype(np.int64), np.zeros(len(contents), np.int64)
        at = kernels.find_text(data, offsets[1:].astype(np.int64), cursor, out)
        good = slice(0, at if at >= 0 else len(contents))
        found.append((at, cursor[good].tolist(), out[good].tolist()))
    assert found[0] == found[1]


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(ENTRY, max_size=80), ENTRY, st.binary(max_size=10))
def test_sorting_and_finding_equal_the_reference(
    entries: list[bytes], wanted: bytes, beginning: bytes
) -> None:
    """The order is stable and that of bytes, whatever all begin with; a place is the first that is
    not below."""
    entries = [beginning + entry for entry in entries]
    offsets, data = parts(entries)
    results = []
    for kernels in BOTH:
        heads, skip = np.empty(len(entries), np.uint64), np.zeros(1, np.int64)
        is_sorted = kernels.take_heads(offsets, data, heads, skip)
        order = np.argsort(heads)
        kernels.sort_ties(offsets, data, heads, int(skip[0]), order)
        results.append((is_sorted, heads.tolist(), skip.tolist(), order.tolist()))
    assert results[0] == results[1]
    assert results[0][3] == sorted(range(len(entries)), key=entries.__getitem__)
    offsets, data = parts(sorted(entries))
    target = np.frombuffer(beginning + wanted, np.uint8)
    assert len({k.find_entry(offsets, data, target) for k in BOTH}) == 1
    for low in (target, np.frombuffer(beginning, np.uint8)):
        for high in (target, np.zeros(0, np.uint8)):
            assert len({k.find_range(offsets, data, low, high) for k in BOTH}) == 1


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_merging_equals_the_reference(data: Any) -> None:
    """Of equal entries that of the greatest stamp stays, within runs and across them."""
    row = st.tuples(ENTRY, st.integers(0, 2), st.integers(0, 5))
    runs = data.draw(st.lists(st.lists(row, max_size=20), max_size=5))
    rows = [row for run in runs for row in sorted(run, key=lambda r: r[0])]
    offsets, content = parts([entry for entry, _, _ in rows])
    bounds = np.concatenate(([0], np.cumsum([len(run) for run in runs]))).astype(np.int64)
    writers = np.array([writer for _, writer, _ in rows], np.uint32)
    # Distinct stamps: of two equal ones it makes no difference which stays.
    sequences = np.array([s * 1000 + i for i, (_, _, s) in enumerate(rows)], np.uint64)
    epochs = np.array([7, 3, 5], np.uint64)
    results = []
    for kernels in BOTH:
        out = np.empty(len(rows), np.int64)
        count = kernels.merge_entries(offsets, content, bounds, writers, sequences, epochs, out)
        results.append(out[:count].tolist())
    assert results[0] == results[1]
