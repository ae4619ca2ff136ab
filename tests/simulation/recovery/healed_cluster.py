"""A cluster whose tablet has replicas that break, in the hands of one test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stelae.client.table.table import AsyncTable
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import ReplicaRole, TabletReport
from stelae.core.records.records import TabletRecord
from stelae.core.schema.durability import replicas
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from tests.simulation.replicated.replica_judges import Always
from tests.simulation.replicated.tablet_group import SCHEMA

DEAD_AFTER_S = 4.0
HEALED_S = 60.0


class Healed:
    """A cluster with one table of one tablet, whose servers are known by their names."""

    def __init__(self, world: World, cluster: SimCluster, table: AsyncTable, tablet: TabletId):
        self.world, self.cluster, self.table, self.tablet = world, cluster, table, tablet
        self.written = 0

    async def write(self, count: int = 1, timeout_s: float = 20.0) -> None:
        """Rows that all must stay."""
        for _ in range(count):
            row = {"id": self.written, "value": f"{self.written}" + "x" * 100}
            await self.table.upsert(row, timeout=timeout_s)
            self.written += 1

    async def check(self) -> None:
        """All rows are there."""
        found = (await self.table.scan(timeout=20.0)).column("id").to_pylist()
        assert sorted(found) == list(range(self.written))

    def report(self, name: str) -> TabletReport | None:
        """What a server says of its replica."""
        server = self.world.server(name)
        if server is None or not self.world.nodes[name].ready:
            return None
        return next((r for r in server.reports() if r.tablet_id == self.tablet), None)

    def role(self, name: str) -> ReplicaRole | None:
        found = self.report(name)
        return found.group.role if found is not None and found.group is not None else None

    @property
    def leader(self) -> str:
        """The name of the server that leads the tablet."""
        (name,) = [n for n in self.cluster.tservers if self.role(n) is ReplicaRole.LEADER]
        return name

    def followers(self) -> list[str]:
        return [n for n in self.cluster.tservers if self.role(n) is ReplicaRole.FOLLOWER]

    def record(self) -> TabletRecord | None:
        """The tablet's record, as the leader master has it."""
        master = self.cluster.leader()
        return self.world.server(master).catalog.tablets[self.tablet] if master else None

    def members(self) -> list[ServerUuid]:
        record = self.record()
        if record is None or record.configuration is None:
            return []
        return [peer.uuid for peer in record.configuration.peers]

    def is_whole(self, *, without: Sequence[ServerUuid] = ()) -> bool:
        """Three voters that take part and hold the same, none of them of these servers."""
        record = self.record()
        if record is None or record.configuration is None:
            return False
        voters = record.configuration.voters
        if len(voters) != 3 or record.configuration.non_voters:
            return False
        if any(uuid in without for uuid in voters):
            return False
        states = []
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and self.world.nodes[name].ready and server.info.uuid in voters:
                tablet = server.replicas.tablet(self.tablet)
                if tablet is None or not tablet.machine.applied_index:
                    return False
                source = tablet.machine.checksum(tablet.machine.applied_index)
                assert source is not None
                states.append((tablet.replica.core.log.applied_index, source.compute()))
        return len(states) == 3 and len(dict.fromkeys(map(repr, states))) == 1

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.world.wait_until(condition, HEALED_S, what)

    def uuid(self, name: str) -> ServerUuid:
        uuid: ServerUuid = self.world.server(name).info.uuid
        return uuid


Story = Callable[[Healed], Coroutine[Any, Any, None]]


def play(
    story: Story,
    *,
    tservers: int = 3,
    seed: int = 1,
    dead_after_s: float = DEAD_AFTER_S,
    **options: Any,
) -> None:
    """Tell a story of a cluster with one tablet of three replicas."""
    world = World(seed, Options(servers=Servers(tservers=tservers), **options))

    async def told() -> None:
        cluster = SimCluster(world, replica_dead_after_s=dead_after_s, segment_bytes=2000)
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t", SCHEMA.arrow, key=["id"], durability=replicas(3), timeout=30.0
        )
        (located,) = await database.locate_table("t")
        healed = Healed(world, cluster, table, located.tablet.tablet_id)
        await healed.write(40)
        await story(healed)

    with Always().watching():
        world.run(told(), limit_s=600.0)
