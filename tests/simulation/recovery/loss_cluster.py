"""A whole cluster for stories of segments of which every replica is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from stelae.client.table.table import AsyncTable
from stelae.core.errors import RetryLater
from stelae.core.records.losses import LossReport
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import Durability, segments, wal
from stelae.simulation import World
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA, text
from tests.simulation.world.cluster_fixture import SimClusterFixture

ROWS = 40
CALL_S = 20.0


class LossFixture(SimClusterFixture):
    """A cluster with one table of one tablet, on two disks."""

    durability: Durability = segments("disk", "disk")
    changes: ClassVar[dict[str, Any]] = {}
    """Settings that differ from those of other simulated clusters."""

    def __init__(self, world: World, **settings: Any) -> None:
        super().__init__(world, segment_bytes=2000, **{**self.changes, **settings})
        self.table: AsyncTable
        self.versions: dict[int, int] = {}

    async def start(self) -> None:
        await super().start()
        self.table = await self.database.create_table(
            "t", SCHEMA, key="id", durability=self.durability, timeout=60.0
        )
        await self.write(range(ROWS))
        await self.until(lambda: self.cluster.is_whole(1, 2), "full strength")

    async def write(self, keys: Sequence[int]) -> None:
        for key in keys:
            row = {"id": key, "text": text(key)}
            self.versions[key] = int((await self.table.upsert(row, timeout=CALL_S))[0])

    @property
    def tablet(self) -> TabletRecord:
        (found,) = [t for t in self.leader.catalog.tablets.values() if not t.state.is_gone]
        assert isinstance(found, TabletRecord)
        return found

    @property
    def owner(self) -> str:
        return self.name_of(self.tablet.owner)

    def holders(self) -> list[list[str]]:
        """Of each segment, oldest first, the names of its backups."""
        (held,) = self.world.server(self.owner).holders().values()
        return [[self.name_of(uuid) for uuid in uuids] for uuids in held]

    def problem(self) -> str:
        """What the tablet's owner says is wrong."""
        server = self.world.server(self.owner)
        return "".join(report.problem for report in server.reports())

    def held(self, backup: str) -> list[int]:
        server = self.world.server(backup)
        return [] if server is None else server._holdings.segments(self.tablet.tablet_id)

    async def lose(self, backups: Sequence[str], *, for_good: bool = False) -> None:
        """These backups and the owner die at once; the owner comes back, they do not yet."""
        owner = self.owner
        for name in backups:
            self.world.crash(name, lose_disk=for_good, restart=False)
        self.world.crash(owner)
        await self.until(
            lambda: self.cluster.leader() and self.tablet.state is TabletState.RECOVERING,
            "a recovery",
        )
        await asyncio.sleep(5.0)
        assert self.tablet.state is TabletState.RECOVERING, "what is missing cannot be there"

    async def start_cold(self, *without: str) -> None:
        """Everything dies at once; all but these start again, and find that something is away."""
        cluster = self.cluster
        everything = [*cluster.masters, *cluster.tservers, *cluster.backups, *cluster.safekeepers]
        for name in everything:
            self.world.crash(name, restart=False)
        for name in everything:
            if name not in without:
                self.world.restart(name)
        await self.until(cluster.leader, "a leader")

    async def bring_back(self, *backups: str) -> None:
        for name in backups:
            self.world.restart(name)
            await self.world.wait_ready(name)

    async def until_served(self) -> None:
        await self.until(
            lambda: self.cluster.leader() and self.cluster.is_whole(1, 2), "it serves, whole"
        )

    async def rows(self) -> dict[int, int]:
        """Key and version of each row that is there; its text is right."""
        try:
            found = await self.table.scan(with_versions=True, timeout=CALL_S)
        except RetryLater:  # a server that is gone was asked, and nobody said so in time
            found = await self.table.scan(with_versions=True, timeout=CALL_S)
        for row in found.to_pylist():
            assert row["text"] == text(row["id"])
        return {row["id"]: row["_version"] for row in found.to_pylist()}

    async def is_written_anew(
        self,
        backups: Sequence[str],
        lost: Collection[int],
        before: Mapping[int, int],
        rows: Collection[int],
    ) -> int:
        """After segments were given up: what ``backups`` bring back of them is freed, one of the
        rows that are gone is written again, with a later version than any had, and another recovery
        follows. Returns its key."""
        await self.bring_back(*backups)
        await self.until(lambda: not any({*self.held(n)} & {*lost} for n in backups), "freed")
        gone = next(key for key in before if key not in rows)
        await self.write([gone])
        assert self.versions[gone] > max(before.values())
        self.world.crash(self.owner)
        await self.until_served()
        return gone

    async def accept(self, report: LossReport | None = None) -> LossReport:
        """For good: also of every backup that is away it is said that it never returns."""
        report = report or await self.database.losses()
        gone = [backup.uuid for backup in report.silent]
        await self.database.accept_loss(report, by="Ada", gone=gone)
        return report


class WithTimeline(LossFixture):
    """The same, but the end of its log is on three safekeepers."""

    durability = wal(3, ("disk", "disk"))

    def trimmed(self) -> list[int]:
        """The segments that backups alone hold, oldest first."""
        log = self.world.server(self.owner)._tablets[self.tablet.tablet_id]._log
        return sorted(set(log.digest) - {live.segment.segment_id for live in log._live})


def tell(
    story: Callable[[Any], Awaitable[None]],
    seed: int = 1,
    backups: int = 5,
    kind: type[LossFixture] = LossFixture,
    **options: Any,
) -> World:
    safekeepers = 3 if issubclass(kind, WithTimeline) else 0
    servers = Servers(tservers=3, backups=backups, safekeepers=safekeepers)
    world = World(seed, Options(servers=servers, keep_unsynced_rate=0.0, **options))
    here = kind(world)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=900.0)
    return world


def spares_head(here: LossFixture) -> list[str]:
    """Two backups that together hold some segment, and not the head."""
    *sealed, head = here.holders()
    for pair in sealed:
        if not set(pair) & set(head):
            return pair
    raise AssertionError("no such pair with this seed")
