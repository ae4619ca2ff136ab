"""What one tablet gets of a call that writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.input.convert import decode_batch, encode_batch
from stelae.core.messages.rows import WriteOp, WriteReply
from stelae.core.schema.values import WireRow

Places = NDArray[np.int64]
Versions = NDArray[np.uint64]


@dataclass(slots=True)
class Part:
    """What one tablet gets of a call: few rows as wire values, or a blob of many."""

    number: int
    op: WriteOp
    rows: tuple[WireRow, ...]
    columns: tuple[str, ...]
    expected: tuple[int, ...]
    schema_version: int
    """The one that the rows and columns are of."""
    blobs: Sequence[pa.Buffer] = ()
    levels: tuple[Places, ...] = ()
    """Of one that was cut for a tablet that was split since: which of the first part's rows each
    cut had, the last one these."""

    @property
    def keys(self) -> pa.RecordBatch | None:
        """Its rows, if they are many."""
        return decode_batch(self.blobs[0]) if self.blobs else None

    def some(self, chosen: Places, number: int) -> Part:
        """The part that another tablet gets of it: these of its rows, ascending."""
        batch = self.keys
        count = len(self.rows) if batch is None else batch.num_rows
        levels = self.levels or (np.arange(count),)
        blobs: tuple[pa.Buffer, ...] = ()
        if batch is not None:
            blobs = (encode_batch(batch.take(pa.array(chosen))),)
        at = chosen.tolist()
        return Part(
            number,
            self.op,
            tuple([self.rows[i] for i in at]) if self.rows else (),
            self.columns,
            tuple([self.expected[i] for i in at]) if self.expected else (),
            self.schema_version,
            blobs,
            (*levels, levels[-1][chosen]),
        )


class CutReply(WriteReply, frozen=True):
    """What several tablets answered to their parts of one part, put together."""

    versions: Any = None
    """Of each of its rows; not rising one by one."""


def versions_in(reply: WriteReply, part: Part) -> Versions:
    """The versions of a part's rows.

    A tablet that was split may have carried out all of a part before it died: then each tablet in
    its place knows the answer, which is of all those rows. Cuts within cuts have fewer and fewer
    rows, or the same ones, so their number says of which cut an answer is.
    """
    if isinstance(reply, CutReply):
        return np.asarray(reply.versions, np.uint64)
    for level in reversed(part.levels):
        if len(level) == reply.row_count:
            within = np.searchsorted(level, part.levels[-1])
            return np.uint64(reply.first_version) + within.astype(np.uint64)
    return np.uint64(reply.first_version) + np.arange(reply.row_count, dtype=np.uint64)
