"""Shares of split tablets, of many rows at once; see `stelae.core.schema.shares`.

A merge passes over **foreign** rows, which are of other shares: the table that it fills has room
for its own only. All rows of one key are of one share, so nothing that stays is touched by it. They
raise ``next_version`` all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stelae.core.schema.schema import RowKind
from stelae.core.schema.shares import SCRAMBLE, Share
from stelae.core.schema.values import WireValue
from stelae.storage.kernels.api import FOREIGN, U64, Bools
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Merged, Summary, merge
from stelae.storage.segments.picked import Picks


def share_mask(share: Share, hashes: U64) -> Bools:
    """Which of the rows with these key hashes belong to a share."""
    if not share.bits:
        return np.ones(len(hashes), np.bool_)
    scrambled = hashes * np.uint64(SCRAMBLE)  # modulo 2^64, as arrays are
    found: Bools = scrambled >> np.uint64(64 - share.bits) == np.uint64(share.value)
    return found


def share_has(
    share: Share, codec: KeyCodec, keys: Sequence[Sequence[WireValue]] | pa.RecordBatch
) -> bool:
    """Whether all of these keys, few as tuples or many as a batch, belong to a share."""
    if not share.bits:
        return True
    if isinstance(keys, pa.RecordBatch):
        return bool(share_mask(share, codec.hash_batch(keys)).all())
    return all(share.has(codec.hash_one(key)) for key in keys)


def only_share(summary: Summary, share: Share) -> Summary:
    """The summary as a tablet with this share merges it: other rows are none of its own."""
    if not share.bits or not len(summary):
        return summary
    kinds = summary.kinds_of(slice(None)).copy()
    foreign = ~share_mask(share, summary.hashes)
    kinds[foreign] = FOREIGN
    return dataclasses.replace(summary, kinds=kinds, foreign_count=int(np.count_nonzero(foreign)))


def merge_share(summaries: Sequence[Summary], share: Share) -> Merged:
    """The merge that a tablet with this share makes of a log. Pure; may run on any thread."""
    return merge([only_share(summary, share) for summary in summaries])


def picks_of(summary: Summary, live: Bools, share: Share) -> Picks:
    """What a tablet with this share may ever want of a segment that it inherits: rows that are live
    as it is recovered (which are its own), and its tombstones."""
    kinds = summary.kinds
    if kinds is None:
        return Picks(live)
    return Picks(live | ((kinds == RowKind.TOMBSTONE) & share_mask(share, summary.hashes)))


def cut_to_share(batch: pa.RecordBatch, share: Share, codec: KeyCodec) -> pa.RecordBatch:
    """The rows and tombstones of a batch of stored columns that belong to a share."""
    if not share.bits or not batch.num_rows:
        return batch
    return batch.filter(pa.array(share_mask(share, codec.hash_batch(batch))))
