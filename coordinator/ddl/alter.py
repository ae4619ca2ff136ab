"""AlterTable: its catalog entry, and what the leader then sees to until every tablet follows.

One entry carries the new name, the new schema and the state ALTERING; readers see all of it at
once. From then on it is level-triggered: whoever leads tells each owner that reports an older
version, and once all report the newest the table is RUNNING again, by a second entry. So an alter
whose calls the former leader never sent is done under the next one (KUDU-1374). A tablet being
created or recovered gets the newest schema with the order to open it. A change of the name alone
is done at once; owners learn of it in the same way, for their error texts.

Another number of replicas is a change of the record too: healing
(`stelae.coordinator.groups.healing`) adds and removes members one at a time, and the alter is over
once every tablet has as many voters. Any other durability is got tablet by tablet
(`stelae.coordinator.ddl.succession`).

Source: seed Kudu multi-master, AlterTable and IsAlterDone (appendix B), KUDU-1374; seed Kudu
tablet copy, ChangeVotingReplicaCount.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.succession import reports_of, with_durability
from stelae.coordinator.ddl.tables import check_edition
from stelae.coordinator.liveness.liveness import Run, Seen
from stelae.core.errors import IndexletNotReady, InvalidArgument, TableExists, TableNotFound
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.alter import AlterTable
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ServerInfo, TableRecord, TableState, TabletRecord
from stelae.core.schema.alter import altered, next_history
from stelae.core.schema.audit import check_not_own
from stelae.core.schema.durability import Durability, Replicas, checked
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.schema import TableSchema

Reporting: TypeAlias = Mapping[TabletId, Sequence[Seen]]
NOBODY: Reporting = MappingProxyType({})

MAX_WAITING = 10
"""Tablets named in the answer to IsAlterDone."""


@dataclass(frozen=True, slots=True)
class Alter:
    """Tell a tablet's owner of the newest record of its table."""

    tablet: TabletRecord
    owner: ServerInfo
    """Or the leader of its replicas."""
    term: int


@dataclass(frozen=True, slots=True)
class FinishAlter:
    """Every tablet is as the table's record says: it is RUNNING again. One catalog entry."""

    table: TableRecord
    """The new record."""


def find_altered(catalog: Catalog, order: AlterTable) -> TableRecord:
    """The table to alter. Raises `TableNotFound`."""
    table = catalog.tables.get(order.table_id)
    if table is None or table.state is TableState.DELETED:
        raise TableNotFound(order.name)
    return table


def draft_alter(catalog: Catalog, order: AlterTable) -> CatalogBatch:
    """The table under its new name, with its new schema and number of replicas. The new name has
    been checked, and that there are servers enough.

    Raises:
        TableNotFound, TableChanged, TableExists, InvalidArgument, ColumnNotFound, TooLarge: surely
            not altered.
    """
    table = find_altered(catalog, order)
    check_edition(table, order.if_edition)
    if order.new_name or not order.change.is_empty:  # another durability is the operator's choice
        check_not_own(table.name, table.schema, "to rename it or to alter its columns")
    changed = table
    if order.new_name:
        if order.new_name == table.name:
            raise InvalidArgument(f"table {table.name!r} has that name already")
        if catalog.find(order.new_name) is not None:
            raise TableExists(order.new_name)
        changed = msgspec.structs.replace(changed, name=order.new_name, renames=table.renames + 1)
    if order.durability is not None:
        checked(order.durability)
        if not order.change.is_empty:
            raise InvalidArgument("columns and durability are altered one after the other")
        if is_succession(table, order.durability):
            batch = with_durability(catalog, changed, order.durability)
            return msgspec.structs.replace(batch, request=order.request, result=table.table_id)
    elif table.becoming is not None and (not order.change.is_empty or not order.new_name):
        raise InvalidArgument(
            f"table {table.name!r} changes from {table.durability} to {table.becoming}: its "
            "columns can be altered once that is done"
        )
    if order.durability not in (None, table.durability):
        changed = msgspec.structs.replace(
            changed, durability=order.durability, resizing=True, state=TableState.ALTERING
        )
    if not order.change.is_empty or not (order.new_name or order.durability is not None):
        schema = altered(table.schema, order.change, table.name)
        changed = with_version(catalog, changed, schema)
    changed = msgspec.structs.replace(changed, generation=table.generation + 1)
    return CatalogBatch((changed,), (), order.request, table.table_id)


def is_succession(table: TableRecord, wanted: Durability) -> bool:
    """Whether tablets have to give way to others for that: not for another number of replicas,
    which are added and removed, nor for what the table has."""
    if table.becoming is not None:
        return True
    if isinstance(wanted, Replicas) and isinstance(table.durability, Replicas):
        return False
    return wanted != table.durability


def draft_finish(catalog: Catalog, action: FinishAlter) -> CatalogBatch | None:
    """None if the table was altered again, or deleted, meanwhile."""
    table = catalog.tables[action.table.table_id]
    if table.generation + 1 != action.table.generation:
        return None
    return CatalogBatch((action.table,))


