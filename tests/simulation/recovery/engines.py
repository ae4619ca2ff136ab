"""The ``engines`` and ``offers`` scenarios: recoveries by a Spark engine that fails in every way it
can.

The engine's tasks are the real ones, on processes of their own; what stands in for Spark places
them, and has them die, run twice, go on long after everybody has given them up, or answer nothing.
In ``engines`` what the ``tables`` scenario demands of rows holds, in most runs with an index; in
``offers``, where indexlets get lost with tablets, what the ``entries`` scenario demands of indexes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from stelae.actors.master.server import Master
from stelae.actors.tserver.indexes.indexlet_offers import IndexletOffers
from stelae.actors.tserver.row_loading.spark_merge import MergeOffer
from stelae.client.database import AsyncDatabase
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.records.records import TabletState
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import segments
from stelae.recovery import spark_indexes, spark_log
from stelae.recovery.engine import RecoveryJob, SparkState
from stelae.recovery.spark_job import TabletOutcome, group_jobs, merge_tablets
from stelae.simulation.cluster import SimCluster
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.instance import SimRuntime
from stelae.simulation.world.node import Factory
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.indexes import entries
from tests.simulation.indexes.index_watch import in_some_runs
from tests.simulation.tables import tables
from tests.simulation.tables.remembered_images import remembered_images
from tests.simulation.world.planting import planting

CORES = 2
PIECE_BYTES = 64
"""Of offers: so small that a task may end between two pieces."""
STRIKES_S = (0.8, 3.0)
FATES = ("whole", "whole", "dies", "dies", "twice", "late", "loses some", "silent")


class SimulatedSpark:
    """`SparkEngine`: its executors are processes of the world."""

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.rng
        self.state = SparkState(CORES, 0.0)

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        fate = self._rng.choice(FATES)
        self._world.note("spark", f"{len(jobs)} tablets: {fate}")
        self._cluster.fates[fate] = self._cluster.fates.get(fate, 0) + 1
        tasks = [
            self._world.spawn(name, merge_tablets(runtime, self._cluster.settings, group))
            for (name, runtime), group in zip(
                self._cluster.executors(), group_jobs(jobs, CORES), strict=False
            )
            for _ in range(2 if fate == "twice" else 1)
        ]
        match fate:
            case "dies":
                await asyncio.wait(tasks, timeout=self._rng.uniform(0.0, 0.3))
                if all(task.done() for task in tasks):
                    return self._problems(tasks)
                for task in tasks:
                    task.cancel()
                self.state = SparkState(CORES, self._rng.choice([0.0, 0.0, 30.0]))
                raise StelaeError("an executor was lost")
            case "late":
                raise StelaeError("given up too early")
            case "silent":
                await asyncio.wait(tasks)
                never: asyncio.Future[Mapping[TabletId, str]]
                never = asyncio.get_running_loop().create_future()
                return await never
        await asyncio.wait(tasks)
        problems = self._problems(tasks)
        if fate == "loses some":
            problems[jobs[0].tablet.tablet_id] = "its answer was lost"
        return problems

    def _problems(self, tasks: Sequence[asyncio.Task[list[TabletOutcome]]]) -> dict[TabletId, str]:
        outcomes = [outcome for task in tasks for outcome in task.result()]
        self._cluster.entries_offered += sum(o.indexes.entry_count for o in outcomes)
        return {o.tablet_id: o.problem for o in outcomes if o.problem}


class SparkCluster(SimCluster):
    """Whose masters have a Spark engine, and use it always."""

    strikes_s: tuple[float, ...] = ()

    def __init__(self, world: World, **changes: Any) -> None:
        super().__init__(world, **changes)
        self.rng = world.rng("spark")
        self.fates: dict[str, int] = {}
        self.entries_offered = 0
        self._runtimes: dict[str, Runtime] = {}
        self._databases: dict[str, AsyncDatabase] = {}

    def database(self, client: str) -> AsyncDatabase:
        """The client's own one, also if it is asked for again."""
        if client not in self._databases:
            self._databases[client] = super().database(client)
        return self._databases[client]

    async def start(self) -> None:
        await super().start()
        if self.strikes_s:
            name, runtime = self.executors()[0]
            self.world.spawn(name, self._strike(runtime))

    async def _strike(self, runtime: Runtime) -> None:
        """Now and then end two tservers at once: one may have what the other's rows stand in."""
        while not self._has_table():
            await runtime.clock.sleep(0.1)
        until_s = self.world.loop.time() + entries.FAULTS_S
        while True:
            await runtime.clock.sleep(self.rng.uniform(*self.strikes_s))
            if self.world.loop.time() > until_s:
                return
            for name in self.rng.sample(self.tservers, 2):
                if self.world.server(name) is not None:
                    self.world.crash(name)

    def _has_table(self) -> bool:
        leader = self.leader()
        tablets = [] if leader is None else list(self.world.server(leader).catalog.tablets.values())
        return bool(tablets) and all(t.state is TabletState.RUNNING for t in tablets)

    def executors(self) -> list[tuple[str, Runtime]]:
        """By name; they are reached like clients."""
        names = [f"executor-{n}" for n in range(1, CORES + 1)]
        for name in names:
            if name not in self._runtimes:
                self._runtimes[name] = self.world.client(name)
        return list(self._runtimes.items())

    def _master(self, name: str, *, joining: bool = False) -> Factory:
        make = super()._master(name, joining=joining)

        def with_spark(runtime: SimRuntime) -> Master:
            master = make(runtime)
            assert isinstance(master, Master)
            master.spark_engine = SimulatedSpark(self)
            master.use_engine("spark")
            return master

        return with_spark


