"""The WAL of one timeline on disk: appends that share syncs, cuts, trims and reads.

Entries are queued by `write`; one task writes what is queued and syncs once, while more is queued
for the next time. Where the disk is quick, `write_at_once` does without the task.

Invariants: an entry is told to be durable only after the sync that covers it; a file is whole and
durable, and ends with its last entry, before the next one begins; an entry counts in the index, and
is read, once it is durable. After a failed sync nothing is written, told or read any more. There is
a bound on the syncs of all timelines that are under way. Neon's receive loop, group commit; design
§10.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from stelae.actors.safekeeper.timeline_store.files import TimelineFiles
from stelae.actors.safekeeper.timeline_store.log_end import AT_ONCE_BYTES, WalEnd
from stelae.actors.server.disk import damage_of
from stelae.core.errors import CorruptData, NoSpace, StelaeError
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import LogCut
from stelae.core.tasks import Tasks
from stelae.storage.files.log_records import DecodedFile, decode_range
from stelae.storage.files.timeline_control import TimelineControl
from stelae.storage.files.wal_log import (
    IndexedFile,
    Span,
    WalIndex,
    WalName,
    counted_names,
    decode_wal_file,
    encode_entries,
    encode_wal_header,
    record_bytes,
)

FILE_BYTES = 16 << 20
"""A file that has reached this is followed by a new one."""
QUEUED_BYTES_MAX = 16 << 20
"""What waits to be written is hardly more."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Entries that were written behind the end at once, and are not synced."""

    entries: tuple[Entry, ...]
    size_bytes: int

    def is_head_of(self, others: Sequence[Entry]) -> bool:
        """Whether the others begin with these very entries."""
        pairs = zip(self.entries, others, strict=False)
        return len(self.entries) <= len(others) and all(ours is other for ours, other in pairs)


