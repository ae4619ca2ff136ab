"""The ``retired`` scenario: backups are retired, ended for good and replaced under every fault.

An operator retires one backup after the other, waits until the masters say that nothing is left,
ends it together with its disk, and sets up an empty one in its place; now and then some time passes
before that, and it is looked once more, and now and then a retirement is taken back. What the
``tables`` scenario demands holds throughout, and when nothing is left, no segment of any tablet has
a replica there, and each has all that it is to have elsewhere: the loss of that disk is never one
that a promise has to cover.
"""

from __future__ import annotations

import asyncio

from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryLater
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.world import World
from tests.simulation.backups.planted_retirements import planted
from tests.simulation.tables import tables
from tests.simulation.tables.log_watch import newest_tablets

GIVEN_BACK_RATE = 0.25
LONGEST_S = 40.0
IDLE_RATE = 0.3


class BackupRetirer:
    """Retires backups, one after the other."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._rng = cluster.world.rng("retirements")
        self.ended = self.given_back = 0

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._rng.uniform(0.2, 3.0))
            name = self._rng.choice(self._cluster.backups)
            try:
                await self._retire(name)
            except (InvalidArgument, RetryLater, OutcomeUnknown) as error:
                self._world.note("operators", f"{name} is not retired: {error}")
            await self._take_back(name)

    async def _retire(self, name: str) -> None:
        if self._rng.random() < GIVEN_BACK_RATE:
            await self._database.retire_server(name, wait=False, timeout=5.0)
            await asyncio.sleep(self._rng.uniform(0.0, 3.0))
            self.given_back += 1
            return
        server = self._world.server(name)
        if server is None or not hasattr(server, "info"):
            return
        uuid = server.info.uuid
        found = await self._database.retire_server(uuid, timeout=LONGEST_S)
        if self._rng.random() < IDLE_RATE:  # meanwhile it may be needed again
            await asyncio.sleep(self._rng.uniform(1.0, 6.0))
            found = await self._database.retire_server(uuid, timeout=LONGEST_S)
        if not found.is_live:
            return  # it is away: nobody can say what it has
        self._require_nothing_there(uuid)
        self._world.crash(name, lose_disk=True, restart=False)
        self.ended += 1
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        self._world.restart(name)

    def _require_nothing_there(self, uuid: str) -> None:
        """Of tablets that others own by now a former owner's belief is no matter."""
        known = newest_tablets(self._cluster)
        for name in self._cluster.tservers:
            server = self._world.server(name)
            if server is None or not hasattr(server, "info"):
                continue
            for tablet_id, segments in server.holders().items():
                record = known.get(tablet_id)
                if record is None or record.owner != server.info.uuid:
                    continue
                there = [uuids for uuids in segments if uuid in uuids]
                assert not there, f"tablet {tablet_id} of {name} needs a backup that is ended"

    async def _take_back(self, name: str) -> None:
        """Whatever it is called by now; until it is done."""
        marked = [
            mark.uuid
            for leader in [self._cluster.leader()]
            if leader is not None
            for mark in self._world.server(leader).catalog.marks.values()
            if mark.retiring
        ]
        for uuid in marked:
            for _ in range(20):
                try:
                    await self._database.retire_server(uuid, cancel=True, timeout=5.0)
                    break
                except (RetryLater, OutcomeUnknown):
                    await asyncio.sleep(0.5)

    async def judge(self, history: History) -> None:
        said = f"{self.ended} backups ended, {self.given_back} retirements taken back"
        self._world.note("world", said)


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.backups.planted_retirements`."""
    rng = world.rng("retired")
    cluster = SimCluster(
        world,
        copyset_size=rng.choice([0, 0, 2]),
        rereplication_bytes_per_s=rng.choice([0, 40_000]),
        replica_dead_after_s=rng.choice([2.5, 6.0]),
        **tables.cleaning_of(world),
    )
    with planted(bug):
        await tables.run_tables(
            world, (), longest_gap_s=4.0, make_beside=BackupRetirer, cluster=cluster
        )


SCENARIO = Scenario("retired", run, tables.spare_options, limit_s=1200.0)
