"""Writes of one row, which share an entry of a replicated tablet's log with their like.

Rows come one by one from many callers, and what an entry costs (to be encoded, sent, saved and
executed on each replica) is more than what a row costs. So all that wait for the same append go
into one entry. Each is still a request of its own: found again by its id when it is repeated,
refused by itself, answered by itself. Design §5, §8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stelae.actors.replica_types import Part
from stelae.core.messages import Write, WriteOp
from stelae.storage.tablet_commands import GroupCommand, Stamp, encode_group, encode_write

SMALL_BYTES_MAX = 4 << 10
"""Of a row; what is larger has an entry for itself."""
_REQUEST_BYTES = 64
"""What the log keeps of a call beside its row, about."""
_UNCONDITIONAL = (WriteOp.UPSERT, WriteOp.DELETE)


def is_small(write: Write, size_bytes: int) -> bool:
    """Whether a call is one row that is written whatever the tablet holds. ``size_bytes``: of its
    row; 0: not known."""
    one = len(write.rows) == 1 and not write.if_versions
    return one and write.op in _UNCONDITIONAL and 0 < size_bytes <= SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SmallWrite:
    """A `Part`: see the module."""

    write: Write
    rows: tuple[tuple[Any, ...], ...]
    stamp: Stamp
    schema_version: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.row_bytes + _REQUEST_BYTES

    def fits(self, other: Part) -> bool:
        if not isinstance(other, SmallWrite):
            return False
        mine, its = self.write, other.write
        is_alike = mine.op is its.op and mine.columns == its.columns
        return is_alike and self.schema_version == other.schema_version

    def joined(self, others: Sequence[Part]) -> bytes:
        version = self.schema_version
        if not others:
            stamp = self.stamp
            return encode_write(self.write, self.rows, None, schema_version=version, stamp=stamp)
        parts = [self, *[other for other in others if isinstance(other, SmallWrite)]]
        return encode_group(
            GroupCommand(
                parts[-1].stamp,
                self.write.op,
                version,
                self.write.columns,
                tuple([part.write.request for part in parts]),
                tuple([part.rows[0] for part in parts]),
            )
        )
