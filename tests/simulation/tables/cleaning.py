"""The ``cleaning`` scenario: tables whose logs are cleaned all the time, and crashes in the middle.

Segments are small, dead rows go at once and logs are hardly longer than memory, so that passes are
always under way. Tablet servers crash at every step of them: while a survivor is being replicated,
when it is on all its backups and in no digest, when it is admitted and no head says so yet, and
while what it replaces is being freed; sometimes a backup goes with them. Rules and judges are those
of the ``tables`` scenario; besides, once all is healed, backups hold the logs and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from stelae.client.database import AsyncDatabase
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.tables import tables
from tests.simulation.tables.planted import planted
from tests.simulation.tables.strikes import KINDS
from tests.simulation.tables.tables import Client, run_tables

LOOK_S = 0.002
TIDY_TIMEOUT_S = 150.0
"""More than a round of the census takes."""
HOT_KEYS = 8
HOT_SHARE = 0.97
COLD_WRITES = 12
STEPS = ("replicating", "replicated", "admitted", "head opened")


class SkewedClient(Client):
    """After the first calls most are of a few keys: rows of all others keep old segments, and in
    them dead rows of these few, for tombstones to guard against."""

    def _key(self) -> int:
        keys, is_warm = self._world.options.workload.keys, self._count > COLD_WRITES
        is_hot = is_warm and self._rng.random() < HOT_SHARE
        return self._rng.randrange(HOT_KEYS if is_hot else keys)


class PassStrikes:
    """Crashes servers in the middle of passes; a `tests.simulation.tables.tables.Beside`."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._sleep = database.runtime.clock.sleep
        self._rng = cluster.world.rng("strikes at passes")
        self.struck: Counter[str] = Counter()

    async def run(self, until_s: float) -> None:
        """Wait for a step that was drawn, strike, and let the cluster come back; at the end all
        rows are brought back from what backups have, for those who then read every key."""
        loop = self._world.loop
        while loop.time() < until_s:
            step = self._rng.choice(STEPS)
            give_up_s = loop.time() + 3.0
            while loop.time() < min(until_s, give_up_s):
                at = [name for name, found in self._steps() if found == step]
                if at:
                    self._strike(self._rng.choice(at), step)
                    break
                await self._sleep(LOOK_S)
            await self._sleep(self._rng.uniform(0.5, 4.0))
        for tserver in self._cluster.tservers:
            self._world.crash(tserver)

    def _steps(self) -> Iterator[tuple[str, str]]:
        """(tserver, step) of all passes."""
        for name in self._cluster.tservers:
            server = self._world.server(name)
            for tablet in server._tablets.values() if server is not None else ():
                side = tablet.log.side
                for segment in side._side.values():
                    yield name, "replicated" if segment.is_sealed else "replicating"
                for retired in side._retired:
                    yield name, "head opened" if retired.head else "admitted"

    def _strike(self, tserver: str, step: str) -> None:
        world, rng = self._world, self._rng
        world.note("nemesis", f"strikes {tserver} in a pass: {step}")
        self.struck[step] += 1
        lost = rng.choice(self._cluster.backups)
        if rng.random() < 0.3 and world.may_lose_disk is not None and world.may_lose_disk(lost):
            world.crash(lost, lose_disk=rng.random() < 0.5)
        world.crash(tserver)

    async def judge(self, history: History) -> None:
        """Backups hold the replicas of the logs, and no others."""
        del history
        await self._world.wait_until(lambda: not self._strays(), TIDY_TIMEOUT_S, "no strays")

    def _strays(self) -> list[tuple[str, str, int]]:
        found = []
        logs = {}
        for name in self._cluster.tservers:
            server = self._world.server(name)
            for tablet in server._tablets.values() if server is not None else ():
                logs[tablet.tablet_id] = {each.segment_id for each in tablet.log.segments}
        for name in self._cluster.backups:
            backup = self._world.server(name)
            assert backup is not None, f"{name} is away in a healed cluster"
            for tablet_id, segments in logs.items():
                held = backup._holdings.segments(tablet_id)
                found += [(name, tablet_id, each) for each in held if each not in segments]
        return found


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.tables.planted`."""
    rng = world.rng("kinds of strikes")
    strikes = rng.sample(KINDS, rng.randrange(0, 2))
    with planted(bug):
        await run_tables(
            world,
            strikes,
            longest_gap_s=4.0,
            make_client=SkewedClient,
            make_beside=PassStrikes,
            clean_memory_share=0.0,
            clean_log_factor=rng.choice([1.0, 1.5, 2.0]),
        )
    world.note("world", f"cleaned {sorted(tables.counts_of(world).items())}")


def options(seed: int) -> Options:
    """Small segments, many writes, and mostly calm but for crashes."""
    drawn, rng = tables.options(seed), random.Random(f"{seed}/cleaning")
    workload = replace(
        drawn.workload,
        clients=4,
        keys=rng.choice([20, 40, 60]),
        operations=150,
        value_bytes=rng.choice([10, 100, 300]),
        write_share=0.9,
        delete_share=rng.choice([0.2, 0.6]),
        read_share=0.2,
        think_s=0.01,
    )
    limits = replace(drawn.limits, segment_size_bytes=rng.choice([1024, 2048]))
    servers = Servers(tservers=rng.choice([2, 3]), backups=rng.choice([3, 4]))
    return drawn.but(
        workload=workload,
        limits=limits,
        servers=servers,
        crash_every_s=rng.choice([0.0, 6.0]),
        sync_error_every_s=0.0,
        pause_every_s=0.0,
        lost_disk_every_s=0.0,
    )


SCENARIO = Scenario("cleaning", run, options)
