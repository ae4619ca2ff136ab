"""What tests of archives need in place of a cluster and of a file system that works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from stelae.archive.chunks import Versions, decode, live_rows_of
from stelae.archive.files import Folder
from stelae.archive.folder import BACKUP, Archive
from stelae.archive.format import (
    FORMAT,
    Backup,
    SavedTable,
    SavedTablet,
    now_text,
)
from stelae.archive.tablets import Bases, Storing, save_tablet

SCHEMA = pa.schema([pa.field("key", pa.int64(), False), ("value", pa.string())])
CHUNK_BYTES = 4096


class Tablet:
    """A tablet as a dict: rows in the order of their versions, as a log has them. A `Source`."""

    def __init__(self, name: str = "tablet") -> None:
        self.name = name
        self.found: dict[int, tuple[int, str]] = {}
        self.next_version = 1
        self.rows_read = 0

    def put(self, keys: Any, value: str) -> None:
        for key in keys:
            self.found.pop(int(key), None)
            self.found[int(key)] = (self.next_version, f"{value}-{key}")
            self.next_version += 1

    def drop(self, keys: Any) -> None:
        for key in keys:
            if self.found.pop(int(key), None):
                self.next_version += 1

    @property
    def row_count(self) -> int:
        return len(self.found)

    @property
    def size_bytes(self) -> int:
        return 24 * len(self.found)

    def versions(self) -> Iterator[Versions]:
        found = np.array([version for version, _ in self.found.values()], np.uint64)
        yield from np.array_split(found, 3)

    def rows(self, first: int, count: int) -> Iterator[tuple[pa.RecordBatch, Versions]]:
        items = list(self.found.items())[first : first + count]
        self.rows_read += len(items)
        for start in range(0, len(items), 100):
            some = items[start : start + 100]
            columns = [[key for key, _ in some], [value for _, (_, value) in some]]
            rows = pa.record_batch(columns, schema=SCHEMA)
            yield rows, np.array([version for _, (version, _) in some], np.uint64)

    @property
    def content(self) -> dict[int, str]:
        return {key: value for key, (_, value) in self.found.items()}


def save(
    archive: Archive,
    tablets: list[Tablet],
    table: str = "t",
    durability: str = "",
    *,
    full: bool = False,
) -> Backup:
    """A backup of one table, as `stelae.archive.backup` makes it of pins."""
    with archive.at_work(BACKUP) as marked:
        bases, storing = Bases(archive, full), Storing(archive, CHUNK_BYTES)
        saved = []
        try:
            for number, tablet in enumerate(tablets):
                found = save_tablet(
                    storing, tablet, "columns", bases.of(tablet.name, tablet.next_version)
                )
                part = archive.put_list(found)
                saved.append(
                    SavedTablet(tablet.name, number, found.rows, tablet.next_version, part)
                )
        finally:
            storing.close()
        rows = sum(tablet.rows for tablet in saved)
        made = SavedTable(
            name=table,
            table_id=table,
            columns=(),
            key=("key",),
            indexes=(),
            durability=durability,
            rows=rows,
            tablets=tuple(saved),
            schema_ipc=SCHEMA.serialize().to_pybytes(),
            partitioning_msgpack=b"",
            durability_msgpack=b"",
        )
        now, stored = now_text(), archive.stored_bytes
        backup = Backup(FORMAT, marked.id, "test", now, now, rows, 0, stored, (made,))
        archive.commit(backup, marked)
    return backup


def content(archive: Archive, backup: Backup) -> dict[int, str]:
    """All rows of a backup, each once."""
    found: dict[int, str] = {}
    for table in backup.tables:
        for tablet in table.tablets:
            for chunk in archive.list_of(tablet).chunks:
                rows = live_rows_of(decode(archive.read(chunk.part)), chunk).to_pydict()
                assert not set(rows["key"]) & set(found), "a row is there twice"
                found |= dict(zip(rows["key"], rows["value"], strict=True))
    return found


# ---- file systems that fail ---------------------------------------------------------------------


class Stopped(BaseException):
    """The process has ended here."""


class Faults:
    """Counts operations; at one of them it fails, or stops for good."""

    def __init__(self, at: int = 0, error: type[BaseException] | None = None) -> None:
        self.at, self.error = at, error
        self.count = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.count += 1
            is_due = self.at and (
                self.count == self.at or (self.error is Stopped and self.count > self.at)
            )
        if is_due and self.error is not None:
            raise self.error(5, "the double fails") if self.error is OSError else self.error


class _Stream:
    """Of what is written, half is there when it stops in between."""

    def __init__(self, stream: Any, faults: Faults) -> None:
        self._stream, self._faults = stream, faults

    def write(self, data: Any) -> None:
        half = len(data) // 2
        self._stream.write(data[:half])
        self._faults.step()
        self._stream.write(data[half:])

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.close()


class FailingDisk(fs.LocalFileSystem):  # type: ignore[misc]
    """A local file system that does."""

    faults: Faults

    def delete_file(self, path: str) -> None:
        self.faults.step()
        super().delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.faults.step()
        super().move(src, dest)

    def get_file_info(self, what: Any) -> Any:
        self.faults.step()
        return super().get_file_info(what)

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        self.faults.step()
        super().create_dir(path, recursive=recursive)

    def open_output_stream(self, path: str, *args: Any, **more: Any) -> Any:
        self.faults.step()
        return _Stream(super().open_output_stream(path, *args, **more), self.faults)


class FailingStore:
    """An object store that does: an object is there once it is closed, or not at all."""

    def __init__(self, files: Any, faults: Faults) -> None:
        self._files, self._faults = files, faults
        self.handler = files.handler

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._files, name)

        def counted(*args: Any, **more: Any) -> Any:
            self._faults.step()
            return call(*args, **more)

        return counted


def disk(path: Any, faults: Faults) -> Archive:
    files = FailingDisk()
    files.faults = faults
    return Archive(Folder(str(path), files, str(path)))


def store(memory: MemoryFileSystem, faults: Faults) -> Archive:
    files = FailingStore(fs.PyFileSystem(fs.FSSpecHandler(memory)), faults)
    return Archive(Folder("memory://archive", files, "/archive"))
