"""Reading the audit log's files in the order in which they were written, from a mark on.

The newest file is ``http.jsonl``; full ones are set aside as ``http.1.jsonl``, ``http.2.jsonl``, …
A file keeps its bytes while its name changes, so a mark names it by a digest of its first line,
which has an id of its own. Rules:

1. All files are opened under the writers' lock, so that none is renamed meanwhile.
2. A line counts once its end is there. In a file that was set aside, a last line without an end is
   torn, and is passed over.
3. One copier at a time: whoever holds the lock on ``http.copier.lock``. The kernel releases it with
   the process.
4. A mark that cannot be read is no mark. Reading then begins with the oldest file: lines that were
   copied before are the same rows again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stelae.serve.gateway.audit import FILE, KEPT_FILES, locked

PIECE_BYTES = 256 << 10
"""Maximum bytes that are read at once. A longer line is passed over in pieces."""
HEAD_BYTES = 4 << 10
"""Maximum bytes of the first line that tell one file from another."""
LOCK = "http.copier.lock"
MARK = "http.copied.json"


class Mark(msgspec.Struct, frozen=True):
    """How far lines were copied: all files before ``file``, and ``offset`` bytes of it."""

    file: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that follow a mark, without their ends."""

    lines: list[bytes]
    mark: Mark
    """The place after them."""
    gone: str = ""
    """The file of the mark that was asked for, if it exists no more; lines may be missing then."""


class AuditFiles:
    """The files of one folder. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._seen: tuple[int, int, Mark] | None = None
        """Inode and size of the newest file when nothing followed that mark."""

    def acquire(self) -> bool:
        """Whether this copier may copy from now on (rule 3)."""
        if self._lock is None:
            path = self._folder / LOCK
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            except BaseException:
                os.close(lock)
                raise
            self._lock = lock
        return True

    def release(self) -> None:
        """Let another copier begin."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def read_mark(self) -> Mark:
        """Return how far lines were copied (rule 4). Raises OSError."""
        try:
            data = (self._folder / MARK).read_bytes()
        except FileNotFoundError:
            return Mark()
        try:
            mark = msgspec.json.decode(data, type=Mark)
        except msgspec.MsgspecError:
            return Mark()
        return mark if mark.offset >= 0 else Mark()

    def write_mark(self, mark: Mark) -> None:
        """Replace the mark in one step. Raises OSError."""
        path = self._folder / MARK
        temporary = path.with_name(f".{MARK}.{secrets.token_hex(4)}")
        try:
            temporary.write_bytes(msgspec.json.encode(mark))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def after(self, mark: Mark) -> Piece:
        """Return the lines that follow a mark, at most `PIECE_BYTES`; none: all are copied. Raises
        OSError."""
        newest = self._newest()
        if newest is None or self._seen == (*newest, mark):
            return Piece([], mark)
        with self._opened() as files:
            piece = _after(files, mark)
        self._seen = None if piece.lines or piece.gone else (*newest, mark)
        return piece

    def _newest(self) -> tuple[int, int] | None:
        try:
            found = (self._folder / FILE).stat()
        except FileNotFoundError:
            return (0, 0) if (self._folder / _aside(1)).exists() else None
        return found.st_ino, found.st_size

    @contextlib.contextmanager
    def _opened(self) -> Iterator[list[int]]:
        """Descriptors of all files, oldest first (rule 1)."""
        names = [*(_aside(number) for number in range(KEPT_FILES, 0, -1)), FILE]
        with contextlib.ExitStack() as closing:
            found: list[int] = []
            with locked(self._folder / FILE):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
                        closing.callback(os.close, descriptor)
                        found.append(descriptor)
            yield found


def _aside(number: int) -> str:
    return str(Path(FILE).with_suffix(f".{number}.jsonl"))


def _after(files: list[int], mark: Mark) -> Piece:
    named = [(descriptor, _name_of(descriptor)) for descriptor in files]
    places = [place for place, (_, name) in enumerate(named) if name and name == mark.file]
    gone = mark.file if mark.file and not places else ""
    first, offset = (places[0], mark.offset) if places else (0, 0)
    for place in range(first, len(named)):
        descriptor, name = named[place]
        start = offset if place == first else 0
        is_newest = place == len(named) - 1
        data = os.pread(descriptor, PIECE_BYTES, start) if name else b""
        end = data.rfind(b"\n") + 1
        if not end and len(data) == PIECE_BYTES:  # a line that is longer than any of ours
            end = len(data)
        if end:
            return Piece(data[:end].split(b"\n"), Mark(name, start + end), gone)
        if is_newest:
            break
    return Piece([], Mark() if gone else mark, gone)


def _name_of(descriptor: int) -> str:
    """What tells a file from others; empty: its first line is not there yet."""
    head = os.pread(descriptor, HEAD_BYTES, 0)
    line, end, _ = head.partition(b"\n")
    if not end and len(head) < HEAD_BYTES:
        return ""
    return hashlib.sha256(line).hexdigest()[:16]
