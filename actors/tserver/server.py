"""The tablet server: hosts tablets, heartbeats to every master, and serves under a lease.

It opens, serves and closes tablets as the leader master says (by call, and again by each heartbeat
reply: level-triggered), and answers clients. A restarted tserver starts empty: what it held is
recovered from the backups, perhaps onto itself, in a higher term.

Replicas of tablets with ``replicas(n)`` it keeps on its disk, and serves by the word of their group
(`stelae.actors.tserver.replicated_tablet.manager`): for them it needs no lease.

Source: design §5, §6, §8, §9; seed Kudu multi-master, heartbeats to all masters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stelae.actors.raft.leadership_transfer import hand_over
from stelae.actors.raft.replica import Replica
from stelae.actors.server.identity import listen_as, take_identity
from stelae.actors.server.master_list import MasterList
from stelae.actors.server.membership import Membership
from stelae.actors.server.replaced import require_not_replaced
from stelae.actors.tserver import gauges
from stelae.actors.tserver.cleaner import Cleaner
from stelae.actors.tserver.client_writes import ClientWrites
from stelae.actors.tserver.epochs import raising_epochs
from stelae.actors.tserver.indexes.fill_answers import TabletFills
from stelae.actors.tserver.indexes.indexlets import Indexlets
from stelae.actors.tserver.indexes.routes import asking
from stelae.actors.tserver.lease import Lease
from stelae.actors.tserver.master_calls import ServerNews
from stelae.actors.tserver.ordered_end import OrderedEnd
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.pins import Pins
from stelae.actors.tserver.replicated_tablet.manager import TabletReplicas
from stelae.actors.tserver.replicated_tablet.requests import ReplicaDigests, ReplicaOrders
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.row_loading.spark_merge import MergesMadeElsewhere
from stelae.actors.tserver.scans import ScanSessions
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.shared_gets import SharedGets
from stelae.actors.tserver.succession_orders import Successions
from stelae.actors.tserver.tablet.load_rate import size_of, weight_of
from stelae.actors.tserver.tablet_copy.service import ServerCopies
from stelae.actors.tserver.tablet_log.factory import log_of
from stelae.actors.tserver.tablet_log.interface import MakeLog
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.actors.tserver.tablet_store.quarantine import Quarantine
from stelae.client.routing.masters import MastersClient
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    NoSpace,
    OutOfMemory,
    StaleTerm,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.alter import ALTER_TABLET, AlterTablet
from stelae.core.messages.reports import Report, Reporter, tablet_fingerprint
from stelae.core.messages.rows import (
    GET,
    GET_MANY,
    KEEP_PINS,
    PIN,
    SCAN,
    Get,
    GetMany,
    KeepPins,
    KeepPinsReply,
    Pin,
    PinReply,
    Scan,
)
from stelae.core.messages.servers import (
    CLOSE_TABLET,
    HEARTBEAT,
    LEARN_TIMELINE,
    OPEN_TABLET,
    SERVE_TABLET,
    CloseTablet,
    Heartbeat,
    HeartbeatReply,
    LearnTimeline,
    OpenTablet,
    RecoveryEngine,
    ServeTablet,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import ServerKind
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

CLOSED_TERMS_MAX = 10_000
"""Of how many closed tablets the term is known, so that a late order to open one is refused.

