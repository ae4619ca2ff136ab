"""A catalog and its leader, one second at a time: who is heard, and what it decides."""

from __future__ import annotations

import pyarrow as pa

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.decide import (
    Action,
    GiveUp,
    HandOver,
    Move,
    decide,
)
from stelae.coordinator.liveness.liveness import Liveness, Run, Seen
from stelae.coordinator.liveness.standing import standing_of
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
P = TabletProgress


def server(name: str, incarnation: int = 1, kind: ServerKind = ServerKind.TSERVER) -> ServerInfo:
    return ServerInfo(
        kind, name, ServerUuid(name), incarnation, Address(f"{name}:1"), ProcessIdentity("n", 1, 0)
    )


def run(name: str, incarnation: int = 1) -> Run:
    return Run(ServerUuid(name), incarnation)


def report(tablet_id: str, term: int, progress: TabletProgress, head: int = 0) -> TabletReport:
    return TabletReport(TabletId(tablet_id), term, progress, head_segment=head)


class World:
    """A leader's view, driven by hand."""

    def __init__(self, *tablets: TabletRecord) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.pacing = Pacing()
        self.now = 100.0
        table = TableRecord(
            TableId("T"), "t", SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING
        )
        self.put(CatalogBatch((table,), tablets))
        self.liveness.lead(self.now)

    def put(self, batch: CatalogBatch) -> None:
        self.catalog.apply(1, 1, batch.encode())

    def beat(
        self, name: str, *reports: TabletReport, incarnation: int = 1, ends: bool = False
    ) -> float:
        """A heartbeat sent and received now; returns the lease granted. ``ends``: by order."""
        at = server(name, incarnation)
        beat = Heartbeat(at, self.now, tuple(reports), ends_by_order=ends)
        assert self.liveness.heartbeat(beat, self.now).processed
        if not standing_of(self.catalog, self.seen(name, incarnation)).may_have_lease:
            return 0.0
        return self.liveness.grant(run(name, incarnation), self.now)

    def seen(self, name: str, incarnation: int = 1) -> Seen:
        found = self.liveness.find(run(name, incarnation))
        assert found is not None
        return found

    def decide(self, *, obey: bool = True) -> list[Action]:
        """What is to be done; catalog entries and give-ups are carried out."""
        actions = decide(
            self.catalog,
            self.liveness,
            self.pacing,
            self.now,
            missing_after_s=2.0,
            creation_timeout_s=30.0,
        )
        for action in actions if obey else []:
            if isinstance(action, Move | HandOver):
                self.put(CatalogBatch(tablets=action.tablets))
            if isinstance(action, GiveUp):
                self.liveness.give_up(action.run)
        return actions

    @property
    def tablet(self) -> TabletRecord:
        return self.catalog.tablets[TabletId("a")]


def tablet(owner: str = "s1", state: TabletState = TabletState.RUNNING) -> TabletRecord:
    """Tablet ``a`` in term 1, owned by the first run of ``owner``."""
    return TabletRecord(TabletId("a"), TableId("T"), 0, state, 1, ServerUuid(owner), 1)


def kinds(actions: list[Action]) -> list[type[object]]:
    return [type(action) for action in actions]
