"""All tablets that a server keeps on disk, and every change of what it has of one.

Invariants: each transition has one commit point, the replacement of the superblock, and what a
crash leaves before or after it is settled at the next start
(`stelae.actors.tserver.tablet_store.startup`); one transition of a tablet at a time, and each is
carried through even if its caller is cancelled; term and vote never fall, and a tombstone's last
OpId is forgotten only when a copy has reached it. Seed "Tablet Copy design" (deletion, follower
tablet copy); design §8.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from crc32c import crc32c

from stelae.actors.server.disk import Offload, at_once
from stelae.actors.server.uncancellable import carry_through
from stelae.actors.tserver.tablet_store.files import (
    CONSENSUS_META,
    TABLET_META,
    ImageWrites,
    TabletFiles,
)
from stelae.actors.tserver.tablet_store.quarantine_limits import QuarantineRoom
from stelae.actors.tserver.tablet_store.startup import (
    FilesOf,
    LoadedTablets,
    load_tablets,
    undo_copy,
)
from stelae.core.errors import (
    CorruptData,
    StaleTerm,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration, Snapshot, TermAndVote
from stelae.core.rpc import Blob
from stelae.core.runtime import Disk
from stelae.core.tasks import Tasks
from stelae.storage.files.consensus_metadata import ConsensusMetadata, pristine
from stelae.storage.files.superblock import (
    StoredFile,
    Superblock,
    check_stored_file,
    check_tablet_id,
    created,
    deleted,
    deleted_for_good,
    deleted_unseen,
    flushed,
    quarantine_folder,
    tombstone_of_failed,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """What lies in the quarantine of one deletion. ``table`` is empty where it is not known."""

    tablet_id: TabletId
    number: int
    folder: str
    table: str
    size_bytes: int


@dataclass(eq=False, slots=True)
class Pin:
    """Images that stay on disk until `TabletStore.unpin`, flushed away or not."""

    tablet_id: TabletId
    superblock: Superblock
    files: tuple[StoredFile, ...]


class TabletStore:
    """The tablets of one server. `load_all` first.

    A tablet's replica is stopped, and its log closed, before its state is changed here. Methods
    raise NoSpace with everything as it was if the disk is full (a deletion that was committed is
    carried on by calling it again), and OSError if the disk failed: then nothing is known of this
    tablet's files before the next start, and it must not go on. If nobody waits for the call any
    more, `on_failed` is told, or else ``tasks`` fail; they do so for any error that is a bug.
    """

    def __init__(
        self,
        disk: Disk,
        tasks: Tasks,
        server: ServerUuid,
        files_of: FilesOf,
        folder: str = "",
        *,
        offload: Offload = at_once,
    ) -> None:
        """``files_of`` reads from a snapshot which images it needs; ``folder`` as of a replica.
        ``offload`` is that of a runtime: images are written and checked by it."""
        self.files = TabletFiles(disk, server, folder, offload)
        self.server = server
        self.files_of = files_of
        self.image_writes = ImageWrites()
        self.on_failed: Callable[[TabletId, OSError], None] | None = None
        """Of a tablet, that the disk failed below it where nobody waited for that."""
        self._tasks = tasks
        self._superblocks: dict[TabletId, Superblock] = {}
        self._failed: dict[TabletId, CorruptData] = {}
        self._images: dict[TabletId, dict[str, StoredFile]] = {}
        self._pins: dict[TabletId, list[Pin]] = {}
        self._locks: weakref.WeakValueDictionary[TabletId, asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()
        self.room = QuarantineRoom(self.files, self.superblock, lambda t: self.lock(t).locked())
        self.files.make_room = self.room.make

    async def load_all(self) -> LoadedTablets:
        """Read what is there, settled by the seed's state machine. Raises OSError."""
        loaded = await load_tablets(self.files, self.files_of)
        self._superblocks = dict(loaded.superblocks)
        self._failed = dict(loaded.failed)
        for tablet_id, superblock in self._superblocks.items():
            self._images[tablet_id] = self._needed(superblock)
        return loaded

    # ---- what there is ----------------------------------------------------------------------

    @property
    def superblocks(self) -> Mapping[TabletId, Superblock]:
        """Of all tablets that exist here, tombstones too, but for those that failed."""
        return self._superblocks

    @property
    def failed(self) -> Mapping[TabletId, CorruptData]:
        """Tablets whose files cannot be believed; `tombstone` is the way out."""
        return self._failed

    def superblock(self, tablet_id: TabletId) -> Superblock | None:
        return self._superblocks.get(tablet_id)

    async def metadata(self, tablet_id: TabletId) -> ConsensusMetadata:
        """Term, vote and configuration. Raises CorruptData, also if there is no such tablet."""
        return await self.files.read_consensus(tablet_id)

    def snapshots(self, tablet_id: TabletId) -> TabletSnapshots:
        """The place of the snapshot, for the tablet's replica."""
        return TabletSnapshots(self, tablet_id)

    # ---- creation and votes -----------------------------------------------------------------

    async def create(
        self, tablet_id: TabletId, table: TableRecord, configuration: Configuration
    ) -> Superblock:
        """Make a new, empty tablet whose first members are ``configuration``.

        Done already: nothing changes. Raises TabletDeleted for a tombstone, and TabletNotReady for
        a tablet that is being copied, or failed.
        """
        check_tablet_id(tablet_id)
        return await self.carry_through(tablet_id, self._create(tablet_id, table, configuration))

    async def _create(
        self, tablet_id: TabletId, table: TableRecord, configuration: Configuration
    ) -> Superblock:
        async with self.lock(tablet_id):
            self.check_not_failed(tablet_id)
            superblock = self._superblocks.get(tablet_id)
            if superblock is None:
                await self.files.replace_consensus(pristine(tablet_id, configuration))
                superblock = await self.commit(created(tablet_id, table))
            elif superblock.state is DataState.DELETED:
                raise TabletDeleted(tablet_id, self.server)
            elif superblock.state is DataState.COPYING:
                raise TabletNotReady(tablet_id, "being copied")
            return superblock

    async def save_vote(self, tablet_id: TabletId, vote: TermAndVote) -> None:
        """Make the vote of a tombstone, or of a tablet that is being copied, durable.

        Raises TabletNotReady if it is ready by now (its replica keeps its own vote) or not here,
        and StaleTerm if a higher term, or a vote for somebody else, was kept meanwhile.
        """
        await self.carry_through(tablet_id, self._save_vote(tablet_id, vote))

    async def _save_vote(self, tablet_id: TabletId, vote: TermAndVote) -> None:
        async with self.lock(tablet_id):
            self.require(tablet_id, DataState.DELETED, DataState.COPYING)
            metadata = await self.files.read_consensus(tablet_id)
            before = metadata.term_and_vote
            if vote == before:
                return
            kept = before.voted_for is None or before.voted_for == vote.voted_for
            if vote.term < before.term or (vote.term == before.term and not kept):
                raise StaleTerm(f"a vote of tablet {tablet_id}", vote.term, before.term)
            await self.files.replace_consensus(
                ConsensusMetadata(tablet_id, vote, metadata.configuration)
            )

    # ---- flush ------------------------------------------------------------------------------

    async def write_image(self, tablet_id: TabletId, name: str, data: Blob) -> StoredFile:
        """Make a new image durable; it counts once a snapshot that needs it is in place.

        Raises TabletNotReady if the tablet is not (or no longer) ready.
        """
        crc = await self.files.offload(crc32c, data)
        file = StoredFile(name, memoryview(data).nbytes, crc)
        check_stored_file(file)
        return await self.carry_through(tablet_id, self._write_image(tablet_id, file, data))

    async def write_summed(self, tablet_id: TabletId, file: StoredFile, data: Blob) -> StoredFile:
        """The same of an image whose checksum is known."""
        check_stored_file(file)
        return await self.carry_through(tablet_id, self._write_image(tablet_id, file, data))

    async def _write_image(self, tablet_id: TabletId, file: StoredFile, data: Blob) -> StoredFile:
        async with self.lock(tablet_id):
            self.require(tablet_id, DataState.READY)
            images = self.images(tablet_id)
            if images.get(file.name) == file:  # for a flush that was then not carried out
                return file
            assert file.name not in images, f"{file.name} of {tablet_id} has other content"
            await self.files.write_image(tablet_id, file.name, data)
            images[file.name] = file
            return file

    async def replace_snapshot(self, tablet_id: TabletId, snapshot: Snapshot) -> None:
        """Let ``snapshot`` count from now on; images that only the one before needed are removed.

        Raises TabletNotReady if the tablet is not (or no longer) ready.
        """
        await self.carry_through(tablet_id, self._replace_snapshot(tablet_id, snapshot))

    async def _replace_snapshot(self, tablet_id: TabletId, snapshot: Snapshot) -> None:
        async with self.lock(tablet_id):
            before = self.require(tablet_id, DataState.READY)
            images = self.images(tablet_id)
            for file in self.files_of(snapshot):
                written = images.get(file.name)
                assert written == file, f"the snapshot needs {file}, durable is {written}"
            after = await self.commit(flushed(before, snapshot))
            # Not what else lies there: that may be an image for the flush after this one.
            kept = self._needed(after)
            await self._drop(tablet_id, [name for name in self._needed(before) if name not in kept])

    async def drop_unnamed(self, tablet_id: TabletId) -> None:
        """Remove the images of a flush that was given up, before the tablet is opened again."""
        async with self.lock(tablet_id):
            kept = self._needed(self.require(tablet_id, DataState.READY))
            images = self.images(tablet_id)
            await self._drop(tablet_id, [name for name in images if name not in kept])

    async def drop_images(self, tablet_id: TabletId, names: Sequence[str]) -> None:
        """Remove these images, unless the superblock names them: they were for a flush that was
        given up."""
        async with self.lock(tablet_id):
            needed = self._needed(self.require(tablet_id, DataState.READY))
            images = self.images(tablet_id)
            gone = [name for name in names if name in images and name not in needed]
            await self._drop(tablet_id, gone)

    # ---- images for copies ------------------------------------------------------------------

    async def pin(self, tablet_id: TabletId) -> Pin:
        """Keep the images that the tablet has now, for whoever copies it from here.

        Raises TabletNotReady if it is not ready. A deletion does not wait for pins.
        """
        async with self.lock(tablet_id):
            superblock = self.require(tablet_id, DataState.READY)
            pin = Pin(tablet_id, superblock, tuple(self._needed(superblock).values()))
            self._pins.setdefault(tablet_id, []).append(pin)
            return pin

    async def unpin(self, pin: Pin) -> None:
        """Let go; what a flush has replaced meanwhile, and nobody else pins, is removed."""
        try:
            await self.carry_through(pin.tablet_id, self._unpin(pin))
        except OSError as error:  # nobody who lets go can do anything about it
            if self.on_failed is None:
                raise
            self.on_failed(pin.tablet_id, error)

    async def _unpin(self, pin: Pin) -> None:
        async with self.lock(pin.tablet_id):
            pins = self._pins.get(pin.tablet_id, [])
            if pin not in pins:  # let go already, or of a tablet that was deleted
                return
            pins.remove(pin)
            kept = self._needed(self._superblocks[pin.tablet_id])
            await self._drop(pin.tablet_id, [f.name for f in pin.files if f.name not in kept])

    async def read_image(self, tablet_id: TabletId, file: StoredFile) -> bytes:
        """An image, checked. Raises CorruptData."""
        return await self.files.read_image(tablet_id, file)

    async def read_image_into(
        self, tablet_id: TabletId, file: StoredFile, memory: bytearray
    ) -> memoryview:
        """The same, into memory that is larger than the image. Raises CorruptData."""
        return await self.files.read_image_into(tablet_id, file, memory)

    async def _drop(self, tablet_id: TabletId, names: Sequence[str]) -> None:
        pinned = {f.name: f for pin in self._pins.get(tablet_id, []) for f in pin.files}
        images = self.images(tablet_id)
        for name in names:
            if name in images and name not in pinned:
                await self.files.remove_image(tablet_id, name)
                del images[name]

    # ---- deletion ---------------------------------------------------------------------------

    async def tombstone(
        self, tablet_id: TabletId, last: OpId | None, *, forever: bool = False
    ) -> Superblock | None:
        """Delete a tablet's data; what remains is a tombstone. None if it never was here.

        ``last`` is the last OpId in its log; None if that cannot be known, as its log is damaged
        (or the tablet failed): then it will not vote, and a copy can bring it back as a non-voter
        only. ``forever``: the table is gone, and no copy will bring the tablet back, not even one
        that was never here. What is deleted as much already costs nothing. A copy under way ends,
        and its `CopyAttempt` is stale. Log and images go to the quarantine.
        """
        check_tablet_id(tablet_id)
        return await self.carry_through(tablet_id, self._tombstone(tablet_id, last, forever))

    async def _tombstone(
        self, tablet_id: TabletId, last: OpId | None, forever: bool
    ) -> Superblock | None:
        async with self.lock(tablet_id):
            if tablet_id in self._failed:
                return await self._tombstone_failed(tablet_id, forever)
            before = self._superblocks.get(tablet_id)
            if before is None:
                return await self._tombstone_unseen(tablet_id) if forever else None
            if before.state is DataState.COPYING:
                await self.image_writes.done(tablet_id)
                return self.settled(await undo_copy(self.files, before, forever=forever))
            if before.state is DataState.READY:
                return await self._bury_ready(before, last, forever)
            if forever and not before.forever:
                before = await self.commit(deleted_for_good(before))
            if await self.files.holds_anything(tablet_id):  # the disk was full the first time
                await self.files.bury(before)
                await self.room.buried(tablet_id)
            return before

    async def _bury_ready(self, before: Superblock, last: OpId | None, forever: bool) -> Superblock:
        after = deleted(before, last, forever=forever)
        await self.files.put_into_quarantine(TABLET_META, before.tablet_id, after.generation)
        await self.commit(after)
        await self.files.bury(after)
        await self.room.buried(before.tablet_id)
        return after

    async def _tombstone_unseen(self, tablet_id: TabletId) -> Superblock:
        await self.files.replace_consensus(pristine(tablet_id))
        return await self.commit(deleted_unseen(tablet_id))

    async def _tombstone_failed(self, tablet_id: TabletId, forever: bool) -> Superblock:
        """The way out for a tablet that cannot be believed: nor can what it had acknowledged."""
        superblock: Superblock | None = None
        with suppress(CorruptData):
            superblock = await self.files.read_superblock(tablet_id)
        numbers = [number for owner, number in await self.files.quarantines() if owner == tablet_id]
        numbers.append(superblock.generation if superblock is not None else 0)
        gone = forever or (superblock is not None and superblock.forever)
        after = tombstone_of_failed(tablet_id, 1 + max(numbers), forever=gone)
        for kind in (TABLET_META, CONSENSUS_META):
            await self.files.put_into_quarantine(kind, tablet_id, after.generation)
        await self.commit(after)
        # After the superblock: a ready tablet must never be there with its term and vote renewed.
        try:
            await self.files.read_consensus(tablet_id)
        except CorruptData:
            await self.files.replace_consensus(pristine(tablet_id))
        await self.files.bury(after)
        await self.room.buried(tablet_id)
        return after

    # ---- quarantine -------------------------------------------------------------------------

    async def quarantine_list(self, tablet_id: TabletId | None = None) -> list[Quarantined]:
        """What lies in the quarantine, of one tablet or of all, by tablet and number."""
        async with self.room.lock:
            return await self._listed(tablet_id)

    async def _listed(self, tablet_id: TabletId | None) -> list[Quarantined]:
        found = []
        for owner, number in await self.files.quarantines():
            if tablet_id is not None and owner != tablet_id:
                continue
            before = await self.files.read_quarantined(owner, number)
            table = before.table.name if before is not None and before.table is not None else ""
            size_bytes = await self.files.size_of_quarantine(owner, number)
            folder = self.files.path(quarantine_folder(owner, number))
            found.append(Quarantined(owner, number, folder, table, size_bytes))
        return found

    async def quarantine_purge(
        self, tablet_id: TabletId | None = None, number: int | None = None
    ) -> list[Quarantined]:
        """Remove for good what lies there (of one tablet, of one deletion); returns what it was."""
        wanted = await self.quarantine_list(tablet_id)
        purged = [entry for entry in wanted if number is None or entry.number == number]
        for entry in purged:
            await self._purge(entry)
        return purged

    async def _purge(self, entry: Quarantined) -> None:
        async with self.lock(entry.tablet_id), self.room.lock:
            await self.files.remove_quarantine(entry.tablet_id, entry.number)

    # ---- for copies, see tablet_copies.py ---------------------------------------------------

    def lock(self, tablet_id: TabletId) -> asyncio.Lock:
        """Held during each transition of the tablet."""
        return self._locks.setdefault(tablet_id, asyncio.Lock())

    def images(self, tablet_id: TabletId) -> dict[str, StoredFile]:
        """The images of a ready tablet that are durable, needed or not."""
        return self._images.setdefault(tablet_id, {})

    def check_not_failed(self, tablet_id: TabletId) -> None:
        """Raises TabletNotReady if it failed."""
        if tablet_id in self._failed:
            raise TabletNotReady(tablet_id, f"failed: {self._failed[tablet_id]}")

    def require(self, tablet_id: TabletId, *states: DataState) -> Superblock:
        """Raises TabletNotReady unless the tablet is in one of those states."""
        self.check_not_failed(tablet_id)
        superblock = self._superblocks.get(tablet_id)
        if superblock is None or superblock.state not in states:
            found = "not here" if superblock is None else superblock.state.value
            raise TabletNotReady(tablet_id, found)
        return superblock

    async def commit(self, superblock: Superblock) -> Superblock:
        """The one moment in which a transition happens."""
        await self.files.replace_superblock(superblock)
        return self.settled(superblock)

    def settled(self, superblock: Superblock) -> Superblock:
        """``superblock`` is on disk: what is known of the tablet follows."""
        self._superblocks[superblock.tablet_id] = superblock
        self._failed.pop(superblock.tablet_id, None)
        if superblock.state is not DataState.READY:
            self._images.pop(superblock.tablet_id, None)
            self._pins.pop(superblock.tablet_id, None)
        return superblock

    def _needed(self, superblock: Superblock) -> dict[str, StoredFile]:
        if superblock.snapshot is None:
            return {}
        return {file.name: file for file in self.files_of(superblock.snapshot)}

    async def carry_through(self, tablet_id: TabletId, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, whatever happens to the caller: half a transition is for crashes only."""
        on_failed = self.on_failed
        tell = None if on_failed is None else partial(on_failed, tablet_id)
        return await carry_through(self._tasks, work, "transition of a tablet", tell)


class TabletSnapshots:
    """The snapshot of a tablet in its superblock; the `SnapshotStore` of its replica."""

    def __init__(self, store: TabletStore, tablet_id: TabletId) -> None:
        self._store = store
        self._tablet_id = tablet_id

    async def load(self) -> Snapshot | None:
        """None if everything is in the log."""
        return self._store.require(self._tablet_id, DataState.READY).snapshot

    async def replace(self, snapshot: Snapshot) -> None:
        """It counts when this returns; its images are durable already."""
        await self._store.replace_snapshot(self._tablet_id, snapshot)
