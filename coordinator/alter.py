"""AlterTable: its catalog entry, and what the leader then sees to until every tablet follows.

One entry carries the new name, the new schema and the state ALTERING; readers see all of it at
once. From then on it is level-triggered: whoever leads tells each owner that reports an older
version, and once all report the newest the table is RUNNING again, by a second entry. So an alter
whose calls the former leader never sent is done under the next one (KUDU-1374). A tablet being
created or recovered gets the newest schema with the order to open it. A change of the name alone
is done at once; owners learn of it in the same way, for their error texts.

Source: seed Kudu multi-master, AlterTable and IsAlterDone (appendix B), KUDU-1374.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from stelae.coordinator.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness import Run, Seen
from stelae.core.alter import altered, next_history
from stelae.core.alter_messages import AlterTable
from stelae.core.errors import InvalidArgument, TableExists, TableNotFound
from stelae.core.ids import TableId, TabletId
from stelae.core.messages import TabletProgress, TabletReport
from stelae.core.records import ServerInfo, TableRecord, TableState, TabletRecord

MAX_WAITING = 10
"""Tablets named in the answer to IsAlterDone."""


@dataclass(frozen=True, slots=True)
class Alter:
    """Tell a tablet's owner of the newest record of its table."""

    tablet: TabletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class FinishAlter:
    """Every tablet has the newest schema: the table is RUNNING again. One catalog entry."""

    table: TableRecord
    """The new record."""


def find_altered(catalog: Catalog, order: AlterTable) -> TableRecord:
    """The table to alter. Raises `TableNotFound`."""
    table = catalog.tables.get(order.table_id)
    if table is None or table.state is TableState.DELETED:
        raise TableNotFound(order.name)
    return table


def draft_alter(catalog: Catalog, order: AlterTable) -> CatalogBatch:
    """The table under its new name, with its new schema. The new name has been checked.

    Raises:
        TableNotFound, TableExists, InvalidArgument, ColumnNotFound, TooLarge: surely not altered.
    """
    table = find_altered(catalog, order)
    changed = table
    if order.new_name:
        if order.new_name == table.name:
            raise InvalidArgument(f"table {table.name!r} has that name already")
        if catalog.find(order.new_name) is not None:
            raise TableExists(order.new_name)
        changed = msgspec.structs.replace(changed, name=order.new_name, renames=table.renames + 1)
    if not order.change.is_empty or not order.new_name:
        changed = msgspec.structs.replace(
            changed,
            schema=altered(table.schema, order.change, table.name),
            history=next_history(table.schema, table.history),
            state=TableState.ALTERING,
        )
    changed = msgspec.structs.replace(changed, generation=table.generation + 1)
    return CatalogBatch((changed,), (), order.request, table.table_id)


def draft_finish(catalog: Catalog, action: FinishAlter) -> CatalogBatch | None:
    """None if the table was altered again, or deleted, meanwhile."""
    table = catalog.tables[action.table.table_id]
    if table.generation + 1 != action.table.generation:
        return None
    return CatalogBatch((action.table,))


def alter_actions(catalog: Catalog, live: Mapping[Run, Seen]) -> Iterator[Alter | FinishAlter]:
    """What is to be done now for tables that were ever altered, in the order of their creation."""
    for table_id in list(catalog.altered):
        table = catalog.tables[table_id]
        follow = True
        for tablet in catalog.tablets_of(table_id):
            if tablet.state.is_gone:
                continue
            seen = live.get(Run(tablet.owner, tablet.owner_incarnation))
            report = _report(tablet, seen)
            follow = follow and _follows(table, report)
            if seen is not None and report is not None and _is_behind(table, report):
                yield Alter(tablet, seen.server)
        if follow and table.state is TableState.ALTERING:
            yield FinishAlter(
                msgspec.structs.replace(
                    table, state=TableState.RUNNING, generation=table.generation + 1
                )
            )


def _report(tablet: TabletRecord, seen: Seen | None) -> TabletReport | None:
    """What the tablet's live owner says of it in its present term."""
    report = None if seen is None else seen.reports.get(tablet.tablet_id)
    if report is None or report.term != tablet.term:
        return None
    return None if report.progress is TabletProgress.FAILED else report


def _is_behind(table: TableRecord, report: TabletReport) -> bool:
    return report.schema_version < table.schema.version or report.renames < table.renames


def _follows(table: TableRecord, report: TabletReport | None) -> bool:
    return report is not None and report.schema_version >= table.schema.version


def waiting_for(
    catalog: Catalog, table: TableRecord, live: Mapping[Run, Seen]
) -> tuple[TabletId, ...]:
    """Some tablets of an ALTERING table that have not the newest schema yet, as far as is known."""
    if table.state is not TableState.ALTERING:
        return ()
    missing = [
        tablet.tablet_id
        for tablet in catalog.tablets_of(table.table_id)
        if not tablet.state.is_gone
        and not _follows(
            table, _report(tablet, live.get(Run(tablet.owner, tablet.owner_incarnation)))
        )
    ]
    return tuple(missing[:MAX_WAITING])


def by_id(catalog: Catalog, table_id: TableId, name: str) -> TableRecord:
    """A live table by its id, or by its name if that is empty. Raises `TableNotFound`."""
    table = catalog.tables.get(table_id) if table_id else catalog.find(name)
    if table is None or table.state is TableState.DELETED:
        raise TableNotFound(name)
    return table
