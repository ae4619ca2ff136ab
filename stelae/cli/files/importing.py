"""A file into a table, piece by piece; whoever is interrupted learns how far it came.

Each call's rows are durable before the next is sent. With `Mode.UPSERT` a repetition writes the
same rows again, and so is safe; with `Mode.INSERT` it is refused at the first row that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stelae.cli.files.formats import Mode
from stelae.cli.files.reading import RowFile
from stelae.client.database import DEFAULT_DURABILITY
from stelae.client.input.convert import RowCodec
from stelae.client.input.given import written_columns
from stelae.core.errors import ColumnNotFound, InvalidArgument, RowExists, TableNotFound
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.sizes import size_cuts
from stelae.core.schema.values import check_batch

if TYPE_CHECKING:
    from stelae.database.api import Database, Table

CALL_BYTES = 8 << 20
WRITE_TIMEOUT_S = 120.0

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a table is made with, if there is none; its columns are those of the file."""

    key: Sequence[str]
    partitions: int = 1
    durability: Durability | None = None
    indexes: Sequence[str] = ()


def create_table(database: Database, name: str, columns: pa.Schema, new: NewTable) -> Table:
    """Make a table. Raises `TableExists`, InvalidArgument, ColumnNotFound."""
    if not new.key:
        raise InvalidArgument(f"table {name!r} needs --key: some of {', '.join(columns.names)}")
    partition = hash_partition(new.key, new.partitions) if new.partitions > 1 else None
    return database.create_table(
        name,
        columns,
        key=new.key,
        partition=partition,
        durability=new.durability or DEFAULT_DURABILITY,
        indexes=new.indexes,
    )


def target_table(database: Database, name: str, source: RowFile, new: NewTable | None) -> Table:
    """The table to write to; with ``new`` it is made if there is none.

    Raises:
        TableNotFound: with the way out.
        InvalidArgument: there is one with another key.
    """
    try:
        table = database.table(name)
    except TableNotFound as error:
        if new is not None:
            return create_table(database, name, source.columns(), new)
        error.add_note(f"--create --key COLUMN makes it with the columns of {source.name}")
        raise
    if new is not None and new.key and tuple(new.key) != table.key:
        raise InvalidArgument(f"table {name!r} exists, and has the key {', '.join(table.key)}")
    return table


class Import:
    """The rows of one file on their way into a table."""

    def __init__(self, table: Table, source: RowFile, mode: Mode) -> None:
        self._table = table
        self._source = source
        self._mode = mode
        self.rows = 0
        """Those that are durable."""

    def run(self, tell: Progress) -> int:
        """Write all rows; returns how many there were.

        Raises:
            StelaeError: a note says how many rows were written, and how to go on.
            KeyboardInterrupt: with the same note.
        """
        record = self._table._table.record
        schema, name, first_row = record.schema, record.name, 0
        defaults = RowCodec(schema, name).defaults
        op = WriteOp.UPSERT if self._mode is Mode.UPSERT else WriteOp.INSERT
        try:
            for piece in self._source.pieces(schema.arrow, defaults):
                columns = written_columns(op, piece.column_names, schema)
                for start, count in size_cuts(piece, CALL_BYTES):
                    rows = piece.slice(start, count)
                    self._write(rows, schema, name, columns, first_row + start)
                    tell(*self._source.done, f"{self.rows:,} rows")
                first_row += piece.num_rows
        except BaseException as error:
            error.add_note(self._note(error))
            raise
        return self.rows

    def _write(
        self,
        rows: pa.Table,
        schema: TableSchema,
        name: str,
        columns: tuple[str, ...],
        first_row: int,
    ) -> None:
        batch = check_batch(rows, schema, columns=columns, table=name, first_row=first_row)
        write = self._table.upsert if self._mode is Mode.UPSERT else self._table.insert
        write(batch, timeout=WRITE_TIMEOUT_S)
        self.rows += rows.num_rows

    def _note(self, error: BaseException) -> str:
        written = f"{self.rows:,} rows of {self._source.name} are in table {self._table.name!r}"
        if isinstance(error, InvalidArgument | ColumnNotFound):
            again = "mend the file, and give the command again"
            if self._mode is Mode.INSERT and self.rows:
                # An insert would be refused at the first of the rows that are there.
                return f"{written}; {again} with --mode upsert, or without these rows"
            return f"{written}; {again}"
        if self._mode is Mode.UPSERT:
            return f"{written}; give the command again: the same rows are written again"
        if isinstance(error, RowExists):
            return f"{written}; --mode upsert replaces rows that are there"
        return f"{written}, of the last call perhaps more; --mode upsert goes on from here"
