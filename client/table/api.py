"""What a table offers, whichever way it is reached: the calls, their promises, and their checks.

`AsyncTable` carries these calls out straight at the tservers, `HttpTable` over HTTP, each in the
methods whose names begin with an underscore. (What differs as a whole stands in each of the two.)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.finds.calls import AsyncFinds
from stelae.client.finds.index_calls import Progress
from stelae.client.input.convert import Key, Rows
from stelae.client.input.filters import Where
from stelae.client.input.given import batch_limit, row_limit
from stelae.client.one_process import OneProcess
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.part import Versions
from stelae.client.table.alter import AskedAlter, NewColumns
from stelae.client.table.matching import Matching
from stelae.client.table.places import TabletPlace, tablet_place
from stelae.client.table.streams import BatchStream, Piece, open_stream
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.schema import check_table_name

SCAN_TIMEOUT_S = 600.0
PIECE_TIMEOUT_S = 60.0
"""Seconds that one piece of a stream may take."""
FILL_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class AskedRows:
    """What a read by key asks for."""

    keys: Any
    columns: Sequence[str] | None
    with_versions: bool
    max_staleness: float | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AskedScan:
    """What a scan asks for."""

    columns: Sequence[str] | None
    where: Where
    limit: int | None
    with_versions: bool
    max_staleness: float | None
    timeout_s: float


class TableApi(OneProcess, AsyncFinds):
    """See the module."""

    # ---- what it is -------------------------------------------------------------------------

    @property
    @abstractmethod
    def record(self) -> TableRecord:
        """The table in the version that calls begun now are made with."""

    @property
    @abstractmethod
    def _newest(self) -> TableRecord:
        """The table in the newest version that this client has heard of."""

    @property
    def name(self) -> str:
        return self._newest.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its columns."""
        return self.record.schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self.record.schema.key

    @property
    def edition(self) -> str:
        """Which table it is, and how often its description was changed, as far as is known here:
        for ``if_edition``."""
        return self._newest.edition

    async def locations(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[TabletPlace]:
        """Where each tablet is now, in the order of their numbers: to run tasks next to rows.

        It is a hint: tablets move when servers end, or are relieved.

        Raises:
            TableNotFound: the table was deleted.
        """
        return [tablet_place(location) for location in await self._locations(timeout)]

    @abstractmethod
    async def _locations(self, timeout_s: float) -> Sequence[TabletLocation]: ...

    # ---- altering ---------------------------------------------------------------------------

    async def alter(
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
        """Change the table's columns, name or durability; reads and writes go on meanwhile.

        ``add_columns``: Arrow fields, or types by name; one that may not be null needs a default,
        which the rows that are there show. ``defaults``: by name (after renames), what new rows
        get that leave the column out; None: no default any more. A column dropped and added again
        comes back empty. Key columns stay as they are.

        ``durability``: any other one. From replicas to another number of them each tablet gets a
        copy on one more server, or lets one go, one after the other. Else each tablet makes way for
        a new one, two of the cluster at a time; for a moment its writes, and then its reads, wait.
        With many rows that takes a while; where no server has memory for a tablet's rows once more
        it waits for one that has, as `NotDoneYet` and the status say. Altered back before it is
        done, it is taken back; columns can be altered once it is done. ``wait``: until all tablets
        follow.

        ``if_edition``: only if the table is still of this `edition`.

        Raises:
            InvalidArgument, ColumnNotFound, TooLarge, TableExists, TooFewServers, TooManyReplicas:
                nothing was changed.
            TableChanged: the same; it is of another edition.
            NotEnoughServers: the same; for half a minute too few servers live that the durability
                asks for.
            NotDoneYet: it is altered, but some tablet does not follow yet (`is_alter_done`);
                it goes on by itself.
        """
        asked = AskedAlter(
            add_columns, drop_columns, rename_columns, defaults, rename_to, durability
        )
        await self._alter(asked, if_edition, wait, timeout)

    @abstractmethod
    async def _alter(
        self, asked: AskedAlter, if_edition: str, wait: bool, timeout_s: float
    ) -> None: ...

    async def rename(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Give the table another name; this handle and all others on it go on.

        Raises:
            InvalidArgument, TableExists: it keeps its name.
        """
        check_table_name(name)
        await self.alter(rename_to=name, wait=False, timeout=timeout)

    async def create_index(
        self,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = FILL_TIMEOUT_S,
    ) -> None:
        """Make an index of a column; reads and writes go on meanwhile.

        ``wait``: until it answers (`find`), which takes longer with more rows; it is made whether
        anybody waits or not. ``progress`` is told of each look.

        Raises:
            IndexExists, ColumnNotFound, InvalidArgument: nothing was changed. ``unique`` always is
                refused; the text says what to do in its place.
            NotDoneYet: it is not filled in time, and goes on by itself.
        """
        await self._create_index(column, unique, wait, progress, timeout)

    @abstractmethod
    async def _create_index(
        self, column: str, unique: bool, wait: bool, progress: Progress | None, timeout_s: float
    ) -> None: ...

    @abstractmethod
    async def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a column. Raises `IndexNotFound`, `ColumnNotFound`."""

    # ---- writes -----------------------------------------------------------------------------

    async def insert(self, rows: Rows, *, timeout: float = DEFAULT_TIMEOUT_S) -> Versions:
        """Add rows that are not there yet; `RowExists` if one is, and that tablet is unchanged."""
        return await self._write(WriteOp.INSERT, rows, None, timeout)

    async def upsert(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Add or replace rows, in order. Returns the version of each row, shape (rows,).

        ``if_version``: the version that a row must have (0: must be absent); one number for one
        row, or one for each.
        """
        return await self._write(WriteOp.UPSERT, rows, if_version, timeout)

    async def update(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Change columns of rows that are there; `RowNotFound` otherwise. Rows hold the key and
        the columns to change, the same for all rows of a call."""
        return await self._write(WriteOp.UPDATE, rows, if_version, timeout)

    @abstractmethod
    async def _write(
        self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float
    ) -> Versions: ...

    async def delete(
        self, keys: Any, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Delete rows by key: one key, a list, or a table of key columns. Absent is fine."""
        return await self._delete(keys, if_version, timeout)

    @abstractmethod
    async def _delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions: ...

    # ---- reads ------------------------------------------------------------------------------

    async def get(
        self,
        key: Key,
        *,
        columns: Sequence[str] | None = None,
        with_version: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """Read one row, linearizably; None if there is none.

        ``with_version`` adds the row's version as ``_version``. With ``max_staleness`` (seconds)
        any replica of a table with ``replicas(n)`` may answer whose state is provably no older,
        so that reads go on without a leader, and are shared. Other tables answer as ever.

        Raises:
            TooStale: no replica had so new a state, in time.
        """
        return await self._get(AskedRows([key], columns, with_version, max_staleness, timeout))

    def get_here(
        self,
        key: Key,
        columns: Sequence[str] | None,
        with_version: bool,
        max_staleness: float | None,
        timeout_s: float,
    ) -> tuple[dict[str, Any] | None] | None:
        """Do as `get` in the caller's thread, which blocks. None: this table has no such way, or it
        brought no answer."""
        return None

    async def _get(self, asked: AskedRows) -> dict[str, Any] | None:
        """The one row asked for."""
        found = await self._get_many(asked)
        return found.to_pylist()[0] if found.num_rows else None

    async def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """Read many rows by key; those found, in the order of their keys.

        ``keys``: a list of keys, an Arrow array (one key column), or a table of key columns.
        ``max_staleness``: see `get`.
        """
        return await self._get_many(AskedRows(keys, columns, with_versions, max_staleness, timeout))

    @abstractmethod
    async def _get_many(self, asked: AskedRows) -> pa.Table: ...

    async def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> pa.Table:
        """Read all rows that match, as one Arrow table; tablets are read side by side.

        ``max_staleness``: see `get`.
        """
        asked = AskedScan(columns, where, row_limit(limit), with_versions, max_staleness, timeout)
        return await self._scan(asked)

    @abstractmethod
    async def _scan(self, asked: AskedScan) -> pa.Table: ...

    async def scan_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | pc.Expression = None,
        limit: int | None = None,
        with_versions: bool = False,
        batch_rows: int | None = None,
        timeout: float = PIECE_TIMEOUT_S,
    ) -> BatchStream:
        """Open a stream of all rows that match: ``async for batch in await scan_batches()``.

        Up to three pieces of about 16 MiB are in memory, however slow the reader is. Each tablet
        is read at one point of its log, when the stream reaches it. ``batch_rows``: maximum rows of
        a batch. ``timeout``: seconds that each piece may take.

        ``where``: the filter lists of ``pyarrow.parquet.read_table(filters=)``, which servers
        apply; or a ``pyarrow.compute.Expression``. pyarrow shows no parts of an expression, so it
        is evaluated here: all rows travel, in the columns that are named and those that it needs.

        Raises:
            InvalidArgument, ColumnNotFound: the arguments are none for this table.
            SnapshotLost: while it is read: a tablet's server ended after some of its rows had
                been read. The table can be read again from the beginning.
            SchemaChanged: while it is read: a column that is read was dropped.
            DeadlineExpired: while it is read: a piece took longer than ``timeout``.
        """
        most = batch_limit(batch_rows)
        if not isinstance(where, pc.Expression):
            asked = AskedScan(columns, where, row_limit(limit), with_versions, None, timeout)
            return await open_stream(self._pieces(asked), most)
        matching = Matching(where, self.record, columns, with_versions)
        asked = AskedScan(matching.columns, None, None, with_versions, None, timeout)
        rows = await open_stream(self._pieces(asked))
        return await open_stream(matching.pieces(rows, row_limit(limit)), most)

    @abstractmethod
    def _pieces(self, asked: AskedScan) -> AsyncGenerator[Piece, None]:
        """Yield an empty batch of the schema, then the rows; see `open_stream`."""

    async def count(
        self,
        *,
        where: Where = None,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> int:
        """How many rows there are (that match). ``max_staleness``: see `get`."""
        asked = AskedScan([self.key[0]], where, None, False, max_staleness, timeout)
        return int((await self._scan(asked)).num_rows)
