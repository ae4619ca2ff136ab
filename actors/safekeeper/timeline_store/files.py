"""Where the files of timelines lie in a safekeeper's data directory, and how they are handled.

Below the folder: ``timelines/<tablet>`` (the control file) and ``timeline-wals/<tablet>-<n>/``,
the WAL of incarnation n: that which the control file names counts, and no other. Invariants: what
a call wrote is durable when it returns; what is read was checked. One process uses the directory
at a time, which its lock sees to (`stelae.runtime.files.LocalDisk`). Design §10.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from crc32c import crc32c

from stelae.actors.server.disk import Offload, at_once, damage_of
from stelae.core.errors import CorruptData, NoSpace
from stelae.core.ids import TabletId
from stelae.core.records.timelines import WalFile
from stelae.core.rpc import Blob
from stelae.core.runtime import Disk
from stelae.storage.files.timeline_control import TimelineControl, decode_control, encode_control

CONTROLS = "timelines"
WALS = "timeline-wals"
SYNCS_MAX = 8
"""Syncs of WALs under way at a time: the others wait, and serve more appends each."""
FULL_DISK_HELP = "free some, or move timelines to other safekeepers"

_FOLDER = re.compile(r"([A-Za-z0-9_]{1,64})-([0-9]{1,18})")


class TimelineFiles:
    """The files of all timelines of one safekeeper, below ``folder``.

    Every call that writes raises NoSpace if the disk is full (what it was to replace is as it was),
    and OSError if the disk failed: then nothing is known of what was to be written.
    """

    def __init__(
        self, disk: Disk, server: str, folder: str = "", *, offload: Offload = at_once
    ) -> None:
        """``offload`` is that of a runtime; ``server`` is how errors call this safekeeper."""
        self.disk = disk
        self.offload = offload
        self.syncs = asyncio.Semaphore(SYNCS_MAX)
        self._server = server
        self._prefix = f"{folder}/" if folder else ""

    def path(self, kind: str, name: str = "") -> str:
        return f"{self._prefix}{kind}/{name}" if name else f"{self._prefix}{kind}"

    def wal_folder(self, tablet_id: TabletId, incarnation: int) -> str:
        return self.path(WALS, f"{tablet_id}-{incarnation}")

    @contextmanager
    def needs_room(self) -> Iterator[None]:
        """Raises NoSpace for what the disk says of that."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise NoSpace(self._server, "disk", FULL_DISK_HELP) from error

    async def read(self, path: str) -> bytes | None:
        """A whole file, unchecked; None if it is absent. Raises CorruptData: it cannot be read."""
        try:
            with damage_of(path):
                return await self.disk.read(path)
        except FileNotFoundError:
            return None

    # ---- control files ----------------------------------------------------------------------

    async def controls(self) -> list[TabletId]:
        """Of which timelines there is one; what is there is durable."""
        folder = self.path(CONTROLS)
        await self.disk.sync_folder(folder)
        return [TabletId(name) for name in await self.disk.list(folder)]

    async def read_control(self, tablet_id: TabletId) -> TimelineControl | None:
        """None if there is none. Raises CorruptData."""
        path = self.path(CONTROLS, tablet_id)
        data = await self.read(path)
        return None if data is None else decode_control(path, tablet_id, data)

    async def replace_control(self, control: TimelineControl) -> None:
        """The commit point of every change."""
        with self.needs_room():
            path = self.path(CONTROLS, control.tablet_id)
            await self.disk.replace(path, encode_control(control))

    async def remove_control(self, tablet_id: TabletId) -> None:
        """Of a timeline that never was here."""
        await self.disk.remove(self.path(CONTROLS, tablet_id))

    # ---- WAL folders ------------------------------------------------------------------------

    async def wal_folders(self) -> dict[TabletId, list[int]]:
        """The incarnations of which there are files, counting or not."""
        found: dict[TabletId, list[int]] = {}
        for name in await self.disk.folders(self.path(WALS)):
            matched = _FOLDER.fullmatch(name)
            if matched is not None:
                found.setdefault(TabletId(matched[1]), []).append(int(matched[2]))
        return found

    async def remove_wal(self, tablet_id: TabletId, incarnation: int) -> None:
        """Of an incarnation that does not count."""
        await self.disk.remove_folder(self.wal_folder(tablet_id, incarnation))

    async def write_wal_file(
        self, tablet_id: TabletId, incarnation: int, file: WalFile, data: Blob
    ) -> None:
        """Write and sync a whole file, to be named by `name_wal_files`; a crash leaves a part."""
        path = f"{self.wal_folder(tablet_id, incarnation)}/{file.name}"
        try:
            with self.needs_room():
                await self.disk.write(path, data, named=False)
        except NoSpace:
            await self.disk.remove(path)  # what fitted would only keep the disk full
            raise

    async def name_wal_files(self, tablet_id: TabletId, incarnation: int) -> None:
        await self.disk.sync_folder(self.wal_folder(tablet_id, incarnation))

    async def check_content(self, where: str, file: WalFile, data: Blob) -> None:
        """Raises CorruptData unless the bytes are those of that file."""
        size_bytes = memoryview(data).nbytes
        if size_bytes != file.size_bytes:
            raise CorruptData(where, 0, f"has {size_bytes} bytes, not {file.size_bytes}")
        if await self.offload(crc32c, data) != file.crc:
            raise CorruptData(where, 0, "checksum does not match")
