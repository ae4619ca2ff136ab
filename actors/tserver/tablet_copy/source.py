"""The giving end of tablet copies: sessions that keep in place what they named.

A session is one state of the tablet: the superblock's snapshot with its images, and the durable
log entries after it. Images go by the object store, few at a time, or in pieces where that cannot
be. Invariants: all that a session gives belongs to that state, whatever the tablet does meanwhile;
images are pinned until the session ends, entries are held (they lie in memory anyway), and the log
after them stays until the receiver had time to ask for it. A session ends when it is told to, when
nobody asks for a while, when its receiver begins another one, and with the replica it was opened
on; nothing of it stays in the object store then. Seed "Tablet Copy design"; design §8.

Any replica may be the source: a snapshot is of committed entries, and a log that is durable here
is the beginning of a leader's. What is not durable is not given: it might not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stelae.actors.tserver.tablet_copy.host import CopiedTablet, CopyHost
from stelae.actors.tserver.tablet_store.store import Pin, TabletStore
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CopyOver,
    CorruptData,
    InvalidArgument,
    Overloaded,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId, make_uuid
from stelae.core.messages.replicas import (
    BEGIN_COPY,
    END_COPY,
    FETCH_ENTRIES,
    FETCH_FILE,
    SHARE_FILE,
    BeginCopy,
    CopyFile,
    CopyPlan,
    EndCopy,
    FetchEntries,
    FetchFile,
    SharedFile,
    ShareFile,
)
from stelae.core.records.replication import Entry
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.tasks import Tasks
from stelae.storage.files.superblock import NOTHING, StoredFile, encode_superblock

T = TypeVar("T")
LOOKS_PER_IDLE_TIME = 4
SHARED_MAX = 4
"""Images of one session in the object store: more than a receiver fetches at a time."""


@dataclass(eq=False)
class Session:
    """One receiver's copy of one tablet."""

    id: str
    receiver: ServerUuid
    tablet: CopiedTablet
    pin: Pin
    entries: tuple[Entry, ...]
    log_last: OpId
    used_s: float
    log_pin: int = 0
    sent_bytes: int = 0
    image: tuple[str, bytes] | None = None
    """The image of which a piece was asked for last, whole."""
    shared: dict[str, ObjectHandle] = field(default_factory=dict)
    """Images that lie in the object store for the receiver, oldest first."""
    spare: list[bytearray] = field(default_factory=list)
    """Memory for one image each, on its way to the object store: used again and again."""
    files: dict[str, StoredFile] = field(default_factory=dict)

    @property
    def tablet_id(self) -> TabletId:
        return self.pin.tablet_id


