"""A leader master's view of servers and their replicas, driven by hand: who says what, and when."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.operator_orders import draft_mark
from stelae.coordinator.ddl.tables import draft_create, draft_replace
from stelae.coordinator.decide import Action, Replace, decide, note_replaced
from stelae.coordinator.decide_groups import Change, UpdateGroups
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TabletId
from stelae.core.messages.catalog import CreateTable
from stelae.core.messages.operators import MarkServer
from stelae.core.messages.servers import (
    GroupReport,
    Heartbeat,
    PeerHealth,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import ServerInfo, ServerKind, TabletRecord
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import Durability, replicas
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
R = ReplicaRole


def server(name: str, node: str = "", incarnation: int = 1, rack: str = "") -> ServerInfo:
    """``a~2`` is called a, and has another UUID than ``a``: it lost its disk."""
    process = ProcessIdentity(node or name, 1, 0)
    address, called = Address(f"{name}:{incarnation}"), name.partition("~")[0]
    uuid, in_rack = ServerUuid(name), rack or msgspec.UNSET
    return ServerInfo(ServerKind.TSERVER, called, uuid, incarnation, address, process, rack=in_rack)


class World:
    """A leader's view of some servers and their replicas, driven by hand."""

    def __init__(self, *names: str) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.pacing = Pacing()
        self.rng = random.Random(4)
        self.now = 100.0
        self.liveness.lead(self.now)
        self.silent: dict[str, None] = {}
        self.nodes: dict[str, str] = {}
        """Servers that are not on a node of their own."""
        self.rebalance_after_s = 0.0
        self.requests = 0
        self.racks: dict[str, str] = {}
        self.memory: dict[str, tuple[int, int]] = {}
        """Bytes that live at a server, of tablets of all kinds, and its limit."""
        self.held: dict[str, dict[TabletId, TabletReport]] = {name: {} for name in names}
        self.beat()

    def request(self) -> RequestId:
        """The next one of an operator, who waits for no other answer."""
        self.requests += 1
        return RequestId(ClientId("operator"), self.requests, self.requests)

    def put(self, batch: CatalogBatch | None) -> None:
        assert batch is not None
        self.catalog.apply(1, 1, batch.encode())

    def create(
        self, durability: Durability, name: str = "t", partitioning: Partitioning | None = None
    ) -> list[TabletRecord]:
        order = CreateTable(
            RequestId(ClientId("c"), len(self.catalog.tables) + 1, 1),
            name,
            SCHEMA,
            partitioning or Partitioning(),
            durability,
        )
        loads = tserver_loads(self.catalog, self.liveness.live(ServerKind.TSERVER, self.now))
        self.put(draft_create(self.catalog, order, loads, self.rng))
        table = self.catalog.find(name)
        assert table is not None
        return self.catalog.tablets_of(table.table_id)

    def beat(self, *names: str) -> None:
        """A full report of these servers, or of all that are not silent."""
        for name in names or [name for name in self.held if name not in self.silent]:
            live_bytes, limit_bytes = self.memory.get(name, (0, 0))
            beat = Heartbeat(
                server(name, self.nodes.get(name, ""), rack=self.racks.get(name, "")),
                self.now,
                tuple(self.held[name].values()),
                live_bytes=live_bytes,
                memory_limit_bytes=limit_bytes,
            )
            assert self.liveness.heartbeat(beat, self.now).processed

    def wait(self, seconds: float) -> None:
        """Time passes, with a heartbeat of everybody who is not silent each second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.beat()

    def says(
        self, name: str, tablet: TabletRecord, role: ReplicaRole, term: int = 1, **more: Any
    ) -> None:
        """What a server says of its replica from its next heartbeat on."""
        progress = TabletProgress.SERVING
        known = ("schema_version", "renames", "row_count", "load_per_s", "memory_bytes")
        top = {k: more.pop(k) for k in known if k in more}
        configuration = more.pop("configuration", tablet.configuration)
        word = GroupReport(
            role, more.pop("last", OpId(term, 1)), configuration=configuration, **more
        )
        self.held[name][tablet.tablet_id] = TabletReport(
            tablet.tablet_id, term, progress, group=word, **top
        )

    def form(self, tablet: TabletRecord, term: int = 1) -> TabletRecord:
        """All members report; the first one leads, and everything is fine."""
        assert tablet.configuration is not None
        first, *rest = tablet.configuration.voters
        peers = tuple(PeerHealth(uuid, True, 1) for uuid in rest)
        self.says(first, tablet, R.LEADER, term, leader=first, peers=peers)
        for uuid in rest:
            self.says(uuid, tablet, R.FOLLOWER, term, leader=first)
        self.beat()
        self.decide()
        return self.catalog.tablets[tablet.tablet_id]

    def decide(self, *, obey: bool = True) -> list[Action]:
        """What is to be done; catalog entries are carried out."""
        actions = decide(
            self.catalog,
            self.liveness,
            self.pacing,
            self.now,
            missing_after_s=2.0,
            creation_timeout_s=30.0,
            replica_dead_after_s=30.0,
            rebalance_after_s=self.rebalance_after_s,
        )
        for action in actions if obey else []:
            if isinstance(action, UpdateGroups):
                self.put(CatalogBatch(tablets=action.tablets))
            if isinstance(action, Replace):
                self.put(draft_replace(self.catalog, action.stuck, action.holders, self.rng))
                note_replaced(self.catalog, self.pacing, action, self.now)
        return actions

    def reconfigure(
        self, tablet: TabletRecord, peers: str, index: int, unheard: str = ""
    ) -> TabletRecord:
        """The group commits a configuration: voters in capitals; ``unheard``: by the leader."""
        old = tablet.configuration
        assert old is not None
        made = tuple(
            msgspec.structs.replace(
                old.peers[0], uuid=ServerUuid(p.lower()), name=p.lower(), voter=p.isupper()
            )
            for p in peers
        )
        new = msgspec.structs.replace(old, op_id=OpId(1, index), peers=made)
        for name in peers.lower():
            if name in self.silent:
                continue
            leads = name == peers[0].lower()
            others = [ServerUuid(p) for p in peers.lower() if p != name]
            told = tuple(
                PeerHealth(u, u not in self.silent and u not in unheard, 1) for u in others
            )
            self.says(
                name,
                tablet,
                R.LEADER if leads else R.FOLLOWER,
                leader=ServerUuid(peers[0].lower()),
                peers=told if leads else (),
                configuration=new,
            )
        self.beat()
        return tablet


def changes(actions: list[Action]) -> list[tuple[str, str, str]]:
    """(leader, kind, server) of each change of members."""
    return [
        (action.leader.name, action.order.kind.value, str(action.order.uuid))
        for action in actions
        if isinstance(action, Change)
    ]


def grown(world: World) -> TabletRecord:
    """A running tablet of three replicas on a, b, c, led by a."""
    (tablet,) = world.create(replicas(3))
    return world.form(tablet)


def mark(world: World, name: str, **wanted: bool) -> None:
    order = MarkServer(world.request(), name, **wanted)
    world.put(draft_mark(world.catalog, world.liveness, order, world.now))
