"""What a master answers servers: heartbeats, epochs raised, tablets opened.

Followers note who is alive, no more. A leader grants leases and gives orders only after a read
barrier that began when the call was here. Source: seed Kudu multi-master; design §7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.coordinator.ddl import draft_raise_epoch
from stelae.coordinator.decide import may_have_lease, to_drop, to_serve
from stelae.coordinator.liveness import Run
from stelae.core.errors import StelaeError
from stelae.core.messages import (
    HEARTBEAT,
    RAISE_EPOCH,
    TABLET_OPENED,
    Heartbeat,
    HeartbeatReply,
    RaiseEpoch,
    TabletOpened,
)
from stelae.core.records import ServerKind
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply

if TYPE_CHECKING:
    from stelae.actors.master import Master


class ServerRequests:
    """The handlers of one master's tservers and backups."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            HEARTBEAT: self._on_heartbeat,
            RAISE_EPOCH: self._on_raise_epoch,
            TABLET_OPENED: self._on_tablet_opened,
        }

    async def _on_heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        beat = call.body
        if self._note(beat) and self._master.coordinator is not None:
            self._master.coordinator.watch(beat.server)
            self._master.coordinator.wake()
        if self._master.coordinator is not None:
            try:
                await self._master.barrier(call.timeout_s)
                return Reply(self._answer(beat))
            except StelaeError:
                self._master.runtime.metrics.count("heartbeats_without_barrier")
        return Reply(HeartbeatReply(is_leader=False, term=self._master.term, sent=beat.sent))

    def _note(self, beat: Heartbeat) -> bool:
        """Note a heartbeat; true if it says something new."""
        run = Run(beat.server.uuid, beat.server.incarnation)
        before = self._master.liveness.find(run)
        told = {} if before is None else before.reports
        news = before is None or any(
            report.tablet_id not in told
            or (told[report.tablet_id].term, told[report.tablet_id].progress)
            != (report.term, report.progress)
            for report in beat.tablets
        )
        self._master.liveness.heartbeat(beat, self._master.runtime.clock.monotonic())
        return news

    def _answer(self, beat: Heartbeat) -> HeartbeatReply:
        """The leader's answer, made from one moment's catalog, in one turn."""
        server = beat.server
        run = Run(server.uuid, server.incarnation)
        term, now = self._master.term, self._master.runtime.clock.monotonic()
        if self._master.liveness.is_given_up(run):
            return HeartbeatReply(is_leader=True, term=term, sent=beat.sent, fenced=True)
        is_tserver = server.kind is ServerKind.TSERVER
        lease_s = 0.0
        if is_tserver and may_have_lease(self._master.catalog, beat):
            lease_s = self._master.liveness.grant(run, now)
        tservers = self._master.liveness.live(ServerKind.TSERVER, now)
        backups = self._master.liveness.live(ServerKind.BACKUP, now)
        held = [report.tablet_id for report in beat.tablets] if is_tserver else beat.logs
        return HeartbeatReply(
            is_leader=True,
            term=term,
            sent=beat.sent,
            lease_s=lease_s,
            servers=tuple(seen.server for seen in (*tservers, *backups)),
            serve=to_serve(self._master.catalog, server) if is_tserver else (),
            drop=to_drop(self._master.catalog, held),
        )

    async def _on_raise_epoch(self, call: Call[RaiseEpoch]) -> Reply[Empty]:
        order = call.body
        coordinator = await self._master.barrier(call.timeout_s)
        await coordinator.operations.change(
            lambda: draft_raise_epoch(self._master.catalog, order), tablets=[order.tablet_id]
        )
        return EMPTY

    async def _on_tablet_opened(self, call: Call[TabletOpened]) -> Reply[Empty]:
        coordinator = self._master.lead()
        body = call.body
        now = self._master.runtime.clock.monotonic()
        self._master.liveness.report(Run(body.server, body.incarnation), body.report, now)
        coordinator.wake()
        return EMPTY
