"""Deleted tables with all their tablets, kept for ever, and small: packed, and opened when asked.

What a server holds of a deleted tablet is dropped because the catalog knows that it was deleted; so
these records stay (seed, appendix A), while reading a snapshot must not take longer with each table
that ever was. A grave is read back as ids and bytes; few are ever looked into again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from stelae.core.ids import TableId, TabletId
from stelae.core.records.records import TableRecord, TabletRecord

K = TypeVar("K", bound=str)
V = TypeVar("V")
_LEVEL = 1


class Grave(msgspec.Struct, frozen=True, array_like=True):
    """One deleted table. ``packed``: its record and those of its tablets."""

    table_id: TableId
    tablet_ids: tuple[TabletId, ...]
    packed: bytes


class _Content(msgspec.Struct, frozen=True, array_like=True):
    table: TableRecord
    tablets: tuple[TabletRecord, ...]


_ENCODER = msgspec.msgpack.Encoder()
_CONTENT = msgspec.msgpack.Decoder(_Content)


class Graveyard:
    """All graves, in the order of deletion."""

    def __init__(self, graves: Iterable[Grave] = ()) -> None:
        self._graves = {grave.table_id: grave for grave in graves}
        self._table_of = {
            tablet_id: grave.table_id
            for grave in self._graves.values()
            for tablet_id in grave.tablet_ids
        }
        self._opened: _Content | None = None  # the last one: neighbours are asked for together

    @property
    def graves(self) -> list[Grave]:
        return list(self._graves.values())

    def bury(self, table: TableRecord, tablets: Iterable[TabletRecord]) -> None:
        """Keep a deleted table with all tablets that it ever had."""
        content = _Content(table, tuple(tablets))
        packed = zlib.compress(_ENCODER.encode(content), _LEVEL)
        tablet_ids = tuple([tablet.tablet_id for tablet in content.tablets])
        self._graves[table.table_id] = Grave(table.table_id, tablet_ids, packed)
        for tablet_id in tablet_ids:
            self._table_of[tablet_id] = table.table_id

    def table(self, table_id: TableId) -> TableRecord | None:
        """The record of a deleted table."""
        return self._open(table_id).table if table_id in self._graves else None

    def tables(self) -> Iterator[TableRecord]:
        """The records of all deleted tables, in the order of deletion."""
        return (self._open(table_id).table for table_id in self._graves)

    def tablets_of(self, table_id: TableId) -> tuple[TabletRecord, ...]:
        """All tablets that a deleted table ever had; none of one that is not deleted."""
        return self._open(table_id).tablets if table_id in self._graves else ()

    def tablet(self, tablet_id: TabletId) -> TabletRecord | None:
        """The record of a deleted table's tablet."""
        table_id = self._table_of.get(tablet_id)
        if table_id is None:
            return None
        place = self._graves[table_id].tablet_ids.index(tablet_id)
        return self._open(table_id).tablets[place]

    def _open(self, table_id: TableId) -> _Content:
        if self._opened is None or self._opened.table.table_id != table_id:
            packed = self._graves[table_id].packed
            self._opened = _CONTENT.decode(zlib.decompress(packed))
        return self._opened


class Records(dict[K, V]):
    """Records by id. Those in graves are found by their ids; all else sees the others only."""

    def __init__(self, buried: Callable[[K], V | None]) -> None:
        super().__init__()
        self._buried = buried

    def __missing__(self, key: K) -> V:
        record = self._buried(key)
        if record is None:
            raise KeyError(key)
        return record

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self.get(key) is not None  # type: ignore[arg-type]

    def get(self, key: K, default: V | None = None) -> V | None:  # type: ignore[override]
        """The record of that id, buried or not."""
        if super().__contains__(key):
            return self[key]
        record = self._buried(key)
        return default if record is None else record