A server does not close so many while an order is late. Nor does safety need the bound: a tablet
opened anew in an old term serves nothing, and the next heartbeat closes it.
"""


class GivenUp(Exception):
    """The masters have given this run of the server up: the process ends, and a new run begins.

    Its tablets go to others, or to the new run, in a higher term; a new run gets leases again.
    """


class TabletServer:
    """One tserver. ``memory_limit_bytes`` bounds the rows of all its tablets, index included."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        cluster: str,
        masters: Sequence[Address],
        settings: Settings,
        memory_limit_bytes: int,
    ) -> None:
        self.tasks, self.members = Tasks(), Membership()
        self._runtime = runtime
        self._name, self._cluster, self._settings = name, cluster, settings
        self._masters = MastersClient(runtime, masters)
        self._master_list = MasterList(runtime, self.tasks, masters)
        self._lease, self._end = Lease(runtime.clock), OrderedEnd(runtime.clock)
        self._tablets: dict[TabletId, Tablet] = {}
        self._closed_terms: dict[TabletId, int] = {}
        """Of tablets that were closed here: a late order to open one again is refused."""
        self._pins = Pins(runtime.clock, name, lambda: self.cleaner.refusal() is not None)
        self._scans = ScanSessions(runtime, settings, self._pins)
        self._report_now: dict[Address, asyncio.Event] = {}
        self._traffic, self._mailbox = SegmentTraffic(), AcceptorMailbox(name)
        self.replicas = TabletReplicas(
            runtime,
            settings,
            self.tasks,
            self.members,
            on_news=self._report_soon,
            on_gone=self._scans.drop,
        )
        self.cleaner = Cleaner(
            runtime,
            settings,
            name,
            memory_limit_bytes,
            lambda: list(self._tablets.values()),
            self.replicas,
            lambda: self.indexlets.memory_bytes,
        )
        self._intake = Intake(self.cleaner.has_room, self.cleaner.count)
        self._writes = ClientWrites(runtime.clock, self.cleaner, self._serving, self._no_room)
        self._locate = self.replicas.locate = asking(self._masters)
        self._fills = TabletFills(runtime, settings, self._serving)
        self._news = ServerNews(runtime, settings, self.tasks, self._masters, lambda: self.info)
        self._orders = ReplicaOrders(self.replicas)
        self._successions = Successions(
            runtime, settings, self._serving, self._no_room_to_copy, self._news.tell_soon
        )
        self.indexlets = Indexlets(
            runtime,
            settings,
            self.tasks,
            self._masters,
            name,
            may_acknowledge=lambda: self._lease.is_valid,
            out_of_memory=lambda: self.cleaner.refusal(),
            on_news=self._news.tell_of_indexlet,
            info=lambda: self.info,
        )

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the identity from disk, listen, and begin to heartbeat."""
        runtime = self._runtime
        instance = await take_identity(runtime, self._cluster, ServerKind.TSERVER, self._name)
        await self.replicas.load(instance.server_uuid)
        copies = ServerCopies(runtime, self._settings, self.tasks, self.replicas)
        quarantine = Quarantine(runtime, self._settings, self.replicas.store)
        handlers = {**self._handlers(), **copies.handlers(), **quarantine.handlers()}
        self.info = await listen_as(runtime, instance, handlers)
        await self.replicas.start()
        await self._master_list.begin(self._heartbeat)
        self._masters.update(self._master_list.addresses)
        self.cleaner.start(self.tasks)
        self.tasks.spawn(self._scans.expire(), "scan expiry")
        self.tasks.spawn(quarantine.run(), "quarantine")

    async def hand_over(self, timeout_s: float) -> int:
        """Before a planned `stop`: let others lead what is led here, and tell the leader master of
        the end by order. Returns how many tablets have no other leader yet."""

        def running() -> list[Replica]:
            return [tablet.replica for tablet in self.replicas.running()]

        clock = self._runtime.clock
        began = clock.monotonic()
        self._end.begin()
        self._report_soon()
        left = len(await hand_over(self._runtime, running, timeout_s))
        left_s = began + timeout_s - clock.monotonic()
        await self._end.wait_known(min(left_s, self._settings.lease_s))
        return left

    async def stop(self) -> None:
        """Stop serving; rows in memory are given up, as after a crash."""
        self._lease.revoke()
        await self._runtime.peers.close()  # first: no handler may begin anything any more
        self._fills.close()
        await self.tasks.close()
        await self.indexlets.close()
        for tablet in list(self._tablets.values()):
            await tablet.close()
        await self.replicas.stop()

    def _handlers(self) -> Handlers:
        return {
            OPEN_TABLET: self._on_open,
            SERVE_TABLET: self._on_serve,
            CLOSE_TABLET: self._on_close,
            ALTER_TABLET: self._on_alter,
            LEARN_TIMELINE: self._on_learn_timeline,
            GET: self._on_get,
            GET_MANY: self._on_get_many,
            SCAN: self._on_scan,
            PIN: self._on_pin,
            KEEP_PINS: self._on_keep_pins,
            **SharedGets(self._serving).handlers(),
            **self._writes.handlers(),
            **self._mailbox.handlers(),
            **self._orders.handlers(),
            **self._successions.handlers(),
            **self.indexlets.handlers(),
            **MergesMadeElsewhere(self._opened).handlers(),
            **self._fills.handlers(),
            **ReplicaDigests(self._runtime, self.replicas).handlers(),
            **self.replicas.raft_handlers(),
        }

    # ---- heartbeats -------------------------------------------------------------------------

    def reports(self) -> tuple[TabletReport, ...]:
        """How each tablet of this server is."""
        own = [tablet.report() for tablet in self._tablets.values()]
        return (*own, *self.replicas.reports())

    def _report_soon(self) -> None:
        """Something is worth a heartbeat before the next one is due."""
        for wake in self._report_now.values():
            wake.set()

    def _beat(self, reporter: Reporter[TabletReport]) -> tuple[Heartbeat, Report[TabletReport]]:
        """The next heartbeat to one master."""
        sent = self._runtime.clock.monotonic()
        held = {r.tablet_id: r for r in self.reports()} if reporter.wants_report else {}
        report = reporter.next(held)
        beat = Heartbeat(
            server=self.info,
            sent=sent,
            tablets=tuple([value for _, value in report.changed]),
            memory_bytes=self.cleaner.used_bytes,
            memory_limit_bytes=self.cleaner.limit_bytes,
            number=report.number,
            since=report.since,
            removed=report.removed,
            digest=report.digest,
            servers_version=self.members.version,
            indexlets=self.indexlets.reports() if reporter.wants_report else (),
            backups_version=self.members.backups_view.version,
            live_bytes=self.cleaner.live_bytes_most,
            lacks_memory=any(tablet.lacks_memory for tablet in self._tablets.values()),
            avoids=self._traffic.avoided.lasting(sent),
            ends_by_order=self._end.is_near,
        )
        return beat, report

    async def _heartbeat(self, master: Address) -> None:
        """Report to one master while it is one; whether it answers is its own affair."""
        settings = self._settings
        wake = self._report_now.setdefault(master, asyncio.Event())
        reporter = Reporter(tablet_fingerprint)
        while self._master_list.has(master):
            wake.clear()  # first: what becomes worth a heartbeat during this one waits for the next
            beat, report = self._beat(reporter)
            try:
                reply = await self._runtime.peers.call(
                    master, HEARTBEAT, beat, timeout_s=settings.lease_s / 4
                )
            except StelaeError:
                self._runtime.metrics.count("heartbeats_failed", master=master)
                reporter.unanswered()
            else:
                await self._obey(reply.body)
                if beat.ends_by_order and reply.body.is_leader:
                    self._end.known()
                if reporter.answered(report, reply.body):
                    continue
            try:
                async with asyncio.timeout(settings.heartbeat_s):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _obey(self, reply: HeartbeatReply) -> None:
        """Do what the leader's reply says; a follower's, or an outdated leader's, says nothing."""
        if not reply.is_leader and self._master_list.hear_of(reply.masters):
            self._masters.update(self._master_list.addresses)
        if reply.replaced:
            self._lease.revoke()
        require_not_replaced(reply, self._name)
        if not reply.is_leader or not self._lease.grant(reply.term, reply.sent, reply.lease_s):
            return
        if reply.fenced:
            self._lease.revoke()
            raise GivenUp(f"{self._name}, run {self.info.incarnation}")
        self.members.heed(reply)
        if await self._master_list.update(reply.masters):
            self._masters.update(self._master_list.addresses)
        for tablet_id, term in reply.serve:
            tablet = self._tablets.get(tablet_id)
            if tablet is not None and tablet.term == term:
                tablet.serve()
        for indexlet_id, term in reply.serve_indexlets:
            self.indexlets.serve(indexlet_id, term)
        for tablet_id in reply.drop:
            await self._close(tablet_id)
            self.replicas.drop(tablet_id)

    def measure(self) -> None:
        """Tell the metrics of its tablets; for the host, now and then."""
        gauges.show(self._runtime.metrics, self.reports(), self._mailbox)

    def holders(self) -> dict[TabletId, list[list[ServerUuid]]]:
        """Of each tablet served, of each segment the backups that hold it; the head is last."""
        return {t.tablet_id: held for t in self._tablets.values() if (held := t.holders())}

    # ---- the leader's orders ----------------------------------------------------------------

    async def _on_open(self, call: Call[OpenTablet]) -> Reply[Empty]:
        record = call.body.tablet
        while (current := self._tablets.get(record.tablet_id)) is not None:
            if current.term > record.term:
                raise StaleTerm("term of tablet", record.term, current.term)
            if current.term == record.term:
                if call.body.engine is RecoveryEngine.NATIVE:
                    current.merge_offer.decline()
                return EMPTY
            await self._close(record.tablet_id)  # meanwhile another order may have opened it
        closed_term = self._closed_terms.get(record.tablet_id, 0)
        if record.term <= closed_term:
            raise StaleTerm("term of tablet", record.term, closed_term + 1)
        if (record.owner, record.owner_incarnation) != (self.info.uuid, self.info.incarnation):
            raise StaleTerm(
                "incarnation of " + self._name, record.owner_incarnation, self.info.incarnation
            )
        make_log = self._log_of(call.body)
        tablet = Tablet(
            self._runtime,
            self._settings,
            table=call.body.table,
            record=record,
            make_log=make_log,
            tasks=self.tasks,
            intake=self._intake,
        )
        tablet.cleaning.on_sealed = self.cleaner.sealed
        tablet.locate, tablet.may_serve = self._locate, self._serving
        tablet.merge_offer.patience_s = call.body.merge_patience_s
        tablet.load_gently(call.body.load_bytes_per_s)
        self._tablets[record.tablet_id] = tablet
        tablet.tasks.spawn(self._open(tablet, call.body), f"open {record.tablet_id[:8]}")
        return EMPTY

    def _log_of(self, order: OpenTablet) -> MakeLog:
        """Raises InvalidArgument: a timeline is needed, and not named."""
        tablet = order.tablet
        epochs = (self._runtime, self._settings, self._masters, self.info.uuid)
        raise_epoch = raising_epochs(*epochs, tablet.tablet_id, tablet.term)
        servers = (self.members, self._traffic, self._mailbox)
        return log_of(
            self._runtime,
            self._settings,
            *servers,
            order,
            raise_epoch=raise_epoch,
            intake=self._intake,
        )

    async def _open(self, tablet: Tablet, order: OpenTablet) -> None:
        await tablet.open(order.sources, order.engine)
        if self._tablets.get(tablet.tablet_id) is tablet:
            await self._news.tell(tablet)

    def _opened(self, tablet_id: TabletId, term: int) -> Tablet:
        tablet = self._tablets.get(tablet_id)
        if tablet is None or tablet.term != term:
            raise TabletNotHere(tablet_id, self._name)
        return tablet

    async def _on_serve(self, call: Call[ServeTablet]) -> Reply[Empty]:
        tablet = self._opened(call.body.tablet_id, call.body.term)
        tablet.serve()
        return EMPTY

    async def _on_alter(self, call: Call[AlterTablet]) -> Reply[TabletReport]:
        order = call.body
        if self.replicas.holds(order.tablet_id):
            return await self._orders.alter(call)
        tablet = self._opened(order.tablet_id, order.term)
        tablet.alter(order.table)
        return Reply(tablet.report())

    async def _on_close(self, call: Call[CloseTablet]) -> Reply[Empty]:
        tablet = self._tablets.get(call.body.tablet_id)
        if tablet is not None and tablet.term <= call.body.term:
            self._report_soon()  # it serves no more from now on; to free its rows takes longer
            await self._close(call.body.tablet_id)
        return EMPTY

    async def _on_learn_timeline(self, call: Call[LearnTimeline]) -> Reply[Empty]:
        tablet = self._opened(call.body.tablet_id, call.body.term)
        tablet.learn(call.body.timeline)
        return EMPTY

    async def _close(self, tablet_id: TabletId) -> None:
        tablet = self._tablets.pop(tablet_id, None)
        if tablet is not None:
            self._closed_terms.pop(tablet_id, None)  # so that the newest come last
            self._closed_terms[tablet_id] = tablet.term
            if len(self._closed_terms) > CLOSED_TERMS_MAX:
                del self._closed_terms[next(iter(self._closed_terms))]
            self._scans.drop(tablet_id)
            self._fills.drop(tablet_id)
            await tablet.close()

    # ---- clients ----------------------------------------------------------------------------

    def _serving(self, tablet_id: TabletId) -> Tablet | ReplicatedTablet:
        """The tablet, if this server may answer for it at this moment. A replica of a group knows
        by itself whether it may."""
        tablet = self._tablets.get(tablet_id)
        if tablet is None:
            return self.replicas.serving(tablet_id)
        if tablet.progress is not TabletProgress.SERVING:
            raise TabletNotReady(tablet_id, tablet.progress.value)
        if not self._lease.is_valid:
            raise TabletNotReady(tablet_id, "waiting for its server's lease")
        return tablet

    def _no_room(self, tablet: Tablet | ReplicatedTablet) -> OutOfMemory | NoSpace | None:
        """Why no more rows are taken: there is no memory for them here, or at a follower, or no
        disk but what the cleaner needs."""
        refusal = self.cleaner.refusal()
        if refusal is None:
            return tablet.no_room()
        return refusal

    def _no_room_to_copy(
        self, tablet: Tablet | ReplicatedTablet, size_bytes: int
    ) -> OutOfMemory | NoSpace | None:
        """The same, of rows that another tablet has as well."""
        refusal = self.cleaner.copy_refusal(size_bytes)
        return tablet.no_room() if refusal is None else refusal

    @prompt
    async def _on_get(self, call: Call[Get]) -> Reply[Any]:
        tablet = self._serving(call.body.tablet_id)
        reply = await tablet.get(call)
        tablet.calls += 1
        return reply

    @prompt
    async def _on_get_many(self, call: Call[GetMany]) -> Reply[Any]:
        tablet = self._serving(call.body.tablet_id)
        reply = await tablet.get_many(call)
        tablet.calls += weight_of(size_of(reply.blobs[0]))
        return reply

    async def _on_scan(self, call: Call[Scan]) -> Reply[Any]:
        if call.body.pin:
            return await self._scans.next_pinned(call.body, call.timeout_s)
        tablet = self._serving(call.body.tablet_id)
        reply = await self._scans.next(tablet, call.body, call.timeout_s)
        tablet.calls += weight_of(size_of(reply.blobs[0]))
        return reply

    async def _on_pin(self, call: Call[Pin]) -> Reply[PinReply]:
        tablet = self._serving(call.body.tablet_id)
        return await self._pins.pin(tablet, call.body, call.timeout_s)

    async def _on_keep_pins(self, call: Call[KeepPins]) -> Reply[KeepPinsReply]:
        return self._pins.keep(call.body)
