"""Tables for Arrow consumers: a `pyarrow.RecordBatchReader`, the Arrow C stream, polars frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.aio import Loop
from stelae.client.input.filters import Where
from stelae.client.table.api import PIECE_TIMEOUT_S
from stelae.client.table.streams import BatchStream
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument

if TYPE_CHECKING:
    import polars as pl


class BlockingBatches(Iterator[pa.RecordBatch]):
    """The batches of a stream that lives on ``loop``, one after the other."""

    def __init__(self, loop: Loop, stream: BatchStream) -> None:
        self._loop = loop
        self._stream = stream
        self._ready: list[pa.RecordBatch] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        while not self._ready:
            piece = self._loop.run(self._stream.next_piece())
            if piece is None:
                raise StopIteration
            self._ready = piece[::-1]
        return self._ready.pop()


class TableStreams:
    """What `Table` has for Arrow consumers."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _table(self) -> AsyncTable: ...

    def scan_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | pc.Expression = None,
        limit: int | None = None,
        with_versions: bool = False,
        batch_rows: int | None = None,
        timeout: float = PIECE_TIMEOUT_S,
    ) -> pa.RecordBatchReader:
        """Return all rows that match as a stream of batches, in bounded memory.

        Up to three pieces of about 16 MiB are in memory, however slow the reader is. Each tablet
        is read at one point of its log, when the stream reaches it. ``batch_rows``: maximum rows of
        a batch. ``timeout``: seconds that each piece may take.

        ``where``: the filter lists of `scan`, which servers apply; or a
        ``pyarrow.compute.Expression``. pyarrow shows no parts of an expression, so it is evaluated
        here: all rows travel, in the columns that are named and those that it needs.

        Drop the reader (``del reader``) if it is not read to its end: servers then release its
        rows at once. pyarrow does not pass its ``close`` on.

        Raises:
            InvalidArgument, ColumnNotFound: the arguments are none for this table.
            SnapshotLost: while it is read: a tablet's server ended after some of its rows had
                been read. The table can be read again from the beginning.
            SchemaChanged: while it is read: a column that is read was dropped.
            DeadlineExpired: while it is read: a piece took longer than ``timeout``.
        """
        loop = self._loop
        opening = self._table.scan_batches(
            columns=columns,
            where=where,
            limit=limit,
            with_versions=with_versions,
            batch_rows=batch_rows,
            timeout=timeout,
        )
        stream = loop.run(opening)
        return pa.RecordBatchReader.from_batches(stream.schema, BlockingBatches(loop, stream))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the table's rows as an Arrow C stream: ``pa.table(t)``, ``polars.DataFrame(t)``.

        ``requested_schema``: a capsule of an Arrow C schema, to which the rows are cast.

        Raises: as `scan_batches`.
        """
        return self.scan_batches().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame.

        Raises:
            InvalidArgument: polars is not installed.
            SnapshotLost: see `scan_batches`.
        """
        found = polars().from_arrow(self.scan_batches().read_all())
        return found  # type: ignore[no-any-return]

    def scan_polars(self, *, where: Where = None, timeout: float = PIECE_TIMEOUT_S) -> pl.LazyFrame:
        """Return a polars LazyFrame, which reads the table each time that it is collected.

        Servers send only the columns that the query needs, and no more rows than its `head`. They
        apply ``where``. polars applies the query's own conditions, since it has no kept form of an
        expression that others could read. ``timeout``: seconds that each piece may take.

        Raises:
            InvalidArgument: polars is not installed.
            InvalidArgument, ColumnNotFound: when collected: ``where`` is none for this table.
        """
        frames = polars()
        from polars.io.plugins import register_io_source

        def read(
            with_columns: list[str] | None,
            predicate: pl.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            batches = self.scan_batches(
                columns=with_columns,
                where=where,
                limit=n_rows,  # counted before polars filters
                batch_rows=batch_size,
                timeout=timeout,
            )
            for batch in batches:
                frame: pl.DataFrame = frames.from_arrow(pa.Table.from_batches([batch]))
                yield frame if predicate is None else frame.filter(predicate)

        empty: pl.DataFrame = frames.from_arrow(self._table.schema.empty_table())
        return register_io_source(read, schema=empty.schema)


def polars() -> Any:
    """Return the module polars. Raises `InvalidArgument`: it is not installed."""
    try:
        import polars as found
    except ImportError as error:
        reason = f"polars is missing: pip install 'stelae[polars]' ({error})"
        raise InvalidArgument(reason) from None
    return found
