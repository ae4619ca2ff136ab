"""How a table is cut into tablets: by hash, by range, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stelae.core.errors import InvalidArgument

MAX_TABLETS = 1024


class HashPartition(msgspec.Struct, frozen=True, tag="hash"):
    """Rows fall into ``buckets`` by the hash of ``columns`` (key columns)."""

    columns: tuple[str, ...]
    buckets: int


class RangePartition(msgspec.Struct, frozen=True, tag="range"):
    """Rows fall between ``splits``, tuples of wire values of ``columns``, ascending.

    n splits make n+1 ranges; a split value is the first key of the range that it opens.
    """

    columns: tuple[str, ...]
    splits: tuple[tuple[Any, ...], ...]


class Partitioning(msgspec.Struct, frozen=True):
    """Hash, range, both, or neither (one tablet). Tablet number = range * buckets + bucket."""

    hash: HashPartition | None = None
    range: RangePartition | None = None

    @property
    def buckets(self) -> int:
        return self.hash.buckets if self.hash else 1

    @property
    def ranges(self) -> int:
        return len(self.range.splits) + 1 if self.range else 1

    @property
    def tablet_count(self) -> int:
        return self.buckets * self.ranges

    def check(self, key: Sequence[str]) -> None:
        """Raise `InvalidArgument` where it does not fit a table with this key."""
        for part in (self.hash, self.range):
            if part is None:
                continue
            if not part.columns or any(column not in key for column in part.columns):
                raise InvalidArgument(
                    f"partition columns {list(part.columns)} must be key columns; "
                    f"the key is {list(key)}"
                )
        if self.hash and not 1 <= self.hash.buckets <= MAX_TABLETS:
            raise InvalidArgument(f"buckets={self.hash.buckets}: 1 to {MAX_TABLETS}")
        if self.range:
            if any(len(split) != len(self.range.columns) for split in self.range.splits):
                raise InvalidArgument("each split has one value for each range column")
            if list(self.range.splits) != sorted(set(self.range.splits)):
                raise InvalidArgument("range splits must ascend, without repetition")
        if self.tablet_count > MAX_TABLETS:
            raise InvalidArgument(f"{self.tablet_count} tablets; the limit is {MAX_TABLETS}")


def hash_partition(columns: str | Sequence[str], buckets: int) -> Partitioning:
    """Cut by hash: ``hash_partition("id", buckets=8)``."""
    return Partitioning(hash=HashPartition(_names(columns), buckets))


def range_partition(columns: str | Sequence[str], splits: Sequence[Any]) -> Partitioning:
    """Cut by range: ``range_partition("day", [date(2024, 1, 1), date(2025, 1, 1)])``.

    With several columns each split is a tuple. `stelae.core.schema.values` turns values into wire
    form when the table is created.
    """
    rows = tuple(tuple(s) if isinstance(s, tuple | list) else (s,) for s in splits)
    return Partitioning(range=RangePartition(_names(columns), rows))


def hash_and_range(by_hash: Partitioning, by_range: Partitioning) -> Partitioning:
    """Cut by both: every range is cut into the same hash buckets."""
    return Partitioning(hash=by_hash.hash, range=by_range.range)


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