class CopySources:
    """The copies that other servers make of tablets here."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        store: TabletStore,
        host: CopyHost,
        corrupt: Callable[[TabletId, CorruptData], None],
    ) -> None:
        """``corrupt`` is told of tablets whose images turn out to be damaged here."""
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._store = store
        self._host = host
        self._corrupt = corrupt
        self._sessions: dict[str, Session] = {}
        self._opening = 0

    def handlers(self) -> Handlers:
        """What the server must serve for it."""
        return {
            BEGIN_COPY: self.begin,
            FETCH_FILE: self.fetch_file,
            SHARE_FILE: self.share_file,
            FETCH_ENTRIES: self.fetch_entries,
            END_COPY: self.end,
        }

    @property
    def sessions(self) -> list[Session]:
        """Those that are open, in the order of their beginning."""
        return list(self._sessions.values())

    # ---- sessions ---------------------------------------------------------------------------

    async def begin(self, call: Call[BeginCopy]) -> Reply[CopyPlan]:
        """Open a session. Raises TabletNotHere, TabletNotReady, Overloaded."""
        tablet_id, receiver = call.body.tablet_id, call.body.receiver
        tablet = self._tablet(tablet_id)
        for session in self.sessions:
            if session.tablet_id == tablet_id and session.receiver == receiver:
                await self._end(session)  # its connection broke: it will not ask for that again
        limit = self._settings.copy_sessions_max
        if len(self._sessions) + self._opening >= limit:
            raise Overloaded("copies from this server", limit)
        self._opening += 1
        try:
            return await self._open(tablet_id, tablet, receiver)
        finally:
            self._opening -= 1

    def _tablet(self, tablet_id: TabletId) -> CopiedTablet:
        tablet = self._host.tablet(tablet_id)
        if tablet is None:
            raise TabletNotHere(tablet_id, "this server")
        return tablet

    async def _open(
        self, tablet_id: TabletId, tablet: CopiedTablet, receiver: ServerUuid
    ) -> Reply[CopyPlan]:
        # Never changed while the replica runs.
        began_with = (await self._store.metadata(tablet_id)).configuration
        pin = await self._store.pin(tablet_id)
        if self._host.tablet(tablet_id) is not tablet:
            await self._store.unpin(pin)
            raise TabletNotReady(tablet_id, "between two states: repeat it")
        # From here to the log's pin without a pause: no flush shortens the log in between.
        core = tablet.replica.core
        snapshot, log = pin.superblock.snapshot, core.log
        last = snapshot.last if snapshot is not None else NOTHING
        entries: tuple[Entry, ...] = ()
        if log.stable_index > last.index:
            entries = log.slice(last.index + 1, log.stable_index - last.index, 1 << 62)
            last = entries[-1].op_id
        now_s = self._runtime.clock.monotonic()
        session = Session(make_uuid(self._runtime.rng), receiver, tablet, pin, entries, last, now_s)
        session.files = {file.name: file for file in pin.files}
        session.log_pin = tablet.replica.flushes.pin(last.index + 1)
        self._sessions[session.id] = session
        self._runtime.metrics.count("copy_sessions")
        self._tasks.spawn(self._watch(session), f"copy of {tablet_id} to {receiver}")
        plan = CopyPlan(
            session.id,
            core.term,
            core.configuration,
            tuple([CopyFile(file.name, file.size_bytes, file.crc) for file in pin.files]),
            entries[0].index if entries else last.index + 1,
            last,
            began_with,
        )
        return Reply(plan, [encode_superblock(pin.superblock)])

    async def _watch(self, session: Session) -> None:
        """End it once nobody asks; let go of the log some time after its end."""
        idle_s = self._settings.copy_idle_s
        flushes = session.tablet.replica.flushes
        while session.id in self._sessions:
            await self._runtime.clock.sleep(idle_s / LOOKS_PER_IDLE_TIME)
            unused_s = self._runtime.clock.monotonic() - session.used_s
            if unused_s >= idle_s or not self._is_current(session):
                await self._end(session)
            elif session.log_pin:
                log = session.tablet.replica.core.log
                if log.first_within(self._settings.copy_log_bytes) > session.log_last.index + 1:
                    flushes.unpin(session.log_pin)  # it will have to be copied once more
                    session.log_pin = 0
                    self._runtime.metrics.count("copy_logs_let_go")
        await self._runtime.clock.sleep(idle_s / LOOKS_PER_IDLE_TIME)
        flushes.unpin(session.log_pin)

    def _is_current(self, session: Session) -> bool:
        return self._host.tablet(session.tablet_id) is session.tablet

    async def _end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.image = None
            for name in list(session.shared):
                self._unshare(session, name)
            await self._store.unpin(session.pin)

    async def end(self, call: Call[EndCopy]) -> Reply[Empty]:
        """Let go of the images; the log stays a little, for the replica that starts there."""
        session = self._sessions.get(call.body.session)
        if session is not None:
            await self._end(session)
        return EMPTY

    # ---- pieces -----------------------------------------------------------------------------

    def _find(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or not self._is_current(session):
            raise CopyOver(session_id)
        session.used_s = self._runtime.clock.monotonic()
        return session

    def _sent(self, session: Session, size_bytes: int) -> None:
        """While it goes on, the leader that orders copies does not let its receiver go."""
        session.sent_bytes += size_bytes
        session.tablet.replica.copy_advanced(session.receiver, session.sent_bytes)
        self._runtime.metrics.count("copy_bytes_sent", size_bytes)

    async def fetch_file(self, call: Call[FetchFile]) -> Reply[Empty]:
        """A piece of an image. Raises CopyOver, InvalidArgument, CorruptData."""
        body = call.body
        session = self._find(body.session)
        file = self._file(session, body.path)
        if not 0 <= body.offset < file.size_bytes or body.size_bytes < 1:
            raise InvalidArgument(f"there is nothing of {body.path} at {body.offset} to copy")
        image = await self._image(session, file)
        size_bytes = min(body.size_bytes, self._settings.copy_piece_bytes)
        piece = memoryview(image)[body.offset : body.offset + size_bytes]
        self._sent(session, piece.nbytes)
        return Reply(Empty(), [piece])

    async def _image(self, session: Session, file: StoredFile) -> bytes:
        if session.image is None or session.image[0] != file.name:
            work = self._store.read_image(session.tablet_id, file)
            session.image = (file.name, await self._read(session, work))
        return session.image[1]

    async def _read(self, session: Session, work: Coroutine[Any, Any, T]) -> T:
        """What is read of an image, checked; the session is still open then."""
        try:
            data = await work
        except CorruptData as error:
            self._find(session.id)  # deleted meanwhile: then it is only gone
            self._corrupt(session.tablet_id, error)
            raise
        self._find(session.id)
        return data

    def _file(self, session: Session, path: str) -> StoredFile:
        file = session.files.get(path)
        if file is None:
            raise InvalidArgument(f"there is no {path} to copy")
        return file

    async def share_file(self, call: Call[ShareFile]) -> Reply[SharedFile]:
        """Put an image into the object store, if there is room and the receiver can fetch it.

        Raises CopyOver, InvalidArgument, CorruptData.
        """
        body = call.body
        session = self._find(body.session)
        for name in body.done:
            self._unshare(session, name)
        file = self._file(session, body.path)
        objects = self._runtime.objects
        if not objects.can_share:
            return Reply(SharedFile(b""))
        if file.name not in session.shared:
            try:
                handle = await self._put(session, file)
            except Overloaded:
                self._runtime.metrics.count("copy_objects_refused")
                return Reply(SharedFile(b""))
            self._find(session.id)
            if file.name not in session.shared:  # not by the same call, sent again
                session.shared[file.name] = handle
                self._sent(session, file.size_bytes)
            while len(session.shared) > SHARED_MAX:  # its receiver is past these
                self._unshare(session, next(iter(session.shared)))
        return Reply(SharedFile(objects.share(session.shared[file.name])))

    async def _put(self, session: Session, file: StoredFile) -> ObjectHandle:
        spare = session.spare
        memory = spare.pop() if spare and len(spare[-1]) > file.size_bytes else None
        if memory is None:
            memory = bytearray(file.size_bytes + file.size_bytes // 8 + 1)
        work = self._store.read_image_into(session.tablet_id, file, memory)
        image = await self._read(session, work)
        handle = await self._runtime.objects.put(pa.py_buffer(image))
        if len(spare) < SHARED_MAX:
            spare.append(memory)
        return handle

    def _unshare(self, session: Session, name: str) -> None:
        """The object goes once nobody reads it any more."""
        handle = session.shared.pop(name, None)
        if handle is not None:
            self._runtime.objects.unshare(handle)

    async def fetch_entries(self, call: Call[FetchEntries]) -> Reply[Empty]:
        """Entries from one index on. Raises CopyOver, InvalidArgument."""
        session = self._find(call.body.session)
        start = call.body.first - session.entries[0].index if session.entries else -1
        if not 0 <= start < len(session.entries):
            raise InvalidArgument(f"there is no entry {call.body.first} to copy")
        chosen: list[Entry] = []
        size_bytes = 0
        for position in range(start, len(session.entries)):
            entry = session.entries[position]
            size_bytes += len(entry.body)
            if chosen and size_bytes > self._settings.copy_piece_bytes:
                break
            chosen.append(entry)
        encoded = await self._runtime.offload(msgspec.msgpack.encode, chosen)
        self._find(session.id)
        self._sent(session, len(encoded))
        return Reply(Empty(), [encoded])
