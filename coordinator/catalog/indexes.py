"""The indexlets in the catalog: a part of `stelae.coordinator.catalog.catalog`, and as
deterministic.

Invariants:
- the indexlets of an index that succeed no other cover all keys, each key once, at every moment: a
  batch that would leave a hole changes nothing;
- to drop an index, or its table, is to write the table's record. Indexlets of a table that is gone
  go with it; those of an index that is gone are CLOSING, and go together, once nobody has them;
- one that is gone leaves no record: its id is never used again, and a late entry that would change
  it, or make successors of it, finds nothing to follow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from stelae.core.ids import ServerUuid, TableId
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.indexes import IndexId, IndexletId, IndexletRecord, IndexletState, covers

K = TypeVar("K", bound=Hashable)
CLOSING = IndexletState.CLOSING


class IndexCatalog:
    """All indexlets, by id, and by what they are looked for."""

    def __init__(self, records: Iterable[IndexletRecord] = ()) -> None:
        self.indexlets: dict[IndexletId, IndexletRecord] = {}
        """In the order of their creation."""
        self._of_index: dict[IndexId, dict[IndexletId, None]] = {}
        self._successors: dict[IndexletId, dict[IndexletId, None]] = {}
        self._of_owner: dict[tuple[ServerUuid, int], dict[IndexletId, None]] = {}
        self._closing: dict[TableId, dict[IndexletId, None]] = {}
        for record in records:
            self._put(record)

    def state(self) -> list[IndexletRecord]:
        """For a snapshot."""
        return list(self.indexlets.values())

    # ---- changes ----------------------------------------------------------------------------

    def refusal(
        self,
        records: Sequence[IndexletRecord],
        table_of: Mapping[TableId, TableRecord],
        batch_tables: Sequence[TableRecord],
    ) -> str:
        """Why these do not follow from what is there; empty if they do."""
        coming = {table.table_id: table for table in batch_tables}
        touched: dict[IndexId, None] = {}
        for record in records:
            known = self.indexlets.get(record.indexlet_id)
            if record.generation != (known.generation if known else 0) + 1:
                return f"indexlet {record.indexlet_id} has changed meanwhile"
            if known is not None and known.state is IndexletState.CLOSING:
                if record.state is not IndexletState.GONE:
                    return f"the index of indexlet {record.indexlet_id} was dropped"
                continue
            table = coming.get(record.table_id) or table_of.get(record.table_id)
            if not _has_index(table, record.index_id):
                return f"index {record.index_id} is gone"
            if known is None and record.succeeds and record.succeeds not in self.indexlets:
                return f"indexlet {record.succeeds} is gone"
            touched[record.index_id] = None
        for table in batch_tables:
            if table.state is not TableState.DELETED:
                touched.update((index.index_id, None) for index in table.schema.indexes)
        holed = (i for i in touched if not _cover_all(self._after(i, records)))
        return next((f"index {index_id} would have a hole" for index_id in holed), "")

    def _after(
        self, index_id: IndexId, records: Sequence[IndexletRecord]
    ) -> Iterable[IndexletRecord]:
        """The indexlets of an index as the records of a batch leave them."""
        after = {i: self.indexlets[i] for i in self._of_index.get(index_id, ())}
        after.update((record.indexlet_id, record) for record in records)
        return (r for r in after.values() if r.index_id == index_id)

    def commit(self, records: Sequence[IndexletRecord], tables: Sequence[TableRecord]) -> None:
        """Take in what was not refused, and let go what no table has any more."""
        for record in records:
            self._take(record.indexlet_id)
            if record.state is not IndexletState.GONE:
                self._put(record)
        for table in tables:
            self._let_go_dropped(table)

    def _let_go_dropped(self, table: TableRecord) -> None:
        is_gone = table.state is TableState.DELETED
        for record in list(self.indexlets.values()):
            if record.table_id != table.table_id or _has_index(table, record.index_id):
                continue
            if is_gone or record.succeeds:
                self._take(record.indexlet_id)
            elif record.state is not IndexletState.CLOSING:
                self._take(record.indexlet_id)
                self._put(replace(record, state=CLOSING, generation=record.generation + 1))

    def _put(self, record: IndexletRecord) -> None:
        indexlet_id = record.indexlet_id
        self.indexlets[indexlet_id] = record
        self._of_index.setdefault(record.index_id, {})[indexlet_id] = None
        if record.succeeds:
            self._successors.setdefault(record.succeeds, {})[indexlet_id] = None
        owner = (record.owner, record.owner_incarnation)
        self._of_owner.setdefault(owner, {})[indexlet_id] = None
        if record.state is CLOSING:
            self._closing.setdefault(record.table_id, {})[indexlet_id] = None

    def _take(self, indexlet_id: IndexletId) -> None:
        record = self.indexlets.pop(indexlet_id, None)
        if record is None:
            return
        _take_from(self._of_index, record.index_id, indexlet_id)
        _take_from(self._successors, record.succeeds, indexlet_id)
        _take_from(self._of_owner, (record.owner, record.owner_incarnation), indexlet_id)
        _take_from(self._closing, record.table_id, indexlet_id)

    # ---- readers ----------------------------------------------------------------------------

    def of_index(self, index_id: IndexId) -> list[IndexletRecord]:
        """Those that are found, in the order of their ranges."""
        records = (self.indexlets[i] for i in self._of_index.get(index_id, ()))
        return sorted((r for r in records if not r.succeeds), key=lambda r: r.low)

    def closing_of(self, table_id: TableId) -> dict[IndexId, list[IndexletRecord]]:
        """Those of a table's indexes that were dropped, by index."""
        found: dict[IndexId, list[IndexletRecord]] = {}
        for indexlet_id in self._closing.get(table_id, ()):
            record = self.indexlets[indexlet_id]
            found.setdefault(record.index_id, []).append(record)
        return found

    def closing_tables(self) -> list[TableId]:
        """The tables that have such."""
        return list(self._closing)

    def successors_of(self, indexlet_id: IndexletId) -> list[IndexletRecord]:
        """Those that are to be in its place, in the order of their ranges."""
        records = (self.indexlets[i] for i in self._successors.get(indexlet_id, ()))
        return sorted(records, key=lambda record: record.low)

    def found(self) -> Iterator[IndexletRecord]:
        """Those that are found, of all indexes, in the order of their creation."""
        return (r for r in self.indexlets.values() if not r.succeeds)

    def owned_by(self, owner: ServerUuid, incarnation: int) -> list[IndexletRecord]:
        """Those that this run of this server has, or is to have."""
        return [self.indexlets[i] for i in self._of_owner.get((owner, incarnation), ())]

    def count_owned(self, owner: ServerUuid, incarnation: int) -> int:
        return len(self._of_owner.get((owner, incarnation), ()))

    def owners(self) -> list[tuple[ServerUuid, int]]:
        """The runs of servers that have some."""
        return list(self._of_owner)


def _take_from(groups: dict[K, dict[IndexletId, None]], key: K, indexlet_id: IndexletId) -> None:
    group = groups.get(key, {})
    group.pop(indexlet_id, None)
    if not group:
        groups.pop(key, None)


def _cover_all(records: Iterable[IndexletRecord]) -> bool:
    """Whether those that are found have every key, and each once."""
    found = [r for r in records if not r.succeeds and r.state is not IndexletState.GONE]
    return covers(sorted((record.low, record.high) for record in found))


def _has_index(table: TableRecord | None, index_id: IndexId) -> bool:
    if table is None or table.state is TableState.DELETED:
        return False
    return any(index.index_id == index_id for index in table.schema.indexes)