def alter_actions(
    catalog: Catalog, live: Mapping[Run, Seen], reporters: Reporting = NOBODY
) -> Iterator[Alter | FinishAlter]:
    """What is to be done now for tables that were ever altered, in the order of their creation.

    ``reporters``: of tablets with replicas, the live servers that report one.
    """
    for table_id in list(catalog.altered):
        table = catalog.tables[table_id]
        told = table_told(catalog, table)
        follow = True
        for tablet in catalog.tablets_of(table_id):
            if tablet.state.is_gone:
                continue
            seen, report = _report(tablet, live, reporters)
            follow = follow and _follows(table, tablet, report)
            may_learn = _are_open(catalog, told, live)
            if seen is not None and report is not None and may_learn and _is_behind(told, report):
                yield Alter(tablet, seen.server, report.term)
        if follow and table.state is TableState.ALTERING:
            yield FinishAlter(
                msgspec.structs.replace(
                    table,
                    state=TableState.RUNNING,
                    resizing=False,
                    durability=table.becoming or table.durability,
                    becoming=None,
                    generation=table.generation + 1,
                )
            )


def told(catalog: Catalog, tablet: TabletRecord) -> TableRecord:
    """The record as a tablet's servers are told it: with its own durability, and with indexes that
    were dropped, for as long as somebody may look into them."""
    return table_told(catalog, catalog.tables[tablet.table_id].for_tablet(tablet))


def table_told(catalog: Catalog, table: TableRecord) -> TableRecord:
    """`told` but for the durability."""
    closing = catalog.indexes.closing_of(table.table_id)
    if not closing:
        return table
    at = _newest_with(table.history, closing.keys())
    return msgspec.structs.replace(table, schema=table.history[at], history=table.history[:at])


def _newest_with(history: Sequence[TableSchema], indexes: Set[IndexId]) -> int:
    """Which version is the newest that has all of these.

    Raises:
        LookupError: none has them; `with_version` lets it come to that for no table.
    """
    for at in reversed(range(len(history))):
        if indexes <= _index_ids(history[at]):
            return at
    raise LookupError(f"no version of the schema has the indexes {sorted(indexes)} together")


def _index_ids(schema: TableSchema) -> Set[IndexId]:
    return {index.index_id for index in schema.indexes}


def with_version(catalog: Catalog, table: TableRecord, schema: TableSchema) -> TableRecord:
    """The table with the next version of its schema.

    Raises:
        IndexletNotReady: no version is remembered then that has all the indexes that somebody may
            look into though they are dropped. It may be forgotten, or there never was one: an index
            made and dropped while an earlier one closes is in no version together with that one.
    """
    history = next_history(table.schema, table.history)
    closing = catalog.indexes.closing_of(table.table_id)
    dropped = _index_ids(table.schema) - _index_ids(schema)
    try:
        _newest_with(history, closing.keys() | dropped)
    except LookupError:
        which = next(iter(closing.values()))[0].indexlet_id
        why = "closing: somebody may look into it still, though it was dropped; try again shortly"
        raise IndexletNotReady(which, why) from None
    return msgspec.structs.replace(table, schema=schema, history=history, state=TableState.ALTERING)


def _are_open(catalog: Catalog, table: TableRecord, live: Mapping[Run, Seen]) -> bool:
    """Whether entries of its indexes are taken: writes of who knows of them would wait else."""
    for index in table.schema.indexes:
        for indexlet in catalog.indexes.of_index(index.index_id):
            seen = live.get(Run(indexlet.owner, indexlet.owner_incarnation))
            if seen is None or indexlet.indexlet_id not in seen.picture.indexlets:
                return False
    return True


def _report(
    tablet: TabletRecord, live: Mapping[Run, Seen], reporters: Reporting
) -> tuple[Seen | None, TabletReport | None]:
    """The tablet's live owner, or leader, and what it says of it in its present term."""
    seen, report = reports_of(live, reporters)(tablet)
    if report is not None and not tablet.is_group and report.progress is TabletProgress.FAILED:
        return seen, None
    return seen, report


def _is_behind(table: TableRecord, report: TabletReport) -> bool:
    return report.schema_version < table.schema.version or report.renames < table.renames


def _follows(table: TableRecord, tablet: TabletRecord, report: TabletReport | None) -> bool:
    has_schema = report is not None and report.schema_version >= table.schema.version
    if not has_schema or not table.has_changed(tablet):
        return False
    return not table.resizing or _has_size(table, tablet)


def _has_size(table: TableRecord, tablet: TabletRecord) -> bool:
    """Whether a tablet's members are as many voters as its table is to have, and nobody else."""
    assert isinstance(table.durability, Replicas), "only replicas have another number of them"
    peers = tablet.configuration.peers if tablet.configuration is not None else ()
    return len(peers) == table.durability.count and all(peer.voter for peer in peers)


def waiting_for(
    catalog: Catalog, table: TableRecord, live: Mapping[Run, Seen], reporters: Reporting = NOBODY
) -> tuple[TabletId, ...]:
    """Some tablets of an ALTERING table that do not follow yet, as far as is known."""
    if table.state is not TableState.ALTERING:
        return ()
    missing = [
        tablet.tablet_id
        for tablet in catalog.tablets_of(table.table_id)
        if not tablet.state.is_gone
        and not _follows(table, tablet, _report(tablet, live, reporters)[1])
    ]
    return tuple(missing[:MAX_WAITING])


def problem_of(catalog: Catalog, table: TableRecord, waits: Mapping[TabletId, str]) -> str:
    """Why the first of its tablets that are kept from another durability is."""
    if table.becoming is None:
        return ""
    tablets = catalog.tablets_of(table.table_id)
    return next((waits[t.tablet_id] for t in tablets if t.tablet_id in waits), "")


def by_id(catalog: Catalog, table_id: TableId, name: str) -> TableRecord:
    """A live table by its id, or by its name if that is empty. Raises `TableNotFound`."""
    table = catalog.tables.get(table_id) if table_id else catalog.find(name)
    if table is None or table.state is TableState.DELETED:
        raise TableNotFound(name)
    return table
