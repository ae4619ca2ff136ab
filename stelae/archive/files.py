"""Files of an export or of backups: in a local folder, or wherever pyarrow.fs or fsspec reach."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import os
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import fs

from stelae.core.errors import CorruptData, InvalidArgument

CHUNK_BYTES = 4 << 20


class Part(msgspec.Struct):
    """One file, as the manifest tells of it."""

    name: str
    rows: int
    size_bytes: int
    blake2b: str


def digest_of(data: bytes) -> str:
    """As `Part.blake2b` has it."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


class Written(io.RawIOBase):
    """A file that is being written, and what it has come to. `part` is known at its end."""

    def __init__(self, name: str, target: Any) -> None:
        super().__init__()
        self._name, self._target = name, target
        self._digest = hashlib.blake2b(digest_size=32)
        self._size_bytes = 0
        self.rows = 0
        self.file = pa.PythonFile(self, mode="w")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any) -> int:
        """Called by Arrow."""
        view = memoryview(data)
        self._digest.update(view)
        self._target.write(view)
        self._size_bytes += view.nbytes
        return view.nbytes

    @property
    def part(self) -> Part:
        return Part(self._name, self.rows, self._size_bytes, self._digest.hexdigest())


class Folder:
    """A place for the files of one export, or of backups."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.url = url
        self._files = files
        self._path = path
        self._is_made = False

    @staticmethod
    def at(url: str) -> Folder:
        """A local path, or a URL. Raises InvalidArgument: nothing here reads such URLs."""
        url = os.fspath(url)
        if "://" not in url:
            return Folder(url, fs.LocalFileSystem(), os.path.abspath(url))
        try:
            return Folder(url, *fs.FileSystem.from_uri(url))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            known = str(error)
        try:
            from fsspec.core import url_to_fs

            found, path = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidArgument(f"{url}: pyarrow: {known}; fsspec: {error}") from error
        return Folder(url, fs.PyFileSystem(fs.FSSpecHandler(found)), path)

    def names(self) -> list[str]:
        """Of all files and folders in it; none if it is not there.

        Raises:
            InvalidArgument: it is a file.
        """
        if self._files.get_file_info(self._path).type == fs.FileType.File:
            raise InvalidArgument(f"{self.url} is a file, and no folder")
        found = self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def inside(self, name: str) -> Folder:
        """A folder in it, there or not."""
        return Folder(f"{self.url}/{name}", self._files, f"{self._path}/{name}")

    def sizes(self) -> dict[str, int]:
        """Of all files in it; none if it is not there."""
        found = self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.type == fs.FileType.File}

    def modified_at(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970; None where the store does not tell."""
        path = self._at(name)
        info = self._files.get_file_info(path)
        if info.mtime is not None:
            return float(info.mtime.timestamp())
        try:
            told = self._files.handler.fs.modified(path)
        except (AttributeError, NotImplementedError):
            return None
        return float(told.timestamp()) if isinstance(told, datetime.datetime) else None

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def delete(self, name: str) -> None:
        """Remove a file."""
        self._files.delete_file(self._at(name))

    def open(self, name: str) -> Any:
        """A file, to be read anywhere."""
        return self._files.open_input_file(self._at(name))

    def read(self, name: str) -> bytes:
        """All of a small file."""
        with self._files.open_input_stream(self._at(name)) as source:
            return bytes(source.read())

    @contextlib.contextmanager
    def new_part(self, name: str) -> Iterator[Written]:
        """A file to be written; whole, and on the disk, at the end of the block."""
        self._make()
        with self._files.open_output_stream(self._at(name)) as target:
            written = Written(name, target)
            yield written
            written.file.close()
        self._sync(name)

    def write(self, name: str, data: bytes) -> None:
        """A small file, of which there is all or nothing."""
        self._make()
        is_local = isinstance(self._files, fs.LocalFileSystem)
        # An object is there once it is closed. Of one file there may be several writers.
        written = f"{name}.{uuid.uuid4().hex[:8]}.new" if is_local else name
        with self._files.open_output_stream(self._at(written)) as target:
            target.write(data)
        self._sync(written)
        if is_local:
            self._files.move(self._at(written), self._at(name))
            self._sync("")

    def _make(self) -> None:
        if not self._is_made:
            self._files.create_dir(self._path, recursive=True)
            self._is_made = True

    def _sync(self, name: str) -> None:
        if not isinstance(self._files, fs.LocalFileSystem):
            return
        number = os.open(self._at(name), os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def read_part(self, part: Part) -> bytes:
        """All of a file that fits into memory. Raises CorruptData: it is not what was written."""
        try:
            data = self.read(part.name)
        except FileNotFoundError:
            raise CorruptData(f"{self.url}/{part.name}", 0, "the file is missing") from None
        if len(data) != part.size_bytes:
            reason = f"it has {len(data)} bytes; {part.size_bytes} were written"
            raise CorruptData(f"{self.url}/{part.name}", 0, reason)
        if digest_of(data) != part.blake2b:
            raise CorruptData(f"{self.url}/{part.name}", 0, "its checksum is another")
        return data

    def check(self, part: Part) -> None:
        """Read a file, and compare it with what is told of it. Raises CorruptData."""
        path = self._at(part.name)
        info = self._files.get_file_info(path)
        if info.type != fs.FileType.File:
            raise CorruptData(f"{self.url}/{part.name}", 0, "the file is missing")
        if info.size is not None and info.size != part.size_bytes:
            reason = f"it has {info.size} bytes; {part.size_bytes} were written"
            raise CorruptData(f"{self.url}/{part.name}", 0, reason)
        digest = hashlib.blake2b(digest_size=32)
        with self._files.open_input_stream(path) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != part.blake2b:
            raise CorruptData(f"{self.url}/{part.name}", 0, "its checksum is another")
