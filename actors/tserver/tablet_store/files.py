"""Where the files of tablets lie in a server's data directory, and how each is written and read.

Below the folder: ``tablet-meta/<tablet>`` (superblock), ``consensus-meta/<tablet>``,
``wals/<tablet>/``, ``data/<tablet>/`` (images) and ``quarantine/<tablet>-<n>/``. Invariants: what a
call wrote is durable when it returns; what is read was checked. What the files mean together is
`stelae.actors.tserver.tablet_store.store`'s affair. Seed "Tablet Copy design", directory structure;
design §8.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from crc32c import crc32c

from stelae.actors.server.disk import Offload, at_once, damage_of
from stelae.core.errors import CorruptData, NoSpace
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.records.replication import Entry
from stelae.core.rpc import Blob
from stelae.core.runtime import Disk
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    encode_consensus_metadata,
)
from stelae.storage.files.raft_log import encode_file_header, encode_record, log_file_name
from stelae.storage.files.superblock import (
    QUARANTINE,
    StoredFile,
    Superblock,
    decode_superblock,
    encode_superblock,
    parse_quarantine,
    quarantine_folder,
)

TABLET_META = "tablet-meta"
CONSENSUS_META = "consensus-meta"
WALS = "wals"
DATA = "data"
FULL_DISK_HELP = (
    "free some, purge the quarantine (`stelae tablet quarantine list`), or add tablet servers"
)


async def _no_room(tablet_id: TabletId) -> bool:
    return False


class ImageWrites:
    """Images that are being written by copies: several at a time, and not under a tablet's lock.

    They begin under it; whoever changes the tablet then holds it, and waits for `done` first.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[TabletId, str], asyncio.Event] = {}

    @contextmanager
    def begun(self, tablet_id: TabletId, name: str) -> Iterator[None]:
        """While one is being written; the same one not twice at a time."""
        key = (tablet_id, name)
        assert key not in self._ended, f"{name} of {tablet_id} is written twice at a time"
        ended = self._ended[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._ended[key]
            ended.set()

    async def done(self, tablet_id: TabletId, name: str = "") -> None:
        """Wait until no image of the tablet, or not the one of that name, is being written."""
        for key, ended in list(self._ended.items()):
            if key[0] == tablet_id and name in ("", key[1]):
                await ended.wait()


class TabletFiles:
    """The files of all tablets of one server, below ``folder``.

    Every call that writes raises NoSpace if the disk is full (what it was to replace is as it was),
    and OSError if the disk failed: then nothing is known of what was to be written.
    """

    def __init__(
        self, disk: Disk, server: ServerUuid, folder: str = "", offload: Offload = at_once
    ) -> None:
        self.disk = disk
        self.offload = offload
        self._server = server
        self._prefix = f"{folder}/" if folder else ""
        self.make_room: Callable[[TabletId], Awaitable[bool]] = _no_room
        """When the disk is full: whether something was purged for a tablet whose lock is held."""

    def path(self, kind: str, name: str = "") -> str:
        """Of a folder as above, or of what is in it."""
        return f"{self._prefix}{kind}/{name}" if name else f"{self._prefix}{kind}"

    @contextmanager
    def _needs_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise NoSpace(self._server, "disk", FULL_DISK_HELP) from error

    async def _with_room(self, tablet_id: TabletId, work: Callable[[], Awaitable[None]]) -> None:
        """Again as long as room can be made. Raises NoSpace."""
        while True:
            try:
                return await work()
            except NoSpace:
                if not await self.make_room(tablet_id):
                    raise

    async def read(self, path: str) -> bytes | None:
        """A whole file, unchecked; None if it is absent. Raises CorruptData: it cannot be read."""
        try:
            with damage_of(path):
                return await self.disk.read(path)
        except FileNotFoundError:
            return None

    async def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably."""
        with self._needs_room():
            await self.disk.replace(path, data)

    # ---- superblock and consensus metadata --------------------------------------------------

    async def read_superblock(self, tablet_id: TabletId) -> Superblock | None:
        """None if there is none. Raises CorruptData."""
        path = self.path(TABLET_META, tablet_id)
        data = await self.read(path)
        return None if data is None else decode_superblock(path, tablet_id, data)

    async def replace_superblock(self, superblock: Superblock) -> None:
        """The commit point of every transition."""
        path = self.path(TABLET_META, superblock.tablet_id)
        data = encode_superblock(superblock)
        await self._with_room(superblock.tablet_id, lambda: self.replace(path, data))

    async def read_consensus(self, tablet_id: TabletId) -> ConsensusMetadata:
        """Raises CorruptData, also if there is none: a tablet that exists has it."""
        path = self.path(CONSENSUS_META, tablet_id)
        data = await self.read(path)
        if data is None:
            raise CorruptData(path, 0, "is missing, but the tablet exists")
        return decode_consensus_metadata(path, tablet_id, data)

    async def replace_consensus(self, metadata: ConsensusMetadata) -> None:
        path = self.path(CONSENSUS_META, metadata.group_id)
        data = encode_consensus_metadata(metadata)
        await self._with_room(metadata.group_id, lambda: self.replace(path, data))

    # ---- images and copied log --------------------------------------------------------------

    async def images(self, tablet_id: TabletId) -> list[str]:
        """Names of the files in the tablet's folder, needed or not."""
        return await self.disk.list(self.path(DATA, tablet_id))

    async def write_image(
        self, tablet_id: TabletId, name: str, data: Blob, *, named: bool = True
    ) -> None:
        """Write and sync; a crash meanwhile leaves a part of it, which nothing names.

        Images that are not ``named`` are found after a crash only if `name_images` was called.
        """
        work = partial(self._write_image, tablet_id, name, data, named=named)
        await self._with_room(tablet_id, work)

    async def _write_image(
        self, tablet_id: TabletId, name: str, data: Blob, *, named: bool
    ) -> None:
        path = self.path(DATA, f"{tablet_id}/{name}")
        try:
            with self._needs_room():
                await self.disk.write(path, data, named=named)
        except NoSpace:
            await self.disk.remove(path)  # what fitted would only keep the disk full
            raise

    async def name_images(self, tablet_id: TabletId) -> None:
        """Make the names of all images durable: one sync for many."""
        await self.disk.sync_folder(self.path(DATA, tablet_id))

    async def remove_image(self, tablet_id: TabletId, name: str) -> None:
        await self.disk.remove(self.path(DATA, f"{tablet_id}/{name}"))

    async def read_image(self, tablet_id: TabletId, file: StoredFile) -> bytes:
        """Raises CorruptData if it is not what ``file`` says."""
        path = self.path(DATA, f"{tablet_id}/{file.name}")
        data = await self.read(path)
        if data is None:
            raise CorruptData(path, 0, "is missing, but the superblock names it")
        if len(data) != file.size_bytes:
            reason = f"has {len(data)} bytes, the superblock says {file.size_bytes}"
            raise CorruptData(path, min(len(data), file.size_bytes), reason)
        if await self.offload(crc32c, data) != file.crc:
            raise CorruptData(path, 0, "checksum does not match the superblock's")
        return data

    async def read_image_into(
        self, tablet_id: TabletId, file: StoredFile, memory: bytearray
    ) -> memoryview:
        """As `read_image`, into memory of at least its size: new memory is dear."""
        path = self.path(DATA, f"{tablet_id}/{file.name}")
        view = memoryview(memory)[: file.size_bytes + 1]  # a byte more shows that it is longer
        try:
            with damage_of(path):
                size_bytes = await self.disk.read_into(path, view)
        except FileNotFoundError:
            raise CorruptData(path, 0, "is missing, but the superblock names it") from None
        image = view[: file.size_bytes]
        if size_bytes != file.size_bytes or await self.offload(crc32c, image) != file.crc:
            raise CorruptData(path, 0, "does not match size and checksum in the superblock")
        return image

    async def check_images(self, tablet_id: TabletId, files: Sequence[StoredFile]) -> None:
        """Raises CorruptData unless all are there in full size. Contents are not read."""
        present = dict.fromkeys(await self.images(tablet_id))
        for file in files:
            path = self.path(DATA, f"{tablet_id}/{file.name}")
            if file.name not in present:
                raise CorruptData(path, 0, "is missing, but the superblock names it")
            opened = await self.disk.open(path)
            size_bytes = opened.size
            opened.close()
            if size_bytes != file.size_bytes:
                reason = f"has {size_bytes} bytes, the superblock says {file.size_bytes}"
                raise CorruptData(path, min(size_bytes, file.size_bytes), reason)

    async def write_log(self, tablet_id: TabletId, entries: Sequence[Entry]) -> None:
        """Write copied entries as one file of the tablet's log."""
        first = entries[0].index

        def encode() -> bytes:
            records = [encode_record(entry, first - 1) for entry in entries]
            return b"".join((encode_file_header(tablet_id, first), *records))

        content = await self.offload(encode)
        path = self.path(WALS, f"{tablet_id}/{log_file_name(first)}")
        await self._with_room(tablet_id, lambda: self.replace(path, content))

    async def clear_log(self, tablet_id: TabletId) -> None:
        await self.disk.remove_folder(self.path(WALS, tablet_id))

    async def clear(self, tablet_id: TabletId) -> None:
        """Remove log and images, of which nothing counts."""
        await self.clear_log(tablet_id)
        await self.disk.remove_folder(self.path(DATA, tablet_id))

    async def holds_anything(self, tablet_id: TabletId) -> bool:
        """True if there is a log or an image of the tablet."""
        for kind in (WALS, DATA):
            if await self.disk.list(self.path(kind, tablet_id)):
                return True
        return False

    # ---- quarantine -------------------------------------------------------------------------

    async def quarantines(self) -> list[tuple[TabletId, int]]:
        """Tablet and number of all folders in the quarantine, finished or not."""
        names = await self.disk.folders(self.path(QUARANTINE))
        return sorted(found for name in names if (found := parse_quarantine(name)) is not None)

    def quarantine_path(self, tablet_id: TabletId, number: int, name: str = "") -> str:
        return self.path(quarantine_folder(tablet_id, number), name)

    async def put_into_quarantine(self, kind: str, tablet_id: TabletId, number: int) -> None:
        """Copy superblock or consensus metadata as it is, damaged or not; absent is fine, and so
        is what the disk does not give back."""
        data = None
        with suppress(CorruptData):
            data = await self.read(self.path(kind, tablet_id))
        if data is not None:
            path, content = self.quarantine_path(tablet_id, number, kind), data
            await self._with_room(tablet_id, lambda: self.replace(path, content))

    async def bury(self, superblock: Superblock) -> None:
        """Carry a deletion to its end: move what is left into the quarantine. May be repeated."""
        tablet_id = superblock.tablet_id
        if not superblock.quarantine:
            await self.clear(tablet_id)
            return
        found = parse_quarantine(superblock.quarantine.rpartition("/")[2])
        assert found is not None, superblock.quarantine
        number = found[1]
        if CONSENSUS_META not in await self.disk.list(self.quarantine_path(tablet_id, number)):
            await self.put_into_quarantine(CONSENSUS_META, tablet_id, number)
        for kind in (WALS, DATA):
            target = self.quarantine_path(tablet_id, number, kind)
            await self._with_room(tablet_id, partial(self._bury, kind, tablet_id, target))

    async def _bury(self, kind: str, tablet_id: TabletId, target: str) -> None:
        try:
            with self._needs_room():
                await self.disk.move(self.path(kind, tablet_id), target)
        except FileExistsError as error:
            raise CorruptData(target, 0, "is there already") from error

    async def remove_quarantine(self, tablet_id: TabletId, number: int) -> None:
        """Remove it all; the superblock last, so that what a crash leaves is still listed."""
        for kind in (WALS, DATA):
            await self.disk.remove_folder(self.quarantine_path(tablet_id, number, kind))
        await self.disk.remove_folder(self.quarantine_path(tablet_id, number))

    async def size_of_quarantine(self, tablet_id: TabletId, number: int) -> int:
        """Bytes of all files in it."""
        size_bytes = 0
        for kind in ("", WALS, DATA):
            folder = self.quarantine_path(tablet_id, number, kind)
            for name in await self.disk.list(folder):
                file = await self.disk.open(f"{folder}/{name}")
                size_bytes += file.size
                file.close()
        return size_bytes

    async def read_quarantined(self, tablet_id: TabletId, number: int) -> Superblock | None:
        """The superblock from before the deletion; None if it is missing or not readable."""
        path = self.quarantine_path(tablet_id, number, TABLET_META)
        try:
            data = await self.read(path)
            return None if data is None else decode_superblock(path, tablet_id, data)
        except CorruptData:  # that may be why it was deleted
            return None
