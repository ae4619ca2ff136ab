"""A cluster as a client sees it: its tables, and what state it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.client.locations import TableCache, look_up
from stelae.client.masters import MastersClient
from stelae.client.session import Session
from stelae.client.table import DEFAULT_TIMEOUT_S, AsyncTable
from stelae.core.durability import Durability, segments
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NameReserved,
    OutcomeUnknown,
    RetryLater,
)
from stelae.core.ids import Address, ClientId, ServerUuid, make_uuid
from stelae.core.member_messages import (
    ADD_MASTER,
    LIST_MASTERS,
    REMOVE_MASTER,
    AddMaster,
    MasterSet,
    RemoveMaster,
)
from stelae.core.messages import (
    CREATE_TABLE,
    DELETE_TABLE,
    LIST_TABLES,
    STATUS,
    CreateTable,
    DeleteTable,
)
from stelae.core.partition import Partitioning, RangePartition
from stelae.core.records import TableRecord
from stelae.core.rpc import Empty
from stelae.core.runtime import Runtime
from stelae.core.schema import MAX_NAME_LENGTH, TableSchema
from stelae.core.settings import Settings
from stelae.core.values import to_wire

DEFAULT_DURABILITY = segments("disk", "disk")
POLL_S = 0.02


class AsyncDatabase:
    """One client of a cluster, over any `Runtime`. Safe to use from many tasks of one loop."""

    def __init__(
        self, runtime: Runtime, masters: Sequence[Address], settings: Settings | None = None
    ) -> None:
        self.runtime = runtime
        self._settings = settings or Settings()
        self._masters = MastersClient(runtime, masters)
        self._session = Session(ClientId(make_uuid(runtime.rng)))
        self._tables: dict[str, AsyncTable] = {}

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: str | Sequence[str],
        partition: Partitioning | None = None,
        durability: Durability = DEFAULT_DURABILITY,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> AsyncTable:
        """Create a table, and wait until all its tablets can be written to.

        Raises:
            TableExists: there is one of that name.
            InvalidArgument: the schema, key, partitioning or durability is not possible.
            DeadlineExpired: it was created, but some tablet is not served yet.
        """
        check_name(name)
        if not isinstance(schema, pa.Schema):
            raise InvalidArgument(f"schema is a {type(schema).__name__}; give a pyarrow.Schema")
        columns = TableSchema.of(schema, (key,) if isinstance(key, str) else key)
        partitioning = _in_wire_form(partition or Partitioning(), columns)
        partitioning.check(columns.key)
        deadline = self.runtime.clock.monotonic() + timeout
        with self._session.request() as request:
            body = CreateTable(request, name, columns, partitioning, durability)
            while True:
                left_s = deadline - self.runtime.clock.monotonic()
                try:
                    await self._masters.call(CREATE_TABLE, body, timeout_s=left_s)
                    break
                except NameReserved:
                    if left_s <= 0:
                        raise
                    await self.runtime.clock.sleep(POLL_S)
        self._tables.pop(name, None)
        return await self._wait_running(name, deadline)

    async def _wait_running(self, name: str, deadline: float) -> AsyncTable:
        clock = self.runtime.clock
        cache: TableCache | None = None
        waits_for = "the masters"
        while (left_s := deadline - clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    if cache is None:
                        cache = TableCache(self._masters, await look_up(self._masters, name))
                    else:
                        await cache.refresh()
            except (RetryLater, OutcomeUnknown, TimeoutError) as error:
                waits_for = str(error) or waits_for  # a failover may take longer than one look-up
            else:
                if cache.is_running:
                    return self._open(cache)
                waiting = next(
                    t for t in map(cache.tablet, range(cache.tablet_count)) if not t.address
                )
                waits_for = waiting.problem or f"tablet {waiting.tablet.tablet_id} to be served"
            await clock.sleep(POLL_S)
        raise DeadlineExpired(f"create_table({name!r})", waits_for)

    def _open(self, cache: TableCache) -> AsyncTable:
        table = AsyncTable(self.runtime, self._settings, self._session, cache)
        self._tables[table.name] = table
        return table

    async def table(self, name: str) -> AsyncTable:
        """A handle on an existing table. Raises `TableNotFound`."""
        check_name(name)
        known = self._tables.get(name)
        locations = await look_up(self._masters, name)
        if known is not None and known.record.table_id == locations.table.table_id:
            return known
        return self._open(TableCache(self._masters, locations))

    async def tables(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[TableRecord]:
        """All tables, by name."""
        reply = await self._masters.call(LIST_TABLES, Empty(), timeout_s=timeout)
        return sorted(reply.tables, key=lambda table: table.name)

    async def delete_table(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a table and all its rows, for ever. Raises `TableNotFound`."""
        check_name(name)
        with self._session.request() as request:
            await self._masters.call(DELETE_TABLE, DeleteTable(request, name), timeout_s=timeout)
        self._tables.pop(name, None)

    async def status(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """The status document (design §12): servers, tables, tablets, recoveries."""
        reply = await self._masters.call(STATUS, Empty(), timeout_s=timeout)
        return msgspec.json.decode(reply.document, type=dict[str, Any])

    async def masters(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> MasterSet:
        """The masters by their own replicated configuration."""
        return await self._masters.call(LIST_MASTERS, Empty(), timeout_s=timeout)

    async def add_master(
        self, uuid: ServerUuid, name: str, address: Address, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> MasterSet:
        """Add a master that waits for it; it votes once it has caught up. Again is fine."""
        order = AddMaster(uuid, name, address)
        return await self._masters.call(ADD_MASTER, order, timeout_s=timeout)

    async def remove_master(self, master: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> MasterSet:
        """Take a master out of the set, by UUID or name. By UUID, again is fine."""
        members = (await self.masters(timeout=timeout)).members
        found = [member.uuid for member in members if member.name == master]
        order = RemoveMaster(found[0] if len(found) == 1 else master)
        return await self._masters.call(REMOVE_MASTER, order, timeout_s=timeout)

    async def close(self) -> None:
        """End this client's connections."""
        await self.runtime.peers.close()


def check_name(name: str) -> None:
    """Raise `InvalidArgument` unless ``name`` can name a table, in URLs too."""
    fine = (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
        and not set(name) & set("/\\?#%,:")
    )
    if not fine:
        raise InvalidArgument(
            f"table name {name!r}: 1 to {MAX_NAME_LENGTH} printable characters, "
            "none of / \\ ? # % , :"
        )


def _in_wire_form(partitioning: Partitioning, schema: TableSchema) -> Partitioning:
    """The same partitioning with range splits as wire values of their columns."""
    by_range = partitioning.range
    if by_range is None:
        return partitioning
    schema.check_columns(by_range.columns, "(new)")
    kinds = [schema.arrow.field(column).type for column in by_range.columns]
    if any(len(split) != len(kinds) for split in by_range.splits):
        raise InvalidArgument("each split has one value for each range column")
    splits = tuple(
        tuple(to_wire(value, kind, "range split") for value, kind in zip(split, kinds, strict=True))
        for split in by_range.splits
    )
    return Partitioning(partitioning.hash, RangePartition(by_range.columns, splits))
