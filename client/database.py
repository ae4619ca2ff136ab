"""A cluster as a client sees it: its tables, and what state it is in."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from stelae.client.admin.call_log import WRITE_TIMEOUT_S, Caller, CallLog, LoggedMasters, Row
from stelae.client.admin.losses import LossCalls
from stelae.client.admin.operators import OperatorCalls
from stelae.client.admin.safekeepers import SafekeeperCalls
from stelae.client.admin.servers import ServerCalls
from stelae.client.admin.tokens import TokenCalls
from stelae.client.admin.turns import TurnCalls
from stelae.client.audit import AuditCalls
from stelae.client.check.check import CheckReport, WhoIsStopped, check_cluster
from stelae.client.database_api import DatabaseApi, check_new_table
from stelae.client.input.given import indexed_columns, staleness
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.locations import LOOKUP_TIMEOUT_S, TableCache, look_up
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    InvalidArgument,
    NameReserved,
    NotDoneYet,
    OutcomeUnknown,
    RetryLater,
)
from stelae.core.ids import Address, ClientId, ServerUuid, TableId, TabletId, make_uuid
from stelae.core.messages.catalog import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    GET_TABLET_LOCATIONS,
    IS_CREATE_DONE,
    LINEARIZABLE,
    LIST_TABLES,
    STATUS,
    CreateTable,
    DeleteTable,
    GetStatus,
    GetTable,
    GetTabletLocations,
    IsCreateDone,
    ListTables,
    TableLocations,
    TabletLocation,
)
from stelae.core.messages.masters import (
    ADD_MASTER,
    LIST_MASTERS,
    REMOVE_MASTER,
    AddMaster,
    MasterSet,
    RemoveMaster,
)
from stelae.core.records.records import TableRecord
from stelae.core.rpc import Empty, Method
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Durability, segments
from stelae.core.schema.own_tables import is_own_table
from stelae.core.schema.partition import Partitioning, RangePartition
from stelae.core.schema.schema import TableSchema, check_known_name
from stelae.core.schema.values import to_wire

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

DEFAULT_DURABILITY = segments("disk", "disk")
POLL_S = 0.02


class AsyncDatabase(
    DatabaseApi[AsyncTable],
    OperatorCalls,
    ServerCalls,
    SafekeeperCalls,
    LossCalls,
    TokenCalls,
    TurnCalls,
    AuditCalls,
):
    """One client of a cluster, over any `Runtime`. Safe to use from many tasks of one loop."""

    table_class = AsyncTable

    def __init__(
        self,
        runtime: Runtime,
        masters: Sequence[Address],
        settings: Settings | None = None,
        caller: Caller | None = None,
    ) -> None:
        """``caller``: in whose name administrative calls are noted in the audit log; None: they are
        not, as with a client of the HTTP front, which notes its own callers."""
        self.runtime = runtime
        self._settings = settings or Settings()
        self.calls: CallLog | None = None
        if caller is None:
            self._masters = MastersClient(runtime, masters)
        else:
            self.calls = CallLog(runtime, caller, self._put_calls)
            self._masters = LoggedMasters(runtime, masters, self.calls)
        self._session = Session(ClientId(make_uuid(runtime.rng)))
        self._tables: dict[TableId, AsyncTable] = {}

    def with_session(self, session: Session) -> Self:
        """The same database, its calls numbered by ``session``."""
        other = copy.copy(self)
        other._session, other._tables = session, {}
        return other

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: str | Sequence[str],
        partition: Partitioning | None = None,
        durability: Durability = DEFAULT_DURABILITY,
        indexes: str | Sequence[str] = (),
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> AsyncTable:
        """Create a table, and wait until all its tablets can be written to.

        ``indexes``: columns that get an index each (`AsyncTable.find`).

        Without ``wait`` it returns once the table exists; `is_create_done` tells the rest, and
        calls on the table wait for the tablets that they need.

        Raises:
            TableExists: there is one of that name.
            InvalidArgument: the schema, key, partitioning, durability or indexes are not possible.
            ColumnNotFound: the key or ``indexes`` names a column that is not there.
            NotDoneYet: it was created, but some tablet is not served yet, or no master says where
                its tablets are.
        """
        check_new_table(name, schema, durability, partition)
        columns = TableSchema.of(schema, (key,) if isinstance(key, str) else key)
        partitioning = _in_wire_form(partition or Partitioning(), columns)
        partitioning.check(columns.key)
        indexed = indexed_columns(indexes, columns)
        deadline = self.runtime.clock.monotonic() + timeout
        with self._session.request() as request:
            body = CreateTable(request, name, columns, partitioning, durability, indexed)
            while True:
                left_s = deadline - self.runtime.clock.monotonic()
                try:
                    made = await self._masters.call(CREATE_TABLE, body, timeout_s=left_s)
                    break
                except NameReserved:
                    if left_s <= 0:
                        raise
                    await self.runtime.clock.sleep(POLL_S)
        table_id = made.table.table_id
        return await self._wait_made(name, table_id, deadline, must_run=wait)

    async def is_create_done(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """Whether every tablet of a table has been created. Raises `TableNotFound`."""
        check_known_name(name)
        body = IsCreateDone(name, staleness(max_staleness))
        return (await self._read(IS_CREATE_DONE, body, timeout)).done

    async def _read(self, method: Method[Q, R], request: Q, timeout_s: float) -> R:
        """Ask the leader, or any master where the request may be answered by any."""
        if getattr(request, "max_staleness_s", LINEARIZABLE) < 0:
            return await self._masters.call(method, request, timeout_s=timeout_s)
        return await self._masters.call_any(method, request, timeout_s=timeout_s)

    async def _wait_made(
        self, name: str, table_id: TableId, deadline: float, *, must_run: bool
    ) -> AsyncTable:
        """Open a table that was created; ``must_run``: once all its tablets are served.

        Raises:
            NotDoneYet: the deadline passed. The table exists.
        """
        clock = self.runtime.clock
        cache: TableCache | None = None
        waits_for = "the masters"
        while (left_s := deadline - clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    if cache is None:
                        found = await look_up(self._masters, name, table_id)
                        cache = TableCache(self._masters, found)
                    else:
                        await cache.refresh()
            except (RetryLater, OutcomeUnknown, TimeoutError) as error:
                waits_for = str(error) or waits_for  # a failover may take longer than one look-up
            else:
                if cache.is_running or not must_run:
                    return self._open(cache)
                waiting = next(t for t in map(cache.tablet, cache.numbers) if not t.address)
                waits_for = waiting.problem or f"tablet {waiting.tablet.tablet_id} to be served"
            await clock.sleep(POLL_S)
        raise NotDoneYet(f"create_table({name!r})", waits_for)

    def _open(self, cache: TableCache) -> AsyncTable:
        table = AsyncTable(self.runtime, self._settings, self._session, cache)
        self._tables[table.record.table_id] = table
        return table

    async def table(self, name: str, *, max_staleness: float | None = None) -> AsyncTable:
        check_known_name(name)
        body = GetTable(name, max_staleness_s=staleness(max_staleness))
        locations = await self._read(GET_TABLE, body, LOOKUP_TIMEOUT_S)
        known = self._tables.get(locations.table.table_id)
        if known is not None:
            if max_staleness is None:
                known.cache.take(locations)
            return known
        return self._open(TableCache(self._masters, locations))

    @property
    def master_addresses(self) -> tuple[Address, ...]:
        """The masters, as far as is known by now."""
        return self._masters.addresses

    def locations_of(self, table: AsyncTable) -> TableLocations:
        return table.cache.locations

    def handle(self, locations: TableLocations) -> AsyncTable:
        known = self._tables.get(locations.table.table_id)
        return known if known is not None else self._open(TableCache(self._masters, locations))

    async def tables(
        self,
        *,
        own: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TableRecord]:
        """All tables that users made, by name. ``own``: Stelae's own, too. ``max_staleness``: see
        `table`."""
        reply = await self._read(LIST_TABLES, ListTables(staleness(max_staleness)), timeout)
        found = [table for table in reply.tables if own or not is_own_table(table.name)]
        return sorted(found, key=lambda table: table.name)

    async def locate(
        self,
        tablets: Sequence[str],
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TabletLocation]:
        """Where tablets are, by id, in the order given; also of those deleted or replaced, whose
        ``problem`` says so. Raises `TabletNotFound`."""
        ids = tuple(TabletId(tablet_id) for tablet_id in tablets)
        body = GetTabletLocations(ids, staleness(max_staleness))
        return list((await self._read(GET_TABLET_LOCATIONS, body, timeout)).tablets)

    async def locate_table(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TabletLocation]:
        """Where the tablets of a table are, by number. Raises `TableNotFound`."""
        check_known_name(name)
        body = GetTable(name, max_staleness_s=staleness(max_staleness))
        return list((await self._read(GET_TABLE, body, timeout)).tablets)

    async def delete_table(
        self, name: str, *, if_edition: str = "", timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Delete a table and all its rows, for ever; with ``if_edition`` only if it is still of
        this edition. Raises `TableNotFound`, `TableChanged`."""
        check_known_name(name)
        with self._session.request() as request:
            order = DeleteTable(request, name, if_edition)
            await self._masters.call(DELETE_TABLE, order, timeout_s=timeout)
        known = list(self._tables.items())  # at once: `handle` adds tables in other threads
        self._tables = {i: table for i, table in known if table.name != name}

    async def status(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """The status document (design §12): servers, tables, tablets, recoveries.

        With ``max_staleness`` (see `table`) a follower may answer; it does not know how much is in
        tablets (None).
        """
        reply = await self._read(STATUS, GetStatus(staleness(max_staleness)), timeout)
        return msgspec.json.decode(reply.document, type=dict[str, Any])

    async def masters(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> MasterSet:
        """The masters by their own replicated configuration."""
        return await self._masters.call(LIST_MASTERS, Empty(), timeout_s=timeout)

    async def add_master(
        self, uuid: ServerUuid, name: str, address: Address, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> MasterSet:
        """Add a master that waits for it; it votes once it has caught up. Again is fine."""
        with self._session.request() as request:
            order = AddMaster(request, uuid, name, address)
            return await self._masters.call(ADD_MASTER, order, timeout_s=timeout)

    async def remove_master(self, master: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> MasterSet:
        """Take a master out of the set, by UUID or name. By UUID, again is fine."""
        members = (await self.masters(timeout=timeout)).members
        found = [member.uuid for member in members if member.name == master]
        victim = found[0] if len(found) == 1 else master
        with self._session.request() as request:
            order = RemoveMaster(request, victim)
            return await self._masters.call(REMOVE_MASTER, order, timeout_s=timeout)

    async def check(
        self,
        tables: Sequence[str] = (),
        *,
        checksums: bool = False,
        wait: float = 0.0,
        timeout: float = DEFAULT_TIMEOUT_S,
        stopped: WhoIsStopped | None = None,
    ) -> CheckReport:
        """Look at masters, servers, tables and tablets, and say what is not well.

        Never raises for what it finds, be it that nobody answers. ``tables``: only these.
        ``checksums``: have all replicas of each tablet with ``replicas(n)`` compared at one index
        of its log. ``wait``: look again for so many seconds while something is not well.
        ``timeout`` is of each question asked. ``stopped``: says which servers an operator stopped,
        which is no fault.

        Raises:
            TableNotFound: one of ``tables`` does not exist.
        """
        return await check_cluster(
            self.runtime,
            self._masters,
            tables=tables,
            checksums=checksums,
            wait_s=wait,
            timeout_s=timeout,
            stopped=stopped,
        )

    async def _put_calls(self, rows: Sequence[Row]) -> None:
        await self.put_calls(rows, timeout=WRITE_TIMEOUT_S)

    async def close(self) -> None:
        """End this client's connections, once its rows of the audit log are written or given up."""
        if self.calls is not None:
            await self.calls.close()
        await self.runtime.peers.close()


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
