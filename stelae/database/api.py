"""What users hold: a `Database` and its `Table` objects, blocking, with async twins under ``aio``.

Everything is done by `stelae.client` on a loop of its own; these classes block for it, except that
calls of one row or a few go straight from the caller's thread. All errors are of `stelae.errors`.

Both may be used in a forked child and be pickled: `stelae.client.connection` has the connection of
the process that makes a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.aio import Bridged, Loop
from stelae.client.connection import Connection, DirectCaller, Opened, Origin, TableHandle
from stelae.client.database import DEFAULT_DURABILITY, AsyncDatabase
from stelae.client.input.convert import Key, Rows, to_arrow
from stelae.client.input.filters import Where
from stelae.client.input.given import load_parts
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.table.alter import NewColumns
from stelae.client.table.blocking import BlockingTable
from stelae.client.table.places import TabletPlace
from stelae.client.table.table import AsyncTable
from stelae.core.errors import StelaeError
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.database.backups import Backups
from stelae.database.indexes import DatabaseIndexes, TableIndexes
from stelae.database.operations import Operations
from stelae.database.origins import ClusterOrigin
from stelae.database.progress import count_bar
from stelae.database.streams import TableStreams

if TYPE_CHECKING:
    from stelae.recovery.spark_link import ClusterLink

Versions = NDArray[np.uint64]
LOAD_BATCH_BYTES = 16 << 20
SHOWN_TIMEOUT_S = 2.0
"""Upper bound on what a notebook waits for a table's tablets, rows and size."""


