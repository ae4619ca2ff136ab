"""Which rows of a log are the newest of their keys, for who makes no index of them.

A recovery task tells the tablet's new owner a bit for each row, and forgets the rest. A table for
all keys, as `stelae.storage.keys.merge` fills for its index, would be new memory of three times
the summaries, touched in no order: both cost more than the comparing (docs/decisions.md, 20). So
rows are dealt out by the upper bits of their hashes first, and each part is looked at by itself, in
a table that the processor's cache holds and that serves for all of them.

The outcome is that of `merge`, to the bit. Source: Manegold, Boncz, Kersten, "Optimizing
main-memory join on modern hardware" (2002), radix-clustered hash join.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from stelae.core.buffers import BufferPool
from stelae.storage.kernels.api import U8, U64, Bools
from stelae.storage.keys.hash_index import normal
from stelae.storage.keys.merge import NO_KINDS, Columns, Summary

PART_ROWS = 64 << 10
"""About so many rows are looked at together."""
PART_BITS_MAX = 10
"""More parts than that are too many places to write to at once."""


def find_winners(
    summaries: Sequence[Summary], pool: BufferPool | None = None, part_rows: int = PART_ROWS
) -> list[Bools]:
    """Of each segment the rows that a merge of all of them leaves. Pure; may run on any thread.

    ``pool``: of memory that serves for one merge after the other.

    Raises:
        AssertionError: columns of a summary differ in length, or only some summaries have keys.
    """
    from stelae.storage.kernels import winners_compiled as kernels

    columns = Columns.of(summaries)
    row_count = int(columns.bases[-1])
    live = np.ones(row_count, np.bool_)
    bits = min(PART_BITS_MAX, max(1, (row_count // part_rows).bit_length()))
    shift = np.uint64(64 - bits)
    counts = np.zeros(1 << bits, np.int64)
    hashes: list[U64] = [normal(each.hashes, np.uint64) for each in summaries]  # type: ignore[misc]
    for each in hashes:
        kernels.count_parts(each, shift, counts)
    ends = np.cumsum(counts)
    room = (pool or BufferPool(0)).take(16 * row_count)
    rows = np.frombuffer(room, np.uint64)
    cursor = ends - counts
    for slot, (each, summary) in enumerate(zip(hashes, summaries, strict=True)):
        kinds: U8 = NO_KINDS
        if summary.kinds is not None:
            kinds = normal(summary.kinds, np.uint8)  # type: ignore[assignment]
        kernels.deal_rows(each, kinds, slot, shift, cursor, rows)
    table = np.empty(1 << int(counts.max(initial=0) * 3 // 2).bit_length(), np.uint32)
    for start, end in itertools.pairwise([0, *ends.tolist()]):
        if start < end:
            kernels.find_winners(rows[2 * start : 2 * end], *columns, table, live)
    return [live[start:end] for start, end in itertools.pairwise(columns.bases.tolist())]
