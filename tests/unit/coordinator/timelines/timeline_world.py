"""A catalog with safekeepers and timelines, and the leader master that looks after them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.timelines.duties import (
    Duty,
    replacements,
    statuses_now,
)
from stelae.coordinator.timelines.migration_steps import (
    Request,
)
from stelae.coordinator.timelines.placement import (
    draft_register,
    fleet_of,
)
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat, TabletReport
from stelae.core.messages.timelines import SetSafekeeperStatus
from stelae.core.records.configurations import (
    MigrationOrder,
    StoredRecord,
    TimelineId,
    TimelineRecord,
)
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import wal
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
A = TimelineId(TableId("T"), TabletId("a"))
SILENCE_S = SETTINGS.dead_after_s


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(number) for number in numbers)


def configuration(generation: int, *members: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, ids(*members))


def info(name: str, *, kind: ServerKind = ServerKind.SAFEKEEPER, **changes: object) -> ServerInfo:
    found = ServerInfo(
        kind, name, ServerUuid(f"u-{name}"), 1, Address(f"{name}:1"), ProcessIdentity(name, 1, 0)
    )
    return msgspec.structs.replace(found, **changes)


def stored(record: TimelineRecord, revision: int, nonce: str = "n") -> StoredRecord:
    return StoredRecord(revision, record, 0.0, "w", nonce)


def say(
    sequence: int,
    status: SafekeeperStatus,
    *,
    client: str = "one",
    since: int = 0,
    number: int = 2,
) -> SetSafekeeperStatus:
    """An order of an operator's, who waits for no answer of orders below ``since``."""
    request = RequestId(ClientId(client), sequence, since)
    return SetSafekeeperStatus(request, SafekeeperId(number), status)


class DrivenLeader:
    """A leader's catalog and liveness, driven by hand."""

    def __init__(self, count: int = 4) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.now = 100.0
        self.liveness.lead(self.now)
        table = TableRecord(
            TableId("T"), "t", SCHEMA, Partitioning(), wal(3, ["disk"]), TableState.RUNNING
        )
        tablet = TabletRecord(
            TabletId("a"),
            TableId("T"),
            0,
            TabletState.CREATING,
            1,
            ServerUuid("u-s1"),
            1,
            timeline=configuration(1, 1, 2, 3),
        )
        self.put(CatalogBatch((table,), (tablet,)))
        for number in range(1, count + 1):
            self.beat(f"k{number}")

    def put(self, batch: CatalogBatch | None) -> object:
        assert batch is not None
        return self.catalog.apply(1, 1, batch.encode())

    def beat(self, name: str, *reports: TabletReport, **changes: object) -> None:
        """A heartbeat; a safekeeper is registered by it, and takes its id up."""
        kind = ServerKind.SAFEKEEPER if name.startswith("k") else ServerKind.TSERVER
        server = info(name, kind=kind, **changes)
        if kind is ServerKind.SAFEKEEPER:
            batch = draft_register(self.catalog, server)
            if batch is not None:
                self.put(batch)
            number = self.catalog.timelines.id_of(server.uuid)
            server = msgspec.structs.replace(server, safekeeper_id=number)
        self.liveness.heartbeat(Heartbeat(server, self.now, tuple(reports)), self.now)

    def status_of(self, number: int) -> SafekeeperStatus:
        """What operators said of it last."""
        return self.catalog.timelines.safekeepers[SafekeeperId(number)].status

    @property
    def tablet(self) -> TabletRecord:
        return self.catalog.tablets[TabletId("a")]

    def set_tablet(self, **changes: object) -> None:
        generation = self.tablet.generation + 1
        changed = msgspec.structs.replace(self.tablet, generation=generation, **changes)
        self.put(CatalogBatch(tablets=(changed,)))

    def fleet(self) -> dict[SafekeeperId, SafekeeperStatus]:
        fleet = fleet_of(self.catalog, self.liveness, self.now)
        return dict(statuses_now(fleet, self.now, SILENCE_S))

    def replacements(
        self,
        records: Sequence[TimelineRecord],
        grace_s: float = 30,
        under_way: Request | None = None,
    ) -> list[Duty]:
        fleet = fleet_of(self.catalog, self.liveness, self.now)
        running = {} if under_way is None else {record.timeline: under_way for record in records}
        return replacements(
            records, fleet, running, self.now, silence_s=SILENCE_S, grace_s=grace_s, limit=8
        )


def order(sequence: int, desired: tuple[SafekeeperId, ...] | None) -> MigrationOrder:
    return MigrationOrder(A, desired, RequestId(ClientId("one"), sequence, 0))
