"""One session with the source of a copy, as the receiver sees it: what it is of, and its pieces.

Invariant: everything is checked against the session's plan, and the plan against the superblock
that came with it, before it is handed on. Seed "Tablet Copy design"; design §8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pyarrow as pa

from stelae.actors.tserver.tablet_store.startup import FilesOf
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, OutcomeUnknown, RetryLater, StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.replicas import (
    BEGIN_COPY,
    END_COPY,
    FETCH_ENTRIES,
    FETCH_FILE,
    SHARE_FILE,
    BeginCopy,
    DataState,
    EndCopy,
    FetchEntries,
    FetchFile,
    ShareFile,
)
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Entry, TermAndVote
from stelae.core.rpc import Blob, Method, Reply
from stelae.core.runtime import Runtime
from stelae.storage.files.consensus_metadata import ConsensusMetadata
from stelae.storage.files.superblock import NOTHING, StoredFile, decode_superblock

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
_ENTRIES = msgspec.msgpack.Decoder(list[Entry])
OBJECTS_LOST_MAX = 3
"""After so many the rest of a session's images is fetched in pieces."""
PATIENCE_MAX = 16.0


class Broken(Exception):
    """The source did not answer, or not now: it may be asked again."""

    def __init__(self, error: StelaeError) -> None:
        super().__init__(error)
        self.error = error


class SourceSession:
    """What one session gives. Each call raises Broken, or what else the source says."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        source: ServerUuid,
        address: Address,
        tablet_id: TabletId,
        received: Callable[[int], None],
    ) -> None:
        """``received`` is told of each piece, how many bytes it had."""
        self._runtime = runtime
        self._settings = settings
        self._source = source
        self._address = address
        self._tablet_id = tablet_id
        self._received = received
        self._begun: dict[str, list[memoryview]] = {}
        """Pieces that came of images that are not complete."""
        self._done: list[str] = []
        """Images from the object store that are on disk, which the source does not know yet."""
        self._objects_lost = 0
        self._patience = 1.0

    async def open(self, receiver: ServerUuid, files_of: FilesOf) -> None:
        """Begin it. Raises Broken, CorruptData for a plan that contradicts itself."""
        reply = await self._call(BEGIN_COPY, BeginCopy(self._tablet_id, receiver))
        plan = self.plan = reply.body
        where = f"the superblock of {self._tablet_id} from {self._source}"
        if len(reply.blobs) != 1:
            raise CorruptData(where, 0, f"came as {len(reply.blobs)} blobs")
        superblock = decode_superblock(where, self._tablet_id, bytes(reply.blobs[0]))
        if superblock.state is not DataState.READY or superblock.table is None:
            raise CorruptData(where, 0, f"says that the tablet is {superblock.state.value}")
        self.table: TableRecord = superblock.table
        self.snapshot = superblock.snapshot
        self.wanted = [StoredFile(file.path, file.size_bytes, file.crc) for file in plan.files]
        needed = files_of(self.snapshot) if self.snapshot is not None else ()
        last = self.snapshot.last if self.snapshot is not None else NOTHING
        if list(needed) != self.wanted:
            raise CorruptData(where, 0, "needs other images than the plan names")
        if plan.log_first != last.index + 1 or plan.log_last < last or plan.term < last.term:
            raise CorruptData(where, 0, f"ends at {last}, the log is said to follow it: {plan}")

    @property
    def metadata(self) -> ConsensusMetadata:
        """Of the source, for the receiver to merge with its own. Its vote is nobody else's."""
        kept = TermAndVote(self.plan.term, None)
        return ConsensusMetadata(self._tablet_id, kept, self.plan.configuration)

    async def file(self, file: StoredFile) -> Blob:
        """An image; its content is not checked. Raises Broken, CopyOver.

        By way of the object store, or in pieces if that fails. After `Broken` it goes on with the
        piece that did not come: the session's images are pinned.
        """
        if self._objects_lost < OBJECTS_LOST_MAX and file.name not in self._begun:
            image = await self._object(file)
            if image is not None:
                return image
        return await self._in_pieces(file)

    def written(self, file: StoredFile) -> None:
        """An image is durable: the source need not keep it in the object store any more."""
        self._done.append(file.name)

    async def _object(self, file: StoredFile) -> pa.Buffer | None:
        """The whole image, or None if it does not come in this way."""
        done, self._done = tuple(self._done), []
        reply = await self._call(SHARE_FILE, ShareFile(self.plan.session, file.name, done))
        if not reply.body.token:
            self._objects_lost = OBJECTS_LOST_MAX
            return None
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                image = await self._runtime.objects.fetch(reply.body.token)
        except (KeyError, TimeoutError):
            self._objects_lost += 1
            self._runtime.metrics.count("copy_objects_lost")
            return None
        self._runtime.metrics.count("copy_objects_received")
        self._received(image.size)
        return image

    async def _in_pieces(self, file: StoredFile) -> Blob:
        pieces = self._begun.setdefault(file.name, [])
        offset = sum(piece.nbytes for piece in pieces)
        while offset < file.size_bytes:
            size_bytes = min(self._settings.copy_piece_bytes, file.size_bytes - offset)
            request = FetchFile(self.plan.session, file.name, offset, size_bytes)
            piece = _one_blob(await self._call(FETCH_FILE, request))
            if not 0 < piece.nbytes <= size_bytes:
                raise CorruptData(file.name, offset, f"{piece.nbytes} bytes came of {size_bytes}")
            pieces.append(piece)
            offset += piece.nbytes
            self._received(piece.nbytes)
        del self._begun[file.name]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def entries(self, first: int) -> list[Entry]:
        """Some entries from ``first`` on. Raises Broken, CopyOver, CorruptData."""
        reply = await self._call(FETCH_ENTRIES, FetchEntries(self.plan.session, first))
        blob = _one_blob(reply)
        where = f"the copied log of {self._tablet_id}"
        try:
            entries = await self._runtime.offload(_ENTRIES.decode, blob)
        except msgspec.DecodeError as error:
            raise CorruptData(where, 0, str(error)) from error
        if not entries or entries[0].index != first or entries[-1].op_id > self.plan.log_last:
            ends = [entry.op_id for entry in (*entries[:1], *entries[-1:])]
            raise CorruptData(where, 0, f"{ends} came for {first} to {self.plan.log_last}")
        self._received(blob.nbytes)
        return entries

    async def end(self) -> None:
        """Tell the source that it may let go. Raises Broken, StelaeError: it will do so anyway."""
        await self._call(END_COPY, EndCopy(self.plan.session))

    async def _call(self, method: Method[Q, R], request: Q) -> Reply[R]:
        """Each call that is not answered in time gives the next one twice as long: an entry comes
        whole, however large it is and however slow the link."""
        try:
            return await self._runtime.peers.call(
                self._address,
                method,
                request,
                timeout_s=self._settings.call_timeout_s * self._patience,
                destination=self._source,
            )
        except (RetryLater, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown):
                self._patience = min(2 * self._patience, PATIENCE_MAX)
            raise Broken(error) from error


def _one_blob(reply: Reply[R]) -> memoryview:
    if len(reply.blobs) != 1:
        raise CorruptData("a piece of a copy", 0, f"came as {len(reply.blobs)} blobs")
    return memoryview(reply.blobs[0])
