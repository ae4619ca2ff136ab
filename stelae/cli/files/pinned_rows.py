"""The rows of a table as it is now, in pieces: of one snapshot, so that memory is bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stelae.client.input.filters import normalize_filters
from stelae.client.input.given import chosen_columns
from stelae.connectors.data_tasks import KEEP_S, Held, pin, read_tablets
from stelae.connectors.link import link_of

if TYPE_CHECKING:
    from stelae.database.api import Database

RELEASE_S = 5.0
"""Upper bound of the wait until servers were told that they need not keep the rows any more."""


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """What a read of a snapshot gives."""

    schema: pa.Schema
    row_count: int
    """Of the whole table."""
    pieces: Iterator[pa.Table]


@contextlib.contextmanager
def pinned_rows(
    database: Database,
    name: str,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] = (),
    limit: int | None = None,
) -> Iterator[PinnedRows]:
    """The rows that match, up to ``limit``. Tablets are read one after the other.

    Raises:
        TableNotFound, ColumnNotFound, InvalidArgument: there is nothing of that kind.
        SnapshotLost: while they are read: a server ended meanwhile.
    """
    link = link_of(database)
    snapshot = pin(link, name, KEEP_S)
    held = Held(link, snapshot)
    try:
        table = snapshot.table
        chosen = chosen_columns(columns, table.schema, table.name)
        filters = normalize_filters(list(where), table.schema, table.name)
        names = chosen or tuple(table.schema.arrow.names)
        target = pa.schema([table.schema.arrow.field(column) for column in names])
        read = read_tablets(link, snapshot, snapshot.tablets, names, filters, target, limit or 0)
        with contextlib.closing(read):
            yield PinnedRows(target, snapshot.row_count, _first_rows(read, limit))
    finally:
        held.end()
        held.thread.join(RELEASE_S)


def _first_rows(pieces: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    if limit is None:
        yield from pieces
        return
    while limit > 0 and (piece := next(pieces, None)) is not None:
        piece = piece.slice(0, limit)
        limit -= piece.num_rows
        yield piece
