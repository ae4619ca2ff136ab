"""A catalog with a table that gets another durability, and its leader, one second at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch
from stelae.coordinator.ddl.alter import draft_alter
from stelae.coordinator.ddl.succession import (
    BeginSuccession,
    SuccessionAction,
    Swap,
    draft_begin,
    draft_swap,
    succession_actions,
)
from stelae.coordinator.groups.group import absent_members, group_of
from stelae.coordinator.liveness.liveness import Seen
from stelae.coordinator.placement.assignment import Load
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.alter import AlterTable
from stelae.core.messages.reports import Picture
from stelae.core.messages.servers import (
    CleaningReport,
    GroupReport,
    Heartbeat,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.succession import SuccessionReport, SuccessionStage
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.alter import schema_change
from stelae.core.schema.durability import Durability, Wal, segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64()), ("a", pa.string())]), ["id"])
T = TableId("T")
OPEN, FENCED, CLOSED = SuccessionStage
TIMELINE = TimelineConfiguration(1, (SafekeeperId(1), SafekeeperId(2), SafekeeperId(3)))
ADD = schema_change(add=[pa.field("c", pa.int8())])


def server(name: str) -> ServerInfo:
    process = ProcessIdentity("n", 1, 0)
    return ServerInfo(ServerKind.TSERVER, name, ServerUuid(name), 1, Address(f"{name}:1"), process)


class World:
    """Table t with segments, of three tablets at s1, s2 and s3, which all serve."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.rng = random.Random(1)
        self.sequence = 0
        self.said: dict[TabletId, SuccessionReport] = {}
        self.away: dict[TabletId, None] = {}
        self.safekeepers = True
        self.avoided: list[dict[ServerUuid, float]] = []
        """With which servers the last timelines that were asked for had failed."""
        self.pacing = Pacing()
        self.now = 0.0
        self.servers = 4
        self.limit_bytes = 0
        self.used: dict[str, int] = {}
        """By server: of memory."""
        self.rows: dict[TabletId, tuple[int, int, int]] = {}
        """By tablet: bytes in memory, those that live, and those not loaded yet."""
        self.unreached: tuple[ServerUuid, ...] = ()
        """What owners of tablets in creation do not reach."""
        self.replicas: dict[TabletId, list[Seen]] = {}
        """By tablet with replicas: what servers say of theirs."""
        table = TableRecord(T, "t", SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING)
        tablets = tuple(
            TabletRecord(
                TabletId(f"t{n}"), T, n, TabletState.RUNNING, 1, ServerUuid(f"s{n + 1}"), 1
            )
            for n in range(3)
        )
        self.put(CatalogBatch((table,), tablets))

    # ---- the world --------------------------------------------------------------------------

    def put(self, batch: CatalogBatch | None) -> Any:
        assert batch is not None, "there is something to change"
        return self.catalog.apply(1, 1, batch.encode())

    def alter(self, durability: Durability, **more: Any) -> Any:
        self.sequence += 1
        request = RequestId(ClientId("c"), self.sequence, 0)
        order = AlterTable(request, T, "t", durability=durability, **more)
        return self.put(draft_alter(self.catalog, order))

    @property
    def table(self) -> TableRecord:
        return self.catalog.tables[T]

    def tablet(self, number: int) -> TabletRecord:
        return self.catalog.tablets_of(T)[number]

    def successor(self, number: int) -> TabletRecord:
        found = self.catalog.successor_of(self.tablet(number).tablet_id)
        assert found is not None, f"tablet {number} has a successor"
        return found

    def runs(self, tablet: TabletRecord) -> None:
        self.change(tablet, state=TabletState.RUNNING)

    def change(self, tablet: TabletRecord, **changes: Any) -> None:
        changed = msgspec.structs.replace(tablet, generation=tablet.generation + 1, **changes)
        assert isinstance(self.put(CatalogBatch(tablets=(changed,))), Applied)

    def say(self, number: int, stage: SuccessionStage, **more: Any) -> None:
        """The owner of a tablet says how far it makes way for its successor."""
        successor = self.successor(number).tablet_id
        self.said[self.tablet(number).tablet_id] = SuccessionReport(successor, stage, **more)

    # ---- deciding ---------------------------------------------------------------------------

    def report_of(self, tablet: TabletRecord) -> tuple[Seen | None, TabletReport | None]:
        if tablet.tablet_id in self.away:
            return None, None
        owner = server(tablet.owner or "s1")
        seen = Seen(Heartbeat(owner, 0.0), 0.0, 0.0)
        memory_bytes, live_bytes, remote_bytes = self.rows.get(tablet.tablet_id, (0, 0, 0))
        report = TabletReport(
            tablet.tablet_id,
            tablet.term,
            TabletProgress.SERVING,
            schema_version=1,
            memory_bytes=memory_bytes,
            cleaning=CleaningReport(live_bytes, 0, 0, 0, 0, 0, 0, 0),
            remote_bytes=remote_bytes,
            succession=self.said.get(tablet.tablet_id),
        )
        return seen, report

    def loads(self) -> list[Load]:
        return [self._load(f"s{n}") for n in range(1, self.servers + 1)]

    def _load(self, name: str) -> Load:
        reports = {}
        for tablet in self.catalog.owned_by(ServerUuid(name), 1):
            _, report = self.report_of(tablet)
            if report is not None:
                reports[tablet.tablet_id] = report
        used = self.used.get(name, 0)
        return Load(server(name), 0, 0, used, self.limit_bytes, reports)

    def timelines(
        self, wanted: Durability, avoid: Sequence[Mapping[ServerUuid, float]]
    ) -> tuple[TimelineConfiguration, ...] | None:
        self.avoided = [dict(each) for each in avoid]
        if not isinstance(wanted, Wal):
            return ()
        return (TIMELINE,) if self.safekeepers else None

    def replica(self, name: str, tablet: TabletRecord, role: ReplicaRole) -> Seen:
        """A server that has a replica of a tablet, and says so."""
        said = GroupReport(role, OpId(0, 0))
        report = TabletReport(tablet.tablet_id, 1, TabletProgress.SERVING, group=said)
        picture = Picture({tablet.tablet_id: report})
        return Seen(Heartbeat(server(name), 0.0, (report,)), 0.0, 0.0, picture=picture)

    def to_blame(self, tablet: TabletRecord) -> tuple[ServerUuid, ...]:
        """As the leader does, by what servers report of the replicas of groups."""
        if not tablet.is_group:
            return (tablet.owner, *self.unreached)
        return absent_members(group_of(tablet, self.replicas.get(tablet.tablet_id, ())))

    def actions(self) -> list[SuccessionAction]:
        of = (self.catalog, self.report_of, self.loads, self.timelines, self.to_blame)
        return list(succession_actions(*of, self.pacing, self.now))

    def wait(self, seconds: float) -> list[SuccessionAction]:
        """Look again and again for so long; what is to be done at its end."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            actions = self.actions()
        return actions

    @property
    def waits(self) -> dict[TabletId, str]:
        return self.pacing.successions.waits

    def begin(self) -> None:
        """Begin what there is to begin, and have it run."""
        for action in self.actions():
            if isinstance(action, BeginSuccession):
                assert isinstance(self.put(draft_begin(self.catalog, action, self.rng)), Applied)
        for successor in self.catalog.successors():
            if successor.state is TabletState.CREATING:
                self.runs(successor)

    def swap(self) -> list[str]:
        """Carry out the swaps that are wanted; the ids that the table then has."""
        for action in self.actions():
            if isinstance(action, Swap):
                assert isinstance(self.put(draft_swap(self.catalog, action)), Applied)
        return [tablet.tablet_id for tablet in self.catalog.tablets_of(T)]


def kinds(actions: list[SuccessionAction]) -> list[str]:
    return [type(action).__name__ for action in actions]
