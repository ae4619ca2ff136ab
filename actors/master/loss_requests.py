"""What a master answers operators about data that is missing: the report, and their acceptance.

Each answer is made from a look at all live backups that began when the call was here, fenced in the
tablets' present terms. Source: design §13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from stelae.actors.master.operator_requests import carry_out
from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.losses import (
    Incomplete,
    accepted_by,
    draft_accept,
    fingerprint,
    losses_of,
)
from stelae.coordinator.placement.known_backups import silent_backups
from stelae.coordinator.status.losses import (
    lacks_of,
    media_count,
    waiting_tablets,
    would_lose_more,
)
from stelae.core.errors import RetryLater, StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.backups import FENCE_LOGS, FenceLogs, LogInventory
from stelae.core.records.losses import (
    ACCEPT_LOSS,
    GET_LOSSES,
    AcceptedLosses,
    AcceptLoss,
    GetLosses,
    LossReport,
    SilentBackup,
)
from stelae.core.records.records import ServerInfo, ServerKind, TabletRecord, TabletState
from stelae.core.rpc import Call, Handlers, Reply
from stelae.recovery.inherited import logs_of
from stelae.recovery.losses import assess, assess_part, assess_sealed


@dataclass(frozen=True, slots=True)
class Look:
    """What came of asking all live backups."""

    incomplete: Mapping[TabletId, Incomplete]
    """Tablets whose logs are not complete."""
    answered: tuple[ServerUuid, ...] = ()
    did_not_answer: tuple[str, ...] = ()
    """Names of live ones."""
    is_asked: bool = False
    """Otherwise there was nothing to ask for."""


NOTHING_SEEN = Look({})


class LossRequests:
    """The handlers of one master."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {GET_LOSSES: self._on_get_losses, ACCEPT_LOSS: self._on_accept_loss}

    async def _on_get_losses(self, call: Call[GetLosses]) -> Reply[LossReport]:
        await self._master.barrier(call.timeout_s)
        look = await self._look()
        catalog = self._master.catalog
        waiting = losses_of(catalog, look.incomplete)
        known = self._silent(look)
        silent = [each for each in known if look.is_asked or not each.is_live]
        names = {*look.did_not_answer, *(each.name for each in silent)}
        return Reply(
            LossReport(
                tuple(waiting),
                fingerprint(waiting),
                tuple(sorted(names)),
                tuple(catalog.backups.losses),
                tuple(silent),
            )
        )

    async def _on_accept_loss(self, call: Call[AcceptLoss]) -> Reply[AcceptedLosses]:
        order, master = call.body, self._master
        await master.barrier(call.timeout_s)
        look = NOTHING_SEEN
        if master.catalog.result_of(order.request) is None:
            look = await self._look()
            if silent := look.did_not_answer:
                raise RetryLater(f"{', '.join(silent)}: live, and did not answer; look again")
            incomplete = look.incomplete
            named = [each.tablet for t, each in incomplete.items() if t in (order.tablets or (t,))]
            if more := would_lose_more(master.liveness, named):
                raise RetryLater(f"{more}: replicas are being made; wait for that, then look again")
        await carry_out(
            master,
            order.request,
            lambda: self._draft(order, look),
            call.timeout_s,
            [*look.incomplete],
        )
        return Reply(AcceptedLosses(accepted_by(master.catalog, order.request)))

    def _draft(self, order: AcceptLoss, look: Look) -> CatalogBatch | None:
        catalog, now_wall = self._master.catalog, self._master.runtime.clock.now()
        return draft_accept(catalog, order, look.incomplete, now_wall, self._silent(look))

    def _silent(self, look: Look) -> list[SilentBackup]:
        """Backups that are known now, and did not say at this look what they hold."""
        master = self._master
        now = master.runtime.clock.monotonic()
        return silent_backups(master.catalog, master.liveness, look.answered, now)

    async def _look(self) -> Look:
        """By what all live backups hold."""
        master = self._master
        tablets = waiting_tablets(master.catalog, master.liveness)
        if not tablets:
            return NOTHING_SEEN
        now = master.runtime.clock.monotonic()
        backups = [seen.server for seen in master.liveness.live(ServerKind.BACKUP, now)]
        request = FenceLogs(tuple(logs_of(tablets).items()))
        asked = await asyncio.gather(*(self._ask(backup, request) for backup in backups))
        silent = tuple(b.name for b, logs in zip(backups, asked, strict=True) if logs is None)
        answers = {b: logs for b, logs in zip(backups, asked, strict=True) if logs is not None}
        found: dict[TabletId, Incomplete] = {}
        for tablet in tablets:
            missing = self._assess(tablet, answers)
            if missing is not None:
                found[tablet.tablet_id] = missing
        return Look(found, tuple(backup.uuid for backup in answers), silent, is_asked=True)

    def _assess(
        self, tablet: TabletRecord, answers: dict[ServerInfo, dict[TabletId, LogInventory]]
    ) -> Incomplete | None:
        log = tablet.inherits.log if tablet.inherits is not None else tablet.tablet_id
        held = {b: logs[tablet.tablet_id] for b, logs in answers.items()}
        inherited = {b: logs[log] for b, logs in answers.items()}
        count = media_count(self._master.catalog, tablet)
        if tablet.timeline is not None or tablet.state is TabletState.RUNNING:
            found = assess_sealed(lacks_of(self._master.liveness, tablet), held, inherited)
        elif tablet.inherits is not None:
            found = assess_part(tablet, count, held, inherited)
        else:
            found = assess(tablet, count, held)
        return None if found is None else Incomplete(tablet, found)

    async def _ask(
        self, backup: ServerInfo, request: FenceLogs
    ) -> dict[TabletId, LogInventory] | None:
        """What a backup holds; None: it does not say."""
        try:
            reply = await self._master.runtime.peers.call(
                backup.address,
                FENCE_LOGS,
                request,
                timeout_s=self._master.settings.call_timeout_s,
                destination=backup.uuid,
            )
        except StelaeError:
            return None
        return {log.tablet_id: log for log in reply.body.logs}