class TimelineLog:
    """The WAL of one incarnation of a timeline. `load` first, unless it is new.

    Who cuts, trims or closes it sees to it that nobody else does so meanwhile.
    """

    def __init__(
        self,
        files: TimelineFiles,
        tasks: Tasks,
        control: TimelineControl,
        *,
        file_bytes: int = FILE_BYTES,
        on_failed: Callable[[OSError], None],
    ) -> None:
        """``on_failed`` is told when the disk failed below it."""
        self.tablet_id: TabletId = control.tablet_id
        self.index = WalIndex(control.base_lsn)
        self.failure: BaseException | None = None
        """Why nothing is written any more: the disk failed, or the task that writes ended."""
        self._files = files
        self._tasks = tasks
        self._folder = files.wal_folder(control.tablet_id, control.incarnation)
        self._file_bytes = file_bytes
        self._on_failed = on_failed
        self._cut_number = control.cut.number
        self._begins_file = True
        """Whether the next entry begins a file, since the newest one is of an earlier cut."""
        self._newest: WalEnd | None = None
        self._dirty = False
        """Whether behind the end of the newest file there may be what was not written whole."""
        self._begun: _Begun | None = None
        """What lies behind the end, until it is known what is to be there."""
        self._lying: _Begun | None = None
        """What lies there, and is the beginning of the queue: it need not be written again."""
        self._queue: list[Entry] = []
        self._queued_bytes = 0
        self._queued_lsn = control.base_lsn
        self._flusher: asyncio.Task[None] | None = None
        self._refusal: StelaeError | None = None
        """Why entries that were queued last time are not in the log."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()

    # ---- loading ----------------------------------------------------------------------------

    async def load(self, cut: LogCut, commit_lsn: int, *, afresh: bool = False) -> None:
        """Read what is there; carry a cut and a trim to their end, and cut off a torn tail.

        ``afresh``: a sync failed before, so that no later one tells whether what can be read is on
        the disk; the newest file, which is all that it can be about, is written once more. Raises
        CorruptData.
        """
        with damage_of(self._folder):
            names = await self._files.disk.list(self._folder)
        counted, dropped = counted_names(self._folder, names, cut, self.index.base_lsn)
        for position, name in enumerate(counted):
            newest = position == len(counted) - 1
            await self._load_file(name, cut, commit_lsn, newest=newest, afresh=afresh and newest)
        if self.index.last_lsn < commit_lsn:
            where, end = self._folder, 0
            if self.index.files:
                where, end = self._path(self.index.files[-1].name), self.index.files[-1].end
            reason = f"entry {self.index.last_lsn} is the last one, and {commit_lsn} was committed"
            raise CorruptData(where, end, reason)
        for text in dropped:  # only once it is known that all the rest is well
            await self._files.disk.remove(f"{self._folder}/{text}")
        await self._settle_newest(cut)
        self._queued_lsn = self.index.last_lsn

    async def _load_file(
        self, name: WalName, cut: LogCut, commit_lsn: int, *, newest: bool, afresh: bool
    ) -> None:
        path = self._path(name)
        with damage_of(path):
            data = await self._files.disk.read(path)

        def decode() -> DecodedFile:
            return decode_wal_file(
                path, self.tablet_id, name, data, newest=newest, cut=cut, commit_lsn=commit_lsn
            )

        decoded = await self._files.offload(decode)
        if not decoded.entries:
            if not newest:
                raise CorruptData(path, decoded.end, "has no entry, and newer files follow")
            await self._files.disk.remove(path)  # its first append never became durable
            return
        self.index.loaded(path, name, decoded)
        if afresh:
            with self._files.needs_room():
                await self._files.disk.replace(path, data[: decoded.end])
        elif decoded.end < len(data):
            await self._end_file(path, decoded.end)

    async def _settle_newest(self, cut: LogCut) -> None:
        """What was read of the newest file will be vouched for: it must not vanish later."""
        if not self.index.files:
            return
        name = self.index.files[-1].name
        file = await self._files.disk.open(self._path(name))
        try:
            await file.sync()
        finally:
            file.close()  # idle timelines hold no file open
        self._begins_file = name.cut_number != cut.number

    async def _end_file(self, path: str, end: int) -> None:
        """Durably cut off what lies behind the end."""
        file = await self._files.disk.open(path)
        try:
            file.truncate(end)
            await file.sync()
        finally:
            file.close()

    def _path(self, name: WalName) -> str:
        return f"{self._folder}/{name}"

    # ---- appending --------------------------------------------------------------------------

    @property
    def flush_lsn(self) -> int:
        """All entries up to here are durable."""
        return self.index.last_lsn

    @property
    def is_full(self) -> bool:
        """Whether to wait, with `drained`, before more is written."""
        return self._queued_bytes >= QUEUED_BYTES_MAX

    @property
    def is_idle(self) -> bool:
        """Whether everything that was written is durable."""
        return self._flusher is None and not self._queue

    def write(self, entries: Sequence[Entry]) -> None:
        """Queue entries that follow those given before; `flushed` tells when they are durable.

        Raises NoSpace if those before them were refused, and OSError.
        """
        self._check()
        if not entries:
            return
        first, expected = entries[0].index, self._queued_lsn + 1
        if first > expected and self._refusal is not None:
            raise self._refusal  # what they follow is not there
        assert first == expected, f"entry {first} after {self._queued_lsn}"
        begun, self._begun = self._begun, None
        if begun is not None and begun.is_head_of(entries):
            self._lying = begun
        elif begun is not None:
            self._dirty = True  # what was begun is not what comes: nothing of it may stay
        self._queue.extend(entries)
        self._queued_bytes += sum([record_bytes(entry) for entry in entries])
        self._queued_lsn = entries[-1].index
        if self._flusher is None:
            self._flusher = self._tasks.spawn(self._flush(), f"flush of {self.tablet_id}")

    def write_at_once(self, entries: Sequence[Entry]) -> bool:
        """What `write` and `flushed` do, here and now, where the disk is quick and nothing waits.

        If false, they are not durable, and the same are to be given to `write`. Raises OSError.
        """
        self._check()
        newest, file = self.index.files[-1] if self.index.files else None, self._newest
        if newest is None or not newest.end or file is None or self._begins_file:
            return False
        if not self.is_idle or self._dirty or self._begun is not None:
            return False
        size_bytes = sum([record_bytes(entry) for entry in entries])
        has_room = newest.end + size_bytes <= self._file_bytes and size_bytes <= AT_ONCE_BYTES
        if not has_room or entries[0].index != self._queued_lsn + 1:
            return False
        try:
            file.write(newest.end, encode_entries(entries, self.flush_lsn), size_bytes)
            if not file.sync_at_once():
                self._begun = _Begun(tuple(entries), size_bytes)
                return False
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._dirty = True
                return False  # `write` finds out, and says so
            self.fail(error)
            raise
        self._refusal = None
        self.index.appended(entries, newest.end)
        self._queued_lsn = entries[-1].index
        return True

    async def flushed(self, lsn: int) -> int:
        """Wait until the entry is durable; the end of the durable log.

        Raises NoSpace if it could not be written, and then is not in the log (nor is what was
        written after it: the next one follows `flush_lsn`), and OSError if the disk failed.
        """
        self._check()
        if lsn > self._queued_lsn:
            assert self._refusal is not None, f"nobody wrote entry {lsn}"
            raise self._refusal
        if lsn > self.flush_lsn:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((lsn, waiter))
            await waiter
        return self.flush_lsn

    async def drained(self) -> None:
        """Wait until nothing is queued any more, durable or refused. Raises OSError."""
        while self._flusher is not None:
            await asyncio.wait([self._flusher])
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def _flush(self) -> None:
        try:
            while self._queue:
                batch, self._queue, self._queued_bytes = self._queue, [], 0
                await self._write_batch(batch)
        except NoSpace as error:
            self._dirty = True
            self._refuse(error)
        except OSError as error:
            self.fail(error)
        except BaseException as error:  # a bug, or the end of the process: nobody waits for ever
            self.failure = error
            self._wake(error)
            raise
        finally:
            self._flusher = None

    async def _write_batch(self, batch: Sequence[Entry]) -> None:
        """Write it all, each file's part with one sync."""
        if self._dirty and self._newest is not None:
            self._newest.cut_off(self.index.files[-1].end)
            await self._sync(self._newest)
            self._dirty = False
        lying, self._lying = self._lying, None
        written = 0
        while written < len(batch):
            header = await self._begin_file(batch[written].index)
            newest, file = self.index.files[-1], self._newest
            assert file is not None
            part: list[Entry] = []
            size_bytes = len(header)
            for entry in batch[written:]:
                if part and newest.end + size_bytes >= self._file_bytes:
                    break
                part.append(entry)
                size_bytes += record_bytes(entry)
            if lying is not None:
                assert not header, "what was written at once has its file"
                self._write_rest(file, newest.end, part, lying)
                lying = None
            else:
                buffers = encode_entries(part, self.flush_lsn)
                with self._files.needs_room():
                    file.write(newest.end, [header, *buffers] if header else buffers, size_bytes)
            await self._sync(file)
            self.index.appended(part, newest.end + len(header))
            written += len(part)
            self._wake(None)

    def _write_rest(self, file: WalEnd, end: int, part: Sequence[Entry], lying: _Begun) -> None:
        """Write behind the end what of this part does not lie there already."""
        assert lying.is_head_of(part), "what was written at once fits its file"
        rest = part[len(lying.entries) :]
        if rest:
            size_bytes = sum([record_bytes(entry) for entry in rest])
            with self._files.needs_room():
                buffers = encode_entries(rest, self.flush_lsn)
                file.write(end + lying.size_bytes, buffers, size_bytes)

    async def _begin_file(self, first_lsn: int) -> bytes:
        """See to it that the next entry has a file; the header, if that has none yet."""
        name = WalName(first_lsn, self._cut_number)
        newest = self.index.files[-1] if self.index.files else None
        if newest is None or self._begins_file or newest.end >= self._file_bytes:
            with self._files.needs_room():
                file = await self._open(name)
            if self._newest is not None:
                self._newest.close()
            self._newest, self._begins_file = file, False
            newest = self.index.begun(name)
        elif self._newest is None:  # the first entry since the start
            self._newest = await self._open(newest.name)
        return b"" if newest.end else encode_wal_header(self.tablet_id, name)

    async def _open(self, name: WalName) -> WalEnd:
        return WalEnd(await self._files.disk.open(self._path(name)), self._file_bytes)

    async def _sync(self, file: WalEnd) -> None:
        async with self._files.syncs:
            await file.sync()

    def _refuse(self, error: StelaeError) -> None:
        """What is queued cannot be written: nothing of it will be in the log."""
        self._queue, self._queued_bytes = [], 0
        if self._lying is not None:
            self._lying, self._dirty = None, True
        self._queued_lsn = self.flush_lsn
        self._refusal = error
        self._wake(error)

    def fail(self, error: OSError) -> None:
        """The disk failed: whatever is not durable yet may never be."""
        if self.failure is None:
            self.failure = error
            self._queue, self._queued_bytes = [], 0
            self._wake(error)
            self._on_failed(error)

    def _wake(self, error: BaseException | None) -> None:
        """Tell those whose entries are durable; and, if there is an error, all others of that."""
        waiting = []
        for lsn, waiter in self._waiters:
            if waiter.done():
                continue
            if lsn <= self.flush_lsn:
                waiter.set_result(None)
            elif isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
            else:
                waiting.append((lsn, waiter))
        self._waiters = waiting

    # ---- cutting and trimming ---------------------------------------------------------------

    async def cut(self, cut: LogCut) -> None:
        """Remove the entries from ``cut.from_lsn`` on: the control file says so already, and
        nothing is queued. Raises OSError."""
        assert self.is_idle, "a cut while entries are written"
        await self._unread.wait()
        removed, truncated = self.index.cut(cut.from_lsn)
        self._cut_number, self._begins_file, self._dirty = cut.number, True, False
        self._begun = self._lying = None
        self._queued_lsn = self.flush_lsn
        if self._newest is not None:
            self._newest.close()
            self._newest = None
        for name in removed:
            await self._files.disk.remove(self._path(name))
        if self.index.files:
            # Not only if entries went: a write that did not fit may have left more behind the end.
            last = truncated or self.index.files[-1]
            await self._end_file(self._path(last.name), last.end)

    async def trim(self, base_lsn: int) -> None:
        """Remove the files up to there, as `WalIndex.trimmable` said and the control file says."""
        await self._unread.wait()
        for name in self.index.trim(base_lsn):
            await self._files.disk.remove(self._path(name))

    # ---- reading ----------------------------------------------------------------------------

    async def read(self, first_lsn: int, last_lsn: int, size_max_bytes: int) -> list[Entry]:
        """Durable entries from the first on: at least one, and as many as fit; fewer at the end.

        None where the log begins later or ends before. Raises CorruptData.
        """
        last_lsn = min(last_lsn, self.flush_lsn)
        if not self.index.base_lsn < first_lsn <= last_lsn:
            return []
        entries: list[Entry] = []
        async with self._reading():
            for span in self.index.spans(first_lsn, last_lsn, size_max_bytes):
                entries += await self._read_span(span)
        return entries

    async def _read_span(self, span: Span) -> list[Entry]:
        path = self._path(span.name)
        data = await self._read_at(span.name, span.offset, span.length)
        found: list[Entry] = await self._files.offload(
            decode_range, path, data, span.offset, span.first_lsn
        )
        return found

    async def read_piece(self, name: WalName, offset: int, length: int) -> bytes | None:
        """Bytes of a file, up to its end; None if it is not there. Raises CorruptData."""
        async with self._reading():
            file = self.find(name)
            if file is None:
                return None
            return await self._read_at(name, offset, max(0, min(length, file.end - offset)))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        """While files are read none is removed."""
        self._readers += 1
        self._unread.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._unread.set()

    async def _read_at(self, name: WalName, offset: int, length: int) -> bytes:
        path = self._path(name)
        with damage_of(path):
            file = await self._files.disk.open(path)
            try:
                data = file.read_at(offset, length)
            finally:
                file.close()
        if len(data) != length:
            raise CorruptData(path, offset + len(data), "ends too early")
        return data

    def find(self, name: WalName) -> IndexedFile | None:
        """A file by its name; None if it is not there."""
        for file in self.index.files:
            if file.name == name:
                return file
        return None

    async def close(self, reason: StelaeError) -> None:
        """Let go of the files, once a sync under way has ended. What is queued is not written."""
        self._refuse(reason)
        while self._flusher is not None:
            await asyncio.wait([self._flusher])
            self._refuse(reason)
        await self._unread.wait()
        if self._newest is not None:
            self._newest.close()
            self._newest = None
