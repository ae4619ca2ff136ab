"""The master: one of 2N+1 that keep the catalog; the leader among them is the coordinator.

It hosts a replica of the catalog's Raft group, takes heartbeats of every server (followers note who
is alive, no more), and, while it leads and has applied all that was committed before its term,
answers clients, grants leases, and runs the coordinator.

Invariants:
- every answer that must be linearizable, every lease and every refusal by term comes after a read
  barrier that began when the call was here: a deposed leader gives none;
- a failed replication fails the operation, never the master.

Source: seed "Multi-master support for Kudu 1.0"; design §7.
"""

from __future__ import annotations

from collections.abc import Mapping

from stelae.actors.coordinator import Coordinator
from stelae.actors.identity import listen_as, take_identity
from stelae.actors.master_group import MasterGroup
from stelae.actors.master_members import MasterMembers
from stelae.actors.replica import Replica, ReplicaSettings, RoleChange, raft_handlers
from stelae.consensus.settings import RaftSettings
from stelae.coordinator.assignment import check_media
from stelae.coordinator.catalog import CATALOG_ID, Catalog, CatalogBatch
from stelae.coordinator.ddl import (
    check_table_name,
    draft_create,
    draft_delete,
    draft_raise_epoch,
)
from stelae.coordinator.decide import may_have_lease, to_drop, to_serve, tserver_loads
from stelae.coordinator.liveness import Liveness, Run
from stelae.coordinator.status import MasterView, StatusInputs, status_document
from stelae.core.errors import NotLeader, StelaeError, TableNotFound
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.member_messages import (
    ADD_MASTER,
    LIST_MASTERS,
    REMOVE_MASTER,
    AddMaster,
    MasterSet,
    MasterState,
    RemoveMaster,
)
from stelae.core.messages import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    HEARTBEAT,
    LIST_TABLES,
    RAISE_EPOCH,
    STATUS,
    TABLET_OPENED,
    CreateTable,
    DeleteTable,
    GetTable,
    Heartbeat,
    HeartbeatReply,
    RaiseEpoch,
    StatusReply,
    TableList,
    TableLocations,
    TableReply,
    TabletLocation,
    TabletOpened,
)
from stelae.core.records import ServerInfo, ServerKind, TabletRecord, TabletState
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.recovery.engine import EnginePolicy, SparkEngine

CATALOG_FOLDER = "catalog"


def replica_settings(settings: Settings) -> ReplicaSettings:
    """How the catalog's group runs, with a leader lease so that reads need no round of messages."""
    refuse_votes_s = (settings.raft_election_ticks - 2) * settings.raft_tick_s
    return ReplicaSettings(
        raft=RaftSettings(
            election_ticks=settings.raft_election_ticks,
            heartbeat_ticks=settings.raft_heartbeat_ticks,
            lease_duration_us=int(refuse_votes_s * 0.8 * 1_000_000),
        ),
        tick_s=settings.raft_tick_s,
        snapshot_entries=settings.raft_snapshot_entries,
    )


