"""All timelines that a safekeeper keeps on disk: which there are, how they come and go.

Invariants: each change has one commit point, the replacement of the timeline's control file; what a
crash leaves before or after it is settled at the next start
(`stelae.actors.safekeeper.timeline_store.startup`). A deleted timeline leaves a tombstone for ever,
which refuses configurations up to the one it was deleted under. A timeline that fails does not stop
the others. Pulls: `stelae.actors.safekeeper.timeline_store.pull`; eviction:
`stelae.actors.safekeeper.timeline_store.eviction`. Neon RFC 035, further considerations; design
§10.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from stelae.actors.safekeeper.timeline_store.eviction import Offload, TimelineEviction
from stelae.actors.safekeeper.timeline_store.files import TimelineFiles
from stelae.actors.safekeeper.timeline_store.log import FILE_BYTES, TimelineLog
from stelae.actors.safekeeper.timeline_store.pull import TimelinePulls
from stelae.actors.safekeeper.timeline_store.snapshot import HeldSnapshot
from stelae.actors.safekeeper.timeline_store.startup import (
    LoadedTimelines,
    load_timeline,
    load_timelines,
    may_pass,
)
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.server.disk import Offload as OffTheLoop
from stelae.actors.server.disk import at_once, damage_of
from stelae.actors.server.uncancellable import carry_through
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    StaleTerm,
    TabletDeleted,
    TabletNotFound,
    TabletTombstoned,
)
from stelae.core.ids import TabletId
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration, check_configuration
from stelae.core.runtime import Disk
from stelae.core.tasks import Tasks
from stelae.storage.files.superblock import check_tablet_id
from stelae.storage.files.timeline_control import (
    FOREVER,
    TimelineControl,
    created,
    deleted,
    unknown,
)

T = TypeVar("T")


class TimelineStore:
    """The timelines of one safekeeper. `load_all` first.

    Methods raise NoSpace with everything as it was if the disk is full, and OSError if the disk
    failed: then that timeline does nothing any more before it is opened anew
    (`stelae.actors.safekeeper.reopening`).
    """

    def __init__(
        self,
        disk: Disk,
        tasks: Tasks,
        safekeeper: SafekeeperId,
        folder: str = "",
        *,
        offload: OffTheLoop = at_once,
        blobs: Offload | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """``offload`` is that of a runtime; ``blobs`` is where evicted timelines go, if at all."""
        self.name = f"safekeeper {safekeeper}"
        self.files = TimelineFiles(disk, self.name, folder, offload=offload)
        self.tasks = tasks
        self.safekeeper = safekeeper
        self.on_failed: Callable[[TabletId, OSError | CorruptData], None] | None = None
        """Told of each timeline that fails while it runs."""
        self._file_bytes = file_bytes
        self.eviction = TimelineEviction(self, blobs)
        self.pulls = TimelinePulls(self)
        self._timelines: dict[TabletId, Timeline] = {}
        self._others: dict[TabletId, TimelineControl] = {}
        """Of those that do not exist (any more): tombstones, and what a first pull will make."""
        self._failed: dict[TabletId, CorruptData] = {}
        self._incarnations: dict[TabletId, int] = {}
        self._locks: weakref.WeakValueDictionary[TabletId, asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()
        self._residences: weakref.WeakValueDictionary[TabletId, asyncio.Lock]
        self._residences = weakref.WeakValueDictionary()

    async def load_all(self) -> LoadedTimelines:
        """Read what is there, rolled forward or back. Raises OSError."""
        loaded = await load_timelines(self.files, self.make_log)
        self._failed = dict(loaded.failed)
        for tablet_id, control in loaded.controls.items():
            self.take_in(control, loaded.logs.get(tablet_id))
        return loaded

    def take_in(self, control: TimelineControl, log: TimelineLog | None) -> None:
        """What was loaded counts from now on."""
        known = self._incarnations.get(control.tablet_id, 0)
        self._incarnations[control.tablet_id] = max(known, control.incarnation)
        if control.exists:
            self._publish(control, log)
        else:
            self._timelines.pop(control.tablet_id, None)
            self._others[control.tablet_id] = control

    async def load_again(self, tablet_id: TabletId) -> bool:
        """Load one below which the disk failed at the start; false if that is done already.

        Raises CorruptData (`may_pass` tells of which kind), OSError and NoSpace.
        """
        async with self.lock(tablet_id):
            error = self._failed.get(tablet_id)
            if error is None or not may_pass(error):
                return False
            loaded = LoadedTimelines()
            folders = (await self.files.wal_folders()).get(tablet_id, [])
            try:
                with damage_of(f"a file of timeline {tablet_id}"):
                    await load_timeline(
                        self.files, tablet_id, folders, self.make_log, loaded, afresh=True
                    )
            except CorruptData as found:
                self._failed[tablet_id] = found
                raise
            del self._failed[tablet_id]
            for control in loaded.controls.values():  # none of what was never here
                self.take_in(control, loaded.logs.get(tablet_id))
            return True

    # ---- what there is ----------------------------------------------------------------------

    @property
    def timelines(self) -> Mapping[TabletId, Timeline]:
        """Those that exist, also if they failed since the start."""
        return self._timelines

    @property
    def failed(self) -> Mapping[TabletId, CorruptData]:
        """Those whose files could not be read or believed at the start."""
        return self._failed

    def timeline(self, tablet_id: TabletId) -> Timeline:
        """Raises TabletNotFound, TabletTombstoned if it was deleted, CorruptData."""
        if tablet_id in self._failed:
            raise self._failed[tablet_id]
        found = self._timelines.get(tablet_id)
        if found is not None:
            return found
        if self.control(tablet_id).tombstone is not None:
            raise TabletTombstoned(tablet_id, self.name)
        raise TabletNotFound(tablet_id)

    def control(self, tablet_id: TabletId) -> TimelineControl:
        """What the control file says; of one that never was here, that. Raises CorruptData."""
        if tablet_id in self._failed:
            raise self._failed[tablet_id]
        found = self._timelines.get(tablet_id)
        if found is not None:
            return found.control
        return self._others.get(tablet_id) or unknown(tablet_id)

    @property
    def blobs(self) -> dict[str, TabletId]:
        """The names of all that is offloaded, or may be, and whose it is."""
        controls = [timeline.control for timeline in self._timelines.values()]
        named: dict[str, TabletId] = {}
        for control in [*controls, *self._others.values()]:
            counting = control.evicted.files if control.evicted is not None else ()
            for blob in (*control.stale_blobs, *[each.blob for each in counting]):
                named[blob] = control.tablet_id
        return named

    @property
    def with_stale_blobs(self) -> list[TabletId]:
        """Of these, deleted or not, something is to be deleted where it was offloaded to."""
        controls = [timeline.control for timeline in self._timelines.values()]
        found = [*controls, *self._others.values()]
        return sorted(control.tablet_id for control in found if control.stale_blobs)

    # ---- creation and deletion --------------------------------------------------------------

    async def create(self, tablet_id: TabletId, configuration: TimelineConfiguration) -> Timeline:
        """Make a new, empty timeline. It is there already: nothing changes.

        Raises TabletDeleted if it was deleted under that generation or a higher one.
        """
        check_tablet_id(tablet_id)
        check_configuration(configuration)
        work = self._create(tablet_id, configuration)
        return await self.carried(tablet_id, work, "creation of a timeline")

    async def _create(self, tablet_id: TabletId, configuration: TimelineConfiguration) -> Timeline:
        async with self.lock(tablet_id):
            before = self.control(tablet_id)
            if before.exists:
                return self._timelines[tablet_id]
            self.check_not_deleted(before, configuration.generation)
            after = created(before, configuration, self.next_incarnation(tablet_id))
            await self.files.replace_control(after)
            return self._publish(after, self.make_log(after))

    async def delete(
        self, tablet_id: TabletId, configuration: TimelineConfiguration | None
    ) -> bool:
        """Delete it, as this safekeeper is no member of ``configuration``; whether it was here.

        None: its table was dropped, and nothing brings it back. A tombstone stays in any case, also
        of what never was here. Repeated, it carries on what a full disk interrupted.

        Raises:
            InvalidArgument: this safekeeper is a member.
            StaleTerm: it knows of a higher configuration.
            CorruptData: the control file is damaged, so that nobody knows of which generation it
                is; only dropping it for good helps.
        """
        check_tablet_id(tablet_id)
        if configuration is not None:
            check_configuration(configuration)
            if self.safekeeper in configuration.members:
                raise InvalidArgument(f"{self.name} is a member of {configuration}")
        generation = configuration.generation if configuration is not None else FOREVER
        return await self.exclude(tablet_id, generation)

    async def exclude(self, tablet_id: TabletId, generation: int) -> bool:
        """The same, once it was decided that this safekeeper is no member in that generation."""
        work = self._delete(tablet_id, generation)
        return await self.carried(tablet_id, work, "deletion of a timeline")

    async def _delete(self, tablet_id: TabletId, generation: int) -> bool:
        async with self.lock(tablet_id):
            before = await self._readable_control(tablet_id, forever=generation == FOREVER)
            if before.generation > generation:
                raise StaleTerm(f"deletion of timeline {tablet_id}", generation, before.generation)
            stale = await self._incarnations_of(tablet_id, before)
            timeline = self._timelines.get(tablet_id)
            if before.exists or before.deleted_generation < generation:
                after = deleted(before, generation)
                if timeline is not None:
                    await timeline.commit(after)
                    del self._timelines[tablet_id]
                    await timeline.close("deleted")
                else:
                    await self.files.replace_control(after)
                self._others[tablet_id] = after
                self._failed.pop(tablet_id, None)
            for number in stale:
                await self.files.remove_wal(tablet_id, number)
        await self.eviction.try_delete_stale(tablet_id)
        return before.exists

    async def _readable_control(self, tablet_id: TabletId, *, forever: bool) -> TimelineControl:
        if tablet_id not in self._failed:
            return self.control(tablet_id)
        found: TimelineControl | None = None
        with suppress(CorruptData):
            found = await self.files.read_control(tablet_id)
        if found is None and not forever:
            raise self._failed[tablet_id]
        return found or unknown(tablet_id)

    async def _incarnations_of(self, tablet_id: TabletId, control: TimelineControl) -> list[int]:
        """The folders that a deletion has to remove; what is being pulled is given up."""
        if tablet_id in self._failed:
            return (await self.files.wal_folders()).get(tablet_id, [])
        numbers = [control.incarnation, self.pulls.forget(tablet_id)]
        return sorted({number for number in numbers if number})

    # ---- eviction ---------------------------------------------------------------------------

    async def evict(self, tablet_id: TabletId) -> bool:
        """Offload the WAL of a timeline that is idle; false if it turned out not to be.

        Any use of it brings it back. Raises what the `Offload` raises.
        """
        return await self.eviction.evict(self.timeline(tablet_id))

    async def delete_stale_blobs(self, tablet_id: TabletId) -> None:
        """Delete what was offloaded and does not count: after crashes, and of deleted timelines."""
        await self.eviction.delete_stale(tablet_id)

    async def hold_snapshot(self, tablet_id: TabletId) -> HeldSnapshot:
        """The timeline as it is now, for whoever pulls it from here; `release` it in the end."""
        held = HeldSnapshot(self.timeline(tablet_id), self.files, self.eviction)
        try:
            await held.take()
        except BaseException:
            held.release()
            raise
        return held

    # ---- for pulls and eviction -------------------------------------------------------------

    def lock(self, tablet_id: TabletId) -> asyncio.Lock:
        """Held during each change of the timeline, existing or not."""
        return self._locks.setdefault(tablet_id, asyncio.Lock())

    def residence(self, tablet_id: TabletId) -> asyncio.Lock:
        """Held while its WAL is offloaded or brought back; taken before the other lock."""
        return self._residences.setdefault(tablet_id, asyncio.Lock())

    def next_incarnation(self, tablet_id: TabletId) -> int:
        """Names a WAL folder that nobody else uses."""
        number = max(self._incarnations.get(tablet_id, 0), self.control(tablet_id).incarnation) + 1
        self._incarnations[tablet_id] = number
        return number

    def make_log(self, control: TimelineControl) -> TimelineLog:
        """A log, still without content, of the incarnation that counts."""
        tablet_id = control.tablet_id

        def on_failed(error: OSError) -> None:
            timeline = self._timelines.get(tablet_id)
            if timeline is not None and timeline.log is log:
                timeline.fail(error)

        log = TimelineLog(
            self.files, self.tasks, control, file_bytes=self._file_bytes, on_failed=on_failed
        )
        return log

    def check_not_deleted(self, control: TimelineControl, generation: int) -> None:
        """Raises TabletDeleted."""
        if generation <= control.deleted_generation:
            raise TabletDeleted(control.tablet_id, self.name)

    async def replace(self, control: TimelineControl) -> None:
        """Replace the control file of a timeline, existing or not; its lock is held."""
        timeline = self._timelines.get(control.tablet_id)
        if timeline is not None:
            await timeline.commit(control)
        else:
            await self.files.replace_control(control)
            self._others[control.tablet_id] = control

    async def forget_absent(self, tablet_id: TabletId) -> None:
        """A first pull was given up: nothing is known of the timeline any more."""
        await self.files.remove_control(tablet_id)
        self._others.pop(tablet_id, None)

    async def install(self, control: TimelineControl, log: TimelineLog) -> Timeline:
        """Let a pulled copy count, in the place of what was here; its lock is held."""
        tablet_id = control.tablet_id
        before = self._timelines.get(tablet_id)
        if before is not None:
            before.check()
            await before.commit(control)
            await before.close("replaced by a copy that was pulled")
        else:
            await self.files.replace_control(control)
        return self._publish(control, log)

    def _publish(self, control: TimelineControl, log: TimelineLog | None) -> Timeline:
        tablet_id = control.tablet_id
        timeline = Timeline(
            self.files,
            self.tasks,
            control,
            log,
            self.lock(tablet_id),
            self.residence(tablet_id),
            bring_back=self.eviction.bring_back,
            make_log=self.make_log,
            next_incarnation=self.next_incarnation,
            on_failed=self._on_failed,
        )
        self._others.pop(tablet_id, None)
        self._timelines[tablet_id] = timeline
        return timeline

    async def carried(self, tablet_id: TabletId, work: Coroutine[Any, Any, T], name: str) -> T:
        """Carry a change through; who cannot be told that the disk failed, `on_failed` is."""

        def failed(error: OSError) -> None:
            timeline = self._timelines.get(tablet_id)
            if timeline is not None:
                timeline.fail(error)
            else:
                self._on_failed(tablet_id, error)

        return await carry_through(self.tasks, work, name, failed)

    def _on_failed(self, tablet_id: TabletId, error: OSError | CorruptData) -> None:
        if self.on_failed is not None:
            self.on_failed(tablet_id, error)

    async def close(self) -> None:
        """Let go of all files; what is queued is not written."""
        for timeline in list(self._timelines.values()):
            async with timeline.lock:
                await timeline.close("closed")
