"""All entries of one indexlet in memory: sorted runs, and a small tail that grows.

Of everything that was ever said of an entry the greatest stamp wins, be that an insertion or a
removal, in whatever order they came. A removal is kept like an entry until a merge of everything
finds nothing below it; while something older may still arrive (a fill, a copy) none is forgotten
(`keeps_removals`). Of each tablet there is a **floor**: what is below it counts no more.

Nothing here does I/O or reads a clock; what may run off the loop says so. Source: the merge tree of
log-structured stores (O'Neil and others, Acta Informatica 1996), all of it in memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.messages.indexes import STAMP_PART_END
from stelae.core.schema.indexes import END, just_after
from stelae.storage.indexes.runs import (
    REMOVED,
    Run,
    chosen,
    compacted,
    merged,
    run_alike,
    run_of,
    sorted_alike,
    sorted_run,
)
from stelae.storage.kernels.api import U8, U64
from stelae.storage.kernels.default import default_index_kernels
from stelae.storage.kernels.index_api import IndexKernels

TAIL_MAX = 4096
"""Entries of the tail, before it becomes a run."""
_TAIL_ENTRY_BYTES = 200
"""Of an entry in the tail, beside its bytes, about."""
_SMALL = 256
"""Up to so many entries are merged in plain Python."""
_RUN_BYTES_MAX = (1 << 31) - 1
_NOTHING = np.uint64((1 << 64) - 1)


class Floor(NamedTuple):
    """Of one tablet: entries with a lower stamp count no more."""

    epoch: int
    sequence: int


OVER = Floor(STAMP_PART_END - 1, 0)
"""Of a tablet that was split, and of which nothing counts any more: above all that it has said."""


class MergePlan(NamedTuple):
    """Runs to be merged off the loop, by `make`; then `IndexletEntries.install`."""

    runs: tuple[Run, ...]
    make: Callable[[], Run]


class IndexletEntries:
    """See the module. Belongs to one event loop."""

    def __init__(self, kernels: IndexKernels | None = None) -> None:
        self.keeps_removals = False
        self.runs: list[Run] = []
        self._kernels_given = kernels
        self._tail: dict[bytes, tuple[int, int]] = {}
        """Of each entry its writer and sequence, as in a `Run`."""
        self._keys: list[bytes] = []
        self._tail_bytes = 0
        self._writers: dict[tuple[int, int], int] = {}
        self._numbers: list[int] = []
        self._epochs: list[int] = []
        self._lowest: list[int] = []
        """Of each writer the lowest sequence that counts, shifted as in a `Run`."""
        self._floors: dict[int, Floor] = {}
        self._wants_all = False

    @property
    def _kernels(self) -> IndexKernels:
        if self._kernels_given is None:
            self._kernels_given = default_index_kernels()
        return self._kernels_given

    # ---- size ---------------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        """About: overwritten and removed ones are counted until they are merged away."""
        return sum([run.length for run in self.runs]) + len(self._tail)

    @property
    def memory_bytes(self) -> int:
        return self._tail_bytes + sum([run.nbytes for run in self.runs])

    # ---- changes ------------------------------------------------------------------------------

    def writer(self, number: int, epoch: int) -> int:
        """The number of a tablet in one of its epochs."""
        writer = self._writers.get((number, epoch))
        if writer is None:
            writer = self._writers[number, epoch] = len(self._epochs)
            self._numbers.append(number)
            self._epochs.append(epoch)
            self._lowest.append(self._lowest_of(number, epoch))
        return writer

    def _lowest_of(self, number: int, epoch: int) -> int:
        floor = self._floors.get(number)
        if floor is None or epoch > floor.epoch:
            return 0
        return int(_NOTHING) if epoch < floor.epoch else floor.sequence << 1

    def set_floor(self, number: int, floor: Floor) -> None:
        """Entries of tablet ``number`` with a lower stamp count no more, now and later."""
        if floor <= self._floors.get(number, Floor(-1, 0)):
            return
        self._floors[number] = floor
        for (other, epoch), writer in self._writers.items():
            if other == number:
                self._lowest[writer] = self._lowest_of(number, epoch)
        self._wants_all = True

    def floor(self, number: int) -> Floor:
        return self._floors.get(number, Floor(0, 0))

    def put(
        self, writer: int, sequences: Iterable[int], entries: Iterable[bytes], *, is_removal: bool
    ) -> None:
        """Say of a few entries that they are there, or not, each with its sequence."""
        tail, keys, epochs = self._tail, self._keys, self._epochs
        for sequence, entry in zip(sequences, entries, strict=True):
            stamp = sequence << 1 | is_removal
            known = tail.get(entry)
            if known is None:
                bisect.insort(keys, entry)
                self._tail_bytes += len(entry) + _TAIL_ENTRY_BYTES
            elif (epochs[known[0]], known[1]) >= (epochs[writer], stamp):
                continue
            tail[entry] = (writer, stamp)
        if len(tail) >= TAIL_MAX:
            self._end_tail()

    def _end_tail(self) -> None:
        if self._tail:
            self.runs.append(self._tail_part(0, len(self._keys)))
            self._tail, self._keys, self._tail_bytes = {}, [], 0

    def _tail_part(self, begin: int, end: int) -> Run:
        keys = self._keys[begin:end]
        stamps = np.array([self._tail[key] for key in keys], np.uint64).reshape(len(keys), 2)
        writers = stamps[:, 0].astype(np.uint32)
        return run_of(pa.array(keys, pa.binary()), writers, stamps[:, 1].copy())

    def sorting(
        self,
        writer: int,
        sequence: int,
        entries: pa.BinaryArray,
        *,
        is_sorted: bool = False,
        is_removal: bool = False,
    ) -> Callable[[], Run]:
        """How many entries of one stamp become a run, which may be done off the loop; then `add`.

        ``is_sorted``: they are, and each is there once.
        """
        stamp, kernels = sequence << 1 | is_removal, self._kernels
        if is_sorted:
            return lambda: run_alike(entries, writer, stamp)
        return lambda: sorted_alike(entries, writer, stamp, kernels)

    def add(self, run: Run) -> None:
        """Take in a run, also of another indexlet if its writers are those of `writer` here."""
        if run.length:
            self.runs.append(run)

    def _epoch_array(self) -> U64:
        return np.array(self._epochs, np.uint64)

    # ---- merging ------------------------------------------------------------------------------

    def merge_plan(self) -> MergePlan | None:
        """What is to be merged next, so that there are few runs; None: nothing is.

        The smallest ones, as long as the next is not over twice as large as all of them.
        """
        everything = self._is_full_of_removals() and not self.keeps_removals
        if everything:
            self._end_tail()
        runs = sorted(self.runs, key=lambda run: run.length)
        total = taken = size_bytes = 0
        for run in runs:
            fits = size_bytes + run.data_bytes <= _RUN_BYTES_MAX
            if not fits or (taken and run.length > 2 * total and not everything):
                break
            total, taken = total + run.length, taken + 1
            size_bytes += run.data_bytes
        if taken < 2 and not (taken and everything):
            return None
        if everything:
            self._wants_all = False
        is_all = taken == len(self.runs) and not self._tail and not self.keeps_removals
        wanted = self._wanted(with_removals=not is_all)
        parts, epochs, kernels = tuple(runs[:taken]), self._epoch_array(), self._kernels
        return MergePlan(parts, lambda: compacted(parts, epochs, wanted, kernels))

    def _is_full_of_removals(self) -> bool:
        if self._wants_all:
            return True
        removed = sum([run.removed_count for run in self.runs])
        return removed > max(TAIL_MAX, self.entry_count // 4)

    def _wanted(self, *, with_removals: bool) -> Callable[[Run], NDArray[np.bool_]]:
        """Which entries still count, as of now."""
        lowest = np.array(self._lowest, np.uint64)

        def wanted(run: Run) -> NDArray[np.bool_]:
            counts = run.sequences >= lowest[run.writers]
            if not with_removals:
                counts &= (run.sequences & np.uint64(REMOVED)) == 0
            return counts

        return wanted

    def install(self, plan: MergePlan, run: Run) -> None:
        """Hold what a plan has made instead of what it was made of."""
        gone = {id(part) for part in plan.runs}
        self.runs = [kept for kept in self.runs if id(kept) not in gone]
        self.add(run)

    # ---- look-ups -----------------------------------------------------------------------------

    def lookup(
        self, low: bytes, high: bytes, limit: int, *, is_reverse: bool = False
    ) -> tuple[list[bytes], bool]:
        """Up to ``limit`` entries from ``low`` on and below ``high`` (`END`: no bound), ascending
        or descending; and whether the limit was reached."""
        found: list[bytes] = []
        while True:
            parts, bound = self._parts(low, high, limit - len(found), is_reverse=is_reverse)
            entries = self._live(parts)
            if bound is not None:
                if is_reverse:
                    entries = entries[bisect.bisect_left(entries, bound) :]
                else:
                    entries = entries[: bisect.bisect_right(entries, bound)]
            found += reversed(entries) if is_reverse else entries
            if len(found) >= limit:
                return found[:limit], True
            if bound is None:
                return found, False
            low, high = (low, bound) if is_reverse else (just_after(bound), high)

    def _parts(
        self, low: bytes, high: bytes, wanted: int, *, is_reverse: bool
    ) -> tuple[list[Run], bytes | None]:
        """Of each run, and the tail, some entries of the range; and up to which entry (itself too)
        these are all there are; None: to its end."""
        wanted += 16  # some may have been removed
        keys = self._keys
        begin = bisect.bisect_left(keys, low)
        end = len(keys) if high == END else bisect.bisect_left(keys, high)
        sources: list[tuple[Run | None, int, int]] = [(None, begin, end)]
        find, lowest, highest = self._kernels.find_range, _array(low), _array(high)
        sources += [(r, *find(r.offsets, r.data, lowest, highest)) for r in self.runs]
        parts, bounds = [], []
        for source, begin, end in sources:
            if begin >= end:
                continue
            if end - begin > wanted:
                begin, end = (end - wanted, end) if is_reverse else (begin, begin + wanted)
                last = begin if is_reverse else end - 1
                bounds.append(keys[last] if source is None else source.entry(last))
            parts.append(self._tail_part(begin, end) if source is None else source.part(begin, end))
        if not bounds:
            return parts, None
        return parts, max(bounds) if is_reverse else min(bounds)

    def _live(self, parts: Sequence[Run]) -> list[bytes]:
        """The entries that count of some parts of runs, ascending."""
        if not parts:
            return []
        if sum([part.length for part in parts]) > _SMALL:
            whole = merged(parts, self._epoch_array(), self._kernels)
            wanted = self._wanted(with_removals=False)(whole)
            return chosen(whole, wanted).entries().to_pylist()  # type: ignore[no-any-return]
        newest: dict[bytes, tuple[int, int, int]] = {}
        for part in parts:
            rows = zip(part.writers.tolist(), part.sequences.tolist(), strict=True)
            for i, (writer, sequence) in enumerate(rows):
                entry, stamp = part.entry(i), (self._epochs[writer], sequence, writer)
                if len(parts) == 1 or newest.get(entry, stamp) <= stamp:
                    newest[entry] = stamp
        lowest = self._lowest
        return sorted(
            [
                entry
                for entry, (_, sequence, writer) in newest.items()
                if not sequence & REMOVED and sequence >= lowest[writer]
            ]
        )

    # ---- to other indexlets -------------------------------------------------------------------

    def split_at(self) -> bytes:
        """About the middle of its entries, as few bytes as tell; empty: there are too few."""
        largest = max(self.runs, key=lambda run: run.length, default=None)
        if largest is None or largest.length < 2:
            return b""
        middle = largest.length // 2
        before, after = largest.entry(middle - 1), largest.entry(middle)
        same = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before)
        )
        return after[: same + 1]

    def snapshot(self) -> tuple[Run, ...]:
        """All that there is, removals included, at this moment."""
        tail = (self._tail_part(0, len(self._keys)),) if self._keys else ()
        return (*self.runs, *tail)

    def stamps_of(self, run: Run) -> tuple[NDArray[np.uint32], U64]:
        """Of each entry of a run the tablet's number, and the epoch."""
        numbers = np.array(self._numbers, np.uint32)
        return numbers[run.writers], self._epoch_array()[run.writers]

    def sorting_copy(
        self,
        entries: pa.BinaryArray,
        numbers: NDArray[np.uint32],
        epochs: U64,
        sequences: U64,
    ) -> Callable[[], Run]:
        """How entries of another indexlet become a run here, as `sorting`. ``sequences``: as in a
        `Run`."""
        pairs = np.stack((numbers.astype(np.uint64), epochs))
        distinct, places = np.unique(pairs, axis=1, return_inverse=True)
        known = [self.writer(int(number), int(epoch)) for number, epoch in distinct.T]
        writers = np.array(known, np.uint32)[places.reshape(-1)]
        all_epochs, kernels = self._epoch_array(), self._kernels
        return lambda: sorted_run(entries, writers, sequences, all_epochs, kernels)

    def live_entries(self) -> Iterator[bytes]:
        """All of them, ascending; for tests and comparisons of small indexlets."""
        yield from self.lookup(b"", END, 1 << 62)[0]


def _array(entry: bytes) -> U8:
    return np.frombuffer(entry, np.uint8)
