"""What the operations on indexes change: drafts for `stelae.coordinator.catalog.operations`. Pure.

An index is part of its table's schema, so that tablets learn of it as of every other change of the
schema (`stelae.coordinator.ddl.alter`), whatever their durability is: of a new one once its
first indexlet, made by the same entry, is open; of one that is gone once nobody has its indexlets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.alter import by_id, with_version
from stelae.coordinator.ddl.index_records import ALL, Placement, new_indexlet, the_owner
from stelae.coordinator.placement.assignment import Load
from stelae.core.errors import InvalidArgument
from stelae.core.ids import make_uuid
from stelae.core.messages.index_catalog import CreateIndex, DropIndex
from stelae.core.records.records import TableRecord
from stelae.core.schema.alter import check_new_index, with_index, without_index
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.schema import TableSchema


def draft_create_index(
    catalog: Catalog, order: CreateIndex, loads: Sequence[Load], rng: random.Random
) -> CatalogBatch:
    """The table with one more index, and its first indexlet.

    Raises:
        TableNotFound, ColumnNotFound, IndexExists, InvalidArgument: surely not made.
        NotEnoughServers: there is no live tserver for it yet.
    """
    table = _table(catalog, order)
    check_new_index(table.schema, order.column, table.name, is_unique=order.is_unique)
    index_id = IndexId(make_uuid(rng))
    schema = with_index(table.schema, order.column, index_id, table.name)
    owner = the_owner(Placement(catalog, lambda: loads).choose(table.table_id))
    indexlet = new_indexlet(table.table_id, index_id, ALL, owner, rng)
    changed = _with_schema(catalog, table, schema)
    return CatalogBatch((changed,), (), order.request, table.table_id, indexlets=(indexlet,))


def draft_drop_index(catalog: Catalog, order: DropIndex) -> CatalogBatch:
    """The table without the index of a column; its indexlets close.

    Raises:
        TableNotFound, ColumnNotFound, IndexNotFound, InvalidArgument: surely not dropped.
    """
    table = _table(catalog, order)
    schema = without_index(table.schema, order.column, table.name)
    changed = _with_schema(catalog, table, schema)
    return CatalogBatch((changed,), (), order.request, table.table_id)


def _table(catalog: Catalog, order: CreateIndex | DropIndex) -> TableRecord:
    table = by_id(catalog, order.table_id, order.table)
    if table.becoming is not None:
        raise InvalidArgument(
            f"table {table.name!r} changes from {table.durability} to {table.becoming}: its "
            "indexes can be altered once that is done"
        )
    return table


def _with_schema(catalog: Catalog, table: TableRecord, schema: TableSchema) -> TableRecord:
    changed = with_version(catalog, table, schema)
    return msgspec.structs.replace(changed, generation=table.generation + 1)
