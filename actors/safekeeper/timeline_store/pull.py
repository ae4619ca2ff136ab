"""The receiving end of a pull, as far as the disk is concerned.

`begin`, then `write` for the pieces of each file, then `finish`; or `abort`. Invariants: nothing of
a pull counts before `finish` replaced the control file; by then every file was checked, read as a
log, and found to end where the manifest says; a copy takes the place of what is here only if its
log is ahead and its configuration is not behind, so that nothing that this safekeeper had
acknowledged is forgotten; terms, votes and tombstones stay. Neon RFC 035, step 5; design §10.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from crc32c import crc32c

from stelae.actors.safekeeper.timeline_store.host import TimelineHost
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    StaleTerm,
    StelaeError,
    TabletNotReady,
    TooLarge,
)
from stelae.core.ids import TabletId
from stelae.core.records.timelines import (
    TimelineConfiguration,
    TimelineSnapshot,
    WalFile,
    check_configuration,
    check_history,
)
from stelae.core.rpc import Blob
from stelae.core.runtime import File
from stelae.storage.files.superblock import check_tablet_id
from stelae.storage.files.timeline_control import (
    Presence,
    TimelineControl,
    history_problem,
    is_newer,
    merged_acceptor,
    pulled,
    pulling,
)
from stelae.storage.files.wal_log import parse_wal_name

T = TypeVar("T")
FILES_MAX = 4096
"""Of one timeline that is pulled."""
FILE_BYTES_MAX = 1 << 30


class PullHost(TimelineHost, Protocol):
    """The store that receives pulled timelines."""

    @property
    def timelines(self) -> Mapping[TabletId, Timeline]:
        """The timelines that exist, also those that failed since the start."""
        ...

    def timeline(self, tablet_id: TabletId) -> Timeline:
        """Raises TabletNotFound, TabletTombstoned if it was deleted, CorruptData."""
        ...

    def check_not_deleted(self, control: TimelineControl, generation: int) -> None:
        """Raises TabletDeleted."""
        ...

    async def install(self, control: TimelineControl, log: TimelineLog) -> Timeline:
        """Replace what is here by a pulled copy; the timeline's lock is held."""
        ...

    async def forget_absent(self, tablet_id: TabletId) -> None:
        """Forget a timeline whose first pull was given up."""
        ...


@dataclass(slots=True)
class _Arriving:
    """A file of which pieces are there."""

    file: File
    size_bytes: int = 0
    crc: int = 0


@dataclass(eq=False, slots=True)
class PullAttempt:
    """One go at pulling a timeline. It is stale once another one began, or it ended."""

    snapshot: TimelineSnapshot
    configuration: TimelineConfiguration
    incarnation: int
    held: dict[str, WalFile] = field(default_factory=dict)
    """Files that are whole, checked and durable."""
    arriving: dict[str, _Arriving] = field(default_factory=dict)

    @property
    def tablet_id(self) -> TabletId:
        return self.snapshot.tablet_id

    @property
    def missing(self) -> list[tuple[WalFile, int]]:
        """Files still to come, and from where on."""
        return [
            (file, self.arriving[file.name].size_bytes if file.name in self.arriving else 0)
            for file in self.snapshot.files
            if file.name not in self.held
        ]

    def let_go(self) -> None:
        for arriving in self.arriving.values():
            arriving.file.close()
        self.arriving.clear()


