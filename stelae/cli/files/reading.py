"""The rows of a file, piece by piece: in the types of a table, or as a table of them would have it.

Invariants: a value is what the file says, or the read ends with `InvalidArgument`, which names the
column and the row; what is in memory does not depend on the size of the file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from stelae.cli.files.csv_columns import guessed_type, typed_column
from stelae.cli.files.formats import PEEKED_BYTES, Format, Input, opened, seekable
from stelae.client.http.json_values import from_json_value
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.exact import exact_array
from stelae.core.schema.sizes import row_sizes

PIECE_BYTES = 8 << 20
"""Of a file, read at a time."""
PARQUET_ROWS = 128
"""Rows of Parquet, decoded at a time. How many bytes they become is known afterwards only: a page
may have one text of a megabyte in a few bytes, and each row is that text."""
PIECE_ROWS = 20_000
"""Maximum rows of JSON, read at a time: each of their values is an object of Python's."""
LINE_BYTES_MAX = 16 << 20
"""Of one row as JSON: sixteen times what a table takes as a row."""
_AS_THEY_ARE = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string)


class RowFile(Protocol):
    """A file whose rows are read once, in order."""

    name: str

    def columns(self) -> pa.Schema:
        """Columns that a table for the rows would have, from what is read first."""

    def pieces(self, schema: pa.Schema, defaults: Mapping[str, Any]) -> Iterator[pa.Table]:
        """The rows for a table of these columns; ``defaults``: of those that only some rows have.

        Raises:
            ColumnNotFound, InvalidArgument: the rows are none of such a table.
        """

    @property
    def done(self) -> tuple[int, int]:
        """How much was read, and of how much; 0: not known."""


@contextlib.contextmanager
def row_file(place: str, kind: Format, null_text: str) -> Iterator[RowFile]:
    """The rows of a file, or of standard input. ``null_text``: null in CSV, next to nothing at all.

    Raises:
        InvalidArgument: it cannot be read, or is no such file.
    """
    if kind is Format.PARQUET:
        with seekable(place) as source:
            try:
                parquet = pq.ParquetFile(source)
            except (pa.ArrowException, OSError) as error:
                raise InvalidArgument(f"{place} is no Parquet file: {error}") from None
            with parquet:
                yield ParquetRows(place, parquet)
        return
    with opened(place) as file:
        if kind is Format.CSV:
            yield CsvRows(place, file, null_text)
        else:
            yield JsonRows(place, file)


# ---- Parquet --------------------------------------------------------------------------------


class ParquetRows:
    """See `RowFile`. Types are the file's own; the table's are `check_batch`'s to make."""

    def __init__(self, name: str, file: pq.ParquetFile) -> None:
        self.name = name
        self._file = file
        self._rows = 0

    def columns(self) -> pa.Schema:
        found: pa.Schema = self._file.schema_arrow.remove_metadata()
        return found

    def pieces(self, schema: pa.Schema, defaults: Mapping[str, Any]) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for batch in self._file.iter_batches(batch_size=PARQUET_ROWS):
                self._rows += batch.num_rows
                held.append(batch)
                # A row counts for one byte next to its values: nulls have none.
                size_bytes += batch.num_rows + int(row_sizes(batch).sum())
                if size_bytes >= PIECE_BYTES:
                    yield pa.Table.from_batches(held)
                    held, size_bytes = [], 0
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"{self.name}, after row {self._rows}: {error}") from None
        if held:
            yield pa.Table.from_batches(held)

    @property
    def done(self) -> tuple[int, int]:
        return self._rows, self._file.metadata.num_rows


# ---- CSV ------------------------------------------------------------------------------------


