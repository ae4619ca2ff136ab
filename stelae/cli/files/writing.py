"""Rows into a file, which gets its name once it is whole; or onto standard output.

Invariants:

1. Under the name of a regular file there is the file of before, or a whole one.
2. A device or a named pipe is written to, and never replaced.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from stelae.archive.files import Written
from stelae.cli.files.formats import STANDARD, Format
from stelae.client.http.json_values import column_to_json, encode_rows
from stelae.core.errors import InvalidArgument, Unavailable
from stelae.core.schema.values import PER_SECOND
from stelae.database.transfers import check_types

JSON_PIECE_ROWS = 5000
YEARS_1_TO_9999_S = (-62_135_596_800, 253_402_300_800)
"""Seconds since 1970, the end excluded."""


class RowWriter(Protocol):
    """Takes the rows of a table, and writes what its format has at the end."""

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None: ...


def row_writer(kind: Format, target: IO[bytes], schema: pa.Schema, table: str) -> RowWriter:
    """Raises InvalidArgument: the format has no place for the type of a column."""
    if kind is Format.NDJSON:
        return JsonWriter(target)
    if kind is Format.CSV:
        return CsvWriter(target, schema, table)
    return ParquetWriter(target, schema, table)


class ParquetWriter:
    """See `RowWriter`."""

    def __init__(self, target: IO[bytes], schema: pa.Schema, table: str) -> None:
        check_types(schema, table)
        self._written = Written("", target)
        self._writer = pq.ParquetWriter(self._written.file, schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()
        self._written.file.close()


class JsonWriter:
    """See `RowWriter`."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target

    def write(self, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, JSON_PIECE_ROWS):
            lines = encode_rows(rows.slice(start, JSON_PIECE_ROWS))
            self._target.write(b"".join([line + b"\n" for line in lines]))

    def close(self) -> None:
        """All of it is written."""


class CsvWriter:
    """See `RowWriter`. Numbers and bools are plain, all else is quoted; null is nothing at all."""

    def __init__(self, target: IO[bytes], schema: pa.Schema, table: str) -> None:
        for field in schema:
            kind = _decoded(field.type)
            if pa.types.is_nested(kind) or pa.types.is_interval(kind) or _is_made_of_others(kind):
                raise InvalidArgument(
                    f"column {field.name!r} of {table!r} has type {kind}: CSV has no values made "
                    "of others; take parquet or ndjson"
                )
        self._schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._written = Written("", target)
        self._writer = pa_csv.CSVWriter(self._written.file, self._schema)
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        columns = [
            cast("pa.ChunkedArray", column.cast(column.type.value_type))
            if pa.types.is_dictionary(column.type)
            else column
            for column in rows.columns
        ]
        columns = [
            column if kind == column.type else self._texts(column, kind, name)
            for name, kind, column in zip(
                self._schema.names, self._schema.types, columns, strict=True
            )
        ]
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._rows += rows.num_rows

    def _texts(self, column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
        found: pa.ChunkedArray
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            return self._moments(column, name)
        if not pa.types.is_string(kind):
            found = column.cast(kind)
            return found
        values = [value for chunk in column.chunks for value in column_to_json(chunk)]
        return pa.chunked_array([pa.array(values, kind)])

    def _moments(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """ISO 8601, with a zone in UTC. Raises InvalidArgument: a moment that has no such text."""
        kind: Any = pa.date32() if pa.types.is_date(column.type) else column.type
        is_date = pa.types.is_date(kind)
        if is_date:
            column = column.cast(kind)
        unit_s = Fraction(86400) if is_date else Fraction(1, PER_SECOND[kind.unit])
        stored = column.cast(pa.int32() if is_date else pa.int64()).cast(pa.int64())
        low, end = (int(bound / unit_s) for bound in YEARS_1_TO_9999_S)
        if low > -(1 << 63):  # nanoseconds do not reach so far
            outside = pc.or_(pc.less(stored, low), pc.greater_equal(stored, end))
            if (place := pc.index(outside, True).as_py()) >= 0:
                raise InvalidArgument(
                    f"column {name!r}, row {self._rows + place}: moment {stored[place]} is outside "
                    "of the years 1 to 9999, and has no text; take parquet or ndjson"
                )
        if not is_date and kind.tz:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        texts: pa.ChunkedArray = pc.replace_substring(column.cast(pa.string()), " ", "T")
        return texts

    def close(self) -> None:
        self._writer.close()
        self._written.file.close()


def _is_made_of_others(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid()


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's writer is given for a column; text is what `column_to_json` makes of it."""
    kind = _decoded(kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return kind
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return kind
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.string()


class _Target:
    """A file that rows are written to, whose failures are told from those of reading the rows.

    Each method raises Unavailable: the disk is full, or fails; or nobody reads the pipe.
    """

    def __init__(self, place: str, file: IO[bytes]) -> None:
        self._place, self._file = place, file

    def write(self, data: Any) -> int:
        with self._failures():
            return self._file.write(data)

    def flush(self) -> None:
        with self._failures():
            self._file.flush()

    def end(self, *, synced: bool) -> None:
        """Write what is buffered, to the disk if ``synced``, and close."""
        with self._failures():
            self._file.flush()
            if synced:
                os.fsync(self._file.fileno())
            self._file.close()

    def drop(self) -> None:
        """Close, whether or not what is buffered can be written."""
        with contextlib.suppress(OSError):  # the failure that ended the export is told
            self._file.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _not_written(self._place, error) from error


def _not_written(place: str, error: OSError) -> Unavailable:
    return Unavailable(place, f"writing to it failed: {error.strerror or error}")


@contextlib.contextmanager
def target_file(place: str, *, replace: bool) -> Iterator[IO[bytes]]:
    """A file to write to, or standard output. A regular file has its name once the block has ended
    well; a link stays a link.

    Raises:
        InvalidArgument: there is such a file, and it is not to be replaced; or none can be made.
        Unavailable: the disk is full, or fails.
    """
    if place == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    mode = _mode_of(place)
    if mode is not None and not replace:
        raise InvalidArgument(f"{place} is there already: name another file, or say --replace")
    if mode is None or stat.S_ISREG(mode):
        with _new_file(place) as target:
            yield target
        return
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise InvalidArgument(f"{place} is no file, and is not replaced: name a file")
    with _opened(place, place, "wb") as target:
        yield cast("IO[bytes]", target)
        target.end(synced=False)


def _mode_of(place: str) -> int | None:
    """None: there is nothing of this name. Raises InvalidArgument: it cannot be told."""
    try:
        return os.stat(place).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{place} cannot be written: {error.strerror or error}") from None


@contextlib.contextmanager
def _opened(place: str, path: Path | str, mode: str) -> Iterator[_Target]:
    try:
        file: Any = open(path, mode)  # noqa: SIM115  # closed below
    except OSError as error:
        raise InvalidArgument(f"{place} cannot be written: {error.strerror or error}") from None
    target = _Target(place, file)
    try:
        yield target
    finally:
        target.drop()


@contextlib.contextmanager
def _new_file(place: str) -> Iterator[IO[bytes]]:
    """A file under another name, which replaces the one of this name once the block has ended."""
    path = Path(place).resolve()
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.new")
    with _opened(place, written, "xb") as target:
        try:
            yield cast("IO[bytes]", target)
            target.end(synced=True)
            try:
                os.replace(written, path)
            except OSError as error:
                raise _not_written(place, error) from error
        except BaseException:
            written.unlink(missing_ok=True)
            raise
