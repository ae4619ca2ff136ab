"""Which format a file has, and its bytes: those of a file on this machine, or standard input."""

from __future__ import annotations

import contextlib
import enum
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stelae.core.errors import InvalidArgument

STANDARD = "-"
"""In place of a file: standard input or output."""
PEEKED_BYTES = 1 << 20
"""The names of a CSV file's columns fit into so much."""


class Format(enum.StrEnum):
    """``--format`` of import and export."""

    PARQUET = "parquet"
    CSV = "csv"
    NDJSON = "ndjson"


class Mode(enum.StrEnum):
    """``--mode`` of an import and of ``put``."""

    UPSERT = "upsert"
    INSERT = "insert"


_SUFFIXES = {
    ".parquet": Format.PARQUET,
    ".csv": Format.CSV,
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
}


def is_one_file(place: str, given: Format | None) -> bool:
    """Whether rows are meant to be in one file of this machine, and not in the folder of an export.

    Folders are often called like files, as Spark's ``flights.parquet``.
    """
    if place == STANDARD or given is not None or os.path.isfile(place):
        return True
    return "://" not in place and not os.path.isdir(place) and Path(place).suffix in _SUFFIXES


def format_of(place: str, given: Format | None) -> Format:
    """The format of a file. Raises InvalidArgument: neither ``given`` nor the name says it."""
    found = given or _SUFFIXES.get(Path(place).suffix)
    if found is None:
        known = ", ".join(_SUFFIXES)
        raise InvalidArgument(
            f"{place}: its name does not say its format ({known}): give --format {'|'.join(Format)}"
        )
    return found


class Input(io.RawIOBase):
    """Bytes to be read in order, of which the first can be looked at, and how many were read."""

    def __init__(self, source: IO[bytes], size_bytes: int) -> None:
        super().__init__()
        self._source = source
        self._peeked = b""
        self.size_bytes = size_bytes
        """0: not known."""
        self.read_bytes = 0

    def peek(self) -> bytes:
        """The first `PEEKED_BYTES`, which are read all the same; nothing may have been read."""
        if not self._peeked:
            self._peeked = _read_full(self._source, PEEKED_BYTES)
        return self._peeked

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._peeked:
            data = self._peeked[: len(view)]
            self._peeked = self._peeked[len(data) :]
        else:
            data = self._source.read(len(view))
        view[: len(data)] = data
        self.read_bytes += len(data)
        return len(data)


def _read_full(source: IO[bytes], size_bytes: int) -> bytes:
    """So many bytes, or all that there are: a pipe gives what it has just now."""
    parts: list[bytes] = []
    while size_bytes > 0 and (part := source.read(size_bytes)):
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def opened(place: str) -> Iterator[Input]:
    """The bytes of a file or of standard input. Raises InvalidArgument: it cannot be read."""
    if place == STANDARD:
        yield Input(sys.stdin.buffer, 0)
        return
    with open_file(place) as file:
        yield Input(file, os.fstat(file.fileno()).st_size)


def open_file(place: str) -> IO[bytes]:
    """A file of this machine. Raises InvalidArgument: it cannot be read."""
    try:
        if os.path.isdir(place):
            raise InvalidArgument(f"{place} is a folder: name a file, or the folder of an export")
        return open(place, "rb")
    except OSError as error:
        raise InvalidArgument(f"{place} cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def seekable(place: str) -> Iterator[IO[bytes]]:
    """A file that can be read from anywhere: standard input is put on the disk for it."""
    if place != STANDARD:
        with open_file(place) as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="stelae-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept, 1 << 20)
        kept.seek(0)
        yield kept
