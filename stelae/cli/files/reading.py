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

PIECE_BYTES = 8 << 20
"""Of a file, read at a time."""
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
        found = self._file.metadata
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        size = max([each.total_byte_size // max(1, each.num_rows) for each in groups], default=1)
        step = min(max(1, PIECE_BYTES // max(1, size)), 1 << 20)
        try:
            for batch in self._file.iter_batches(batch_size=step):
                self._rows += batch.num_rows
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"{self.name}, after row {self._rows}: {error}") from None

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
        text = data.decode("utf-8-sig", errors="replace")
        names = next(csv.reader(io.StringIO(text, newline="")), [])
        if not names:
            raise InvalidArgument(f"{self.name} is empty: its first line names the columns")
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
                values = [row.get(name, defaults.get(name)) for row in rows]
                columns[name] = self._column(values, schema.field(name), numbers)
            yield pa.table(columns)

    def _column(self, values: list[Any], field: pa.Field, numbers: Sequence[int]) -> pa.Array:
        def where(place: int) -> str:
            return f"column {field.name!r}, line {numbers[place]}"

        if not any([takes(field.type) for takes in _AS_THEY_ARE]):
            values = [
                from_json_value(value, field.type, where(place))
                for place, value in enumerate(values)
            ]
        if not field.nullable and None in values:
            raise InvalidArgument(f"{where(values.index(None))}: it may not be null")
        return exact_array(values, field.type, where)

    def _next(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Some rows, and the numbers of their lines, from 1."""
        numbers: list[int] = []
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        while len(rows) < PIECE_ROWS and size_bytes < PIECE_BYTES:
            line = self._lines.readline(LINE_BYTES_MAX)
            if not line:
                break
            self._number += 1
            size_bytes += len(line)
            if line.strip():
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
