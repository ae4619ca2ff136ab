"""What the operations on tables and tablets change: drafts for
`stelae.coordinator.catalog.operations`.

Each function looks at the committed catalog and returns the batch of one logical operation, or
raises why it cannot be. Pure. Source: seed Kudu multi-master, appendix B with its improvements
(one replication for a table and all its tablets; nothing visible before it is replicated).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.index_records import Placement, first_indexlets, first_schema
from stelae.coordinator.placement.assignment import Load, beside_of, choose_members, choose_owners
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    InvalidArgument,
    StaleTerm,
    TableChanged,
    TableExists,
    TableNotFound,
    TabletNotReady,
)
from stelae.core.ids import RequestId, ServerUuid, TableId, TabletId, make_uuid
from stelae.core.messages.catalog import CreateTable
from stelae.core.messages.servers import RaiseEpoch
from stelae.core.records.records import (
    ServerInfo,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.replication import first_configuration
from stelae.core.records.timelines import TimelineConfiguration
from stelae.core.schema.alter import check_new_index
from stelae.core.schema.audit import check_new_name, check_not_own
from stelae.core.schema.durability import Replicas, checked
from stelae.core.schema.schema import FIRST_KEY_SEED, TableSchema

NOBODY = TabletId("")


def draft_create(
    catalog: Catalog,
    order: CreateTable,
    loads: Sequence[Load],
    rng: random.Random,
    timelines: Sequence[TimelineConfiguration] = (),
    *,
    key_seed: int = FIRST_KEY_SEED,
) -> CatalogBatch:
    """A table and all its tablets, each with its first owner, in term 1.

    ``timelines``: of a ``wal`` table, one for each tablet. ``key_seed``: 64 bits that cannot be
    guessed, with which the table's keys are hashed.

    Raises:
        TableExists, InvalidArgument: surely not created.
        NotEnoughServers: there are too few live tservers yet.
    """
    if catalog.find(order.name) is not None:
        raise TableExists(order.name)
    table_id = TableId(make_uuid(rng))
    tablet_ids = [TabletId(make_uuid(rng)) for _ in range(order.partitioning.tablet_count)]
    if isinstance(order.durability, Replicas):
        holders = choose_members(tablet_ids, loads, order.durability.count)
    else:
        holders = {i: (owner,) for i, owner in choose_owners(tablet_ids, loads).items()}
    is_group = isinstance(order.durability, Replicas)
    tablets = tuple(
        new_tablet(
            tablet_id,
            table_id,
            number,
            holders[tablet_id],
            is_group=is_group,
            timeline=timelines[number] if timelines else None,
        )
        for number, tablet_id in enumerate(tablet_ids)
    )
    schema = first_schema(order.schema, order.indexes, order.name, rng)
    schema = msgspec.structs.replace(schema, key_seed=key_seed)
    table = TableRecord(
        table_id=table_id,
        name=order.name,
        schema=schema,
        partitioning=order.partitioning,
        durability=order.durability,
        state=TableState.RUNNING,
    )
    homes = Placement(catalog, lambda: loads, beside_of(tablets))
    indexlets = first_indexlets(schema, table_id, lambda: homes.choose(table_id), rng)
    return CatalogBatch((table,), tablets, order.request, table_id, indexlets=indexlets)


def new_tablet(
    tablet_id: TabletId,
    table_id: TableId,
    number: int,
    holders: Sequence[ServerInfo],
    *,
    is_group: bool,
    attempt: int = 0,
    timeline: TimelineConfiguration | None = None,
    change: int = 0,
    succeeds: TabletId = NOBODY,
) -> TabletRecord:
    """The record of a tablet to be created by ``holders``: its owner, or its first members."""
    record = TabletRecord(
        tablet_id=tablet_id,
        table_id=table_id,
        number=number,
        state=TabletState.CREATING,
        term=1,
        owner=holders[0].uuid,
        owner_incarnation=holders[0].incarnation,
        attempt=attempt,
        timeline=timeline,
        change=change,
        succeeds=succeeds,
    )
    if not is_group:
        return record
    addresses = {holder.uuid: holder.address for holder in holders}
    names = {holder.uuid: holder.name for holder in holders}
    return msgspec.structs.replace(
        record,
        term=0,
        owner=ServerUuid(""),
        owner_incarnation=0,
        configuration=first_configuration(addresses, names),
    )


def check_edition(table: TableRecord, expected: str) -> None:
    """Raises `TableChanged`."""
    if expected and expected != table.edition:
        raise TableChanged(table.name, expected, table.edition)


def draft_delete(
    catalog: Catalog, request: RequestId, table_id: TableId, name: str, if_edition: str = ""
) -> CatalogBatch:
    """The table and its tablets, marked deleted for ever.

    Raises:
        TableNotFound, TableChanged, InvalidArgument: surely not deleted.
    """
    table = catalog.find(name)
    if table is None or table.table_id != table_id:
        raise TableNotFound(name)
    check_not_own(name, table.schema, "to delete it")
    check_edition(table, if_edition)
    tablets = catalog.tablets_of(table_id)
    successors = [catalog.successor_of(tablet.tablet_id) for tablet in tablets]
    deleted = tuple(
        msgspec.structs.replace(tablet, state=TabletState.DELETED, generation=tablet.generation + 1)
        for tablet in tablets
    )
    deleted += tuple(given_up(each) for each in successors if each is not None)
    gone = msgspec.structs.replace(table, state=TableState.DELETED, generation=table.generation + 1)
    return CatalogBatch((gone,), deleted, request, table_id)


def given_up(successor: TabletRecord) -> TabletRecord:
    """The record of a tablet that is to succeed no other any more."""
    return msgspec.structs.replace(
        successor,
        state=TabletState.REPLACED,
        replaced_by=successor.succeeds,
        generation=successor.generation + 1,
    )


def draft_replace(
    catalog: Catalog,
    stuck: Sequence[TabletRecord],
    holders: Sequence[Sequence[ServerInfo]],
    rng: random.Random,
    timelines: Sequence[TimelineConfiguration] = (),
) -> CatalogBatch | None:
    """New tablets, with new ids, for those of ``stuck`` that are still being created as they were.

    ``holders``: of each, its owner, or its members; ``timelines``: as in `draft_create`. Old and
    new record are in one entry, so that at every moment a table has one tablet of each number;
    nobody is told of the new one before that entry is replicated.
    """
    batch: list[TabletRecord] = []
    for place, (old, chosen) in enumerate(zip(stuck, holders, strict=True)):
        if catalog.tablets[old.tablet_id] != old:
            continue
        new = new_tablet(
            TabletId(make_uuid(rng)),
            old.table_id,
            old.number,
            chosen,
            is_group=old.is_group,
            attempt=old.attempt + 1,
            timeline=timelines[place] if timelines else None,
            change=old.change,
            succeeds=old.succeeds,
        )
        gone = msgspec.structs.replace(
            old,
            state=TabletState.REPLACED,
            replaced_by=new.tablet_id,
            generation=old.generation + 1,
        )
        batch += (gone, new)
    return CatalogBatch(tablets=tuple(batch)) if batch else None


def check_order(order: CreateTable) -> None:
    """Raises `InvalidArgument` or `ColumnNotFound` for a table that can never be, whoever asks.

    Clients check the same before they ask; a master trusts none of them.
    """
    try:
        check_new_name(order.name, order.schema.arrow, order.schema.key)
        made = TableSchema.of(order.schema.arrow, order.schema.key)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"table {order.name!r}: no Arrow schema: {error}") from None
    for column in order.indexes:
        check_new_index(order.schema, column, order.name)
    if len(dict.fromkeys(order.indexes)) != len(order.indexes):
        raise InvalidArgument(f"table {order.name!r}: a column is to have two indexes")
    same_bytes = msgspec.structs.replace(
        made,
        arrow_ipc=order.schema.arrow_ipc,
        key_seed=order.schema.key_seed,  # whatever it is: the table gets one of its own
    )
    if not made.arrow.equals(order.schema.arrow) or same_bytes != order.schema:
        raise InvalidArgument(f"table {order.name!r}: the schema is not normalised")
    order.partitioning.check(order.schema.key)
    checked(order.durability)


def check_room(catalog: Catalog, order: CreateTable, settings: Settings) -> None:
    """Raise `InvalidArgument` for more tablets than a table, or the cluster, may have."""
    wanted = order.partitioning.tablet_count
    if wanted > settings.tablets_per_table_max:
        raise InvalidArgument(
            f"table {order.name!r} would have {wanted} tablets; "
            f"the limit is {settings.tablets_per_table_max}"
        )
    if catalog.live_count + wanted > settings.tablets_max:
        raise InvalidArgument(
            f"table {order.name!r} needs {wanted} tablets; the cluster has {catalog.live_count} "
            f"of at most {settings.tablets_max}: delete tables, or use fewer tablets"
        )


def draft_raise_epoch(catalog: Catalog, order: RaiseEpoch) -> CatalogBatch | None:
    """The new mark below which open replicas are stale; None if it is there already.

    Raises:
        StaleTerm: the caller does not own the tablet in its current term (or it is deleted).
        TabletNotReady: it was not handed over in this term yet. Its log is still the one that the
            former owner left, whose open head a mark above it would make stale.
    """
    tablet = catalog.tablets.get(order.tablet_id)
    if tablet is None or tablet.state.is_gone:
        raise StaleTerm(f"tablet {order.tablet_id} (deleted)", order.term, order.term + 1)
    if tablet.term != order.term or tablet.owner != order.owner:
        raise StaleTerm(f"tablet {order.tablet_id}", order.term, tablet.term)
    if tablet.state is not TabletState.RUNNING:
        raise TabletNotReady(order.tablet_id, tablet.state.value)
    if (order.segment_id, order.epoch) <= (tablet.valid_segment, tablet.valid_epoch):
        return None
    raised = msgspec.structs.replace(
        tablet,
        valid_segment=order.segment_id,
        valid_epoch=order.epoch,
        generation=tablet.generation + 1,
    )
    return CatalogBatch(tablets=(raised,))
