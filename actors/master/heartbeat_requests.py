"""What a master answers servers: heartbeats, epochs raised, tablets opened.

Followers note who is alive, no more. A leader grants leases and gives orders only after a read
barrier that began when the call was here. Source: seed Kudu multi-master; design §7.
"""

from __future__ import annotations

from functools import partial

from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.replacement import draft_successor
from stelae.coordinator.ddl.tables import draft_raise_epoch
from stelae.coordinator.liveness.backup_loads import who_retires
from stelae.coordinator.liveness.liveness import Run
from stelae.coordinator.liveness.shunned_backups import shunned_backups
from stelae.coordinator.liveness.standing import standing_of
from stelae.coordinator.placement.known_backups import ToldServers
from stelae.coordinator.placement.known_backups import draft_register as draft_known
from stelae.coordinator.placement.leaving_backups import may_close, needed_uuids, retiring_uuids
from stelae.coordinator.timelines.placement import draft_register
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.backup_loads import BackupsView
from stelae.core.messages.indexes import INDEXLET_REPORTED, IndexletReported
from stelae.core.messages.servers import (
    HEARTBEAT,
    RAISE_EPOCH,
    TABLET_OPENED,
    Heartbeat,
    HeartbeatReply,
    RaiseEpoch,
    TabletOpened,
)
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.schema.indexes import IndexletId


class ServerRequests:
    """The handlers of one master's tservers and backups."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master
        self._told = ToldServers(master.catalog, master.liveness)

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
        """See that the catalog has a safekeeper, before it is told its id, and a backup, before
        others are told of it. Raises StelaeError."""
        for draft in (self._draft_register, self._draft_successor):
            if draft(server) is not None:
                operations = self._master.lead().operations
                await operations.change(partial(draft, server))

    def _draft_register(self, server: ServerInfo) -> CatalogBatch | None:
        master = self._master
        if master.catalog.mark(server.uuid).replaced:
            return None
        match server.kind:
            case ServerKind.SAFEKEEPER:
                return draft_register(master.catalog, server)
            case ServerKind.BACKUP:
                return draft_known(master.catalog, server, master.runtime.clock.now())
            case _:
                return None

    def _draft_successor(self, server: ServerInfo) -> CatalogBatch | None:
        return draft_successor(self._master.catalog, server)

    def _answer(self, beat: Heartbeat, processed: bool) -> HeartbeatReply:
        """The leader's answer, made from one moment's catalog, in one turn.

        No lease and no order to a server before it has told this leadership what it holds.
        """
        master, run = self._master, Run(beat.server.uuid, beat.server.incarnation)
        term, now = master.term, master.runtime.clock.monotonic()
        if master.liveness.is_given_up(run):
            replaced = master.catalog.mark(run.uuid).replaced
            return HeartbeatReply(
                is_leader=True, term=term, sent=beat.sent, fenced=True, replaced=replaced
            )
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
        servers, servers_version = self._told.look(now)
        is_same = servers_version == beat.servers_version
        mark = master.catalog.mark(beat.server.uuid)
        return HeartbeatReply(
            is_leader=True,
            term=term,
            sent=beat.sent,
            lease_s=lease_s,
            servers=() if is_same else servers,
            serve=serve,
            drop=drop,
            processed=processed,
            servers_version=servers_version,
            masters=master.group.members,
            safekeeper_id=master.catalog.timelines.id_of(beat.server.uuid),
            serve_indexlets=serve_indexlets,
            backups=self._backups_for(beat),
            retiring=mark.generation if may_close(mark) else 0,
            mark=mark.generation,
            may_close=may_close(mark),
        )

    def _backups_for(self, beat: Heartbeat) -> BackupsView | None:
        """What a server is told of backups, if it has not heard it."""
        catalog, now = self._master.catalog, self._master.runtime.clock.monotonic()
        retiring = retiring_uuids(catalog)
        match beat.server.kind:
            case ServerKind.TSERVER:
                loads = self._master.liveness.backup_loads
                groups = catalog.backups.copysets.groups
                shunned = shunned_backups(self._master.liveness, now)
                view = loads.view(groups, retiring, needed_uuids(catalog), shunned)
            case ServerKind.SAFEKEEPER:
                view = who_retires(retiring)
            case _:
                return None
        return None if view.version == beat.backups_version else view

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
