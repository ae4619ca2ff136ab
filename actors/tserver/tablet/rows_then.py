"""A tablet's rows at one point of its log, as a caller with one version of the schema sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stelae.core.messages.rows import Scan
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import VERSION_COLUMN, TableSchema
from stelae.storage.rows.filters import COMPILED_AT_ONCE, filter_size
from stelae.storage.rows.gather import Snapshot, read_schema
from stelae.storage.rows.versions import SchemaView


@dataclass(frozen=True, slots=True)
class RowsThen:
    """They stay the same, whatever is written, cleaned or altered afterwards."""

    snapshot: Snapshot
    schema: TableSchema
    """The tablet's at that point."""
    view: SchemaView | None
    """How the caller sees it; None: as it is."""
    table: str
    next_version: int
    row_bytes: int
    """About so much does one take."""

    async def open(
        self, request: Scan, runtime: Runtime
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """`scan`, off the event loop where the filter takes long to compile."""
        if filter_size(request.where) <= COMPILED_AT_ONCE:
            return self.scan(request)
        return await runtime.offload(self.scan, request)

    def scan(self, request: Scan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Those that match, always in the same order; see `TabletReads.scan`.

        Raises:
            ColumnNotFound, InvalidArgument: the request is none for this table.
        """
        view, columns = self.view, request.columns
        if view is not None:
            columns = view.read_columns(columns)
        elif columns:
            self.schema.check_columns(columns, self.table)
        where = request.where if view is None else view.where(request.where)
        snapshot = self.snapshot
        if (request.share, request.shares) != (0, 1):
            snapshot = snapshot.share(request.share, request.shares)
        batches = snapshot.batches(
            columns,
            where,
            request.limit,
            with_versions=request.with_versions,
            skip=request.skip,
        )
        names = list(columns or self.schema.arrow.names)
        if request.with_versions:
            names.append(VERSION_COLUMN)
        schema = read_schema(self.schema, names)
        if view is None:
            return schema, batches
        shown = view.shown(names)
        fields = [field.with_name(name) for field, name in zip(schema, shown, strict=True)]
        # A generator would not go on after RowsAbsent.
        return pa.schema(fields), map(lambda batch: batch.rename_columns(shown), batches)
