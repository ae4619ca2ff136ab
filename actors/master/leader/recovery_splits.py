"""Splitting tablets at their recovery, where one server would take too long to bring them back.

It follows the plan of the tablet's recovery: its backups are fenced, and its log is at hand whole.
The entry that puts the parts in its place is the commit point; the coordinator's next look finds
them RECOVERING like any others. Source: `stelae.coordinator.placement.splitting`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.liveness.shunned_backups import shunned_backups
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.leaving_backups import retiring_uuids
from stelae.coordinator.placement.splitting import draft_split, parts_wanted
from stelae.coordinator.status.recoveries import Recoveries
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.messages.backups import LogInventory
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Segments, media_of
from stelae.recovery.engine import RecoveryJob
from stelae.recovery.inherited import end_of

logger = logging.getLogger(__name__)

SPLITS_AT_ONCE = 8
"""Catalog entries of one round that are under way together."""


class RecoverySplits:
    """Those of one leadership."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        catalog: Catalog,
        liveness: Liveness,
        recoveries: Recoveries,
        operations: Operations,
        pacing: Pacing,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._catalog = catalog
        self._liveness = liveness
        self._recoveries = recoveries
        self._operations = operations
        self._pacing = pacing
        self._coming = 0
        """Parts in catalog entries that are under way."""

    async def not_split(
        self, planned: Sequence[tuple[RecoveryJob, Mapping[ServerInfo, LogInventory]]]
    ) -> list[RecoveryJob]:
        """Split those that are too large, a few at a time; the others are to be opened as they
        are."""

        async def stays(job: RecoveryJob, inventories: Mapping[ServerInfo, LogInventory]) -> bool:
            async with turns:
                return not await self.split(job, inventories, loads)

        now = self._runtime.clock.monotonic()
        # One for all: what a split gives to a server, the next ones know at once.
        live = self._liveness.live(ServerKind.TSERVER, now)
        loads = tserver_loads(self._catalog, live, self._pacing.sizes)
        turns = asyncio.Semaphore(SPLITS_AT_ONCE)
        stay = await asyncio.gather(*(stays(*each) for each in planned))
        return [job for (job, _), is_left in zip(planned, stay, strict=True) if is_left]

    async def split(
        self,
        job: RecoveryJob,
        inventories: Mapping[ServerInfo, LogInventory],
        loads: Sequence[Load],
    ) -> bool:
        """Split the tablet, if it is too large; false: it is to be opened as it is.

        ``inventories`` are those that the job's sources were planned from; ``loads`` of the servers
        that can take parts, which are counted in.
        """
        tablet, durability = job.tablet, job.table.durability
        if not isinstance(durability, Segments):
            return False
        parts = parts_wanted(
            self._catalog,
            tablet,
            self._settings,
            size_bytes=job.size_bytes,
            row_count=job.row_count,
            loads=loads,
        )
        live = self._catalog.live_count + self._coming + parts
        if parts == 1 or live > self._settings.tablets_max:
            return False
        if not self._have_room(durability, job.size_bytes):
            return False
        inherits = end_of(tablet, len(media_of(durability)), inventories)
        if inherits is None:
            return False
        self._coming += parts
        try:
            await self._operations.change(
                lambda: draft_split(
                    self._catalog,
                    tablet,
                    parts,
                    inherits,
                    loads,
                    self._runtime.rng,
                    self._pacing.owners.avoid(tablet.tablet_id),
                    self._pacing.sizes.of(tablet.tablet_id),
                ),
                tables=[tablet.table_id],
                tablets=[tablet.tablet_id],
            )
        except StelaeError as error:
            logger.info("tablet %s is not split: %s", tablet.tablet_id, error)
            self._runtime.metrics.count("tablet_splits_failed", error=type(error).__name__)
        finally:
            self._coming -= parts
        children = self._catalog.heirs.of(tablet.tablet_id)
        if children:
            self._runtime.metrics.count("tablets_split")
            self._recoveries.split(tablet.tablet_id, children)
            now = self._runtime.clock.monotonic()
            self._pacing.owners.inherit(tablet.tablet_id, children, now)
            self._pacing.sizes.inherit(tablet.tablet_id, children, now)
        # Whatever came of it, the next look begins with what the catalog says then.
        return True

    def _have_room(self, durability: Segments, log_bytes: int) -> bool:
        """Parts write their rows anew, and what they inherit is freed only after the last of them
        has: without room for both, none would ever be whole."""
        loads, segment_bytes = self._liveness.backup_loads, self._settings.segment_bytes
        now = self._runtime.clock.monotonic()
        leave_out = {*retiring_uuids(self._catalog), *shunned_backups(self._liveness, now)}
        return loads.have_room(media_of(durability), log_bytes, segment_bytes, leave_out)
