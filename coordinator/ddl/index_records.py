"""Records of new indexlets, and where they go. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.placement.assignment import Load, beside_of
from stelae.core.errors import NotEnoughServers
from stelae.core.ids import ServerUuid, TableId, make_uuid
from stelae.core.records.records import ServerInfo
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import END, IndexId, IndexletId, IndexletRecord, IndexletState
from stelae.core.schema.schema import TableSchema

ALL = (b"", END)
"""All entries of an index."""
NO_INDEXLET = IndexletId("")


class Placement:
    """Where further indexlets go: not where the same indexlet failed, nor where tablets of their
    table are, if there is another server; then where there are fewer of the table's tablets, of all
    indexlets, and less in memory."""

    def __init__(
        self,
        catalog: Catalog,
        loads: Callable[[], Sequence[Load]],
        new_table: Mapping[ServerUuid, int] | None = None,
    ) -> None:
        """``new_table``: how many tablets each server gets of a table that is being made."""
        self._catalog = catalog
        self._new_table = new_table
        self._all_loads = loads
        self._given: dict[ServerUuid, int] = {}

    def choose(
        self, table_id: TableId, avoid: Mapping[ServerUuid, float] | None = None
    ) -> ServerInfo | None:
        """The best server for one more, counted as given; None: there is none.

        ``avoid``: as in `stelae.coordinator.placement.assignment.choose_owners`.
        """
        shunned = avoid or {}
        loads = list(self._all_loads())
        if not loads:
            return None
        beside = self._new_table
        if beside is None:
            beside = beside_of(self._catalog.tablets_of(table_id))
        indexes = self._catalog.indexes

        def cost(load: Load) -> tuple[object, ...]:
            server = load.server
            has = indexes.count_owned(server.uuid, server.incarnation)
            return (
                (server.uuid in shunned, shunned.get(server.uuid, 0.0)),
                load.is_full,
                beside.get(server.uuid, 0),
                has + self._given.get(server.uuid, 0),
                load.memory_bytes,
                server.uuid,
            )

        chosen = min(loads, key=cost).server
        self._given[chosen.uuid] = self._given.get(chosen.uuid, 0) + 1
        return chosen


def new_indexlet(
    table_id: TableId,
    index_id: IndexId,
    span: tuple[bytes, bytes],
    owner: ServerInfo,
    rng: random.Random,
    succeeds: IndexletId = NO_INDEXLET,
) -> IndexletRecord:
    """One to be opened by ``owner``, of the entries in [low, high) of an index."""
    return IndexletRecord(
        IndexletId(make_uuid(rng)),
        index_id,
        table_id,
        *span,
        IndexletState.FILLING,
        term=1,
        owner=owner.uuid,
        owner_incarnation=owner.incarnation,
        succeeds=succeeds,
    )


def first_schema(
    schema: TableSchema, columns: Sequence[str], table: str, rng: random.Random
) -> TableSchema:
    """The schema of a new table, with indexes of these columns. Raises as `with_index`."""
    for column in columns:
        schema = with_index(schema, column, IndexId(make_uuid(rng)), table, version=1)
    return schema


def first_indexlets(
    schema: TableSchema,
    table_id: TableId,
    choose: Callable[[], ServerInfo | None],
    rng: random.Random,
) -> tuple[IndexletRecord, ...]:
    """Of each index of a new table one indexlet. Raises `NotEnoughServers`."""
    made = []
    for index in schema.indexes:
        owner = the_owner(choose())
        made.append(new_indexlet(table_id, index.index_id, ALL, owner, rng))
    return tuple(made)


def the_owner(chosen: ServerInfo | None) -> ServerInfo:
    if chosen is None:
        raise NotEnoughServers("an index", 1, "tservers", 0)
    return chosen
