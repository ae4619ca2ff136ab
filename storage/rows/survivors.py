"""Survivors: what of some neighbouring segments is kept, and how rows move there.

`survive` says what is kept, off the event loop: rows that were live when it began, in the order of
the log, and the tombstones that may be needed. A `Move` then brings the index over, a bounded
number of rows at a time, while the tablet is read and written; rows that died meanwhile stay dead.
While it goes on, the survivor stands before its parents and each row is live in one of them, so
that whoever looks sees every row once, in order.

A tombstone may be forgotten if nothing that a recovery might read holds an older row of its key.
Such rows are before it in the log: in the parents, which go together, or in earlier segments, which
say by a filter what the log may have of them, be it in memory or not. It needs that whoever admits
a survivor into the log does so one after the other: by then the log has these very earlier ones.

Source: seed 003 (cleaning of tombstones); RAMCloud, ``LogCleaner`` and ``ObjectManager::relocate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, RowKind
from stelae.storage.kernels.api import I64, U64, Bools
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.hash_index import SLOT_SHIFT
from stelae.storage.rows.store import RowStore
from stelae.storage.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class Parent:
    """A closed segment as of one moment."""

    segment: Segment
    batch: pa.RecordBatch
    """All of its rows that are in memory, in its own stored columns."""
    live: Bools | None
    """None: all are."""
    hashes: U64 | None = None
    """Of all keys, where rows are not here: such a one is asked for its keys only."""
    picked: I64 | None = None
    """Which of its rows those in the batch are; None: all."""

    @staticmethod
    def of(segment: Segment) -> Parent:
        mask = segment.live_mask()
        live = None if mask is None else np.frombuffer(mask, np.bool_)
        hashes = segment.known_hashes()
        if hashes is not None:
            nothing = pa.RecordBatch.from_pylist([], schema=segment.layout.stored)
            return Parent(segment, nothing, live, hashes)
        return Parent(segment, segment.stored(), live)

    @staticmethod
    def of_picked(segment: Segment, batch: pa.RecordBatch, picked: I64) -> Parent:
        """Of which these rows alone are in question."""
        return Parent(segment, batch, segment.are_live(picked), picked=picked)


@dataclass(frozen=True, slots=True)
class Survivor:
    """What is kept of its parents."""

    batch: pa.RecordBatch
    hashes: U64
    rows: list[I64]
    """Of each parent, which of its rows these are."""
    forgot_below: int
    """One more than the highest version of a tombstone that is left out; 0: none is."""


def filter_of(parent: Parent, codec: KeyCodec) -> KeyFilter:
    """Of all keys of a segment, whose rows, or their hashes, are in memory. Off the loop."""
    return KeyFilter(codec.hash_batch(parent.batch) if parent.hashes is None else parent.hashes)


def survive(
    parents: Sequence[Parent], codec: KeyCodec, earlier: Sequence[KeyFilter] | None
) -> Survivor:
    """Decide what is kept of ``parents``, which are neighbours. Pure; may run on any thread.

    ``earlier``: of all segments before them in the log; None: all tombstones are kept.
    """
    batches: list[pa.RecordBatch] = []
    rows: list[I64] = []
    forgot_below = 0
    for parent in parents:
        kinds = parent.batch.column(OP_COLUMN).to_numpy()
        tombstones = kinds == RowKind.TOMBSTONE
        kept = ~tombstones if parent.live is None else parent.live & ~tombstones
        needed = tombstones
        if earlier is not None and tombstones.any():
            needed, highest = _needed(parent.batch, tombstones, codec, earlier)
            forgot_below = max(forgot_below, highest + 1 if highest else 0)
        kept = kept | needed
        found = np.flatnonzero(kept)
        rows.append(found if parent.picked is None else parent.picked[found])
        whole = len(found) == parent.batch.num_rows
        batches.append(parent.batch if whole else parent.batch.filter(pa.array(kept)))
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return Survivor(batch, codec.hash_batch(batch), rows, forgot_below)


def _needed(
    batch: pa.RecordBatch, tombstones: Bools, codec: KeyCodec, earlier: Sequence[KeyFilter]
) -> tuple[Bools, int]:
    """Which tombstones have to stay, and the highest version of the others, or 0."""
    at = np.flatnonzero(tombstones)
    hashes = codec.hash_batch(batch.take(pa.array(at)))
    guards = np.zeros(len(at), np.bool_)
    for keys in earlier:
        guards |= keys.may_have(hashes)
    needed = np.zeros(batch.num_rows, np.bool_)
    needed[at[guards]] = True
    gone = at[~guards]
    versions = batch.column(VERSION_COLUMN).to_numpy()
    return needed, int(versions[gone].max()) if len(gone) else 0


class Move:
    """Rows on their way from parents to a survivor that is in the store already. Belongs to the
    event loop."""

    def __init__(
        self,
        store: RowStore,
        parents: Sequence[Segment],
        target: Segment | None,
        survivor: Survivor,
    ) -> None:
        """``target`` None: nothing was kept."""
        self._store = store
        self._parents = list(parents)
        self._target = target
        self._survivor = survivor
        self._parent = 0  # whose rows come next
        self._row = 0  # of them, so many are done
        self._done = 0  # of all
        self.is_done = False
        self.slot = -1 if target is None else target.slot
        """Of the survivor."""

    def step(self, rows_max: int) -> bool:
        """Move so many rows; whether it is over, and the parents are gone."""
        while not self.is_done and rows_max > 0:
            if self._parent == len(self._parents) or self._target is None:
                self._finish()
                break
            rows = self._survivor.rows[self._parent]
            count = min(rows_max, len(rows) - self._row)
            if count:
                self._move(self._target, self._parents[self._parent], rows, count)
                rows_max -= count
            if self._row == len(rows):
                self._parent, self._row = self._parent + 1, 0
        return self.is_done

    def _move(self, target: Segment, parent: Segment, rows: I64, count: int) -> None:
        moved = rows[self._row : self._row + count]
        places = np.arange(self._done, self._done + count, dtype=np.int64)
        hashes = self._survivor.hashes[self._done : self._done + count]
        live = parent.are_live(moved)
        if not live.all():
            moved, places, hashes = moved[live], places[live], hashes[live]
        if len(moved):
            old, new = parent.slot << SLOT_SHIFT | moved, target.slot << SLOT_SHIFT | places
            self._store.index.replace(hashes, old, new)
            parent.kill_many(moved)
            target.revive_many(places)
        self._row += count
        self._done += count

    def _finish(self) -> None:
        for parent in self._parents:
            self._store.remove(parent)
        if self._target is not None:
            self._target.settle()
        self.is_done = True
