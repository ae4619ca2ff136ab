"""What changes tablets' hands: all rows of one tablet into another, in pieces, while it is written.

`changes_since` gives what a tablet has from a version on, in the order of versions: live rows and
all tombstones, but no rows that are dead by now. `install` puts that into another tablet's rows,
with the versions that they have. No view is pinned, and nothing is noted of what was brought over
but how far that is: whatever happens to a row later has a higher version, and is met later.

Invariant: after pieces up to version v, the receiver has of each key whose newest change in the
source is below v exactly that change; a key changed later comes with a later piece. So once v is
the source's next version and the source is not written any more, both have the same rows. It needs
that no tombstone from v on is forgotten (`TabletMemory.forgot_below`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, RowKind
from stelae.storage.keys.hash_index import SLOT_SHIFT
from stelae.storage.rows.store import NO_ROW, RowStore
from stelae.storage.rows.write import plan
from stelae.storage.segments.layout import Layout

if TYPE_CHECKING:
    from stelae.storage.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class Changes:
    """A piece of what a tablet has. It may be sent once everything is committed that was done when
    it was made: a row may be left out because of a write that does not count yet."""

    batch: pa.RecordBatch | None
    """Stored columns of the present schema, ascending by version; None: no rows."""
    next_version: int
    """Where the next piece begins."""
    is_last: bool
    """There was nothing behind it."""


def changes_since(store: RowStore, version: int, end: int, limit_bytes: int) -> Changes:
    """The next piece from ``version`` on, of about ``limit_bytes``; ``end`` is one more than the
    highest version that was given."""
    pieces: list[pa.RecordBatch] = []
    position, size_bytes = version, 0
    for batch, live in _batches_since(store.order, version):
        rows, position, done = _piece(batch, live, position, limit_bytes - size_bytes)
        if rows.num_rows:
            pieces.append(rows)
            size_bytes += rows.nbytes
        if not done or size_bytes >= limit_bytes:
            return Changes(_joined(pieces, store.layout), position, position >= end)
    return Changes(_joined(pieces, store.layout), max(position, end), True)


def _batches_since(
    segments: Sequence[Segment], version: int
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.bool_] | None]]:
    """Rows as they lie, in the order of versions, and which of them are live (None: all)."""
    later = [s for s in segments if s.row_count and s.next_version > version]
    before = 0
    for segment in sorted(later, key=lambda each: each.next_version):
        for run, start, count in segment.parts():
            if run.version(count - 1) < version:
                continue
            assert run.version(0) >= before, "versions rise in the order of the log"
            for offset, batch in run.batches(count):
                first = start + offset
                yield batch, segment.live_between(first, first + batch.num_rows)
            before = run.version(count - 1) + 1


def _piece(
    batch: pa.RecordBatch, live: NDArray[np.bool_] | None, version: int, limit_bytes: int
) -> tuple[pa.RecordBatch, int, bool]:
    """Rows of ``batch`` from ``version`` on, where they end, and whether that is all of it."""
    versions = batch.column(VERSION_COLUMN).to_numpy()
    first = int(np.searchsorted(versions, np.uint64(version)))
    row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
    last = min(len(versions), first + max(1, limit_bytes // row_bytes))
    if first == last:
        return batch.slice(0, 0), version, True
    rows = batch.slice(first, last - first)
    if live is not None:
        deleted = rows.column(OP_COLUMN).to_numpy() == RowKind.TOMBSTONE
        rows = rows.filter(pa.array(live[first:last] | deleted))
    return rows, int(versions[last - 1]) + 1, last == len(versions)


def _joined(pieces: Sequence[pa.RecordBatch], layout: Layout) -> pa.RecordBatch | None:
    if not pieces:
        return None
    same = [pa.RecordBatch.from_arrays(piece.columns, schema=layout.stored) for piece in pieces]
    return same[0] if len(same) == 1 else pa.concat_batches(same)


def install(store: RowStore, batch: pa.RecordBatch, index: int) -> bool:
    """Put an `imported_batch` behind all that is there, as log entry ``index``; whether there were
    tombstones."""
    kinds = batch.column(OP_COLUMN).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), batch.num_rows]
    for first, last in itertools.pairwise(cuts):
        rows, kind = batch.slice(first, last - first), RowKind(int(kinds[first]))
        _install_alike(store, rows, kind, index)
    return bool((kinds == RowKind.TOMBSTONE).any())


def _install_alike(store: RowStore, rows: pa.RecordBatch, kind: RowKind, index: int) -> None:
    head = store.head
    assert head is not None, "a tablet takes rows once it has a head"
    hashes = store.codec.hash_batch(rows)
    prior = plan(store, rows, hashes)
    base, count = head.slot << SLOT_SHIFT | head.row_count, rows.num_rows
    head.append_stored(rows, kind, index)
    if kind is RowKind.TOMBSTONE:
        at = np.flatnonzero(prior >= 0)  # of rows with the same key only the first finds one
        store.index.replace(hashes[at], prior[at], np.full(len(at), NO_ROW, np.int64))
        store.kill_many(prior[at])
        return
    old = np.where(prior < NO_ROW, base - prior - 2, prior)
    store.index.replace(hashes, old, np.arange(base, base + count, dtype=np.int64))
    store.kill_many(old[old >= 0])
