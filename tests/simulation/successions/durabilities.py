"""The ``durabilities`` scenario: a table goes from one durability to another, under everything.

Clients write, delete and read; the table is altered between ``segments``, ``wal`` and ``replicas``,
and other numbers of each, again and again, also back before it is done; servers of every kind
crash, hang and are cut off. What the ``tables`` scenario demands of rows holds across all changes.
Once the faults end the last alter ends, every tablet serves, with the table's durability, and
nothing is left of those that have made way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryElsewhere, RetryLater
from stelae.core.messages.safekeepers import TimelinePresence
from stelae.core.records.records import TableRecord, TableState, TabletState
from stelae.core.records.succession import Succession, SuccessionStage
from stelae.core.schema.durability import Durability, Replicas, Wal, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation.checkers import require_rows
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.successions.planted_durabilities import planted
from tests.simulation.tables import tables
from tests.simulation.tables.tables import Client, cleaning_of

FAULTS_S = 25.0
HEAL_TIMEOUT_S = 240.0
BUG_TIMEOUT_S = 60.0
CALM_S = 10.0
"""Without a sign of healing for so long, servers are started again, as an operator does of whom a
disk failed."""
PAUSE_S = 2.0
ALTERS_MAX = 12
STRIKES_MAX = 8
LOOK_S = 0.004
DURABILITIES: tuple[Durability, ...] = (
    segments("disk", "disk"),
    segments("disk", "disk"),
    segments("disk", "disk", "disk"),
    wal(3, ("disk", "disk")),
    wal(3, ("disk", "disk")),
    wal(1, ("disk",)),
    replicas(3),
    replicas(3),
    replicas(1),
)


@dataclass
class Tally:
    """What happened in a run: it must be something."""

    operations: int = 0
    answered: int = 0
    changes: int = 0
    """Of the table's durability."""
    swaps: int = 0
    given_up: int = 0
    restarted: int = 0
    strikes: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Alterer:
    """Gives the table another durability again and again, at random."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._world = cluster.world
        self._database = database
        self._rng = cluster.world.rng("alters")

    async def run(self, until_s: float) -> None:
        for _ in range(ALTERS_MAX):
            await self._database.runtime.clock.sleep(self._rng.expovariate(1.0) * PAUSE_S)
            if self._world.loop.time() >= until_s:
                return
            try:
                await self._alter(await self._database.table(tables.TABLE))
            except (RetryLater, RetryElsewhere, OutcomeUnknown, InvalidArgument) as error:
                self._world.note("alters", f"it ends with {error!r}")

    async def _alter(self, table: AsyncTable) -> None:
        await table.refresh()
        record = table.record
        wanted = self._rng.choice(DURABILITIES)
        if record.becoming is not None and self._rng.random() < 0.5:
            wanted = record.durability
        self._world.note("alters", f"from {record.durability} to {wanted}")
        wait = self._rng.random() < 0.6
        await table.alter(durability=wanted, wait=wait, timeout=self._rng.choice((2.0, 8.0)))


class Striker:
    """Strikes where it hurts: whoever takes part, as soon as a tablet is fenced or closed."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.count = 0
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self._rate = rng.choice((0.0, 0.2, 0.5))
        self._seen: dict[tuple[str, Succession], None] = {}

    async def run(self, until_s: float) -> None:
        while self._rate and self._world.loop.time() < until_s and self.count < STRIKES_MAX:
            for name, succession in self._stages():
                if (name, succession) not in self._seen:
                    self._seen[name, succession] = None
                    if self._rng.random() < self._rate:
                        self.count += 1
                        await self._strike(name)
            await asyncio.sleep(LOOK_S)

    def _stages(self) -> Iterator[tuple[str, Succession]]:
        for name in self._cluster.tservers:
            server = self._world.server(name)
            if server is None or not hasattr(server, "info"):
                continue
            for tablet in [*server._tablets.values(), *server.replicas.running()]:
                if tablet.succession.stage is not SuccessionStage.OPEN:
                    yield name, tablet.succession

    async def _strike(self, source: str) -> None:
        leader = self._cluster.leader()
        others = [name for name in self._cluster.tservers if name != source]
        victims = [source, self._rng.choice(others), *([leader] if leader is not None else [])]
        for victim in self._rng.sample(victims, self._rng.choice((1, 1, 2))):
            if self._rng.random() < 0.6:
                self._world.crash(victim)
                continue
            self._world.pause(victim)
            self._world.spawn("striker", self._resume(victim, self._rng.uniform(0.2, 4.0)))

    async def _resume(self, victim: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._world.resume(victim)


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.successions.planted_durabilities`."""
    with planted(bug):
        tally = await run_durabilities(world, HEAL_TIMEOUT_S if not bug else BUG_TIMEOUT_S)
    world.note("world", str(tally))


async def run_durabilities(world: World, heal_s: float = HEAL_TIMEOUT_S) -> Tally:
    """Work under faults; then all is healed, and must be in order."""
    rng = world.rng("table")
    settings = {**cleaning_of(world), **_settings(rng)}
    cluster, history = SimCluster(world, **settings), History(world.loop.time)
    await cluster.start()
    admin = cluster.database("operators")
    await admin.create_table(
        tables.TABLE,
        tables.SCHEMA,
        key="id",
        partition=hash_partition("id", rng.choice([1, 2, 3])),
        durability=rng.choice(DURABILITIES),
        timeout=60.0,
    )
    clients = [
        Client(f"c{n}", world, cluster.database(f"c{n}"), history, world.rng(f"client/{n}"))
        for n in range(world.options.workload.clients)
    ]
    for client in clients[1:]:
        client.only_reads = rng.random() < 0.2
    nemesis = Nemesis.begin(world, FAULTS_S, losable=())
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    tasks.append(world.spawn("operators", Alterer(cluster, admin).run(until_s)))
    world.client("striker")
    striker = Striker(cluster, world.rng("striker"))
    striking = asyncio.create_task(striker.run(until_s))
    await world.wait_until(lambda: all(t.done() for t in tasks), 600.0, "the clients to end")
    await striking
    for task in tasks:
        task.result()
    await nemesis.finish()
    restarted = await _rest(world, cluster, heal_s)
    await tables._read_all(world, cluster, history, Client)
    require_rows(history)
    return replace(_tally(world, cluster, history, restarted), strikes=striker.count)


def _settings(rng: random.Random) -> dict[str, Any]:
    return {
        "raft_keep_bytes": rng.choice([0, 500, 5000]),
        "replica_dead_after_s": rng.choice([2.5, 5.0]),
        "copy_piece_bytes": rng.choice([500, 4000]),
        "safekeeper_dead_after_s": rng.choice([5.0, 300.0]),
        "timeline_scan_s": rng.choice([0.3, 1.5]),
        "creation_timeout_s": rng.choice([6.0, 15.0]),
        "client_expiry_s": rng.choice([60.0, 3600.0]),
    }


def unrest(cluster: SimCluster) -> str:
    """What is not as it should be; empty: nothing."""
    leader = cluster.leader()
    if leader is None:
        return "no master leads"
    catalog = cluster.world.server(leader).catalog
    (table,) = catalog.live_tables()
    assert isinstance(table, TableRecord)
    if table.state is not TableState.RUNNING or table.becoming is not None:
        return f"table: {table.state.value}"
    if catalog.successors():
        return "successors: there are some"
    reports: dict[str, list[Any]] = {}
    for name in cluster.tservers:
        server = cluster.world.server(name)
        for report in server.reports() if server is not None else ():
            reports.setdefault(report.tablet_id, []).append(report)
    for tablet in catalog.tablets_of(table.table_id):
        assert tablet.is_group == isinstance(table.durability, Replicas), "of another durability"
        assert (tablet.timeline is not None) == isinstance(table.durability, Wal)
        found = reports.pop(tablet.tablet_id, [])
        if tablet.state is not TabletState.RUNNING or not found:
            return f"tablet: {tablet.state.value}, with {len(found)} reports"
        if any(report.succession is not None for report in found):
            return "tablet: it makes way"
    if reports:
        return f"left: {len(reports)} tablets"
    failed = broken(cluster)
    return f"failed: {', '.join(failed)}" if failed else ""


def broken(cluster: SimCluster) -> list[str]:
    """Servers of which something failed, and comes back only if they are started again."""
    found: list[str] = []
    for name in cluster.safekeepers:
        server = cluster.world.server(name)
        timelines = None if server is None else server.timelines
        held = [timelines.describe(i) for i in timelines.held] if timelines is not None else []
        if any(one.presence is TimelinePresence.FAILED for one in held):
            found.append(name)
    for name in cluster.tservers:
        server = cluster.world.server(name)
        if server is not None and server.replicas._failed:
            found.append(name)
    return found


def brought_over(cluster: SimCluster) -> dict[str, int]:
    """Of each tablet that makes way, how far its successor is: it comes to more than the time
    until servers are started again, where tiny segments make pieces of one row."""
    found: dict[str, int] = {}
    for name in cluster.tservers:
        server = cluster.world.server(name)
        for report in server.reports() if server is not None else ():
            if report.succession is not None:
                found[report.succession.successor] = report.succession.copied
    return found


async def _rest(world: World, cluster: SimCluster, heal_s: float) -> int:
    """Wait until all is as it should be; returns how often servers had to be started again."""
    began_s = calm_since_s = world.loop.time()
    said, copied, restarted = "", brought_over(cluster), 0
    while problem := unrest(cluster):
        now_s = world.loop.time()
        assert now_s < began_s + heal_s, f"not in order after {heal_s} s: {problem}"
        if problem != said:
            world.note("world", problem)
        if (problem, brought_over(cluster)) != (said, copied):
            said, copied, calm_since_s = problem, brought_over(cluster), now_s
        if now_s - calm_since_s > CALM_S:
            calm_since_s = now_s
            restarted += 1
            for name in broken(cluster) or [*cluster.tservers, *cluster.backups]:
                world.restart(name)
                await asyncio.sleep(0.5)
        await asyncio.sleep(0.2)
    return restarted


def _tally(world: World, cluster: SimCluster, history: History, restarted: int) -> Tally:
    counts: dict[str, int] = {}
    steps: dict[str, int] = {}
    for metrics in world.metrics.values():
        for name, value in metrics.counts.items():
            short = name.partition("{")[0]
            counts[short] = counts.get(short, 0) + int(value)
            if short == "successions":
                step = name.partition("step=")[2].strip('"}')
                steps[step] = steps.get(step, 0) + int(value)
    leader = cluster.leader()
    assert leader is not None, "it is at rest"
    (table,) = world.server(leader).catalog.live_tables()
    return Tally(
        operations=len(history.operations),
        answered=len(history.operations) - history.count("unknown"),
        changes=table.change,
        swaps=steps.get("Swap", 0),
        given_up=steps.get("GiveUpSuccessor", 0),
        restarted=restarted,
        counts=counts,
    )


def options(seed: int) -> Options:
    """Some of everything; messages are lost, but not most of them; disks are not lost."""
    drawn, rng = Options.draw(seed), random.Random(f"{seed}/durabilities")
    work = drawn.workload
    busy = replace(
        work,
        clients=max(3, min(6, work.clients)),
        keys=max(2, min(20, work.keys)),
        operations=max(100, work.operations),
    )
    limits = replace(drawn.limits, segment_size_bytes=rng.choice([600, 1500, 4096]))
    return drawn.but(
        workload=busy,
        limits=limits,
        servers=Servers(
            masters=rng.choice([1, 3, 3]), tservers=rng.choice([3, 4]), backups=3, safekeepers=3
        ),
        drop_request_rate=min(0.05, drawn.drop_request_rate),
        drop_reply_rate=min(0.05, drawn.drop_reply_rate),
        restart_mean_s=min(1.0, drawn.restart_mean_s),
        full_disk_every_s=0.0,
        lost_disk_every_s=0.0,
    )


SCENARIO = Scenario("durabilities", run, options, limit_s=1200.0)
