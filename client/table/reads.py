"""What a table handle is asked to read: checked, cut by tablet, of one version of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.input.filters import WireFilters
from stelae.client.input.known import KnownTable
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import Get, GetMany
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.core.schema.sizes import cuts_of, row_sizes
from stelae.core.schema.values import WireRow

PIECE_BYTES = 32 << 20
"""Maximum bytes of rows in one answer to a `get_many`: a message has up to 128 MiB."""


@dataclass(slots=True)
class OneKey:
    """A `get` of one key, cut out for its tablet."""

    number: int
    key: WireRow
    columns: tuple[str, ...]
    known: KnownTable
    max_staleness_s: float

    @property
    def max_staleness(self) -> float | None:
        """As users give it."""
        return None if self.max_staleness_s < 0 else self.max_staleness_s

    def request(self, where: TabletLocation) -> Get:
        version = self.known.schema.version
        tablet_id = where.tablet.tablet_id
        return Get(tablet_id, (self.key,), self.columns, version, self.max_staleness_s)


@dataclass(slots=True)
class ManyKeys:
    """A `get_many`, cut by tablet: see `TableWriter.split`."""

    columns: tuple[str, ...]
    with_versions: bool
    known: KnownTable
    parts: dict[int, tuple[int, NDArray[np.int64], pa.Buffer]]
    max_staleness_s: float

    def request(self, where: TabletLocation) -> GetMany:
        version = self.known.schema.version
        tablet_id, age_s = where.tablet.tablet_id, self.max_staleness_s
        return GetMany(tablet_id, self.columns, version, age_s, PIECE_BYTES)

    @property
    def names(self) -> list[str]:
        """Of the columns of the answer."""
        names = list(self.columns or self.known.schema.arrow.names)
        return [*names, VERSION_COLUMN] if self.with_versions else names


@dataclass(frozen=True, slots=True)
class WantedRows:
    """What a scan asks for, in the names of one version of the schema."""

    known: KnownTable
    columns: tuple[str, ...]
    where: WireFilters
    with_versions: bool
    max_staleness_s: float

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return scan_schema(self.known.schema.arrow, self.columns, self.with_versions)

    def table_of(self, parts: list[list[pa.RecordBatch]]) -> pa.Table:
        """What the tablets have of it, as one table."""
        schema = self.schema
        batches = [batch.cast(schema) for batches in parts for batch in batches]
        return pa.Table.from_batches(batches, schema=schema)


def scan_schema(arrow: pa.Schema, columns: Sequence[str], with_versions: bool) -> pa.Schema:
    """Return the schema of a scan's rows. ``arrow``: the table's; ``columns`` empty: all."""
    fields = [arrow.field(name) for name in (columns or arrow.names)]
    if with_versions:
        fields.append(pa.field(VERSION_COLUMN, pa.uint64(), False))
    return pa.schema(fields)


Found = tuple[pa.RecordBatch, NDArray[np.int64]]
"""Rows of one tablet, and the places of their keys among those asked for."""


TAKE_BYTES = 1 << 30
"""Of rows that are put in order at a time: a column of text has offsets of 31 bits."""


def merge_found(found: list[Found], columns: list[str], schema: pa.Schema) -> pa.Table:
    """Rows found in several tablets, put back into the order of the keys asked for."""
    fields = [
        pa.field(VERSION_COLUMN, pa.uint64(), False)
        if name == VERSION_COLUMN
        else schema.field(name)
        for name in columns
    ]
    wanted = pa.schema(fields)
    parts = [(rows.select(columns).cast(wanted), places) for rows, places in found if rows.num_rows]
    if not parts:
        return wanted.empty_table()
    table = pa.Table.from_batches([rows for rows, _ in parts]).combine_chunks()
    order = np.argsort(np.concatenate([places for _, places in parts]), kind="stable")
    cuts = [(0, len(order))]
    if table.nbytes > TAKE_BYTES:
        cuts = cuts_of(row_sizes(table)[order], TAKE_BYTES)
    return pa.concat_tables([table.take(pa.array(order[i : i + count])) for i, count in cuts])
