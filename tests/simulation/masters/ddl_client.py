"""A client that changes and reads the catalog, and records every answer for the judge.

All clients share a few names. A create carries its mark as the name of a column, so whoever sees a
table knows which request made it. Some answers are lost on the way to the client's mind: it sends
the same request once more, and must be told the same. Some clients are impatient: they give up at
the first silence, and the operation has no outcome.

A kind of operation is a method of `DdlClient` and a line in `KINDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    RetryElsewhere,
    RetryLater,
    StelaeError,
    TableExists,
    TableNotFound,
)
from stelae.core.ids import Address, ClientId, RequestId, TableId
from stelae.core.messages.alter import ALTER_TABLE, AlterTable
from stelae.core.messages.catalog import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    LINEARIZABLE,
    LIST_TABLES,
    CreateTable,
    DeleteTable,
    GetTable,
    ListTables,
    TableLocations,
)
from stelae.core.records.records import TableRecord, TableState, TabletState
from stelae.core.schema.alter import schema_change
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from tests.simulation.masters.catalog_history import (
    CatalogHistory,
    CatalogOperation,
    Seen,
    Step,
    alters,
    creates,
    deletes,
    finds,
    finds_all,
    has,
    has_column,
    is_called,
    is_gone,
    moves,
)

NAMES = ("a", "b", "c", "d", "e", "f")
COLUMNS = ("x", "y")
MEDIA = ((), ("disk",), ("disk", "disk"))
AGAIN = (RetryLater, RetryElsewhere, OutcomeUnknown)
IMPATIENT_RATES = (0.05, 0.3, 0.7)
IMPATIENCE_S = (0.01, 0.05, 0.3)
FORGETFUL_RATE = 0.25
LOST_RATE = 0.2
"""So often a client has forgotten who leads, and asks any master first."""
DOUBT_RATE = 0.4
"""So often a client that was told of a change looks at once whether any master knows."""
STRUCK_RATE, STRUCK_RATES = 0.1, {DeleteTable: 0.4}
ROW_RATE = 0.6
STALE_S = (0.05, 0.3, 1.0)
DRIFT = 1.02
"""Clocks of servers may be off by a percent, to either side."""
THINK_S = 0.05


class DdlClient:
    """One client. ``history`` is shared by all of them."""

    def __init__(
        self, world: World, cluster: SimCluster, name: str, history: CatalogHistory | None = None
    ) -> None:
        self.name = name
        self.history = history or CatalogHistory(world.loop.time)
        self.rows: dict[TableId, int] = {}
        """Rows that were acknowledged: table -> key."""
        self.ids: dict[str, TableId] = {}
        """Of all tables ever seen: mark -> id."""
        self.strike_leader: Callable[[], None] | None = None
        """Kills the leader in its next sync: called now and then just before a change."""
        self._world = world
        self._rng = world.rng(f"ddl/{name}")
        self._names = NAMES[: world.rng("names").choice((2, 3, 6))]
        runtime = world.client(name)
        addresses = list(cluster.addresses.values())
        self._runtime = runtime
        self._masters = MastersClient(runtime, addresses)
        self._database = AsyncDatabase(runtime, addresses, cluster.settings)
        self.impatient_rate = self._rng.choice(IMPATIENT_RATES)
        self.impatience_s = self._rng.choice(IMPATIENCE_S)
        self._given_up = False
        """The last change has no outcome: one such at a time, or the judge has too much to try."""
        self._sequence = 0
        self._writers: list[asyncio.Task[None]] = []

    async def work(self, until_s: float) -> None:
        """Do this and that until then."""
        kinds = list(KINDS)
        while asyncio.get_running_loop().time() < until_s:
            kind = self._rng.choices(kinds, list(KINDS.values()))[0]
            name = self._rng.choice(self._names)
            await getattr(self, kind)(name)
            if kind not in READS and self._rng.random() < DOUBT_RATE:
                self._forget_leader()
                await self.look(name)
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))
        for writer in self._writers:
            await writer

    # ---- changes ----------------------------------------------------------------------------

    async def create(self, name: str, buckets: int = 0) -> TableId | None:
        """Create a table; None if there is one of that name, or nobody can tell."""
        request = self._request()
        mark = f"by_{self.name}_{request.sequence}"
        schema = pa.schema([pa.field("id", pa.int64(), False), pa.field(mark, pa.string())])
        media = self._rng.choice(MEDIA)
        order = CreateTable(
            request,
            name,
            TableSchema.of(schema, ["id"]),
            hash_partition("id", buckets=buckets or self._rng.randint(1, 3)),
            segments(*media),
        )
        operation = self.history.begin(self.name, f"create {name} {mark}", creates(name, mark))
        reply = await self._change(operation, CREATE_TABLE, order, {TableExists: has(name)})
        if reply is None:
            return None
        # An answer repeated late may show the table as it is then: changed or deleted by others.
        assert self.see(reply.table).mark == mark, f"{mark} was answered with {reply.table}"
        made = TableId(reply.table.table_id)
        if media and self._rng.random() < ROW_RATE:
            self._writers.append(self._world.spawn(self.name, self._write(name, made)))
        return made

    async def delete(self, name: str) -> bool:
        """Delete a table; False if there is none, or nobody can tell."""
        order = DeleteTable(self._request(), name)
        operation = self.history.begin(self.name, f"delete {name}", deletes(name))
        refusals: dict[type[Rejected], Step] = {TableNotFound: finds(name, None)}
        return await self._change(operation, DELETE_TABLE, order, refusals) is not None

    async def rename(self, name: str) -> None:
        """Give a table another name, wherever it is by then."""
        table = await self._pick(name)
        if table is None:
            return
        (mark, _), table_id = table
        new = self._rng.choice(self._names)
        order = AlterTable(self._request(), table_id, name, new_name=new)
        operation = self.history.begin(self.name, f"rename {mark} to {new}", moves(mark, new))
        refusals: dict[type[Rejected], Step] = {
            TableNotFound: is_gone(mark),
            TableExists: has(new),
            InvalidArgument: is_called(mark, new),
        }
        await self._change(operation, ALTER_TABLE, order, refusals)

    async def alter(self, name: str) -> None:
        """Add a column that is not there, or drop one."""
        table = await self._pick(name)
        if table is None:
            return
        (mark, columns), table_id = table
        column = self._rng.choice(COLUMNS)
        add = column not in columns
        change = (
            schema_change(add=[pa.field(column, pa.int64())])
            if add
            else schema_change(drop=[column])
        )
        order = AlterTable(self._request(), table_id, name, change=change)
        what = f"{'add' if add else 'drop'} {column} of {mark}"
        operation = self.history.begin(self.name, what, alters(mark, column, add=add))
        other = InvalidArgument if add else ColumnNotFound
        refusals: dict[type[Rejected], Step] = {
            TableNotFound: is_gone(mark),
            other: has_column(mark, column, present=add),
        }
        await self._change(operation, ALTER_TABLE, order, refusals)

    async def _pick(self, name: str) -> tuple[Seen, TableId] | None:
        """The table of that name just now, if there is one."""
        for table in await self.list_records():
            if table.name == name:
                return self.see(table), TableId(table.table_id)
        return None

    async def _change(
        self,
        operation: CatalogOperation,
        method: Any,
        order: Any,
        refusals: Mapping[type[Rejected], Step],
    ) -> Any:
        """Send a request until it is answered, record the answer, and perhaps ask again."""
        patient = self._given_up or self._rng.random() >= self.impatient_rate
        struck_rate = STRUCK_RATES.get(type(order), STRUCK_RATE)
        if not self._given_up and self.strike_leader and self._rng.random() < struck_rate:
            self.strike_leader()
            patient = False
        try:
            reply = await self._call(method, order, patient=patient)
        except tuple(refusals) as error:
            self.history.saw(operation, type(error).__name__, refusals[type(error)])
            self._given_up = False
            return None
        except OutcomeUnknown:
            self._given_up = True
            self.history.unknown(operation)
            return None
        except RetryLater:
            # Surely not done by any of its attempts; but the network may have copied one of them.
            copied = self._world.options.duplicate_rate > 0
            self._given_up = copied
            (self.history.unknown if copied else self.history.failed)(operation)
            return None
        if self._rng.random() < FORGETFUL_RATE:
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))
            try:
                reply = await self._call(method, order)
            except Rejected as error:
                raise AssertionError(f"done once, then refused: {operation}: {error}") from error
        self.history.done(operation)
        self._given_up = False
        return reply

    async def _call(self, method: Any, order: Any, *, patient: bool = True) -> Any:
        """Repeat one request, with its id, until it has an answer."""
        if self._rng.random() < LOST_RATE:
            self._forget_leader()
        while True:
            try:
                return await self._masters.call(
                    method, order, timeout_s=5.0 if patient else self.impatience_s
                )
            except AGAIN:
                if not patient:
                    raise
                await asyncio.sleep(0.05)

    def knows(self, addresses: Collection[Address]) -> bool:
        """Whether it would find the masters if only these were left of those there ever were."""
        known = (self._masters.addresses, self._database._masters.addresses)
        return all(set(each) & set(addresses) for each in known)

    def _forget_leader(self) -> None:
        """Ask any master first."""
        addresses = list(self._masters.addresses)
        self._rng.shuffle(addresses)
        self._masters = MastersClient(self._runtime, addresses)

    def _request(self) -> RequestId:
        self._sequence += 1
        return RequestId(ClientId(self.name), self._sequence, self._sequence)

    # ---- reads ------------------------------------------------------------------------------

    async def look(self, name: str, stale_s: float = 0.0) -> TableId | None:
        """Look a table up; it is there with all its tablets, or not at all."""
        operation = self.history.begin(self.name, f"look {name}", stale_s=stale_s * DRIFT)
        try:
            found = await self._read(
                GET_TABLE, GetTable(name, max_staleness_s=stale_s or LINEARIZABLE), stale_s
            )
        except TableNotFound:
            self.history.saw(operation, "absent", finds(name, None))
            return None
        assert found.table.name == name, f"asked for {name}, found {found.table}"
        self._check_locations(found)
        seen = self.see(found.table)
        self.history.saw(operation, str(seen), finds(name, seen))
        return TableId(found.table.table_id)

    async def list(self, _: str = "", stale_s: float = 0.0) -> dict[str, TableId]:
        """List all tables."""
        operation = self.history.begin(self.name, "list", stale_s=stale_s * DRIFT)
        reply = await self._read(
            LIST_TABLES, ListTables(max_staleness_s=stale_s or LINEARIZABLE), stale_s
        )
        tables = reply.tables
        found = {table.name: self.see(table) for table in tables}
        assert len(found) == len(tables), f"a name is listed twice: {[t.name for t in tables]}"
        for table in tables:
            self._check_table(table)
        self.history.saw(operation, str(found), finds_all(found))
        return {table.name: TableId(table.table_id) for table in tables}

    async def look_around(self, name: str) -> None:
        """Look a table up at any master, as it was a moment ago at most."""
        await self.look(name, self._rng.choice(STALE_S))

    async def list_around(self, _: str) -> None:
        """List all tables at any master."""
        await self.list(stale_s=self._rng.choice(STALE_S))

    async def _read(self, method: Any, question: Any, stale_s: float) -> Any:
        """Ask the leader, or any master for what may be ``stale_s`` old."""
        if not stale_s:
            return await self._call(method, question)
        while True:
            try:
                return await self._masters.call_any(method, question, timeout_s=5.0)
            except AGAIN:
                await asyncio.sleep(0.05)

    async def list_records(self) -> tuple[TableRecord, ...]:
        """All tables, as the masters tell."""
        listed: tuple[TableRecord, ...] = (await self._call(LIST_TABLES, ListTables())).tables
        return listed

    def _check_table(self, table: TableRecord) -> None:
        """What every table that is shown must be."""
        del self
        assert table.state is not TableState.DELETED, f"a deleted table is shown: {table}"

    def _check_locations(self, found: TableLocations) -> None:
        """A table is shown whole, and each tablet in a state that it may be in."""
        self._check_table(found.table)
        table, count = found.table, found.table.partitioning.tablet_count
        numbers = [location.tablet.number for location in found.tablets]
        assert numbers == list(range(count)), f"half a table {table.name}: {numbers} of {count}"
        for location in found.tablets:
            tablet = location.tablet
            assert tablet.table_id == table.table_id, f"{tablet} is no tablet of {table}"
            assert tablet.state is not TabletState.DELETED, f"{table.name} has a deleted {tablet}"
            assert tablet.term >= 1, f"{tablet}"
            served = bool(location.address)
            assert not served or tablet.state is TabletState.RUNNING, f"served already: {tablet}"

    def see(self, table: TableRecord) -> Seen:
        """The table as the model knows it; a mark has one id, for ever."""
        _, mark, *columns = table.schema.arrow.names  # those added come last
        known = self.ids.setdefault(mark, TableId(table.table_id))
        assert known == table.table_id, f"{mark} made {known} and {table.table_id}"
        return Seen(mark, tuple(sorted(columns)))

    # ---- rows -------------------------------------------------------------------------------

    async def _write(self, name: str, made: TableId) -> None:
        """Try to write one row to a table just made."""
        key = self._sequence
        try:
            table = await self._database.table(name)
            if table.record.table_id == made:
                await table.upsert({"id": key, table.schema.names[1]: "x"}, timeout=2.0)
                self.rows[made] = key
        except StelaeError:
            return  # the table is gone, or its tablets are not served now

    async def read_rows(self, tables: Mapping[str, TableId], rows: Mapping[TableId, int]) -> None:
        """Every row acknowledged of a table that still exists is there."""
        for name, table_id in tables.items():
            if table_id in rows:
                table = await self._database.table(name)
                row = await table.get(rows[table_id], timeout=30.0)
                assert row is not None, f"an acknowledged row of {name} ({table_id}) is lost"


KINDS = {
    "create": 4,
    "delete": 3,
    "rename": 1,
    "alter": 1,
    "look": 2,
    "list": 2,
    "look_around": 1,
    "list_around": 1,
}
"""What clients do: the method's name, and its weight."""
READS = ("look", "list", "look_around", "list_around")
