"""What operators do in the ``wal`` scenario; and who strikes leaders in the midst of it."""

from __future__ import annotations

from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.errors import StelaeError, TableNotFound
from stelae.core.ids import ClientId
from stelae.core.messages.timelines import (
    ABORT_MIGRATION,
    LIST_SAFEKEEPERS,
    LIST_TIMELINES,
    MIGRATE_SAFEKEEPER,
    MIGRATE_TABLE,
    MIGRATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    SET_SAFEKEEPER_STATUS,
    AbortMigration,
    ListSafekeepers,
    MigrateSafekeeper,
    MigrateTable,
    MigrateTimeline,
    ScrubSafekeeper,
    SetSafekeeperStatus,
    TablesTimelines,
)
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.schema.durability import wal
from stelae.simulation.cluster import SimCluster
from tests.simulation.tables import tables

KINDS = ("move", "move", "move all", "empty", "abort", "status", "scrub", "strike", "strike")
PASSING = "passing"


class Operators:
    """Draws orders from the seed until the faults end."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase, count: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._count = count
        self._rng = cluster.world.rng("operators")
        self._masters = MastersClient(database.runtime, list(cluster.addresses.values()))
        self._session = Session(ClientId("operators"))
        self.done: dict[str, int] = {}

    async def run(self, until_s: float) -> None:
        """Order one thing after the other; what is refused is refused."""
        sleep = self._database.runtime.clock.sleep
        while self._world.loop.time() < until_s:
            await sleep(self._rng.expovariate(1 / 1.2))
            kind = self._rng.choice(KINDS)
            try:
                await self._order(kind)
            except StelaeError as error:
                self._world.note("operators", f"{kind}: {error}")
            else:
                self.done[kind] = self.done.get(kind, 0) + 1

    async def _order(self, kind: str) -> None:
        ids = await self._ids()
        listed = await self._call(LIST_TIMELINES, TablesTimelines())
        if not ids or not listed.timelines:
            return
        _, tablet_id, _ = self._rng.choice(listed.timelines)
        match kind:
            case "move":
                await self._once(MIGRATE_TIMELINE, MigrateTimeline, tablet_id, self._some(ids))
            case "move all":
                await self._once(MIGRATE_TABLE, MigrateTable, tables.TABLE, self._some(ids))
            case "empty":
                source, target = self._rng.choice(ids), self._rng.choice(ids)
                limit = self._rng.choice([None, 1])
                await self._once(MIGRATE_SAFEKEEPER, MigrateSafekeeper, source, target, limit)
            case "abort":
                await self._once(ABORT_MIGRATION, AbortMigration, tablet_id)
            case "status":
                status = self._rng.choice([SafekeeperStatus.OFFLINE, SafekeeperStatus.ACTIVE])
                await self._say(self._rng.choice(ids), status)
            case "scrub":
                await self._call(SCRUB_SAFEKEEPER, ScrubSafekeeper(self._rng.choice(ids)))
            case "strike":
                await self._once(MIGRATE_TIMELINE, MigrateTimeline, tablet_id, self._some(ids))
                await self._database.runtime.clock.sleep(self._rng.choice([0.0, 0.02, 0.1, 0.4]))
                leader = self._cluster.leader()
                if leader is not None:
                    self._world.note("nemesis", f"strikes {leader}, which migrates")
                    self._world.crash(leader)

    def _some(self, ids: list[SafekeeperId]) -> tuple[SafekeeperId, ...]:
        return tuple(self._rng.sample(ids, min(self._count, len(ids))))

    async def _ids(self) -> list[SafekeeperId]:
        """Of safekeepers that live; of two of one name the one that came later."""
        listed = await self._call(LIST_SAFEKEEPERS, ListSafekeepers())
        newest = {one.record.name: one for one in listed.safekeepers if one.is_live}
        return [one.record.safekeeper_id for one in newest.values()]

    async def _say(self, number: SafekeeperId, status: SafekeeperStatus) -> None:
        await self._once(SET_SAFEKEEPER_STATUS, SetSafekeeperStatus, number, status)

    async def _once(self, method: Any, order: Any, *what: Any) -> None:
        with self._session.request() as request:
            await self._call(method, order(request, *what))

    async def _call(self, method: Any, body: Any) -> Any:
        return await self._masters.call(method, body, timeout_s=3.0)

    async def run_passing(self, until_s: float) -> None:
        """Create another table, and delete it again, over and over."""
        sleep = self._database.runtime.clock.sleep
        number = 0
        while self._world.loop.time() < until_s:
            number += 1
            name = f"{PASSING}-{number}"
            try:
                table = await self._database.create_table(
                    name,
                    tables.SCHEMA,
                    key="id",
                    durability=wal(self._count, ("disk",)),
                    timeout=5.0,
                )
                await table.upsert({"id": number, "value": "x"}, timeout=3.0)
                self.done["create"] = self.done.get("create", 0) + 1
                await sleep(self._rng.expovariate(1.0))
                await self._database.delete_table(name, timeout=5.0)
                self.done["delete"] = self.done.get("delete", 0) + 1
            except StelaeError as error:
                self._world.note("operators", f"{name}: {error}")
            await sleep(self._rng.expovariate(1.0))

    async def end(self) -> None:
        """All that is special is taken back: servers are active, and passing tables gone."""
        await self._until_done(self._activate)
        await self._until_done(self._delete_passing)

    async def delete_all(self) -> None:
        """Also the table that clients use."""
        await self._until_done(lambda: self._delete(tables.TABLE))

    async def _until_done(self, work: Any) -> None:
        deadline_s = self._world.loop.time() + 120.0
        while True:
            try:
                await work()
                return
            except StelaeError:
                assert self._world.loop.time() < deadline_s, "operators cannot get anything done"
                await self._database.runtime.clock.sleep(0.3)

    async def _activate(self) -> None:
        """Said of those as well that are active: an order that was given up may be carried out
        until a later one has been."""
        listed = await self._call(LIST_SAFEKEEPERS, ListSafekeepers())
        for one in listed.safekeepers:
            await self._say(one.record.safekeeper_id, SafekeeperStatus.ACTIVE)

    async def _delete_passing(self) -> None:
        for table in await self._database.tables():
            if table.name.startswith(PASSING):
                await self._delete(table.name)

    async def _delete(self, name: str) -> None:
        try:
            await self._database.delete_table(name, timeout=10.0)
        except TableNotFound:
            self._world.note("operators", f"{name} was deleted before")