# ---- planted bugs -----------------------------------------------------------------------------


def _first_piece_counts() -> Any:
    """An indexlet takes a tablet's entries for complete when the first of them are here."""
    take = IndexletOffers.take

    async def hasty(self: IndexletOffers, call: Any) -> None:
        await take(self, call)
        if call.body.piece_count and self._has_use_for(call.body.tablet.number):
            self._indexlet.filled.add(call.body.tablet.number)
            self._news.set()

    return patch.object(IndexletOffers, "take", hasty)


def _owners_wait_for_ever() -> Any:
    """Nobody tells the owners that Spark was given up, nor how long to wait."""
    expect = MergeOffer.expect

    def patient(self: MergeOffer) -> None:
        self.patience_s = 1e6
        expect(self)

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(MergeOffer, "decline", lambda self: None))
    stack.enter_context(patch.object(MergeOffer, "expect", patient))
    return stack


def _another_log_is_offered() -> Any:
    """Offers are of whatever replica of the head was read, and nobody compares."""

    async def compare(*job: Any) -> None:
        return

    read = spark_log.from_any_replica

    async def shortest_first(runtime: Any, settings: Any, source: Any, fetch: Any) -> Any:
        turned = replace(source, replicas=source.replicas[::-1])
        return await read(runtime, settings, turned, fetch)

    async def nothing(*given: Any) -> dict[int, Any]:
        return {}

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(spark_indexes, "_compare", compare))
    stack.enter_context(patch.object(spark_log, "from_any_replica", shortest_first))
    stack.enter_context(patch.object(spark_log, "_read_near", nothing))
    return stack


BUGS: dict[str, Callable[[], Any]] = {
    "first piece counts": _first_piece_counts,
    "another log is offered": _another_log_is_offered,
    "owners wait for ever": _owners_wait_for_ever,
}


planted = planting(BUGS)


async def run(world: World, bug: str = "") -> None:
    """One seed of ``engines``; ``bug`` is one of `BUGS`."""
    with planted(bug), remembered_images():
        cluster = SparkCluster(world, **tables.cleaning_of(world))
        indexes, make_beside = in_some_runs(world)
        await tables.run_tables(
            world,
            ("kill",),
            longest_gap_s=3.0,
            make_beside=make_beside,
            cluster=cluster,
            indexes=indexes,
        )


async def run_offers(world: World, bug: str = "") -> None:
    """One seed of ``offers``; ``bug`` is one of `BUGS`."""
    with (
        planted(bug),
        patch.object(spark_indexes, "PIECE_BYTES", PIECE_BYTES),
        patch.object(entries, "DURABILITIES", (segments("disk", "disk"),)),
        patch.object(entries, "SimCluster", SparkCluster),
        patch.object(SparkCluster, "strikes_s", STRIKES_S),
    ):
        await entries.run(world)


def options(seed: int) -> Options:
    """Servers die so often that there is always something to recover."""
    return _deadly(tables.options(seed), seed)


def offers_options(seed: int) -> Options:
    """The same for the other scenario: tablets and indexlets are lost together."""
    return _deadly(entries.options(seed), seed)


def _deadly(drawn: Options, seed: int) -> Options:
    return drawn.but(crash_every_s=random.Random(f"{seed}/deadly").uniform(0.7, 2.0))


SCENARIO = Scenario("engines", run, options)
OFFERS = Scenario("offers", run_offers, offers_options)
