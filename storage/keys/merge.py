"""Recovery's merge: of all rows of a log, the one with the highest version of each key wins.

Works on **summaries** (hash, version, kind of each row; encoded keys where hashes do not identify
them), never on values (seed 003, "partial replay"; design §9). Replay is idempotent and free of
order: versions decide, and of equal versions, which are copies of one row, the first met stays.
Tombstones compete like rows, and drop out at the end; they raise ``next_version`` all the same.

The kernels run without the GIL, segment by segment, and put winners straight into the table that
will be the tablet's index: memory is touched for the first time once, and two tablets merge on two
threads. Which version a position has is known without the table holding it: rows of a segment
mostly have rising versions without a gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.rpc import Blob
from stelae.storage.kernels.api import I64, U8, U64, Bools, Kernels
from stelae.storage.kernels.default import default_kernels
from stelae.storage.keys.codec import binary_parts
from stelae.storage.keys.hash_index import MAX_LOAD, HashIndex, normal, slots_for

GROWTH = 1.4
SPARE = 1.3
"""An index with room for so many times its entries is made anew, smaller."""
FIRST_SHARE = 0.5
"""Share of all rows for which the table of a large merge has room at first."""
FIRST_ROWS = 8 << 20
"""A merge of up to so many rows has room for all of them at once (24 bytes each): moving entries
into a larger table, on memory never used before, takes longer than the merge."""
OFFSET_MAX = (1 << 32) - 1
NO_KINDS = np.zeros(0, np.uint8)
"""Of a segment without tombstones, as kernels take it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a merge needs of one segment: an element for each row, in log order."""

    hashes: U64
    versions: U64 | NDArray[np.uint32] | None
    """As they are; or as what is to be added to ``first_version``; or None: rising from there, one
    by one."""
    kinds: U8 | None
    """`stelae.core.schema.schema.RowKind`, or `FOREIGN`; None: no tombstones."""
    keys: pa.BinaryArray | None = None
    """`KeyCodec.encode_batch` of the rows, or None where the codec is exact."""
    first_version: int = 0
    foreign_count: int = 0
    """Rows of kind `stelae.storage.kernels.api.FOREIGN`, which a merge passes over."""

    def __len__(self) -> int:
        return len(self.hashes)

    def versions_of(self, rows: I64 | slice) -> U64:
        """The versions of these rows."""
        if self.versions is None:
            if isinstance(rows, slice):
                first, end, step = rows.indices(len(self))
                start = self.first_version
                return np.arange(start + first, start + end, step, dtype=np.uint64)
            return rows.astype(np.uint64) + np.uint64(self.first_version)
        found = self.versions[rows]
        if found.dtype == np.uint64:
            return found  # type: ignore[return-value]
        return found.astype(np.uint64) + np.uint64(self.first_version)

    def version_of(self, row: int) -> int:
        if self.versions is None:
            return self.first_version + row
        offset = 0 if self.versions.dtype == np.uint64 else self.first_version
        return int(self.versions[row]) + offset

    def kinds_of(self, rows: I64 | slice) -> U8:
        """The kinds of these rows."""
        if self.kinds is not None:
            return self.kinds[rows]
        count = len(range(len(self))[rows]) if isinstance(rows, slice) else len(rows)
        return np.zeros(count, np.uint8)

    def kind_of(self, row: int) -> int:
        return 0 if self.kinds is None else int(self.kinds[row])

    @property
    def size_bytes(self) -> int:
        columns = (self.hashes, self.versions, self.kinds, self.keys)
        return sum(column.nbytes for column in columns if column is not None)

    @property
    def tombstone_count(self) -> int:
        return 0 if self.kinds is None else int(np.count_nonzero(self.kinds))

    @property
    def last_version(self) -> int:
        """The highest; 0 if there are no rows."""
        if not len(self):
            return 0
        if self.versions is None:
            return self.first_version + len(self) - 1
        return self.version_of(int(self.versions.argmax()))


def compact_versions(versions: U64) -> tuple[U64 | NDArray[np.uint32] | None, int]:
    """The versions of a segment's rows as a summary has them, and ``first_version``."""
    if not len(versions):
        return None, 0
    offsets = versions - versions[0]  # what is below the first wraps around, and is too high then
    if np.array_equal(offsets, np.arange(len(offsets), dtype=np.uint64)):
        return None, int(versions[0])
    if offsets.max() <= OFFSET_MAX:
        return offsets.astype(np.uint32), int(versions[0])
    return versions, 0


class Columns(NamedTuple):
    """What kernels need of all segments together, beside hashes and kinds."""

    bases: I64
    """How many rows there are before each slot's, and in all."""
    firsts: U64
    places: I64
    versions: U64
    key_offsets: I64
    key_data: U8

    @staticmethod
    def of(summaries: Sequence[Summary]) -> Columns:
        """Raises AssertionError: columns of a summary differ in length, or only some have keys."""
        for summary in summaries:
            _check(summary, summaries[0])
        bases = np.zeros(len(summaries) + 1, np.int64)
        np.cumsum([len(summary) for summary in summaries], out=bases[1:])
        return Columns(bases, *_all_versions(summaries), *_all_keys(summaries))


