"""The ``splits`` scenario: tablets are split again and again, when their servers die.

The limit is so low that most recoveries split what they bring back, while backups are lost, rows
are on their way, and parts are not whole yet. In many runs servers crash at each step of how parts
make what they inherit their own, and in some there is hardly memory for it. The rules are those of
``loading``; at the end nothing is inherited any more, and backups hold nothing of tablets that were
split.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.simulation.cluster import MEMORY_LIMIT_BYTES, SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.indexes.index_watch import in_some_runs
from tests.simulation.recovery import loading
from tests.simulation.recovery.blackouts import Blackouts
from tests.simulation.splits.planted_splits import planted
from tests.simulation.tables.remembered_images import remembered_images
from tests.simulation.tables.tables import Beside, cleaning_of, count_tablets, run_tables

LIMITS_BYTES = (4096, 16384)
LOADING_S = (0.0, 4.0, 25.0)
FREED_S = 60.0
LOOK_S = 0.002
STEPS = ("fetching", "replicating", "replicated", "moved", "head opened", "whole")
STRUCK_RATE = 0.6
TIGHT_RATE = 0.3
TIGHT_SHARE = 1.5
"""Of what clients write: so much memory do servers have in some runs."""


class Splits(Blackouts):
    """Beside the faults, a judge of what is left of split tablets."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        super().__init__(cluster, database)
        self._world = cluster.world
        self._strikes = cluster.world.rng("strikes at inheriting")
        self._has_strikes = self._strikes.random() < STRUCK_RATE
        self.struck: Counter[str] = Counter()

    async def run(self, until_s: float) -> None:
        """Also crash servers at a step that was drawn, in many runs."""
        steps = self._strike_steps(until_s) if self._has_strikes else asyncio.sleep(0)
        await asyncio.gather(super().run(until_s), steps)

    async def _strike_steps(self, until_s: float) -> None:
        loop, rng = self._world.loop, self._strikes
        while loop.time() < until_s:
            step, give_up_s = rng.choice(STEPS), loop.time() + 3.0
            while loop.time() < min(until_s, give_up_s):
                at = [name for name, found in self._steps() if found == step]
                if at:
                    self._world.note("nemesis", f"strikes a part that inherits: {step}")
                    self.struck[step] += 1
                    self._world.crash(rng.choice(at))
                    break
                await self._sleep(LOOK_S)
            await self._sleep(rng.uniform(0.5, 4.0))

    def _steps(self) -> Iterator[tuple[str, str]]:
        """(tserver, step) of all parts that inherit."""
        for name in self._cluster.tservers:
            server = self._world.server(name)
            for tablet in server._tablets.values() if server is not None else ():
                side = tablet.log.side
                if not tablet.log.inherits:
                    if tablet.share.bits:
                        yield name, "whole"
                    continue
                if not side._side:
                    yield name, "fetching"
                for segment in side._side.values():
                    yield name, "replicated" if segment.is_sealed else "replicating"
                for retired in side._retired:
                    yield name, "head opened" if retired.head else "moved"

    async def judge(self, history: History) -> None:
        """Backups hold logs of live tablets only."""
        await self._world.wait_until(self._is_freed, FREED_S, "split tablets' logs are freed")

    def _is_freed(self) -> bool:
        cluster, world = self._cluster, self._world
        leader = cluster.leader()
        master = None if leader is None else world.server(leader)
        if master is None:
            return False
        live = {tablet.tablet_id for tablet in master.catalog.live_tablets()}
        held: set[str] = set()
        for name in cluster.backups:
            server = world.server(name)
            held |= set(server._holdings.logs) if server is not None else set()
        return held <= live and count_tablets(cluster) == len(live)


async def run(world: World, bug: str = "") -> None:
    """Tables under strikes, of tablets that are mostly too large; in most runs with an index."""
    await _run_splits(world, bug, *in_some_runs(world, Splits))


async def run_unindexed(world: World, bug: str = "") -> None:
    """The same without an index, whose memory and writes make another run of a seed."""
    await _run_splits(world, bug, (), Splits)


async def _run_splits(
    world: World,
    bug: str,
    indexes: tuple[str, ...],
    make_beside: Callable[[SimCluster, AsyncDatabase], Beside] | None,
) -> None:
    work, rng = world.options.workload, world.rng("splits")
    size_bytes = work.clients * work.operations * (work.value_bytes + loading.ROW_BYTES)
    loading_s = rng.choice(LOADING_S)
    limit_bytes, memory_bytes = rng.choice(LIMITS_BYTES), MEMORY_LIMIT_BYTES
    if rng.random() < TIGHT_RATE:  # of many small parts the indexes alone would take it all
        limit_bytes, memory_bytes = max(LIMITS_BYTES), int(TIGHT_SHARE * size_bytes)
    settings: dict[str, Any] = {
        "metadata_first": rng.random() < 0.8,
        "load_bytes_per_s": size_bytes / loading_s if loading_s else 0.0,
        "split_above_bytes": limit_bytes,
    }
    settings = {**cleaning_of(world), **settings}
    cluster = SimCluster(world, memory_limit_bytes=memory_bytes, **settings)
    with planted(bug), remembered_images():
        await run_tables(
            world,
            rng.sample(loading.KINDS, 2),
            longest_gap_s=3.0,
            make_client=loading.UpdatingClient,
            make_beside=make_beside,
            cluster=cluster,
            indexes=indexes,
        )


def options(seed: int) -> Options:
    """Those of ``loading``."""
    return loading.options(seed)


SCENARIO = Scenario("splits", run, options)
UNINDEXED = Scenario("unindexed_splits", run_unindexed, options)
