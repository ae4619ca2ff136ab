"""How a tablet's owner raises the epoch of its open head: by an entry in the masters' catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stelae.client.routing.masters import MastersClient
from stelae.core.config.settings import Settings
from stelae.core.errors import StaleTerm, StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import RAISE_EPOCH, RaiseEpoch
from stelae.core.runtime import Runtime


def raising_epochs(
    runtime: Runtime,
    settings: Settings,
    masters: MastersClient,
    owner: ServerUuid,
    tablet_id: TabletId,
    term: int,
) -> Callable[[int, int], Awaitable[None]]:
    """Of one tablet in one term: ``(segment, epoch)`` is registered, however long it takes. Raises
    `StaleTerm`: the tablet has another owner."""

    async def raise_epoch(segment: int, epoch: int) -> None:
        request = RaiseEpoch(tablet_id, term, owner, segment, epoch)
        while True:
            try:
                await masters.call(RAISE_EPOCH, request, timeout_s=settings.call_timeout_s)
                return
            except StaleTerm:
                raise
            except StelaeError:
                runtime.metrics.count("epoch_raises_failed")
                await runtime.clock.sleep(settings.heartbeat_s)

    return raise_epoch
