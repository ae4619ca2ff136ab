"""A catalog with indexed tables and its leader, one second at a time, and requests to it."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch
from stelae.coordinator.ddl.indexes import draft_drop_index
from stelae.coordinator.decide import Action, GiveUp, decide
from stelae.coordinator.decide_indexes import (
    ChangeIndexlets,
    CloseIndexletAt,
    HandOverAt,
    IndexAction,
    MakeSuccessors,
    OpenIndexletAt,
    ServeIndexletAt,
    draft_change,
    draft_successors,
)
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.liveness.standing import standing_of
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.index_catalog import DropIndex
from stelae.core.messages.indexes import (
    IndexletProgress,
    IndexletReport,
)
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.alter import with_index
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexId, IndexletId, IndexletRecord, IndexletState
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
PLAIN = TableSchema.of(pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.bool_())]), "id")
SCHEMA = with_index(PLAIN, "a", IndexId("I"), "t")
P = IndexletProgress
X = IndexletId("X")


def server(name: str) -> ServerInfo:
    return ServerInfo(
        ServerKind.TSERVER, name, ServerUuid(name), 1, Address(f"{name}:1"),
        ProcessIdentity("n", 1, 0),
    )  # fmt: skip


def indexlet(name: str = "X", owner: str = "s1", **changes: object) -> IndexletRecord:
    """Of all entries of index I, filling at ``owner`` in term 1."""
    record = IndexletRecord(
        IndexletId(name), IndexId("I"), TableId("T"), b"", b"", IndexletState.FILLING, 1,
        ServerUuid(owner), 1,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def says(name: str, progress: P, term: int = 1, **more: object) -> IndexletReport:
    return IndexletReport(IndexletId(name), term, progress, **more)  # type: ignore[arg-type]


class World:
    """A leader's view, driven by hand: a table with index I, whose tablet is on s0."""

    def __init__(self, first: IndexletRecord, schema: TableSchema = SCHEMA) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.pacing = Pacing()
        self.now = 100.0
        table = TableRecord(
            TableId("T"), "t", schema, Partitioning(), segments("disk"), TableState.RUNNING
        )
        tablet = TabletRecord(
            TabletId("0"), TableId("T"), 0, TabletState.RUNNING, 1, ServerUuid("s0"), 1
        )
        batch = CatalogBatch((table,), (tablet,), indexlets=(first,))
        assert self.put(batch) == Applied(TableId(""))
        self.liveness.lead(self.now)

    def put(self, batch: CatalogBatch) -> object:
        return self.catalog.apply(1, 1, batch.encode())

    def beat(self, name: str, *reports: IndexletReport, sent: float | None = None) -> float:
        """A heartbeat received now, and sent now or at ``sent``; returns the lease granted."""
        sent = self.now if sent is None else sent
        beat = Heartbeat(server(name), sent, indexlets=tuple(reports))
        assert self.liveness.heartbeat(beat, self.now).processed
        run = Run(ServerUuid(name), 1)
        seen = self.liveness.find(run)
        assert seen is not None
        if not standing_of(self.catalog, seen).may_have_lease:
            return 0.0
        return self.liveness.grant(run, self.now)

    def decide(self, *, obey: bool = True) -> list[IndexAction]:
        """What is to be done for indexlets; catalog entries are carried out."""
        actions: list[Action] = decide(
            self.catalog, self.liveness, self.pacing, self.now,
            missing_after_s=2.0, indexlet_entries_max=100,
        )  # fmt: skip
        found: list[IndexAction] = []
        for action in actions:
            if isinstance(action, GiveUp) and obey:
                self.liveness.give_up(action.run)
            batch: CatalogBatch | None = None
            if isinstance(action, ChangeIndexlets):
                batch = draft_change(self.catalog, action)
            elif isinstance(action, MakeSuccessors):
                batch = draft_successors(self.catalog, action, random.Random(1))
            if batch is not None and obey:
                assert isinstance(self.put(batch), Applied)
                if isinstance(action, ChangeIndexlets):
                    at = action.failed_at
                    self.pacing.indexlets.failed(action.indexlet_id, at, self.now)
            if isinstance(
                action,
                ChangeIndexlets
                | MakeSuccessors
                | OpenIndexletAt
                | ServeIndexletAt
                | CloseIndexletAt
                | HandOverAt,
            ):
                found.append(action)
        return found

    @property
    def first(self) -> IndexletRecord:
        return self.catalog.indexes.indexlets[X]

    def successors(self) -> list[IndexletRecord]:
        return self.catalog.indexes.successors_of(X)


def kinds(actions: list[IndexAction]) -> list[type[object]]:
    return [type(action) for action in actions]


def drop_index(world: World) -> None:
    order = DropIndex(request(9), TableId("T"), "t", "a")
    assert isinstance(world.put(draft_drop_index(world.catalog, order)), Applied)


def request(sequence: int) -> RequestId:
    return RequestId(ClientId("c"), sequence, 0)
