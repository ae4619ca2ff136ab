"""Requests made with an earlier version of a table's schema, carried out on the present one.

Names of that version are mapped to ids, and ids to present names. Writes leave out what is for
columns dropped meanwhile, and columns added meanwhile get their defaults. A read of a column that
was dropped cannot be answered: its caller is told to load the schema anew.

Implements design §5: readers and writers with the older schema go on working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stelae.core.errors import SchemaChanged
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.rows.filters import Where
from stelae.storage.rows.shapes import Shape
from stelae.storage.segments.layout import Row

_MAX_SHAPES = 16


class SchemaView:
    """A table as it looks to whoever knows version ``asked`` of its schema."""

    def __init__(self, asked: TableSchema, present: TableSchema, table: str) -> None:
        self.asked = asked
        self._present = present
        self._table = table
        now = dict(zip(present.column_ids, present.arrow.names, strict=True))
        self._now: dict[str, str | None] = {
            name: now.get(column_id)
            for name, column_id in zip(asked.arrow.names, asked.column_ids, strict=True)
        }
        self._shapes: dict[tuple[WriteOp, tuple[str, ...]], Shape] = {}

    # ---- reads ------------------------------------------------------------------------------

    def read_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The present names of ``columns`` (empty: all that the caller knows).

        Raises:
            ColumnNotFound: the caller's version has no such column either.
            SchemaChanged: one of them was dropped.
        """
        self.asked.check_columns(columns, self._table)
        return tuple([self._present_name(name) for name in columns or self.asked.arrow.names])

    def _present_name(self, name: str) -> str:
        now = self._now[name]
        if now is None:
            raise SchemaChanged(self._table, self.asked.version, self._present.version)
        return now

    def where(self, where: Where) -> Where:
        """The same filters on present names. Raises as `read_columns` does."""
        for group in where:
            self.asked.check_columns([term[0] for term in group if len(term) == 3], self._table)
        return tuple(
            tuple(
                (self._present_name(term[0]), *term[1:]) if len(term) == 3 else term
                for term in group
            )
            for group in where
        )

    def shown(self, names: Sequence[str]) -> list[str]:
        """What the caller calls the columns of present ``names``."""
        before = {now: name for name, now in self._now.items()}
        return [n if n in (VERSION_COLUMN, OP_COLUMN) else before[n] for n in names]

    # ---- writes -----------------------------------------------------------------------------

    def write(
        self, op: WriteOp, rows: Any, columns: Sequence[str]
    ) -> tuple[Sequence[Row] | pa.RecordBatch, tuple[str, ...]]:
        """The rows of a call, and their columns, as `TabletMemory.execute` takes them.

        ``rows``: a batch that was checked against the caller's version, or tuples that were not.

        Raises:
            InvalidArgument, ColumnNotFound, TooLarge: the tuples do not fit the caller's version.
        """
        if isinstance(rows, pa.RecordBatch):
            return self._batch(rows), ()
        shape = self._shape(op, tuple(columns))
        checked, _ = shape.check(rows)
        places = [(i, now) for i, n in enumerate(shape.columns) if (now := self._now[n])]
        names = tuple([now for _, now in places])
        kept = [tuple([row[i] for i, _ in places]) for row in checked]
        if self._present.is_plain or op is WriteOp.DELETE:
            return kept, names
        # A row of small calls is logged as msgpack, which not all types survive.
        return rows_to_batch(kept, pa.schema([self._present.arrow.field(n) for n in names])), ()

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = {name: now for name in batch.schema.names if (now := self._now[name])}
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in names],
            schema=pa.schema([self._present.arrow.field(now) for now in names.values()]),
        )

    def _shape(self, op: WriteOp, columns: tuple[str, ...]) -> Shape:
        shape = self._shapes.get((op, columns))
        if shape is None:
            deletes = op is WriteOp.DELETE
            names = columns or (self.asked.key if deletes else self.asked.arrow.names)
            partial = deletes or op is WriteOp.UPDATE
            shape = Shape(self.asked, self._table, names, partial=partial, only_key=deletes)
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[op, columns] = shape
        return shape
