"""An archive: a folder, or a place in an object store, of backups and of the files that they share.

Invariants, whoever stops at whatever instruction:

- A backup that is listed is whole: its own file is written when all files that it needs are there,
  and is deleted before any of them.
- Files are deleted only while no backup is being made. Whoever makes one, or deletes, first writes
  a mark in ``busy/`` and then looks at those of others: of two that cannot be together at least one
  sees the other. Marks are renewed each minute, and count for `MARK_S`. Who finds its own mark
  gone at the end, as it was stopped for so long, has made no backup.

What goes wrong with the place itself is told as one of Stelae's errors, with the way out.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import msgspec

from stelae.archive.files import Folder, Part
from stelae.archive.format import (
    Backup,
    SavedTablet,
    TabletList,
    decode_backup,
    decode_list,
    encode,
    encode_list,
    file_of,
    id_of,
    part_of,
)
from stelae.core.errors import (
    ArchiveBusy,
    BackupNotFound,
    CorruptData,
    InvalidArgument,
    NoSpace,
    StelaeError,
    Unavailable,
)

logger = logging.getLogger(__name__)

MARK_S = 900.0
RENEW_S = 60.0
UNMARK_TRIES = 3
BACKUP, PRUNE, RESTORE = "backup", "prune", "restore"
_CLOUDS = ("aiohttp", "azure", "botocore", "gcsfs", "google", "requests")
"""What fsspec's file systems are made of: some of their errors are no OSError."""
_TIME = "%Y%m%dT%H%M%S.%f"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Mark(msgspec.Struct, frozen=True):
    """Who is at work."""

    kind: str
    host: str
    process: int
    at: float
    """By that machine's clock."""
    what: tuple[str, ...] = ()
    """Of a restore: what becomes which tables."""


