"""What a tserver tells the masters between heartbeats, so that they need not wait for the next."""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.client.routing.masters import MastersClient
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.messages.indexes import INDEXLET_REPORTED, IndexletReport, IndexletReported
from stelae.core.messages.servers import TABLET_OPENED, TabletOpened
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks


class ServerNews:
    """Hints: the heartbeat says it all again. ``info`` is asked for once the server has started.

    Tablets and indexlets close after the server's ``tasks``; what is new with them then, nobody
    needs to hear.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        masters: MastersClient,
        info: Callable[[], ServerInfo],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._masters = masters
        self._info = info

    def tell_soon(self, tablet: Tablet | ReplicatedTablet) -> None:
        """The same as `tell`, and nobody waits for it."""
        if not self._tasks.is_closed:
            self._tasks.spawn(self.tell(tablet), f"tell of {tablet.tablet_id[:8]}")

    async def tell(self, tablet: Tablet | ReplicatedTablet) -> None:
        """Something about a tablet is new."""
        info = self._info()
        opened = TabletOpened(info.uuid, info.incarnation, tablet.report())
        try:
            await self._masters.call(TABLET_OPENED, opened, timeout_s=self._settings.call_timeout_s)
        except StelaeError:
            self._runtime.metrics.count("opened_reports_failed")

    def tell_of_indexlet(self, report: IndexletReport) -> None:
        """An indexlet is complete, or its hand-over has come to its end."""
        if not self._tasks.is_closed:
            self._tasks.spawn(self._tell_of(report), f"tell of indexlet {report.indexlet_id[:8]}")

    async def _tell_of(self, report: IndexletReport) -> None:
        info = self._info()
        news = IndexletReported(info.uuid, info.incarnation, report)
        try:
            await self._masters.call(
                INDEXLET_REPORTED, news, timeout_s=self._settings.call_timeout_s
            )
        except StelaeError:
            self._runtime.metrics.count("opened_reports_failed")