class Merged:
    """The winners, tombstones left out.

    Positions are ``slot << 32 | row``, a slot being the place in the sequence merged;
    ``live[slot]`` marks the winners among the segment's rows; ``next_version`` is one more
    than the highest version seen, 1 if there was none.
    """

    __slots__ = ("index", "live", "next_version")

    def __init__(self, index: HashIndex, live: list[Bools], next_version: int) -> None:
        self.index = index
        """Of the winners."""
        self.live = live
        self.next_version = next_version


def merge(summaries: Sequence[Summary], kernels: Kernels | None = None) -> Merged:
    """Find the newest row of each key. Pure; may run on any thread.

    Raises:
        AssertionError: columns of a summary differ in length, or only some summaries have keys.
    """
    kernels = kernels or default_kernels()
    columns = Columns.of(summaries)
    live = np.ones(int(columns.bases[-1]), np.bool_)
    rows = len(live) - sum(summary.foreign_count for summary in summaries)
    index = HashIndex.with_room(max(min(rows, FIRST_ROWS), int(rows * FIRST_SHARE)), kernels)
    count, has_tombstones = 0, False
    for slot, summary in enumerate(summaries):
        if len(summary) == 0:
            continue
        more = len(summary) - summary.foreign_count
        if count + more > len(index.slots) // 2 * MAX_LOAD:
            index = _moved(index, max(int(count * GROWTH), count + more), kernels)
        kinds = summary.kinds
        has_tombstones |= kinds is not None
        count += kernels.merge_segment(
            index.slots,
            normal(summary.hashes, np.uint64),  # type: ignore[arg-type]
            NO_KINDS if kinds is None else normal(kinds, np.uint8),  # type: ignore[arg-type]
            slot,
            *columns,
            live,
        )
    if has_tombstones:
        count -= kernels.merge_bury(index.slots)
    if len(index.slots) // 2 > SPARE * slots_for(count):
        index = _moved(index, count, kernels)
    index.filled(count)
    masks = [live[start:end] for start, end in itertools.pairwise(columns.bases)]
    return Merged(index, masks, _highest_version(summaries) + 1)


def marked(
    summaries: Sequence[Summary], live: list[Bools], kernels: Kernels | None = None
) -> Merged | None:
    """The merge of these summaries of which the winners were found elsewhere: ``live`` has a mask
    of the rows of each. None: it is not of these. Pure; may run on any thread."""
    if [len(mask) for mask in live] != [len(summary) for summary in summaries]:
        return None
    for summary, mask in zip(summaries, live, strict=True):
        if summary.kinds is not None and summary.kinds[mask].any():
            return None
    count = sum([int(np.count_nonzero(mask)) for mask in live])
    kernels = kernels or default_kernels()
    index = HashIndex.with_room(count, kernels)
    for slot, (summary, mask) in enumerate(zip(summaries, live, strict=True)):
        hashes: U64 = normal(summary.hashes, np.uint64)  # type: ignore[assignment]
        kernels.table_insert_live(index.slots, hashes, slot, mask)
    index.filled(count)
    return Merged(index, live, _highest_version(summaries) + 1)


def winners_as_bits(live: Sequence[Bools]) -> U8:
    """Masks, one after the other, as a bit for each row."""
    return np.packbits(np.concatenate([np.empty(0, np.bool_), *live]), bitorder="little")


def winners_of_bits(bits: Blob, row_counts: Sequence[int]) -> list[Bools] | None:
    """The reverse of `winners_as_bits`. None: these are not bits of so many rows."""
    ends = np.cumsum([0, *row_counts], dtype=np.int64)
    packed = np.frombuffer(bits, np.uint8)
    if min(row_counts, default=0) < 0 or len(packed) != -(-int(ends[-1]) // 8):
        return None
    live = np.unpackbits(packed, count=int(ends[-1]), bitorder="little").view(np.bool_)
    return [live[start:end] for start, end in itertools.pairwise(ends)]


def _highest_version(summaries: Sequence[Summary]) -> int:
    return max((summary.last_version for summary in summaries), default=0)


def _moved(index: HashIndex, room: int, kernels: Kernels) -> HashIndex:
    """All entries in another index, with room for so many."""
    other = HashIndex.with_room(room, kernels)
    kernels.merge_rehash(index.slots, other.slots)
    return other


def _all_versions(summaries: Sequence[Summary]) -> tuple[U64, I64, U64]:
    """Of each slot the first version, and where the others begin, or -1: they rise one by one."""
    firsts = np.array([summary.first_version for summary in summaries], np.uint64)
    places = np.full(len(summaries), -1, np.int64)
    listed: list[U64] = []
    start = 0
    for slot, summary in enumerate(summaries):
        if summary.versions is not None:
            places[slot] = start
            start += len(summary)
            listed.append(summary.versions_of(slice(None)))
    return firsts, places, np.concatenate(listed) if listed else np.zeros(0, np.uint64)


def _check(summary: Summary, first: Summary) -> None:
    rows = len(summary.hashes)
    columns = (summary.versions, summary.kinds, summary.keys)
    lengths = [len(column) for column in columns if column is not None]
    if any(length != rows for length in lengths):
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