class TimelinePulls:
    """Pulls that a safekeeper receives. Raises as `TimelineStore` does where the disk is concerned.

    Who pulls what from whom is the caller's affair; that nothing acknowledged is forgotten by it
    is seen to here.
    """

    def __init__(self, store: PullHost) -> None:
        self._store = store
        self._files = store.files
        self._attempts: dict[TabletId, PullAttempt] = {}

    async def begin(
        self, snapshot: TimelineSnapshot, configuration: TimelineConfiguration
    ) -> PullAttempt | None:
        """Begin, or go on with what an earlier attempt has of the same files.

        ``configuration`` is what the pull is done for. None: what is here is as far ahead already.

        Raises:
            InvalidArgument: this safekeeper is no member of it, or the manifest is none.
            StaleTerm: a higher generation is known here, or at the donor.
            TabletDeleted: the timeline was deleted here under that generation or a higher one.
        """
        self._check_manifest(snapshot, configuration)
        work = self._begin(snapshot, configuration)
        return await self._carried(snapshot.tablet_id, work)

    def _check_manifest(
        self, snapshot: TimelineSnapshot, configuration: TimelineConfiguration
    ) -> None:
        check_tablet_id(snapshot.tablet_id)
        check_configuration(configuration)
        check_configuration(snapshot.acceptor.configuration)
        check_history(snapshot.acceptor.term_history)
        if self._store.safekeeper not in configuration.members:
            raise InvalidArgument(f"{self._store.name} is no member of {configuration}")
        if snapshot.generation > configuration.generation:
            what = f"the pull of timeline {snapshot.tablet_id}"
            raise StaleTerm(what, configuration.generation, snapshot.generation)
        problem = history_problem(snapshot)
        names = {file.name: file for file in snapshot.files}
        if len(names) != len(snapshot.files) or len(names) > FILES_MAX:
            problem = f"{len(snapshot.files)} files, {len(names)} of them different"
        for file in snapshot.files:
            if parse_wal_name(file.name) is None or not 0 < file.size_bytes <= FILE_BYTES_MAX:
                problem = f"{file.name!r} of {file.size_bytes} bytes is no file of a WAL"
        if problem:
            raise InvalidArgument(f"copy of timeline {snapshot.tablet_id}: {problem}")

    async def _begin(
        self, snapshot: TimelineSnapshot, configuration: TimelineConfiguration
    ) -> PullAttempt | None:
        tablet_id = snapshot.tablet_id
        async with self._store.lock(tablet_id):
            control = self._store.control(tablet_id)
            if not self._is_wanted(control, snapshot, configuration):
                return None
            if control.number == 0:
                # First: a WAL is never there without a control file.
                await self._store.replace(pulling(control))
            earlier = self._attempts.pop(tablet_id, None)
            number = self._store.next_incarnation(tablet_id)
            attempt = PullAttempt(snapshot, configuration, number)
            if earlier is not None:
                await self._take_over(attempt, earlier)
            self._attempts[tablet_id] = attempt
            return attempt

    async def _take_over(self, attempt: PullAttempt, earlier: PullAttempt) -> None:
        """Go on in its folder, with those of its files that are wanted still."""
        earlier.let_go()
        wanted = {file.name: file for file in attempt.snapshot.files}
        folder = self._files.wal_folder(attempt.tablet_id, earlier.incarnation)
        attempt.incarnation = earlier.incarnation
        for name in await self._files.disk.list(folder):
            if name in earlier.held and wanted.get(name) == earlier.held[name]:
                attempt.held[name] = earlier.held[name]
            else:
                await self._files.disk.remove(f"{folder}/{name}")

    def _is_wanted(
        self,
        control: TimelineControl,
        snapshot: TimelineSnapshot,
        configuration: TimelineConfiguration,
    ) -> bool:
        """Whether the copy may and should take the place of what is here.

        A log whose position is ahead has all that one behind it can have acknowledged and that was
        committed; so it may replace that, and one which is not ahead may not.
        """
        self._store.check_not_deleted(control, configuration.generation)
        if control.generation > configuration.generation:
            what = f"the pull of timeline {control.tablet_id}"
            raise StaleTerm(what, configuration.generation, control.generation)
        if not control.exists:
            return True
        timeline = self._store.timeline(control.tablet_id)
        timeline.check()
        return is_newer(snapshot.position, timeline.position)

    async def write(self, attempt: PullAttempt, file: WalFile, offset: int, data: Blob) -> bool:
        """Take the next piece of a file in; whether that is whole. Held already: nothing is done.

        Raises:
            CorruptData: it is whole, but not what the manifest says; it has to come anew.
            InvalidArgument: nobody asked for this piece now.
            TabletNotReady: the attempt is stale.
        """
        return await self._carried(attempt.tablet_id, self._write(attempt, file, offset, data))

    async def _write(self, attempt: PullAttempt, file: WalFile, offset: int, data: Blob) -> bool:
        async with self._store.lock(attempt.tablet_id):
            self._check_current(attempt)
            if file not in attempt.snapshot.files:
                raise InvalidArgument(f"{file} is not a part of the copy of {attempt.tablet_id}")
            if file.name in attempt.held:
                return True
            path = f"{self._files.wal_folder(attempt.tablet_id, attempt.incarnation)}/{file.name}"
            arriving = attempt.arriving.get(file.name)
            if arriving is None:
                with self._files.needs_room():
                    arriving = _Arriving(await self._files.disk.open(path))
                attempt.arriving[file.name] = arriving
            size_bytes = arriving.size_bytes + memoryview(data).nbytes
            if offset != arriving.size_bytes:
                raise InvalidArgument(f"{file.name}, {offset}: {arriving.size_bytes} comes next")
            if size_bytes > file.size_bytes:
                raise TooLarge(f"the copy of {file.name}", size_bytes, file.size_bytes)
            with self._files.needs_room():
                arriving.file.write_at(offset, data)
            arriving.size_bytes = size_bytes
            arriving.crc = await self._files.offload(crc32c, data, arriving.crc)
            if size_bytes < file.size_bytes:
                return False
            await self._complete(attempt, file, arriving, path)
            return True

    async def _complete(
        self, attempt: PullAttempt, file: WalFile, arriving: _Arriving, path: str
    ) -> None:
        del attempt.arriving[file.name]
        try:
            if arriving.crc == file.crc:
                arriving.file.truncate(file.size_bytes)
                async with self._files.syncs:
                    await arriving.file.sync()
        finally:
            arriving.file.close()
        if arriving.crc != file.crc:
            await self._files.disk.remove(path)
            raise CorruptData(f"the copy of {path}", 0, "checksum does not match the manifest's")
        attempt.held[file.name] = file

    async def finish(self, attempt: PullAttempt) -> Timeline | None:
        """Make the copy count. None: meanwhile what is here has come as far.

        Raises:
            InvalidArgument: files are missing.
            CorruptData: they are not the log that the manifest promises; the pull is given up.
            StaleTerm, TabletDeleted: as of `begin`.
            TabletNotReady: the attempt is stale.
        """
        return await self._carried(attempt.tablet_id, self._finish(attempt))

    async def _finish(self, attempt: PullAttempt) -> Timeline | None:
        tablet_id = attempt.tablet_id
        async with self._store.residence(tablet_id), self._store.lock(tablet_id):
            self._check_current(attempt)
            if attempt.missing:
                names = ", ".join(file.name for file, _ in attempt.missing)
                raise InvalidArgument(f"the copy of {tablet_id} lacks {names}")
            before = self._store.timelines.get(tablet_id)
            if before is None or before.log is None:
                return await self._install(attempt)
            log = before.log
            before.set_aside()  # what is acknowledged after the comparison would be forgotten
            try:
                await log.drained()
                return await self._install(attempt)
            finally:
                before.resume(log)

    async def _install(self, attempt: PullAttempt) -> Timeline | None:
        snapshot, store = attempt.snapshot, self._store
        control = store.control(attempt.tablet_id)
        if not self._is_wanted(control, snapshot, attempt.configuration):
            await self._drop(attempt)
            return None
        acceptor = merged_acceptor(control, snapshot.acceptor, attempt.configuration)
        after = pulled(control, snapshot, acceptor, attempt.incarnation)
        log = store.make_log(after)
        try:
            await log.load(after.cut, min(acceptor.commit_lsn, snapshot.last.index))
            self._check_promised(snapshot, log)
        except StelaeError:
            await log.close(TabletNotReady(attempt.tablet_id, "not what was promised"))
            await self._drop(attempt)
            raise
        timeline = await store.install(after, log)
        del self._attempts[attempt.tablet_id]
        if control.incarnation:
            await self._files.remove_wal(attempt.tablet_id, control.incarnation)
        return timeline

    def _check_promised(self, snapshot: TimelineSnapshot, log: TimelineLog) -> None:
        promised, where = snapshot.acceptor.term_history, f"the copy of {snapshot.tablet_id}"
        if log.index.last(promised) != snapshot.last:
            reason = f"ends at {log.index.last(promised)}, not {snapshot.last}"
            raise CorruptData(where, 0, reason)
        if log.index.history(promised) != promised:
            raise CorruptData(where, 0, "its entries are not of the terms that its history names")

    async def abort(self, attempt: PullAttempt) -> None:
        """Give up: remove all that this pull wrote. A stale attempt has nothing any more."""
        await self._carried(attempt.tablet_id, self._abort(attempt))

    async def _abort(self, attempt: PullAttempt) -> None:
        async with self._store.lock(attempt.tablet_id):
            if self._attempts.get(attempt.tablet_id) is attempt:
                await self._drop(attempt)

    async def _drop(self, attempt: PullAttempt) -> None:
        tablet_id = attempt.tablet_id
        self.forget(tablet_id)
        await self._files.remove_wal(tablet_id, attempt.incarnation)
        if self._store.control(tablet_id).presence is Presence.ABSENT:
            await self._store.forget_absent(tablet_id)

    def forget(self, tablet_id: TabletId) -> int:
        """What is pulled of that timeline does not count any more; its lock is held.

        The incarnation that its folder has; 0, if nothing was pulled.
        """
        attempt = self._attempts.pop(tablet_id, None)
        if attempt is None:
            return 0
        attempt.let_go()
        return attempt.incarnation

    async def _carried(self, tablet_id: TabletId, work: Coroutine[Any, Any, T]) -> T:
        return await self._store.carried(tablet_id, work, "pull of a timeline")

    def _check_current(self, attempt: PullAttempt) -> None:
        if self._attempts.get(attempt.tablet_id) is not attempt:
            raise TabletNotReady(attempt.tablet_id, "no longer being pulled by that attempt")
