"""The ``alters`` scenario: tables whose schema changes under load and every kind of fault.

Clients that never learn of an alter and clients that follow each go on side by side; what the
``tables`` scenario demands of rows holds here too, for the column that all of them share, whatever
it is called. A column that is dropped and added again comes back empty; one that may not be null
always shows a default that it had; and in the end every tablet has the newest schema.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.input.known import KnownTable
from stelae.client.table.table import AsyncTable
from stelae.coordinator import decide
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl.alter import Alter, alter_actions
from stelae.coordinator.liveness.liveness import Run, Seen
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.messages.servers import TabletProgress
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.schema import TableSchema
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History, Operation
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.segments.layout import Layout
from stelae.storage.segments.projection import Projection
from tests.simulation.tables import tables

T = TypeVar("T")
READS_MAX = 10
ALTERS_MAX = 8
"""So many leave the first version among those that are understood."""
PAUSE_S = 2.5
VALUE_ID = 2
"""Of the column that all versions have, under one name or another."""
NAMES = ("value", "worth")
NEW_NAME = "renamed rows"


def name_of(schema: TableSchema, column_id: int) -> str:
    return str(schema.arrow.names[schema.column_ids.index(column_id)])


class Client(tables.Client):
    """A client that knows the first version alone, or one that follows."""

    def __init__(
        self, name: str, world: World, database: AsyncDatabase, history: History, rng: random.Random
    ) -> None:
        super().__init__(name, world, database, history, rng)
        self._is_old = rng.random() < 0.5 and name != "reader"
        self._known: KnownTable | None = None
        """The table as it was known when the last operation began."""

    async def table(self) -> AsyncTable:
        while True:
            try:
                table = await self._database.table(tables.TABLE)
            except (OutcomeUnknown, RetryLater):
                await self._database.runtime.clock.sleep(0.1)
            else:
                return table.at_version(1) if self._is_old else table

    async def _one(self, table: AsyncTable) -> None:
        if not self._is_old and self._rng.random() < 0.1:
            with contextlib.suppress(RetryLater, RetryElsewhere, OutcomeUnknown):
                await table.refresh()
        self._known = table.known
        await super()._one(table)

    def row(self, table: AsyncTable, key: int, value: str) -> dict[str, Any]:
        schema = table.known.schema
        row: dict[str, Any] = {"id": key, name_of(schema, VALUE_ID): value}
        if "flip" in schema.arrow.names and self._rng.random() < 0.7:
            row["flip"] = f"of column {schema.column_ids[schema.arrow.names.index('flip')]}"
        return row

    def value(self, table: AsyncTable, row: dict[str, Any]) -> str:
        schema = table.known.schema
        flip = row.get("flip")
        if flip is not None and "flip" in schema.arrow.names:
            column_id = schema.column_ids[schema.arrow.names.index("flip")]
            found_id = int(flip.rpartition(" ")[2])
            same = found_id == column_id or table.known is not self._known
            assert same, f"a value of column {found_id} in column {column_id}"
        assert row.get("fixed", 0) is not None, "a column that may not be null is"
        found = [row[name] for name in NAMES if name in row]
        assert len(found) == 1, f"which of {row} is the value?"
        return str(found[0])

    def _failed(self, operation: Operation, error: StelaeError) -> None:
        refused = isinstance(error, ColumnNotFound | InvalidArgument)
        assert not refused, f"an alter stopped a client: {error!r}"
        super()._failed(operation, error)


class Alterer:
    """Alters the table again and again, at random."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._rng = cluster.world.rng("alters")
        self._table: AsyncTable | None = None
        self._has_given_up = False
        """Some alter, of which nobody knows what became or becomes of it."""

    async def run(self, until_s: float) -> None:
        """Alter now and then, each as the catalog's newest schema allows it."""
        for _ in range(ALTERS_MAX):
            await self._database.runtime.clock.sleep(self._rng.expovariate(1.0) * PAUSE_S)
            if self._world.loop.time() >= until_s:
                return
            try:
                if self._table is None:
                    self._table = await self._database.table(tables.TABLE)
                await self._table.refresh()
                change = self._change(self._table.record)
                wait = self._rng.random() < 0.3
                await self._table.alter(**change, wait=wait, timeout=self._rng.choice((2.0, 8.0)))
            except (InvalidArgument, ColumnNotFound) as error:
                # One that was given up may be carried out since the look at the table.
                assert self._has_given_up, "a change that the newest schema allows"
                self._world.note("alters", f"it ends with {error!r}")
            except (RetryLater, RetryElsewhere, OutcomeUnknown) as error:
                self._has_given_up |= isinstance(error, OutcomeUnknown)
                self._world.note("alters", f"it ends with {error!r}")

    def _change(self, record: TableRecord) -> dict[str, Any]:
        names = record.schema.arrow.names
        value = name_of(record.schema, VALUE_ID)
        changes: list[dict[str, Any]] = [
            {"rename_columns": {value: NAMES[1 - NAMES.index(value)]}},
            {"drop_columns": "flip"} if "flip" in names else {"add_columns": {"flip": pa.string()}},
        ]
        if "flip" in names:
            # Dropped and added again in one call: another column of that name.
            changes.append({"drop_columns": "flip", "add_columns": {"flip": pa.string()}})
        if "fixed" in names:
            number = self._rng.randrange(100)
            changes += [{"drop_columns": "fixed"}, {"defaults": {"fixed": number}}]
        else:
            fixed = pa.field("fixed", pa.int16(), False)
            changes.append({"add_columns": [fixed], "defaults": {"fixed": 7}})
        return self._rng.choice(changes)

    async def judge(self, history: History) -> None:
        """Every tablet has the newest schema, on every master alike, and a new name reaches all."""
        world = self._world
        table = await self._patiently(lambda: self._database.table(tables.TABLE))
        await table.rename(NEW_NAME, timeout=120.0)
        await world.wait_until(self._all_follow, 60.0, "all tablets to follow the alters")
        assert await self._patiently(table.is_alter_done)
        found = await self._patiently(lambda: table.scan(timeout=60.0))
        for row in found.to_pylist():
            flip = row.get("flip")
            if flip:
                column_id = table.known.schema.column_ids[found.column_names.index("flip")]
                assert flip == f"of column {column_id}", f"{flip!r} in column {column_id}"
            assert row.get("fixed", 0) is not None, "a column that may not be null is"

    async def _patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question; messages are lost in a healed cluster too."""
        for _ in range(READS_MAX):
            try:
                return await read()
            except (RetryLater, RetryElsewhere, OutcomeUnknown):
                await self._database.runtime.clock.sleep(0.1)
        return await read()

    def _all_follow(self) -> bool:
        leader = self._cluster.leader()
        if leader is None:
            return False
        server = self._world.server(leader)
        renamed = (t for t in server.catalog.tables.values() if t.name == NEW_NAME)
        record = next(renamed, None)
        if record is None:  # a new leader, which has not applied all of its log yet
            return False
        reports = [
            report
            for name in self._cluster.tservers
            if (server := self._world.server(name)) is not None
            for report in server.reports()
            if report.progress is TabletProgress.SERVING
        ]
        return (
            record.state is TableState.RUNNING
            and len(reports) == tables.TABLETS
            and all((r.schema_version, r.renames) == (record.schema.version, 1) for r in reports)
        )


# ---- planted bugs ---------------------------------------------------------------------------


def _columns_by_name() -> Any:
    """Know the columns of older segments by their names: what was dropped comes back."""
    make = Projection.__init__

    def by_name(self: Projection, source: Layout, target: TableSchema) -> None:
        names = source.columns.names
        ids = tuple(
            target.column_ids[target.arrow.names.index(name)] if name in target.arrow.names else 0
            for name in names
        )
        renamed = Layout(source.stored, source.key)
        renamed.column_ids = ids
        make(self, renamed, target)

    return patch.object(Projection, "__init__", by_name)


def _tell_once() -> Any:
    """Tell each owner of an alter once, as of an event, and hope that it arrives."""
    told: dict[tuple[str, int, int], None] = {}

    def once(catalog: Catalog, live: Mapping[Run, Seen], *rest: Any) -> Iterator[Any]:
        for action in alter_actions(catalog, live, *rest):
            if isinstance(action, Alter):
                table = catalog.tables[action.tablet.table_id]
                key = (action.tablet.tablet_id, table.schema.version, table.renames)
                if key in told:
                    continue
                told[key] = None
            yield action

    return patch.object(decide, "alter_actions", once)


def _names_of_today() -> Any:
    """Take the names of every request for those of the present schema."""
    return patch.object(TabletSchemas, "view", lambda self, version: None)


BUGS: dict[str, Callable[[], Any]] = {
    "columns_by_name": _columns_by_name,
    "tell_once": _tell_once,
    "names_of_today": _names_of_today,
}


async def run(world: World, bug: str = "") -> None:
    """The tables scenario, with alters beside."""
    with BUGS[bug]() if bug else contextlib.nullcontext():
        await tables.run_tables(
            world, (), longest_gap_s=4.0, make_client=Client, make_beside=Alterer
        )


def options(seed: int) -> Options:
    """As of the tables, with small segments so that many schemas are sealed and recovered."""
    return tables.options(seed)


SCENARIO = Scenario("alters", run, options)