class Archive:
    """See the module. Threads may share one."""

    def __init__(self, folder: Folder) -> None:
        self.url = folder.url
        self._root = folder
        self._data = folder.inside("data")
        self._busy = folder.inside("busy")
        self._sizes: dict[str, int] | None = None
        self._lock = threading.Lock()
        self.trusts_sizes = True
        """A file of the right name and size counts as stored; if not, it is read and compared."""
        self.stored_bytes = 0

    @staticmethod
    def at(url: str) -> Archive:
        """A local path, or a URL. Raises InvalidArgument."""
        with told(url):
            return Archive(Folder.at(url))

    # ---- backups ----

    def ids(self) -> list[str]:
        """Of all backups, oldest first. Raises InvalidArgument: it is a file."""
        with told(self.url):
            names = self._root.names()
        return sorted(found for found in map(id_of, names) if found)

    def backup(self, backup_id: str = "") -> Backup:
        """One backup; the newest, if none is named. Raises BackupNotFound, CorruptData."""
        if not backup_id:
            ids = self.ids()
            if not ids:
                raise InvalidArgument(
                    f"{self.url} holds no backup: `stelae backup create {self.url}` makes one"
                )
            backup_id = ids[-1]
        name = file_of(backup_id)
        try:
            with told(self.url):
                data = self._root.read(name)
        except InvalidArgument as error:
            if isinstance(error.__cause__, FileNotFoundError):
                found = ", ".join(self.ids()) or "none"
                raise BackupNotFound(backup_id, self.url, found) from error
            raise
        return decode_backup(data, f"{self.url}/{name}")

    def commit(self, backup: Backup, marked: Marked) -> None:
        """The backup is there from now on. Raises ArchiveBusy: it is not."""
        marked.check()
        with told(self.url):
            self._root.write(file_of(backup.id), encode(backup))
        try:
            marked.check()
        except ArchiveBusy:
            self.forget(backup.id)
            raise

    def forget(self, backup_id: str) -> None:
        """The backup is there no more; what it needed still is."""
        with told(self.url):
            self._root.delete(file_of(backup_id))

    # ---- files of rows and lists ----

    def sizes(self) -> dict[str, int]:
        """Of all files of ``data``, as of the first look."""
        with self._lock:
            if self._sizes is None:
                with told(self.url):
                    self._sizes = self._data.sizes()
            return self._sizes

    def has(self, part: Part) -> bool:
        """Whether a file is there, as far as its size tells."""
        return self.sizes().get(part.name) == part.size_bytes

    def put(self, data: bytes, rows: int, suffix: str) -> Part:
        """Store a file, unless it is there."""
        part = part_of(data, rows, suffix)
        if not self._is_stored(part):
            with told(self.url):
                self._data.write(part.name, data)
            with self._lock:
                self.stored_bytes += len(data)
            self.sizes()[part.name] = len(data)
        return part

    def _is_stored(self, part: Part) -> bool:
        if not self.has(part) or self.trusts_sizes:
            return self.has(part)
        try:
            self.read(part)
        except CorruptData as error:
            logger.warning("a file is stored anew: %s", error)
            return False
        return True

    def distrust(self, part: Part) -> None:
        """It is known to be damaged: who has the same to store writes it anew."""
        sizes = self.sizes()
        with self._lock:
            sizes.pop(part.name, None)

    def put_list(self, tablet: TabletList) -> Part:
        """Store a tablet's list, unless it is there."""
        return self.put(encode_list(tablet), tablet.rows, ".list")

    def read(self, part: Part) -> bytes:
        """A file, checked. Raises CorruptData."""
        with told(self.url):
            return self._data.read_part(part)

    def list_of(self, tablet: SavedTablet) -> TabletList:
        """Of one tablet of a backup. Raises CorruptData."""
        found = decode_list(self.read(tablet.list), f"{self._data.url}/{tablet.list.name}")
        if found.rows != tablet.rows:
            reason = f"it lists {found.rows} rows; the backup has {tablet.rows}"
            raise CorruptData(f"{self._data.url}/{tablet.list.name}", 0, reason)
        return found

    def delete(self, name: str) -> None:
        """Remove a file of ``data``; one that is not there is fine."""
        with told(self.url), contextlib.suppress(FileNotFoundError):
            self._data.delete(name)

    def age_s(self, name: str) -> float | None:
        """Of a file of ``data``; None where the store does not tell."""
        with told(self.url):
            at = self._data.modified_at(name)
        return None if at is None else time.time() - at

    def path_of(self, part: Part) -> str:
        return f"{self._data.url}/{part.name}"

    # ---- who is at work ----

    @contextlib.contextmanager
    def at_work(self, kind: str, what: tuple[str, ...] = ()) -> Iterator[Marked]:
        """Be there as one who makes a backup, deletes, or restores ``what``. Raises ArchiveBusy."""
        newest = self.ids()[-1:] if kind == BACKUP else []
        marked = Marked(self, kind, new_id(*newest), what)
        marked.renew()
        ended = threading.Event()
        thread = threading.Thread(target=marked.keep, args=(ended,), daemon=True)
        try:
            self._check_alone(marked)
            thread.start()
            yield marked
        finally:
            ended.set()
            for _ in range(UNMARK_TRIES):
                with contextlib.suppress(StelaeError):
                    self.unmark(marked.name)
                    break

    def _check_alone(self, own: Marked) -> None:
        for name, mark in self.marks().items():
            if name == own.name or not _exclude(own, mark):
                continue
            if _now() - mark.at < MARK_S and not _has_ended(mark):
                who = f"by process {mark.process} on {mark.host}"
                raise ArchiveBusy(
                    self.url,
                    f"{_doing(mark)} {who}: try again when that has ended, or in 15 minutes",
                )
            self.unmark(name)  # if it goes on after all, it commits or deletes nothing more

    def marks(self) -> dict[str, Mark]:
        """Of all who are, or were, at work. One that cannot be read counts as fresh."""
        found: dict[str, Mark] = {}
        with told(self.url):
            for name in self._busy.sizes():
                try:
                    found[name] = msgspec.json.decode(self._busy.read(name), type=Mark)
                except FileNotFoundError:
                    continue
                except msgspec.MsgspecError:
                    if not name.endswith(".json"):
                        continue
                    at = self._busy.modified_at(name) or time.time()
                    found[name] = Mark(name.partition("-")[0], "?", 0, at)
        return found

    def mark(self, name: str, mark: Mark) -> None:
        with told(self.url):
            self._busy.write(name, encode(mark))

    def is_marked(self, name: str) -> bool:
        with told(self.url):
            return name in self._busy.sizes()

    def unmark(self, name: str) -> None:
        with told(self.url), contextlib.suppress(FileNotFoundError):
            self._busy.delete(name)


