"""Secondary indexes: what the catalog says of them, and how a range of entries is bounded.

An **index** is of one column of a table. An **entry** is one byte string: the value's encoding,
then the primary key's (`stelae.storage.indexes.keys`). Both say by themselves where they end,
and the order of entries as bytes is that of (value, key), nulls first. So a range of an index is a
range of bytes, and may be cut anywhere, also between rows of the same value.

An **indexlet** is such a range, at one tserver. It has no log: what it holds follows from the rows.

Definitions stand in the table's schema (`TableSchema.indexes`), so that they go the way of every
schema change, and are known to whoever brings a tablet back. Seed RAMCloud, secondary indexes;
SLIK (ATC 2016). Design §11.
"""

from __future__ import annotations

import enum
from typing import NewType

import msgspec
import pyarrow as pa

from stelae.core.ids import ServerUuid, TableId

IndexId = NewType("IndexId", str)
"""32 hex digits, never reused: an index that is dropped and created again is another one."""
IndexletId = NewType("IndexletId", str)
"""32 hex digits, never reused."""
END = b""
"""``high`` of a range that has no upper bound."""


class IndexDefinition(msgspec.Struct, frozen=True, array_like=True):
    """One index. It is of a column by id: a rename leaves it as it is, a drop takes it along."""

    index_id: IndexId
    column_id: int


class IndexletState(enum.StrEnum):
    FILLING = "filling"
    """Its owner takes insertions and removals, and gathers what there was before. Or it is to
    succeed another indexlet (``succeeds``), which forwards these to it."""
    SERVING = "serving"
    """Complete. Only now look-ups are answered."""
    CLOSING = "closing"
    """Its index was dropped, and somebody may look into it still: until that is over for all of the
    index, tablets go on to put in what they write."""
    GONE = "gone"
    """Its index or table was dropped, or others are in its place, or it was to succeed one and
    was given up. Kept, as deleted tablets are, so that whoever holds it is told to close it."""


class IndexletRecord(msgspec.Struct, frozen=True):
    """One indexlet: the entries from ``low`` on and below ``high``. Of one term there is one owner.

    A new owner (a higher term) is named only once the lease of the former one has surely ended.
    """

    indexlet_id: IndexletId
    index_id: IndexId
    table_id: TableId
    low: bytes
    high: bytes
    """`END`: no bound."""
    state: IndexletState
    term: int
    owner: ServerUuid
    owner_incarnation: int
    generation: int = 1
    succeeds: IndexletId = IndexletId("")
    """The one in whose place it is to be, alone or with others; until then nobody finds it."""


def in_range(entry: bytes, low: bytes, high: bytes) -> bool:
    """Whether an entry falls into a range."""
    return low <= entry and (high == END or entry < high)


def overlap(low: bytes, high: bytes, other_low: bytes, other_high: bytes) -> tuple[bytes, bytes]:
    """What two ranges share; if nothing, a range that is empty by `is_empty`."""
    if high == END or END != other_high < high:
        high = other_high
    return (low if low >= other_low else other_low), high


def is_empty(low: bytes, high: bytes) -> bool:
    """Whether a range holds no entry."""
    return high != END and high <= low


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all entries that begin with ``prefix``; `END`: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else END


def just_after(entry: bytes) -> bytes:
    """The lowest byte string above ``entry``: where a look-up goes on."""
    return entry + b"\0"


def covers(ranges: list[tuple[bytes, bytes]]) -> bool:
    """Whether these ranges, sorted, make up all entries, each once."""
    lows = [low for low, _ in ranges]
    highs = [high for _, high in ranges]
    return bool(ranges) and lows == [b"", *highs[:-1]] and highs[-1] == END


def is_index_type(kind: pa.DataType) -> bool:
    """Whether a column of this type can be indexed."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_floating(kind)
    )
