"""Opens timelines anew below which the disk failed, as far as what lies there can be believed.

After a failed sync nobody knows what became of the pages that it covered: they read as written, may
be gone after a crash, and a later sync says nothing of them ("Can Applications Recover from fsync
Failures?", ATC 2020). So nothing is believed but what a sync had covered before. The control file
is read, and written once more as a new file; by it, what the log has beyond its durable end is cut,
and appends go to a new file. Then everything is read and checked, as at a start. If it was at the
start that the disk failed, all is loaded again, and the newest file of the log is written anew.

Invariants: until all of that is done the timeline does nothing; tries are spread out, and bounded:
a timeline that fails again and again stays as it is, is seen to be so by the masters, and gives way
to another member (`stelae.actors.master.leader.timeline_checks`). Design §10.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from stelae.actors.safekeeper.timeline_store.startup import LoadedTimelines, load_timeline, may_pass
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timelines import SafekeeperTimelines
from stelae.core.backoff import Backoff
from stelae.core.errors import CorruptData, StelaeError
from stelae.core.ids import TabletId
from stelae.core.runtime import Runtime
from stelae.storage.files.timeline_control import reopened

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
"""Before the first try; doubled with each that follows."""
LONGEST_PAUSE_S = 60.0
TRIES_MAX = 8
CALM_S = 600.0
"""A timeline that did well for so long is one that never failed."""


@dataclass(slots=True)
class _Tries:
    count: int
    next_s: float
    backoff: Backoff


async def reopen(store: TimelineStore, tablet_id: TabletId) -> bool:
    """Open a timeline anew that failed; false if it did not.

    Raises OSError: the disk fails still; NoSpace; CorruptData: what lies there is damaged, and no
    further try helps.
    """
    work = store.load_again if tablet_id in store.failed else partial(_reopen, store)
    return await store.carried(tablet_id, work(tablet_id), "reopening of a timeline")


def _failed(store: TimelineStore) -> list[TabletId]:
    """Below which the disk failed, since the start or at it."""
    running = [t for t, each in store.timelines.items() if isinstance(each.failure, OSError)]
    return [*running, *(t for t, error in store.failed.items() if may_pass(error))]


def _is_held(store: TimelineStore, tablet_id: TabletId) -> bool:
    return tablet_id in store.timelines or tablet_id in store.failed


async def _reopen(store: TimelineStore, tablet_id: TabletId) -> bool:
    async with store.residence(tablet_id), store.lock(tablet_id):
        timeline = store.timelines.get(tablet_id)
        if timeline is None or not isinstance(timeline.failure, OSError):
            return False
        await timeline.close("being opened anew")
        store.pulls.forget(tablet_id)  # its folder goes with those that do not count
        loaded = LoadedTimelines()
        try:
            found = await store.files.read_control(tablet_id)
            if found is None:
                raise CorruptData(f"timeline {tablet_id}", 0, "its control file is gone")
            await store.files.replace_control(reopened(timeline.control, found, timeline.flush_lsn))
            folders = (await store.files.wal_folders()).get(tablet_id, [])
            await load_timeline(store.files, tablet_id, folders, store.make_log, loaded)
        except CorruptData as error:
            timeline.give_up(error)
            raise
        store.take_in(loaded.controls[tablet_id], loaded.logs.get(tablet_id))
        return True


class Reopening:
    """Does so for all timelines of a safekeeper, now and again."""

    def __init__(self, runtime: Runtime, timelines: SafekeeperTimelines) -> None:
        self._runtime = runtime
        self._timelines = timelines
        self._tries: dict[TabletId, _Tries] = {}

    async def run(self) -> None:
        """Look after what has failed, for ever."""
        clock, failed = self._runtime.clock, self._timelines.failed
        while True:
            await failed.wait()
            failed.clear()
            while (next_s := await self._look()) is not None:
                await clock.sleep(max(FIRST_PAUSE_S / 10, next_s - clock.monotonic()))

    async def _look(self) -> float | None:
        """Try those whose time has come; when the next one's comes, if there is one."""
        store = self._timelines.store(TabletId(""))
        now = self._runtime.clock.monotonic()
        waiting: list[float] = []
        for tablet_id in _failed(store):
            tries = self._tries.get(tablet_id)
            if tries is None or now - tries.next_s > CALM_S:
                backoff = Backoff(self._runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S)
                tries = self._tries[tablet_id] = _Tries(0, now + backoff.next_s(), backoff)
            if tries.count < TRIES_MAX and tries.next_s <= now:
                tries.count += 1
                tries.next_s = now + tries.backoff.next_s()
                await self._try(store, tablet_id)
            if tries.count < TRIES_MAX and _is_held(store, tablet_id):
                waiting.append(tries.next_s)
        for gone in [each for each in self._tries if not _is_held(store, each)]:
            del self._tries[gone]
        return min(waiting, default=None)

    async def _try(self, store: TimelineStore, tablet_id: TabletId) -> None:
        metrics = self._runtime.metrics
        try:
            if await reopen(store, tablet_id):
                metrics.count("timelines_reopened")
                logger.warning("timeline %s on %s is opened anew", tablet_id, store.name)
                active = self._timelines.find(tablet_id)
                if active is not None:  # else what could not be read was a tombstone
                    active.begin()
        except (StelaeError, OSError) as error:
            metrics.count("timeline_reopenings_failed", error=type(error).__name__)
            logger.warning("timeline %s on %s stays closed: %s", tablet_id, store.name, error)