def _exclude(own: Marked, mark: Mark) -> bool:
    """Whether they cannot be together. A restore needs files, so no prune begins beside one; it
    waits for none itself, as it reads all files before it writes a row."""
    if own.kind == mark.kind == RESTORE:
        return bool(set(own.what) & set(mark.what))
    return own.kind == PRUNE or (mark.kind == PRUNE and own.kind == BACKUP)


def _has_ended(mark: Mark) -> bool:
    """Of a restore's process, if it ran here: to begin it again should not take a quarter of an
    hour. Containers may share a host's name; a restore has a second guard, so it alone may err."""
    if mark.kind != RESTORE or mark.host != socket.gethostname() or mark.process <= 0:
        return False
    try:
        os.kill(mark.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _doing(mark: Mark) -> str:
    if mark.kind == RESTORE:
        return f"backup {', '.join(mark.what) or '(which one, cannot be read)'} is being restored"
    return "a backup is being made" if mark.kind == BACKUP else "it is being pruned"


class Marked:
    """A mark of ours."""

    def __init__(
        self, archive: Archive, kind: str, work_id: str, what: tuple[str, ...] = ()
    ) -> None:
        self.archive = archive
        self.kind = kind
        self.what = what
        self.id = work_id
        self.name = f"{kind}-{work_id}.json"
        self._renewed = _awake_or_not()

    def renew(self) -> None:
        began = _awake_or_not()
        mark = Mark(self.kind, socket.gethostname(), os.getpid(), _now(), self.what)
        self.archive.mark(self.name, mark)
        self._renewed = began

    def keep(self, ended: threading.Event) -> None:
        """Renew it until the end; once it is gone it stays so."""
        while not ended.wait(RENEW_S):
            try:
                self.check()
                self.renew()
            except StelaeError as error:
                logger.warning("the mark %s is not renewed: %s", self.name, error)

    def check(self) -> None:
        """Raise ArchiveBusy unless what we use is still safe from others."""
        is_fresh = _awake_or_not() - self._renewed < MARK_S / 2
        if not is_fresh or not self.archive.is_marked(self.name):
            raise ArchiveBusy(
                self.archive.url,
                "this process was silent for so long that others may have deleted what it needs: "
                "give the command again; what is stored counts",
            )


def _now() -> float:
    return time.time()


def _awake_or_not() -> float:
    """Seconds, also those during which the machine was suspended, where its clock tells."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def new_id(newest: str = "") -> str:
    """Sorts by the time it was made, and after ``newest``, whatever the clock of its maker said."""
    at = datetime.datetime.now(datetime.UTC)
    with contextlib.suppress(ValueError):  # it has a name that somebody gave it
        was = datetime.datetime.strptime(f"{newest[:19]}+0000", f"{_TIME}%z")
        at = max(at, was + datetime.timedelta(milliseconds=1))
    return f"{at.strftime(_TIME)[:19]}Z-{secrets.token_hex(2)}"


@contextlib.contextmanager
def told(url: str) -> Iterator[None]:
    """Errors of a place as Stelae's, with the way out."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"{url}: {error}. If it is a bucket: make it first, or look at its name and region"
        ) from error
    except PermissionError as error:
        raise InvalidArgument(
            f"{url}: no permission: {error}. Credentials are found as pyarrow.fs and fsspec find "
            "them: environment (AWS_ACCESS_KEY_ID, …), their files, the machine's role"
        ) from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            way_out = "free some, and give the command again: what is stored counts"
            raise NoSpace(url, "the disk", way_out) from error
        if "ACCESS_DENIED" in str(error) or "AccessDenied" in str(error):
            raise InvalidArgument(f"{url}: no permission: {error}") from error
        raise Unavailable(url, str(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLOUDS:
            raise
        raise Unavailable(url, f"{type(error).__name__}: {error}") from error