class Table(TableIndexes, TableStreams):
    """One table. Calls block; ``table.aio`` has the same calls as coroutines, for any event loop.

    It can be pickled, and be used in a forked child: it connects again there at the first call.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self.aio = cast("AsyncTable", Bridged(handle))

    def __reduce__(self) -> Any:
        return Table, (self._handle,)

    @property
    def _loop(self) -> Loop:
        return self._handle.now().opened.loop

    @property
    def _table(self) -> AsyncTable:
        return cast("AsyncTable", self._handle.known())

    @property
    def _direct(self) -> BlockingTable | None:
        return self._handle.now().direct

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self._table.key

    @property
    def edition(self) -> str:
        """Which table it is, and how often its description was changed, as far as is known here:
        for ``if_edition``."""
        return self._table.edition

    def locations(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[TabletPlace]:
        """Where each tablet is now, in the order of their numbers: to run tasks next to rows. It is
        a hint: tablets move when servers end, or are relieved."""
        return self._loop.run(self._table.locations(timeout=timeout))

    def insert(self, rows: Rows, *, timeout: float = DEFAULT_TIMEOUT_S) -> Versions:
        """Add rows that are not there yet; raises `RowExists` if one is."""
        if self._direct is not None:
            return self._direct.write(WriteOp.INSERT, rows, None, timeout)
        return self._loop.run(self._table.insert(rows, timeout=timeout))

    def upsert(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Add or replace rows; returns their versions. ``if_version=0``: only if absent."""
        if self._direct is not None:
            return self._direct.write(WriteOp.UPSERT, rows, if_version, timeout)
        return self._loop.run(self._table.upsert(rows, if_version=if_version, timeout=timeout))

    def update(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Change columns of rows that are there; raises `RowNotFound` if one is not."""
        if self._direct is not None:
            return self._direct.write(WriteOp.UPDATE, rows, if_version, timeout)
        return self._loop.run(self._table.update(rows, if_version=if_version, timeout=timeout))

    def delete(
        self, keys: Any, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Delete by key: one key, a list of keys, or a table of key columns. Absent is fine."""
        if self._direct is not None:
            return self._direct.delete(keys, if_version, timeout)
        return self._loop.run(self._table.delete(keys, if_version=if_version, timeout=timeout))

    def load(
        self, rows: Any, *, batch_bytes: int = LOAD_BATCH_BYTES, timeout: float = DEFAULT_TIMEOUT_S
    ) -> int:
        """Upsert any amount of rows, in several calls; returns how many. Not atomic as a whole, but
        nothing is written unless each row fits the table."""
        data, done = to_arrow(rows, self.schema), 0
        with count_bar(f"load of {self.name}", None) as tell:
            for part in self.load_batches(data, batch_bytes, timeout):
                done += part.num_rows
                tell(done, data.num_rows)
        return done

    def load_batches(
        self, rows: Any, batch_bytes: int = LOAD_BATCH_BYTES, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Iterator[pa.Table]:
        """`load`, handing out each part once it is durable: for progress bars."""
        data = to_arrow(rows, self.schema)
        record = self._table.record
        for first, count in load_parts(data, record.schema, record.name, batch_bytes):
            part = data.slice(first, count)
            self.upsert(part, timeout=timeout)
            yield part

    def get(
        self,
        key: Key,
        *,
        columns: Sequence[str] | None = None,
        with_version: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """The row of a key as a dict, or None.

        With ``max_staleness`` (seconds) any replica of a table with ``replicas(n)`` may answer
        whose state is provably no older: reads go on without a leader. Raises `TooStale`.
        """
        if self._direct is not None:
            return self._direct.get(key, columns, with_version, max_staleness, timeout)
        began = time.monotonic()
        found = self._table.get_here(key, columns, with_version, max_staleness, timeout)
        if found is not None:
            return found[0]
        return self._loop.run(
            self._table.get(
                key,
                columns=columns,
                with_version=with_version,
                max_staleness=max_staleness,
                timeout=max(timeout - (time.monotonic() - began), 0.0),
            )
        )

    def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """The rows found, in the order of the keys asked for. ``max_staleness``: see `get`."""
        if self._direct is not None:
            return self._direct.get_many(keys, columns, with_versions, max_staleness, timeout)
        return self._loop.run(
            self._table.get_many(
                keys,
                columns=columns,
                with_versions=with_versions,
                max_staleness=max_staleness,
                timeout=timeout,
            )
        )

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = 600.0,
    ) -> pa.Table:
        """All rows that match: ``scan(columns=["dest"], where=[("dest", "=", "LAX")])``.

        ``max_staleness``: see `get`.
        """
        return self._loop.run(
            self._table.scan(
                columns=columns,
                where=where,
                limit=limit,
                with_versions=with_versions,
                max_staleness=max_staleness,
                timeout=timeout,
            )
        )

    def count(
        self, *, where: Where = None, max_staleness: float | None = None, timeout: float = 600.0
    ) -> int:
        """How many rows there are (that match). ``max_staleness``: see `get`."""
        return self._loop.run(
            self._table.count(where=where, max_staleness=max_staleness, timeout=timeout)
        )

    def alter(
        self,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        durability: Durability | None = None,
        if_edition: str = "",
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Change columns, the name, the durability; reads and writes go on meanwhile.

        ``alter(add_columns={"seats": pa.int16()}, defaults={"seats": 180}, drop_columns="dest",
        rename_columns={"departed": "departure"})``; ``alter(durability=wal(3))``.
        ``wait=False``: see `is_alter_done`. ``if_edition``: only if the table is still of this
        `edition`; else `TableChanged`.
        """
        self._loop.run(
            self._table.alter(
                add_columns=add_columns,
                drop_columns=drop_columns,
                rename_columns=rename_columns,
                defaults=defaults,
                rename_to=rename_to,
                durability=durability,
                if_edition=if_edition,
                wait=wait,
                timeout=timeout,
            )
        )

    def rename(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Give the table another name; handles on it go on. Raises `TableExists`."""
        self._loop.run(self._table.rename(name, timeout=timeout))

    def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether every tablet has the newest schema, and the durability that it is to have."""
        return self._loop.run(self._table.is_alter_done(timeout=timeout))

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        shown = self._shown()
        if isinstance(shown, StelaeError):
            return f"<stelae table: {shown}>"
        keys = ", ".join(shown.schema.key)
        closed = ", closed" if self._handle.connection.is_closed else ""
        return f"<stelae table {shown.name!r}, key ({keys}){closed}>"

    def _shown(self) -> TableRecord | StelaeError:
        """The table as far as is known here, or why nothing is; never raises."""
        try:
            return self._table.record
        except StelaeError as error:
            return error

    def _repr_html_(self) -> str:
        from stelae.database.html_views import table_html, unknown_table_html

        shown = self._shown()
        if isinstance(shown, StelaeError):
            return unknown_table_html(shown)
        try:
            opened = self._handle.now().opened
            status = opened.loop.run(opened.database.status(timeout=SHOWN_TIMEOUT_S))
        except StelaeError as error:
            return table_html(shown, None, str(error))
        return table_html(shown, status)


class Database(Operations, DatabaseIndexes, Backups):
    """A cluster, as its user sees it. Close it when done; a launched cluster then ends with it.

    It can be pickled, and be used in a forked child: it connects again there at the first call.
    ``close`` ends what the process that calls it has of the connection.
    """

    def __init__(
        self,
        loop: Loop,
        database: AsyncDatabase,
        cluster: str,
        calls: DirectCaller | None = None,
    ) -> None:
        """A database that only this process can use; `over` makes others.

        ``calls``: for small blocking calls, past the loop; None where the connection is HTTP.
        """
        self._begin(Connection(Opened(loop, database, calls), None), cluster)

    @classmethod
    def over(cls, connection: Connection, cluster: str) -> Self:
        """The database of a connection."""
        made = cls.__new__(cls)
        made._begin(connection, cluster)
        return made

    @classmethod
    def open(cls, origin: Origin, cluster: str) -> Self:
        """Connect. Waits for no server."""
        return cls.over(Connection(origin.open(), origin), cluster)

    def _begin(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self.cluster = cluster
        origin = connection.origin
        of_cluster = origin if isinstance(origin, ClusterOrigin) else None
        self.link: ClusterLink | None = None if of_cluster is None else of_cluster.link
        """How Spark tasks reach the cluster; None where the connection is HTTP."""
        self.ray_address = "auto"
        """Of the Ray that the cluster lives in, for changes of its servers."""
        self.home = "" if of_cluster is None else of_cluster.home
        """A folder with the cluster's files, if it was connected by one."""
        self.aio = cast("AsyncDatabase", Bridged(connection))

    def __reduce__(self) -> Any:
        return _unpickled, (self._connection, self.cluster, self.ray_address)

    @property
    def _loop(self) -> Loop:
        return self._connection.opened().loop

    @property
    def _database(self) -> AsyncDatabase:
        return self._connection.opened().database

    def _open(self, table: AsyncTable) -> Table:
        return Table(TableHandle(self._connection, table))

    def create_table(
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
    ) -> Table:
        """Create a table and wait until it can be written to; raises `TableExists`.

        ``indexes``: columns by whose values rows can be found (`Table.find`).

        Without ``wait`` it returns once the table exists: `is_create_done` tells the rest.
        """
        made = self._loop.run(
            self._database.create_table(
                name,
                schema,
                key=key,
                partition=partition,
                durability=durability,
                indexes=indexes,
                wait=wait,
                timeout=timeout,
            )
        )
        return self._open(made)

    def is_create_done(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether every tablet of a table has been created; raises `TableNotFound`."""
        return self._loop.run(self._database.is_create_done(name, timeout=timeout))

    def table(self, name: str, *, max_staleness: float | None = None) -> Table:
        """An existing table; raises `TableNotFound`.

        With ``max_staleness`` (seconds) any master may answer whose state is no older than that,
        so that it works while the masters have no leader.
        """
        found = self._loop.run(self._database.table(name, max_staleness=max_staleness))
        return self._open(found)

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def tables(self, *, max_staleness: float | None = None) -> list[str]:
        """The names of all tables. ``max_staleness``: see `table`."""
        found = self._loop.run(self._database.tables(max_staleness=max_staleness))
        return [table.name for table in found]

    def locate(
        self, tablets: Sequence[str], *, max_staleness: float | None = None
    ) -> list[TabletLocation]:
        """Where tablets are, by id; ``problem`` tells of those deleted, replaced, or offline.
        Raises `TabletNotFound`."""
        return self._loop.run(self._database.locate(tablets, max_staleness=max_staleness))

    def locate_table(
        self, name: str, *, max_staleness: float | None = None
    ) -> list[TabletLocation]:
        """Where the tablets of a table are, by number; raises `TableNotFound`."""
        return self._loop.run(self._database.locate_table(name, max_staleness=max_staleness))

    def delete_table(
        self, name: str, *, if_edition: str = "", timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Delete a table and all its rows, for ever; raises `TableNotFound`. ``if_edition``: only
        if it is still of this `edition` of `Table`; else `TableChanged`."""
        self._loop.run(self._database.delete_table(name, if_edition=if_edition, timeout=timeout))

    def alter_table(
        self,
        name: str,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        durability: Durability | None = None,
        if_edition: str = "",
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Table:
        """Change a table; see `Table.alter`. Raises `TableNotFound`."""
        table = self.table(name)
        table.alter(
            add_columns=add_columns,
            drop_columns=drop_columns,
            rename_columns=rename_columns,
            defaults=defaults,
            rename_to=rename_to,
            durability=durability,
            if_edition=if_edition,
            wait=wait,
            timeout=timeout,
        )
        return table

    def rename_table(
        self, name: str, new_name: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Table:
        """Rename a table; raises `TableNotFound`, `TableExists`."""
        table = self.table(name)
        table.rename(new_name, timeout=timeout)
        return table

    def export_table(
        self,
        name: str,
        url: str,
        *,
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Write a table, as it is now, into a folder of Parquet files; returns its manifest.

        ``url`` is a local path or a URL of pyarrow.fs or fsspec. The manifest is written last, and
        makes it an export. ``replace``: over an export that is there, whole or not. ``progress``
        is told of rows done, and of how many.

        Raises:
            InvalidArgument: there is something already; or Parquet lacks the type of a column.
            SnapshotLost: a server ended meanwhile; what is written is no export.
        """
        from stelae.database.transfers import export_table

        with count_bar(f"export of {name}", progress) as tell:
            return export_table(self, name, url, replace=replace, progress=tell)

    def import_table(
        self,
        url: str,
        name: str | None = None,
        *,
        partition: Partitioning | None = None,
        durability: Durability | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Table:
        """Upsert the rows of an export into its table, or table ``name``; made if there is none.

        ``partition``, ``durability``: of a table that is made, where not as it was. Files are
        checked first. Not atomic; again is fine, and brings the exported rows back as they were.

        Raises:
            InvalidArgument: there is no whole export, or the table has other columns.
            CorruptData: files are not what was written.
        """
        from stelae.database.transfers import import_table

        with count_bar(f"import from {url}", progress) as tell:
            table = import_table(
                self, url, name, partition=partition, durability=durability, progress=tell
            )
        return cast("Table", table)

    def status(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Servers, tables, tablets, and how recoveries go: the status document.

        ``max_staleness``: see `table`. A follower does not know how much is in tablets (None).

        Inside the cluster it also has ``away`` (machines that are away, if this process is
        connected to Ray), and from the cluster's data_dir, if it was connected by that, ``http``
        (its HTTP front) and ``warnings``.
        """
        return self._status(max_staleness, timeout, join=False)

    def _status(self, max_staleness: float | None, timeout: float, *, join: bool) -> dict[str, Any]:
        """``join``: see `deployed`."""
        work = self._database.status(max_staleness=max_staleness, timeout=timeout)
        status = self._loop.run(work)
        if self.link is None:
            return status
        from stelae.database.deployed import deployed

        return {**status, **deployed(self, status, join=join)}

    def close(self) -> None:
        """End the connections of this process; again is fine. Those of a parent, of children, and
        of other databases and tables that were unpickled here, go on."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stelae database {self.cluster!r}{', closed' * self._connection.is_closed}>"

    def _repr_html_(self) -> str:
        from stelae.database.html_views import database_html, unreachable_html

        try:
            return database_html(self.cluster, self._loop.run(self._database.status()))
        except StelaeError as error:
            return unreachable_html(self.cluster, error)


def _unpickled(connection: Connection, cluster: str, ray_address: str) -> Database:
    """A launched database too comes as a plain one: its cluster is of the process that launched."""
    found = Database.over(connection, cluster)
    found.ray_address = ray_address
    return found
