"""Recovery's merge: of all rows of a log, the one with the highest version of each key wins.

Works on **summaries** (hash, version, kind of each row; encoded keys where hashes do not identify
them), never on values (seed 003, "partial replay"; design §9). Replay is idempotent and free of
order: versions decide, and of equal versions, which are copies of one row, the first met stays.
Tombstones compete like rows, and drop out at the end; they raise ``next_version`` all the same.

The kernels run without the GIL, segment by segment into one table: two tablets merge on two
threads. The table holds distinct keys only, 24 bytes a slot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.storage.buffers import BufferPool
from stelae.storage.index import HashIndex, normal
from stelae.storage.kernel_api import (
    I64,
    MERGE_WORDS,
    U8,
    U64,
    Bools,
    Kernels,
    default_kernels,
    empty_table,
    new_array,
)
from stelae.storage.keys import binary_parts

MAX_LOAD = 0.75
GROWTH = 1.4
FIRST_SHARE = 0.5
"""Share of all rows for which the table of a large merge has room at first."""
FIRST_ROWS = 4 << 20
"""A merge of up to so many rows has room for all of them at once (32 bytes each): moving entries
into a larger table, on memory never used before, takes longer than the merge."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a merge needs of one segment: an element for each row, in log order.

    ``kinds`` are `stelae.core.schema.RowKind`; ``keys`` are `KeyCodec.encode_batch` of the rows, or
    None where the codec is exact.
    """

    hashes: U64
    versions: U64
    kinds: U8
    keys: pa.BinaryArray | None = None

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class Merged:
    """The winners, tombstones left out, in the order of the index's table.

    ``positions`` are ``slot << 32 | row``, a slot being the place in the sequence merged;
    ``live[slot]`` marks the winners among the segment's rows; ``next_version`` is one more
    than the highest version seen, 1 if there was none.
    """

    hashes: U64
    positions: I64
    live: list[Bools]
    next_version: int

    def index(self, kernels: Kernels | None = None) -> HashIndex:
        """The hash index of the winners, in one pass in order through memory."""
        return HashIndex.build(self.hashes, self.positions, kernels)


def merge(
    summaries: Sequence[Summary],
    kernels: Kernels | None = None,
    pool: BufferPool | None = None,
) -> Merged:
    """Find the newest row of each key. Pure; may run on any thread.

    ``pool``: memory for the table and for what is returned, but the masks: the next merge uses it
    again once this one's outcome is no longer held.

    Raises:
        AssertionError: columns of a summary differ in length, or only some summaries have keys.
    """
    kernels = kernels or default_kernels()
    for summary in summaries:
        _check(summary, summaries[0])
    bases = np.zeros(len(summaries) + 1, np.int64)
    np.cumsum([len(summary) for summary in summaries], out=bases[1:])
    key_offsets, key_data = _all_keys(summaries)
    rows = int(bases[-1])
    table = _room(max(16, min(rows, FIRST_ROWS), int(rows * FIRST_SHARE)), pool)
    count = highest = 0
    for slot, summary in enumerate(summaries):
        if len(summary) == 0:
            continue
        if count + len(summary) > len(table) // MERGE_WORDS * MAX_LOAD:
            larger = _room(max(int(count * GROWTH), count + len(summary)), pool)
            kernels.merge_rehash(table, larger)
            table = larger
        versions: U64 = normal(summary.versions, np.uint64)  # type: ignore[assignment]
        count += kernels.merge_segment(
            table,
            normal(summary.hashes, np.uint64),  # type: ignore[arg-type]
            versions,
            normal(summary.kinds, np.uint8),  # type: ignore[arg-type]
            slot,
            bases,
            key_offsets,
            key_data,
        )
        highest = max(highest, int(versions.max()))
    return _winners(kernels, table, count, bases, highest + 1, pool)


def _winners(
    kernels: Kernels,
    table: U64,
    count: int,
    bases: I64,
    next_version: int,
    pool: BufferPool | None,
) -> Merged:
    hashes, positions = new_array(count, np.uint64, pool), new_array(count, np.int64, pool)
    live = np.zeros(int(bases[-1]), np.bool_)
    rows = kernels.merge_winners(table, bases, hashes, positions, live)
    masks = [live[start:end] for start, end in itertools.pairwise(bases)]
    return Merged(hashes[:rows], positions[:rows], masks, next_version)


def _check(summary: Summary, first: Summary) -> None:
    rows = len(summary.hashes)
    lengths = (len(summary.versions), len(summary.kinds))
    if lengths != (rows, rows) or (summary.keys is not None and len(summary.keys) != rows):
        raise AssertionError(f"summary of {rows} hashes has columns of other lengths: {lengths}")
    if (summary.keys is None) != (first.keys is None):
        raise AssertionError("some summaries have keys, some have not")


def _all_keys(summaries: Sequence[Summary]) -> tuple[I64, U8]:
    """Offsets and bytes of the keys of all rows; no offsets where hashes identify keys.

    One copy of the keys: a winner may lie in any segment, and comparing must reach it.
    """
    parts = [binary_parts(s.keys) for s in summaries if s.keys is not None]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    lengths = [np.diff(offsets) for offsets, _data in parts]
    ends = np.zeros(sum(map(len, lengths)) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=ends[1:], dtype=np.int64)
    data = np.concatenate([data[offsets[0] : offsets[-1]] for offsets, data in parts])
    return ends, data


def _room(rows: int, pool: BufferPool | None) -> U64:
    return empty_table(math.ceil(rows / MAX_LOAD) + 1, MERGE_WORDS, pool)