class Master:
    """One master. ``masters`` are all of them by name, this one included."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        cluster: str,
        masters: Mapping[str, Address],
        settings: Settings,
        engine: EnginePolicy = "auto",
        joining: bool = False,
    ) -> None:
        """Addresses may be empty, and come by `update_master_address` once they are known.

        ``masters`` found the group. One that is ``joining`` founds nothing, but waits to be added,
        and then is what the replicated configuration makes of it, as every master is.
        """
        self.tasks = Tasks()
        self.catalog = Catalog()
        self.liveness = Liveness(settings)
        self.coordinator: Coordinator | None = None
        """While this master leads."""
        self.spark_engine: SparkEngine | None = None
        """Set by the host where Spark is to be had."""
        self._runtime = runtime
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._engine = engine
        self._joining = joining
        self._group = MasterGroup(runtime, self.tasks, settings, name, masters)
        self._replicas: dict[TabletId, Replica] = {}
        self._members = MasterMembers(runtime, self._group, lambda: self._replicas[CATALOG_ID])

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the identity from disk and listen; the catalog follows once the others are found."""
        runtime = self._runtime
        instance = await take_identity(runtime, self._cluster, ServerKind.MASTER, self._name)
        self._group.begin(await listen_as(runtime, instance, self._handlers()))
        self.tasks.spawn(self._join(), "join the masters")

    async def _join(self) -> None:
        """Start the replica of the catalog, once it is known who has the others."""
        members: Mapping[ServerUuid, Address] | None = {}
        if await self._runtime.disk.list(f"{CATALOG_FOLDER}/consensus-meta"):
            await self._group.learn_founders()  # the rest is in the catalog's own files
        elif not self._joining:
            members = await self._group.first_members()
        replica = Replica(
            self._runtime,
            self.tasks,
            CATALOG_ID,
            self.info.uuid,
            members or {},
            self.catalog,
            replica_settings(self._settings),
            folder=CATALOG_FOLDER,
            names=self._group.founders,
        )
        replica.on_role_change(self._on_role_change)
        await replica.start()
        self._replicas[CATALOG_ID] = replica
        self._group.follow(replica.members)
        self._group.on_address(self._on_master_address)

    def use_engine(self, policy: EnginePolicy) -> None:
        """Recover with this engine from now on, until this process ends."""
        self._engine = policy
        if self.coordinator is not None:
            self.coordinator.use_engine(policy)

    async def stop(self) -> None:
        """Stop; a durable log needs no farewell."""
        self._resign()
        for replica in self._replicas.values():
            await replica.stop()
        try:
            await self.tasks.close()
        finally:
            await self._runtime.peers.close()

    @property
    def info(self) -> ServerInfo:
        """This master, once it has started."""
        return self._group.info

    @property
    def is_leader(self) -> bool:
        """Whether it leads and is ready to, as far as it knows."""
        return self.coordinator is not None

    def update_master_address(self, name: str, address: Address) -> None:
        """A master listens at this address from now on."""
        self._group.update(name, address)

    def server_died(self, uuid: ServerUuid, incarnation: int) -> None:
        """The host (Ray) says that this run of a server has died."""
        self.liveness.server_died(Run(uuid, incarnation))
        if self.coordinator is not None:
            self.coordinator.wake()

    def _on_master_address(self, uuid: ServerUuid, address: Address) -> None:
        self._replicas[CATALOG_ID].update_address(uuid, address)

    def _on_role_change(self, change: RoleChange) -> None:
        if CATALOG_ID in self._replicas:
            self._group.follow(self._replicas[CATALOG_ID].members)
        if not change.ready:
            self._resign()
        elif self.coordinator is None:
            self.coordinator = Coordinator(
                self._runtime,
                self._settings,
                self.tasks,
                self.catalog,
                self.liveness,
                self._replicate,
                policy=self._engine,
                spark_engine=lambda: self.spark_engine,
            )
            self.coordinator.start()

    def _resign(self) -> None:
        if self.coordinator is not None:
            self.coordinator.stop()
            self.coordinator = None

    async def _replicate(self, command: bytes) -> object:
        replica = self._replicas[CATALOG_ID]
        return await replica.propose(command, self._settings.call_timeout_s)

    # ---- leading ----------------------------------------------------------------------------

    def _handlers(self) -> Handlers:
        return {
            **raft_handlers(self._replicas),
            **self._group.handlers(),
            CREATE_TABLE: self._on_create_table,
            DELETE_TABLE: self._on_delete_table,
            GET_TABLE: self._on_get_table,
            LIST_TABLES: self._on_list_tables,
            STATUS: self._on_status,
            LIST_MASTERS: self._on_list_masters,
            ADD_MASTER: self._on_add_master,
            REMOVE_MASTER: self._on_remove_master,
            HEARTBEAT: self._on_heartbeat,
            RAISE_EPOCH: self._on_raise_epoch,
            TABLET_OPENED: self._on_tablet_opened,
        }

    def _lead(self) -> Coordinator:
        """The coordinator, if this master leads. Raises `NotLeader`."""
        if self.coordinator is None:
            replica = self._replicas.get(CATALOG_ID)
            if replica is None:
                raise NotLeader(self._name, 0, "")
            if self._group.state is MasterState.REMOVED:
                former = f"{self._name}, a master no more,"
                raise NotLeader(former, replica.term, self._group.pointer)
            hint = "" if replica.is_leader else replica.leader_address or ""
            if self._group.state is MasterState.JOINING:
                hint = self._group.pointer
            raise NotLeader(self._name, replica.term, hint)
        return self.coordinator

    async def _barrier(self, timeout_s: float) -> Coordinator:
        """The coordinator, after proof that this master led when the call came.

        Raises NotLeader, Overloaded, DeadlineExpired.
        """
        coordinator = self._lead()
        replica = self._replicas[CATALOG_ID]
        await replica.read_barrier(min(timeout_s, self._settings.call_timeout_s))
        if self.coordinator is not coordinator:
            return self._lead()
        return coordinator

    # ---- clients ----------------------------------------------------------------------------

    async def _on_create_table(self, call: Call[CreateTable]) -> Reply[TableReply]:
        order = call.body
        check_table_name(order.name)
        order.partitioning.check(order.schema.key)
        coordinator = await self._barrier(call.timeout_s)
        known = self.catalog.result_of(order.request)
        if known is None:
            async with coordinator.operations.reserve(order.name):
                known = await coordinator.operations.change(lambda: self._draft_create(order))
            coordinator.wake()
        known = known or self.catalog.result_of(order.request)
        assert known is not None, "a create that changed nothing was done before"
        return Reply(TableReply(self.catalog.tables[known]))

    def _draft_create(self, order: CreateTable) -> CatalogBatch | None:
        if self.catalog.result_of(order.request) is not None:
            return None
        now = self._runtime.clock.monotonic()
        backups = [seen.server for seen in self.liveness.live(ServerKind.BACKUP, now)]
        tservers = self.liveness.live(ServerKind.TSERVER, now)
        batch = draft_create(
            self.catalog, order, tserver_loads(self.catalog, tservers), self._runtime.rng
        )
        check_media(f"table {order.name!r}", order.durability.media, backups)
        return batch

    async def _on_delete_table(self, call: Call[DeleteTable]) -> Reply[Empty]:
        order = call.body
        coordinator = await self._barrier(call.timeout_s)
        if self.catalog.result_of(order.request) is not None:
            return EMPTY
        table = self.catalog.find(order.name)
        if table is None:
            raise TableNotFound(order.name)
        tablets = [tablet.tablet_id for tablet in self.catalog.tablets_of(table.table_id)]

        def draft() -> CatalogBatch | None:
            if self.catalog.result_of(order.request) is not None:
                return None
            return draft_delete(self.catalog, order.request, table.table_id, order.name)

        await coordinator.operations.change(draft, tables=[table.table_id], tablets=tablets)
        coordinator.recoveries.drop(tablets)
        for tablet_id in tablets:
            coordinator.problems.pop(tablet_id, None)
        coordinator.wake()
        return EMPTY

    async def _on_get_table(self, call: Call[GetTable]) -> Reply[TableLocations]:
        coordinator = await self._barrier(call.timeout_s)
        table = self.catalog.find(call.body.name)
        if table is None:
            raise TableNotFound(call.body.name)
        now = self._runtime.clock.monotonic()
        tablets = self.catalog.tablets_of(table.table_id)
        locations = tuple(self._locate(coordinator, tablet, now) for tablet in tablets)
        return Reply(TableLocations(table, locations))

    def _locate(self, coordinator: Coordinator, tablet: TabletRecord, now: float) -> TabletLocation:
        """Where a tablet is, by the catalog and its owner's heartbeats; no cache of its own."""
        run = Run(tablet.owner, tablet.owner_incarnation)
        seen = self.liveness.find(run)
        problem = coordinator.problems.get(tablet.tablet_id, "")
        if tablet.state is not TabletState.RUNNING:
            return TabletLocation(tablet, Address(""), problem or tablet.state.value)
        if seen is None:
            return TabletLocation(tablet, Address(""), "its server was not heard yet")
        if not self.liveness.is_live(run, now):
            return TabletLocation(tablet, Address(""), f"{seen.server.name} is dead")
        return TabletLocation(tablet, seen.server.address)

    async def _on_list_tables(self, call: Call[Empty]) -> Reply[TableList]:
        await self._barrier(call.timeout_s)
        return Reply(TableList(tuple(self.catalog.live_tables())))

    async def _on_status(self, call: Call[Empty]) -> Reply[StatusReply]:
        coordinator = await self._barrier(call.timeout_s)
        seen = self._group.seen()
        others = tuple(MasterView(info, live, False, voter) for info, live, voter in seen)
        masters = sorted((MasterView(self.info, True, True), *others), key=_name_of)
        clock = self._runtime.clock
        document = status_document(
            StatusInputs(
                cluster=self._cluster,
                wall=clock.now(),
                now=clock.monotonic(),
                term=self._replicas[CATALOG_ID].term,
                masters=tuple(masters),
                catalog=self.catalog,
                liveness=self.liveness,
                recoveries=coordinator.recoveries,
                problems=coordinator.problems,
            )
        )
        return Reply(StatusReply(document))

    # ---- the masters themselves -------------------------------------------------------------

    async def _on_list_masters(self, call: Call[Empty]) -> Reply[MasterSet]:
        await self._barrier(call.timeout_s)
        return Reply(self._members.current())

    async def _on_add_master(self, call: Call[AddMaster]) -> Reply[MasterSet]:
        await self._barrier(call.timeout_s)
        return Reply(await self._members.add(call.body, call.timeout_s))

    async def _on_remove_master(self, call: Call[RemoveMaster]) -> Reply[MasterSet]:
        await self._barrier(call.timeout_s)
        return Reply(await self._members.remove(call.body, call.timeout_s))

    # ---- servers ----------------------------------------------------------------------------

    async def _on_heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        beat = call.body
        replica = self._replicas.get(CATALOG_ID)
        if self._note(beat) and self.coordinator is not None:
            self.coordinator.watch(beat.server)
            self.coordinator.wake()
        if self.coordinator is not None:
            try:
                await self._barrier(call.timeout_s)
                return Reply(self._answer(beat))
            except StelaeError:
                self._runtime.metrics.count("heartbeats_without_barrier")
        term = replica.term if replica is not None else 0
        return Reply(
            HeartbeatReply(is_leader=False, term=term, sent=beat.sent, masters=self._group.newest)
        )

    def _note(self, beat: Heartbeat) -> bool:
        """Note a heartbeat; true if it says something new."""
        run = Run(beat.server.uuid, beat.server.incarnation)
        before = self.liveness.find(run)
        told = {} if before is None else before.reports
        news = before is None or any(
            report.tablet_id not in told
            or (told[report.tablet_id].term, told[report.tablet_id].progress)
            != (report.term, report.progress)
            for report in beat.tablets
        )
        self.liveness.heartbeat(beat, self._runtime.clock.monotonic())
        return news

    def _answer(self, beat: Heartbeat) -> HeartbeatReply:
        """The leader's answer, made from one moment's catalog, in one turn."""
        server = beat.server
        run = Run(server.uuid, server.incarnation)
        term, now = self._replicas[CATALOG_ID].term, self._runtime.clock.monotonic()
        if self.liveness.is_given_up(run):
            return HeartbeatReply(is_leader=True, term=term, sent=beat.sent, fenced=True)
        is_tserver = server.kind is ServerKind.TSERVER
        lease_s = 0.0
        if is_tserver and may_have_lease(self.catalog, beat):
            lease_s = self.liveness.grant(run, now)
        tservers = self.liveness.live(ServerKind.TSERVER, now)
        backups = self.liveness.live(ServerKind.BACKUP, now)
        held = [report.tablet_id for report in beat.tablets] if is_tserver else beat.logs
        return HeartbeatReply(
            is_leader=True,
            term=term,
            sent=beat.sent,
            lease_s=lease_s,
            servers=tuple(seen.server for seen in (*tservers, *backups)),
            serve=to_serve(self.catalog, server) if is_tserver else (),
            drop=to_drop(self.catalog, held),
            masters=self._group.members,
        )

    async def _on_raise_epoch(self, call: Call[RaiseEpoch]) -> Reply[Empty]:
        order = call.body
        coordinator = await self._barrier(call.timeout_s)
        await coordinator.operations.change(
            lambda: draft_raise_epoch(self.catalog, order), tablets=[order.tablet_id]
        )
        return EMPTY

    async def _on_tablet_opened(self, call: Call[TabletOpened]) -> Reply[Empty]:
        coordinator = self._lead()
        body = call.body
        now = self._runtime.clock.monotonic()
        self.liveness.report(Run(body.server, body.incarnation), body.report, now)
        coordinator.wake()
        return EMPTY


def _name_of(view: MasterView) -> str:
    return view.server.name
