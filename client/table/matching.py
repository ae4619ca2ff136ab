"""A `pyarrow.compute.Expression` as the filter of a stream, evaluated on this side.

pyarrow has no call that shows the parts of an expression. Which columns it needs is found out by
evaluating it on empty tables that lack one column each. (decisions §83)

Columns are found by name only. Positions are refused: the rows that are read have the chosen and
the needed columns, so a position would be another column there than in the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.input.given import chosen_columns
from stelae.client.table.reads import scan_schema
from stelae.client.table.streams import BatchStream, Piece
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.records.records import TableRecord

POSITION = "FieldPath("
"""What pyarrow's text of an expression has for a column that is given by its position."""


class Matching:
    """The rows of a stream for which an expression is true, in the columns asked for.

    Raises (at construction):
        InvalidArgument: the expression names an unknown column, or gives a column by its position,
            or pyarrow cannot evaluate it on this table's types.
        InvalidArgument, ColumnNotFound: ``columns`` are none of the table.
    """

    def __init__(
        self,
        expression: pc.Expression,
        record: TableRecord,
        columns: Sequence[str] | None,
        with_versions: bool,
    ) -> None:
        self._expression = expression
        self._table = record.name
        arrow = record.schema.arrow
        chosen = chosen_columns(columns, record.schema, record.name)
        if POSITION in str(expression):
            raise InvalidArgument(
                f"where={expression}, on table {record.name!r}: it gives a column by its position; "
                'name each column instead, as in pc.field("name")'
            )
        empty = scan_schema(arrow, (), with_versions).empty_table()
        self._check(empty)
        self._needed = [name for name in arrow.names if self._needs(empty, name)]
        """The columns of the table that the expression needs."""
        self._names = scan_schema(arrow, chosen, with_versions).names if chosen else None
        read = [name for name in arrow.names if name in chosen or name in self._needed]
        self.columns = tuple(read) if chosen else None
        """The columns to read; None: all."""

    def _check(self, empty: pa.Table) -> None:
        """Raise InvalidArgument if the expression cannot be evaluated on tables like ``empty``."""
        try:
            empty.filter(self._expression)
        except (pa.ArrowException, TypeError) as error:
            raise InvalidArgument(
                f"where={self._expression}, on table {self._table!r}: {error}"
            ) from None

    def _needs(self, empty: pa.Table, name: str) -> bool:
        try:
            empty.drop_columns([name]).filter(self._expression)
        except pa.ArrowException:
            return True
        return False

    async def pieces(self, rows: BatchStream, limit: int | None) -> AsyncGenerator[Piece, None]:
        """Yield an empty batch of the schema, then up to ``limit`` matching rows of ``rows``.

        Raises, before the first batch:
            ColumnNotFound: a needed column was renamed or dropped since this was made.
            InvalidArgument: a needed column has another type since then.
        """
        async with contextlib.aclosing(rows):
            names = self._names_in(rows.schema)
            schema = pa.schema([rows.schema.field(name) for name in names])
            yield [pa.RecordBatch.from_pylist([], schema=schema)]
            left = limit
            while left != 0 and (piece := await rows.next_piece()) is not None:
                table = pa.Table.from_batches(piece, schema=rows.schema)
                found = table.filter(self._expression).select(names).slice(0, left)
                del piece, table
                left = None if left is None else left - found.num_rows
                batches = found.to_batches()
                del found
                if batches:
                    yield batches
                del batches

    def _names_in(self, schema: pa.Schema) -> list[str]:
        """Return the columns to hand out. ``schema``: that of the rows, maybe a newer one."""
        for name in [*self._needed, *(self._names or ())]:
            if name not in schema.names:
                raise ColumnNotFound(name, self._table, ", ".join(schema.names))
        self._check(schema.empty_table())
        return self._names or list(schema.names)
