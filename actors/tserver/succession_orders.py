"""A tserver's calls about tablets that make way for others: the masters' orders, and imports."""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.tablet.transfer import TabletTransfer, report_of
from stelae.core.config.settings import Settings
from stelae.core.errors import NoSpace, OutOfMemory, TabletNotHere
from stelae.core.ids import TabletId
from stelae.core.records.succession import (
    IMPORT_CHANGES,
    TRANSFER_TABLET,
    ImportChanges,
    ImportReply,
    SuccessionReport,
    SuccessionStage,
    TransferTablet,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime

Served = Tablet | ReplicatedTablet


class Successions:
    """See the module."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        serving: Callable[[TabletId], Served],
        no_room: Callable[[Served, int], OutOfMemory | NoSpace | None],
        on_closed: Callable[[Served], None],
    ) -> None:
        """``no_room``: for so many bytes of a source; ``on_closed``: one has made way, or found
        that it cannot."""
        self._runtime = runtime
        self._settings = settings
        self._serving = serving
        self._no_room = no_room
        self._on_closed = on_closed

    def handlers(self) -> Handlers:
        return {TRANSFER_TABLET: self._on_transfer, IMPORT_CHANGES: self._on_import}

    async def _on_transfer(self, call: Call[TransferTablet]) -> Reply[SuccessionReport]:
        order = call.body
        tablet = self._serving(order.tablet_id)
        if isinstance(tablet, Tablet) and tablet.term != order.term:
            raise TabletNotHere(order.tablet_id, f"this server in term {order.term}")
        if order.release:
            await self._release(tablet, order.release, call.timeout_s)
        if order.successor and tablet.giving_term:
            self._transfer(tablet, order)
        said = report_of(tablet.succession, tablet.transfer)
        return Reply(said or SuccessionReport(order.successor, SuccessionStage.OPEN))

    async def _release(self, tablet: Served, successor: TabletId, timeout_s: float) -> None:
        """That one was given up for good."""
        if tablet.transfer is not None and tablet.transfer.successor == successor:
            tablet.transfer = None  # its run sees that, and ends
        tablet.began.pop(successor, None)
        if tablet.succession.successor == successor:
            await tablet.give_way(successor, SuccessionStage.OPEN, timeout_s, by_masters=True)

    def _transfer(self, tablet: Served, order: TransferTablet) -> None:
        transfer = tablet.transfer
        if transfer is None or transfer.successor != order.successor:
            if tablet.succession.stage is SuccessionStage.CLOSED:
                return
            transfer = tablet.transfer = TabletTransfer(
                self._runtime,
                self._settings,
                tablet,
                order.successor,
                lambda: self._on_closed(tablet),
            )
            transfer.aim(order.address, order.server)
            tablet.tasks.spawn(transfer.run(), f"transfer of {order.tablet_id[:8]}")
        transfer.aim(order.address, order.server)

    async def _on_import(self, call: Call[ImportChanges]) -> Reply[ImportReply]:
        tablet = self._serving(call.body.tablet_id)
        size_bytes = sum([blob.nbytes for blob in call.blobs])
        refusal = self._no_room(tablet, size_bytes) if size_bytes else None
        if refusal is not None:
            raise refusal
        return Reply(ImportReply(await tablet.import_changes(call)))
