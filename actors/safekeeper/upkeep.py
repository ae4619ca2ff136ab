"""What a safekeeper does by the way: checkpoints, trims, evictions, and blobs that are left over.

Level-triggered: each sweep looks at what is there, and what fails is tried again by the next one.
A timeline is idle when its log was not used since `evict_after_s`; it is evicted if enough backups
live, and comes back when it is used, or when its copies have become too few twice in a row (it is
then evicted anew). Blobs on backups that no control file names are deleted. Invariants: one
timeline at a time; an error of one does not keep the others. Neon RFC 035, "Integration with
evicted timelines"; design §10.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stelae.actors.safekeeper.offload import BackupOffload
from stelae.actors.safekeeper.pulls import PullReceiver
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.safekeeper.timelines import SafekeeperTimelines
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Use:
    """How often the log of a timeline was used when it was looked at, and since when no more."""

    count: int
    since_s: float


class Upkeep:
    """The sweeps of one safekeeper."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        timelines: SafekeeperTimelines,
        pulls: PullReceiver,
        blobs: BackupOffload,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._timelines = timelines
        self._pulls = pulls
        self._blobs = blobs
        self._uses: dict[TabletId, _Use] = {}
        self._short: set[TabletId] = set()
        """Those that had too few copies at the last look."""

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await self._runtime.clock.sleep(self._settings.safekeeper_sweep_s)
            if self._timelines.safekeeper_id is not None:
                await self.sweep()

    async def sweep(self) -> None:
        """Do now what can be done."""
        store = self._timelines.store(TabletId(""))
        for tablet_id in list(store.timelines):
            active = self._timelines.working(tablet_id)
            if active is None:
                continue
            timeline = store.timelines[tablet_id]
            unused_s = self._unused_s(timeline)
            if unused_s > 0.0:  # while it is used, more comes soon: that would be much to sync
                active.checkpoint()
            active.trim(timeline)
            with self._noted("an eviction", tablet_id):
                await self._evict_if_idle(store, timeline, unused_s)
        for tablet_id in [each for each in self._uses if each not in store.timelines]:
            del self._uses[tablet_id]
        for tablet_id in store.with_stale_blobs:
            with self._noted("a deletion of blobs", tablet_id):
                await store.delete_stale_blobs(tablet_id)
        with self._noted("a removal of half a copy", TabletId("")):
            await self._pulls.abandon_old()
        with self._noted("a look at blobs", TabletId("")):
            await self._look_at_blobs(store)
        self._measure(store)

    def _measure(self, store: TimelineStore) -> None:
        timelines, metrics = store.timelines.values(), self._runtime.metrics
        failed = sum(1 for timeline in timelines if timeline.failure is not None)
        metrics.gauge("safekeeper_timelines", len(timelines) + len(store.failed))
        metrics.gauge("safekeeper_timelines_failed", failed + len(store.failed))
        metrics.gauge(
            "safekeeper_timelines_evicted", sum(timeline.is_evicted for timeline in timelines)
        )
        metrics.gauge("safekeeper_log_bytes", sum(timeline.log_bytes for timeline in timelines))

    @contextmanager
    def _noted(self, what: str, tablet_id: TabletId) -> Iterator[None]:
        """The next sweep tries again."""
        try:
            yield
        except (StelaeError, OSError) as error:
            self._runtime.metrics.count("upkeep_failed", what=what)
            logger.info("%s of timeline %s has to wait: %s", what, tablet_id, error)

    # ---- eviction ---------------------------------------------------------------------------

    def _unused_s(self, timeline: Timeline) -> float:
        """For how long nobody has used its log, as far as sweeps have seen."""
        now = self._runtime.clock.monotonic()
        use = self._uses.get(timeline.tablet_id)
        if use is None or use.count != timeline.uses:
            use = self._uses[timeline.tablet_id] = _Use(timeline.uses, now)
        return now - use.since_s

    async def _evict_if_idle(
        self, store: TimelineStore, timeline: Timeline, unused_s: float
    ) -> None:
        is_due = 0.0 < self._settings.evict_after_s <= unused_s
        if not is_due or timeline.is_evicted or not timeline.log_bytes:
            return
        if self._blobs.backup_count < self._settings.evict_copies:
            return
        if await store.evict(timeline.tablet_id):
            self._runtime.metrics.count("timelines_evicted")

    # ---- blobs ------------------------------------------------------------------------------

    async def _look_at_blobs(self, store: TimelineStore) -> None:
        """See to it that each blob that counts is there often enough, and no other at all."""
        known = store.blobs
        if not (known or self._settings.evict_after_s or self._blobs.may_have_left):
            return
        found = await self._blobs.census(store.safekeeper)
        unknown = await self._delete_unknown(store, found)
        self._blobs.may_have_left = unknown or not self._blobs.backup_count
        short = set(self._short_of(store, found))
        if self._blobs.backup_count >= self._settings.evict_copies:
            for tablet_id in sorted(short & self._short):
                with self._noted("a return", tablet_id):
                    await store.timeline(tablet_id).resident()
                    self._runtime.metrics.count("timelines_returned_for_copies")
        self._short = short

    async def _delete_unknown(
        self, store: TimelineStore, found: Mapping[str, Sequence[ServerInfo]]
    ) -> bool:
        """A name is used once: one that no control file has (any more) never counts again. Whether
        there were any."""
        known, were_any = store.blobs, False  # after the census: what was put before is known now
        for name, backups in found.items():
            if name not in known and not self._may_be_of_failed(store, name):
                were_any = True
                for backup in backups:
                    await self._blobs.delete_at(backup, [name])
        return were_any

    def _may_be_of_failed(self, store: TimelineStore, name: str) -> bool:
        """Nobody knows what a control file said that cannot be read."""
        return any(f"/{tablet_id}/" in name for tablet_id in store.failed)

    def _short_of(
        self, store: TimelineStore, found: Mapping[str, Sequence[ServerInfo]]
    ) -> Iterator[TabletId]:
        for tablet_id, timeline in store.timelines.items():
            away = timeline.control.evicted
            blobs = [each.blob for each in away.files] if away is not None else []
            copies = [sum(map(self._blobs.may_keep, found.get(blob, ()))) for blob in blobs]
            if any(count < self._settings.evict_copies for count in copies):
                yield tablet_id
