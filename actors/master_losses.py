"""What a master answers operators about data that is missing: the report, and their acceptance.

Each answer is made from a look at all live backups that began when the call was here, fenced in the
tablets' present terms. Source: design §13.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stelae.actors.master_operators import carry_out
from stelae.coordinator.liveness import Run, run_of
from stelae.coordinator.losses import (
    Incomplete,
    accepted_by,
    draft_accept,
    fingerprint,
    losses_of,
    media_count,
    waiting_tablets,
)
from stelae.core.errors import RetryLater, StelaeError
from stelae.core.ids import TabletId
from stelae.core.losses import (
    ACCEPT_LOSS,
    GET_LOSSES,
    AcceptedLosses,
    AcceptLoss,
    GetLosses,
    LossReport,
    SegmentFacts,
)
from stelae.core.messages import FENCE_LOGS, FenceLogs, LogInventory
from stelae.core.records import ServerInfo, ServerKind, TabletRecord
from stelae.core.rpc import Call, Handlers, Reply
from stelae.recovery.losses import assess, assess_sealed

if TYPE_CHECKING:
    from stelae.actors.master import Master


class LossRequests:
    """The handlers of one master."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {GET_LOSSES: self._on_get_losses, ACCEPT_LOSS: self._on_accept_loss}

    async def _on_get_losses(self, call: Call[GetLosses]) -> Reply[LossReport]:
        await self._master.barrier(call.timeout_s)
        incomplete, silent = await self._look()
        catalog = self._master.catalog
        waiting = losses_of(catalog, incomplete)
        away = [server.name for server in self._dead_backups()]
        return Reply(
            LossReport(
                tuple(waiting),
                fingerprint(waiting),
                tuple(sorted([*away, *silent])),
                tuple(catalog.backups.losses),
            )
        )

    async def _on_accept_loss(self, call: Call[AcceptLoss]) -> Reply[AcceptedLosses]:
        order, master = call.body, self._master
        await master.barrier(call.timeout_s)
        incomplete: dict[TabletId, Incomplete] = {}
        if master.catalog.result_of(order.request) is None:
            incomplete, silent = await self._look()
            if silent:
                raise RetryLater(f"{', '.join(silent)}: live, and did not answer; look again")
        await carry_out(
            master,
            order.request,
            lambda: draft_accept(master.catalog, order, incomplete, master.runtime.clock.now()),
            call.timeout_s,
            [*incomplete],
        )
        return Reply(AcceptedLosses(accepted_by(master.catalog, order.request)))

    def _dead_backups(self) -> list[ServerInfo]:
        now, liveness = self._master.runtime.clock.monotonic(), self._master.liveness
        return [
            seen.server
            for seen in liveness.newest_runs()
            if seen.server.kind is ServerKind.BACKUP and not liveness.is_live(run_of(seen), now)
        ]

    async def _look(self) -> tuple[dict[TabletId, Incomplete], list[str]]:
        """Tablets whose logs are not complete, by what all live backups hold; and names of those
        that did not answer."""
        master = self._master
        tablets = waiting_tablets(master.catalog)
        if not tablets:
            return {}, []
        now = master.runtime.clock.monotonic()
        backups = [seen.server for seen in master.liveness.live(ServerKind.BACKUP, now)]
        request = FenceLogs(tuple((tablet.tablet_id, tablet.term) for tablet in tablets))
        asked = await asyncio.gather(*(self._ask(backup, request) for backup in backups))
        silent = [b.name for b, logs in zip(backups, asked, strict=True) if logs is None]
        answers = {b: logs for b, logs in zip(backups, asked, strict=True) if logs is not None}
        found: dict[TabletId, Incomplete] = {}
        for tablet in tablets:
            held = {b: logs[tablet.tablet_id] for b, logs in answers.items()}
            missing = self._assess(tablet, held)
            if missing is not None:
                found[tablet.tablet_id] = missing
        return found, silent

    def _assess(
        self, tablet: TabletRecord, held: dict[ServerInfo, LogInventory]
    ) -> Incomplete | None:
        if tablet.timeline is not None:
            found = assess_sealed(self._lacks(tablet), held)
        else:
            found = assess(tablet, media_count(self._master.catalog, tablet), held)
        return None if found is None else Incomplete(tablet, found)

    def _lacks(self, tablet: TabletRecord) -> tuple[SegmentFacts, ...]:
        """What its owner, which reads its timeline, has not found."""
        seen = self._master.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
        report = None if seen is None else seen.reports.get(tablet.tablet_id)
        return () if report is None or report.term != tablet.term else report.lacks

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
