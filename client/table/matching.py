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
from stelae.core.errors import InvalidArgument
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
        arrow = record.schema.arrow
        chosen = chosen_columns(columns, record.schema, record.name)
        if POSITION in str(expression):
            raise InvalidArgument(
                f"where={expression}, on table {record.name!r}: it gives a column by its position; "
                'name each column instead, as in pc.field("name")'
            )
        self._names = scan_schema(arrow, chosen, with_versions).names
        empty = scan_schema(arrow, (), with_versions).empty_table()
        try:
            empty.filter(expression)
        except (pa.ArrowException, TypeError) as error:
            raise InvalidArgument(
                f"where={expression}, on table {record.name!r}: {error}"
            ) from None
        needed = [name for name in arrow.names if name in chosen or self._needs(empty, name)]
        self.columns = tuple(needed) if chosen else None
        """The columns to read; None: all."""

    def _needs(self, empty: pa.Table, name: str) -> bool:
        try:
            empty.drop_columns([name]).filter(self._expression)
        except pa.ArrowException:
            return True
        return False

    async def pieces(self, rows: BatchStream, limit: int | None) -> AsyncGenerator[Piece, None]:
        """Yield an empty batch of the schema, then up to ``limit`` matching rows of ``rows``."""
        schema = pa.schema([rows.schema.field(name) for name in self._names])
        async with contextlib.aclosing(rows):
            yield [pa.RecordBatch.from_pylist([], schema=schema)]
            left = limit
            while left != 0 and (piece := await rows.next_piece()) is not None:
                table = pa.Table.from_batches(piece, schema=rows.schema)
                found = table.filter(self._expression).select(self._names).slice(0, left)
                del piece, table
                left = None if left is None else left - found.num_rows
                batches = found.to_batches()
                del found
                if batches:
                    yield batches
                del batches
