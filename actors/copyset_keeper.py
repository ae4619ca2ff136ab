"""Keeps the groups of backups up to date, for as long as a master leads."""

from __future__ import annotations

import asyncio
import logging

from stelae.coordinator.catalog import Catalog
from stelae.coordinator.copysets import draft_copysets
from stelae.coordinator.liveness import Liveness
from stelae.coordinator.operations import Operations
from stelae.core.errors import StelaeError
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class CopysetKeeper:
    """One leadership's. `start` when ready to lead, `stop` when leading no more."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        catalog: Catalog,
        liveness: Liveness,
        operations: Operations,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._catalog = catalog
        self._liveness = liveness
        self._operations = operations
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; with neither a size nor groups there is nothing to do."""
        if self._settings.copyset_size or self._catalog.backups.copysets.groups:
            self._task = self._tasks.spawn(self._run(), "copysets")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        # First those that were there before are to be heard again: else they count as away.
        await self._runtime.clock.sleep(self._settings.dead_after_s)
        while True:
            try:
                await self._operations.change(
                    lambda: draft_copysets(
                        self._catalog,
                        self._liveness,
                        self._runtime.clock.monotonic(),
                        size=self._settings.copyset_size,
                        gone_after_s=self._settings.replica_dead_after_s,
                    )
                )
            except StelaeError as error:
                logger.info("copysets: %s", error)
            await self._runtime.clock.sleep(LOOK_S)
