"""The ``wal`` scenario: a whole cluster whose tables have ``wal(n, …)``, under everything.

Clients write, delete and read; operators move timelines, take changes back, empty safekeepers, set
their statuses, scrub them, and create and delete other tables; servers of every kind crash, hang,
are cut off, lose syncs and disks; the configuration store goes away, and leader masters die where
it hurts a migration most. No acknowledged write may be lost, doubled or out of order. Once the
faults end, every change of members has ended, each timeline is on its members and nowhere else,
every tablet serves, and nothing is left of deleted tables. See `tests.simulation.wal.wal_judges`.
Every step of every timeline is one of the model in `spec/` (`stelae.simulation.timelines.trace`),
by which no entry that a leader counted is lost or changed, a term is won once over all generations,
and of a generation there is one configuration.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

from stelae.actors.master.leader.migration_runner import RunnerSettings
from stelae.coordinator.timelines.migration_steps import MigrationSettings
from stelae.core.schema.durability import wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation.checkers import require_rows
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.timelines.recorder import TimelineRecorder
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.tables import tables
from tests.simulation.tables.tables import FAULTS_S, Client
from tests.simulation.wal.planted_wal import planted
from tests.simulation.wal.wal_judges import Look
from tests.simulation.wal.wal_operators import Operators

HEAL_TIMEOUT_S = 240.0
BUG_TIMEOUT_S = 60.0
"""The same with a planted bug, of which it is a sign that healing takes long."""


@dataclass
class Tally:
    """What happened in a run: it must be something."""

    operations: int = 0
    answered: int = 0
    generations: int = 0
    """Changes of configurations."""
    terms: int = 0
    """Owners that tablets had after their first."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of servers' metrics."""
    done: dict[str, int] = field(default_factory=dict)
    """Of operators' orders."""


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.wal.planted_wal`."""
    recorder = TimelineRecorder()
    world.timelines = recorder.lines
    with planted(bug), recorder.installed():
        tally = await run_wal(world, HEAL_TIMEOUT_S if not bug else BUG_TIMEOUT_S)
    world.note("world", str(tally))
    recorder.check()


def make_cluster(world: World) -> SimCluster:
    """With little patience everywhere, so that lost members are replaced and runs are given up."""
    rng = world.rng("settings")
    migration = MigrationSettings(
        call_timeout_s=0.6,
        pull_timeout_s=2.0,
        first_pause_s=0.03,
        longest_pause_s=rng.choice([0.2, 1.0]),
        settle_s=rng.choice([0.0, 0.1]),
        pings_max=2,
        stall_s=1.0,
        tidy_patience_s=rng.choice([0.5, 3.0]),
        patience_s=rng.choice([3.0, 8.0]),
        members_min=1,
    )
    return SimCluster(
        world,
        cas_store=rng.random() < 0.4,
        **tables.cleaning_of(world),
        migrations=RunnerSettings(
            migration=migration,
            runs_max=rng.choice([1, 4]),
            calls_max=16,
            pulls_max=2,
            store_timeout_s=0.6,
        ),
        safekeeper_dead_after_s=rng.choice([2.0, 5.0, 300.0]),
        timeline_scan_s=rng.choice([0.3, 1.5]),
        safekeeper_sweep_s=rng.choice([0.5, 3.0]),
        evict_after_s=rng.choice([0.0, 0.0, 1.0]),
        creation_timeout_s=rng.choice([6.0, 15.0]),
        client_expiry_s=rng.choice([60.0, 3600.0]),
        heartbeat_s=rng.choice([0.2, 0.5, 0.5]),
    )


async def run_wal(world: World, heal_s: float = HEAL_TIMEOUT_S) -> Tally:
    """Work under faults; then all is healed, and must be in order."""
    cluster, history = make_cluster(world), History(world.loop.time)
    await cluster.start()
    look = Look(cluster)
    rng = world.rng("table")
    count = rng.choice([c for c in (1, 3, 3, 3, 5) if c <= len(cluster.safekeepers)])
    media = ("disk", "disk")
    admin = cluster.database("operators")
    await admin.create_table(
        tables.TABLE,
        tables.SCHEMA,
        key="id",
        partition=hash_partition("id", rng.choice([1, 2])),
        durability=wal(count, media),
        timeout=60.0,
    )
    clients = [
        Client(f"c{n}", world, cluster.database(f"c{n}"), history, world.rng(f"client/{n}"))
        for n in range(world.options.workload.clients)
    ]
    operators = Operators(cluster, admin, count)
    world.may_lose_disk = lambda name: look.may_lose(name, len(media))
    # Operators or masters may move the only copy of a log to a process that is about to end.
    world.may_outlive = lambda name: count > 1 or name not in cluster.safekeepers
    nemesis = Nemesis.begin(
        world,
        FAULTS_S,
        losable=("backup", "safekeeper", "tserver"),
        fillable=("backup", "safekeeper"),
    )
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    tasks.append(world.spawn("operators", operators.run(until_s)))
    if rng.random() < 0.6:
        tasks.append(world.spawn("operators", operators.run_passing(until_s)))
    await world.wait_until(lambda: all(t.done() for t in tasks), 600.0, "the clients to end")
    for task in tasks:
        task.result()
    await nemesis.finish()
    await world.spawn("operators", operators.end())
    await _rest(world, look, heal_s)
    await tables._read_all(world, cluster, history, Client)
    require_rows(history)
    await look.check_logs()
    tally = _tally(world, look, history, operators)
    await world.spawn("operators", operators.delete_all())
    await _rest(world, look, heal_s)
    return tally


async def _rest(world: World, look: Look, heal_s: float) -> None:
    """Wait until all is as it should be."""
    began_s, said = world.loop.time(), ""
    while problem := look.unrest():
        assert world.loop.time() < began_s + heal_s, f"not in order after {heal_s} s: {problem}"
        kind = problem.partition(":")[0]
        if kind != said:
            world.note("world", problem)
            said = kind
        await asyncio.sleep(0.2)


def _tally(world: World, look: Look, history: History, operators: Operators) -> Tally:
    counts: dict[str, int] = {}
    for metrics in world.metrics.values():
        for name, value in metrics.counts.items():
            short = name.partition("{")[0]
            counts[short] = counts.get(short, 0) + int(value)
    live = look.tablets()
    return Tally(
        operations=len(history.operations),
        answered=len(history.operations) - history.count("unknown"),
        generations=sum(t.timeline.generation - 1 for t in live if t.timeline is not None),
        terms=sum(t.term - 1 for t in live),
        counts=counts,
        done=dict(operators.done),
    )


def options(seed: int) -> Options:
    """Some of everything; messages are lost, but not most of them."""
    drawn, rng = Options.draw(seed), random.Random(f"{seed}/wal")
    work = drawn.workload
    busy = replace(
        work,
        clients=max(3, min(6, work.clients)),
        keys=max(2, min(10, work.keys)),
        operations=max(100, work.operations),
    )
    limits = replace(drawn.limits, segment_size_bytes=rng.choice([1500, 4096, 4096]))
    return drawn.but(
        workload=busy,
        limits=limits,
        servers=Servers(
            masters=rng.choice([1, 3, 3]),
            tservers=rng.choice([2, 3]),
            backups=rng.choice([3, 4]),
            safekeepers=rng.choice([3, 4, 5]),
        ),
        drop_request_rate=min(0.05, drawn.drop_request_rate),
        drop_reply_rate=min(0.05, drawn.drop_reply_rate),
        restart_mean_s=min(1.0, drawn.restart_mean_s),
        full_disk_every_s=drawn.full_disk_every_s / 2,
        lost_disk_every_s=0.0 if rng.random() < 0.4 else rng.uniform(2.0, 6.0),
        healing_s=3.0,
    )


SCENARIO = Scenario("wal", run, options, limit_s=1200.0)
