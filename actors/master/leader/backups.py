"""Keeps what the catalog says of backups up to date, for as long as a master leads: their groups,
whether those that are to be retired are needed yet, and which nobody needs any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.liveness.shunned_backups import GoneBackups, shunned_backups
from stelae.coordinator.placement.copysets import draft_copysets
from stelae.coordinator.placement.known_backups import draft_forget
from stelae.coordinator.placement.leaving_backups import draft_needed
from stelae.coordinator.placement.returning_backups import ReturningBackups
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.runtime import Runtime

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class BackupKeeper:
    """One leadership's, which `run` serves for as long as it lasts."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        catalog: Catalog,
        liveness: Liveness,
        operations: Operations,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._catalog = catalog
        self._liveness = liveness
        self._operations = operations
        self._gone = GoneBackups()
        self._returning = ReturningBackups()

    async def run(self) -> None:
        """For ever."""
        # First those that were there before are to be heard again: else they count as away.
        await self._runtime.clock.sleep(self._settings.dead_after_s)
        while True:
            try:
                for draft in (self._draft_copysets, self._draft_needed, self._draft_forget):
                    if draft() is not None:
                        await self._operations.change(draft)
            except StelaeError as error:
                logger.info("backups: %s", error)
            await self._runtime.clock.sleep(LOOK_S)

    def _draft_copysets(self) -> CatalogBatch | None:
        now, gone_after_s = self._runtime.clock.monotonic(), self._settings.replica_dead_after_s
        shunned = shunned_backups(self._liveness, now)
        gone = self._gone.look(shunned, now, gone_after_s)
        return draft_copysets(
            self._catalog,
            self._liveness,
            now,
            size=self._settings.copyset_size,
            gone_after_s=gone_after_s,
            shunned=gone,
            left_out=self._left_out(shunned, gone, now),
        )

    def _left_out(
        self, shunned: Sequence[ServerUuid], gone: Sequence[ServerUuid], now: float
    ) -> tuple[ServerUuid, ...]:
        """Backups that were lost, and have not been back for long enough to join a copyset."""
        liveness, after_s = self._liveness, self._settings.replica_dead_after_s
        backups = self._catalog.backups
        self._returning.forget(backups.known)
        members = [member for group in backups.copysets.groups for member in group]
        watched = dict.fromkeys([*members, *self._returning.known])
        lost = [*gone, *(u for u in watched if liveness.missed_s(u, now) >= after_s)]
        live = [seen.server.uuid for seen in liveness.live(ServerKind.BACKUP, now)]
        present = [uuid for uuid in live if uuid not in shunned]
        return self._returning.look(lost, present, now, after_s)

    def _draft_needed(self) -> CatalogBatch | None:
        return draft_needed(self._catalog, self._liveness, self._runtime.clock.monotonic())

    def _draft_forget(self) -> CatalogBatch | None:
        return draft_forget(
            self._catalog,
            self._liveness,
            self._runtime.clock.monotonic(),
            gone_after_s=self._settings.replica_dead_after_s,
        )