class CsvRows:
    """See `RowFile`. The first line has the names of the columns; nothing between two commas is
    null, and ``""`` is empty text."""

    def __init__(self, name: str, file: Input, null_text: str) -> None:
        self.name = name
        self._file = file
        names = self._names()
        options = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=["", null_text],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        try:
            self._batches = iter(
                pa_csv.open_csv(
                    pa.PythonFile(file, mode="r"),
                    read_options=pa_csv.ReadOptions(block_size=PIECE_BYTES),
                    parse_options=pa_csv.ParseOptions(newlines_in_values=True),
                    convert_options=options,
                )
            )
        except pa.ArrowException as error:
            raise InvalidArgument(f"{name} is no CSV file: {error}") from None
        self._first: list[pa.RecordBatch] = []
        self._header = names

    def _names(self) -> list[str]:
        data = self._file.peek()
        text = data.decode("utf-8-sig", errors="surrogateescape")  # rows are Arrow's to check
        names = next(csv.reader(io.StringIO(text, newline="")), [])
        if not names:
            raise InvalidArgument(f"{self.name} is empty: its first line names the columns")
        for place, name in enumerate(names, 1):
            try:
                name.encode()
            except UnicodeEncodeError:
                shown = name[:80].encode(errors="surrogateescape")
                raise InvalidArgument(
                    f"{self.name}: the name of column {place} is not UTF-8: {shown!r}; save the "
                    "file as UTF-8"
                ) from None
        if len(data) == PEEKED_BYTES and b"\n" not in data:
            raise InvalidArgument(f"{self.name}: the first line has over {PEEKED_BYTES} bytes")
        twice = [each for each in names if names.count(each) > 1]
        if twice:
            raise InvalidArgument(f"{self.name}: column {twice[0]!r} is there twice")
        return names

    def columns(self) -> pa.Schema:
        batch = self._next(0)
        if batch is not None:
            self._first.append(batch)
        kinds = [pa.string() if batch is None else guessed_type(batch[n]) for n in self._header]
        return pa.schema(list(zip(self._header, kinds, strict=True)))

    def pieces(self, schema: pa.Schema, defaults: Mapping[str, Any]) -> Iterator[pa.Table]:
        _check_names(self._header, schema, self.name)
        rows = 0
        while (batch := self._first.pop() if self._first else self._next(rows)) is not None:
            kinds = [schema.field(name).type for name in self._header]
            columns = [
                typed_column(texts, kind, name, rows)
                for texts, kind, name in zip(batch.columns, kinds, self._header, strict=True)
            ]
            rows += batch.num_rows
            yield pa.table(columns, names=self._header)

    def _next(self, rows: int) -> pa.RecordBatch | None:
        try:
            return next(self._batches, None)
        except pa.ArrowException as error:
            raise InvalidArgument(f"{self.name}, after row {rows}: {error}") from None

    @property
    def done(self) -> tuple[int, int]:
        return self._file.read_bytes, self._file.size_bytes


# ---- JSON lines -----------------------------------------------------------------------------


class JsonRows:
    """See `RowFile`. One JSON object a line, with values as HTTP has them."""

    def __init__(self, name: str, file: Input) -> None:
        self.name = name
        self._file = file
        self._lines = io.BufferedReader(file, 1 << 20)
        self._number = 0
        self._first: list[tuple[list[int], list[dict[str, Any]]]] = []

    def columns(self) -> pa.Schema:
        numbers, rows = self._next()
        self._first.append((numbers, rows))
        fields = []
        for name in _names_in(rows):
            try:
                kind = pa.infer_type([row.get(name) for row in rows])
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"{self.name}: the values of column {name!r} have no type in common: {error}"
                ) from None
            fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
        return pa.schema(fields)

    def pieces(self, schema: pa.Schema, defaults: Mapping[str, Any]) -> Iterator[pa.Table]:
        while True:
            numbers, rows = self._first.pop() if self._first else self._next()
            if not rows:
                return
            columns = {}
            for name in _names_in(rows):
                _check_names([name], schema, self.name)
                columns[name] = self._column(
                    rows, schema.field(name), numbers, absent=defaults.get(name)
                )
            yield pa.table(columns)

    def _column(
        self,
        rows: Sequence[Mapping[str, Any]],
        field: pa.Field,
        numbers: Sequence[int],
        *,
        absent: Any,
    ) -> pa.Array:
        """``absent``: the value of rows that leave the column out. It is none of JSON's."""
        name, kind = field.name, field.type

        def where(place: int) -> str:
            return f"column {name!r}, line {numbers[place]}"

        if any([takes(kind) for takes in _AS_THEY_ARE]):
            values = [row.get(name, absent) for row in rows]
        else:
            values = [
                from_json_value(row[name], kind, where(place)) if name in row else absent
                for place, row in enumerate(rows)
            ]
        if not field.nullable and None in values:
            raise InvalidArgument(f"{where(values.index(None))}: it may not be null")
        return exact_array(values, field.type, where)

    def _next(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Some rows, and the numbers of their lines, from 1. No rows: the file has ended."""
        numbers: list[int] = []
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        while len(rows) < PIECE_ROWS and size_bytes < PIECE_BYTES:
            line = self._lines.readline(LINE_BYTES_MAX)
            if not line:
                break
            self._number += 1
            if line.strip():  # blank lines are not kept, and count for nothing
                size_bytes += len(line)
                rows.append(self._row(line))
                numbers.append(self._number)
        return numbers, rows

    def _row(self, line: bytes) -> dict[str, Any]:
        where = f"{self.name}, line {self._number}"
        if len(line) == LINE_BYTES_MAX:
            raise InvalidArgument(f"{where}: a row has over {LINE_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{where}: it is no JSON object: {error}") from None

    @property
    def done(self) -> tuple[int, int]:
        return self._file.read_bytes, self._file.size_bytes


def _names_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _check_names(names: Sequence[str], schema: pa.Schema, file: str) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            error = ColumnNotFound(name, "(this)", ", ".join(schema.names))
            error.add_note(f"{file} has it")
            raise error
