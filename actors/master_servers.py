"""What a master answers servers: heartbeats, epochs raised, tablets opened.

Followers note who is alive, no more. A leader grants leases and gives orders only after a read
barrier that began when the call was here. Source: seed Kudu multi-master; design §7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.coordinator.ddl import draft_raise_epoch
from stelae.coordinator.liveness import Run
from stelae.coordinator.standing import standing_of
from stelae.coordinator.timeline_placement import draft_register
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.index_messages import INDEXLET_REPORTED, IndexletReported
from stelae.core.indexes import IndexletId
from stelae.core.messages import (
    HEARTBEAT,
    RAISE_EPOCH,
    TABLET_OPENED,
    Heartbeat,
    HeartbeatReply,
    RaiseEpoch,
    TabletOpened,
)
from stelae.core.records import ServerInfo, ServerKind
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
            INDEXLET_REPORTED: self._on_indexlet_reported,
        }

    async def _on_heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        master, beat = self._master, call.body
        noted = master.liveness.heartbeat(beat, master.runtime.clock.monotonic())
        if noted.is_news and master.coordinator is not None:
            master.coordinator.watch(beat.server)
            master.coordinator.wake()
        if master.coordinator is not None:
            try:
                await master.barrier(call.timeout_s)
                if beat.server.kind is ServerKind.SAFEKEEPER:
                    await self._register(beat.server)
                return Reply(self._answer(beat, noted.processed))
            except StelaeError:
                master.runtime.metrics.count("heartbeats_without_barrier")
        return Reply(
            HeartbeatReply(
                is_leader=False, term=master.term, sent=beat.sent, masters=master.group.newest
            )
        )

    async def _register(self, server: ServerInfo) -> None:
        """See that the catalog has a safekeeper, before it is told its id. Raises StelaeError."""
        catalog = self._master.catalog
        if draft_register(catalog, server) is not None:
            operations = self._master.lead().operations
            await operations.change(lambda: draft_register(catalog, server))

    def _answer(self, beat: Heartbeat, processed: bool) -> HeartbeatReply:
        """The leader's answer, made from one moment's catalog, in one turn.

        No lease and no order to a server before it has told this leadership what it holds.
        """
        master, run = self._master, Run(beat.server.uuid, beat.server.incarnation)
        term, now = master.term, master.runtime.clock.monotonic()
        if master.liveness.is_given_up(run):
            return HeartbeatReply(is_leader=True, term=term, sent=beat.sent, fenced=True)
        seen = master.liveness.find(run)
        processed = processed and seen is not None and seen.picture.number >= beat.number
        lease_s = 0.0
        serve: tuple[tuple[TabletId, int], ...] = ()
        drop: tuple[TabletId, ...] = ()
        serve_indexlets: tuple[tuple[IndexletId, int], ...] = ()
        if processed and seen is not None:
            standing = standing_of(master.catalog, seen)
            serve, drop = standing.serve, standing.drop
            serve_indexlets = standing.serve_indexlets
            if beat.server.kind is ServerKind.TSERVER and standing.may_have_lease:
                lease_s = master.liveness.grant(run, now)
        roster = master.liveness.roster(now)
        is_same = roster.version == beat.servers_version
        backups = None
        if beat.server.kind is ServerKind.TSERVER:
            backups = master.liveness.backup_loads.view(master.catalog.backups.copysets.groups)
        if backups is not None and backups.version == beat.backups_version:
            backups = None
        return HeartbeatReply(
            is_leader=True,
            term=term,
            sent=beat.sent,
            lease_s=lease_s,
            servers=() if is_same else roster.servers,
            serve=serve,
            drop=drop,
            processed=processed,
            servers_version=roster.version,
            masters=master.group.members,
            safekeeper_id=master.catalog.timelines.id_of(beat.server.uuid),
            serve_indexlets=serve_indexlets,
            backups=backups,
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

    async def _on_indexlet_reported(self, call: Call[IndexletReported]) -> Reply[Empty]:
        coordinator = self._master.lead()
        body = call.body
        now = self._master.runtime.clock.monotonic()
        self._master.liveness.indexlet_report(Run(body.server, body.incarnation), body.report, now)
        coordinator.wake()
        return EMPTY
