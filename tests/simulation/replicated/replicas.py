"""The ``replicas`` scenario: a whole cluster whose tables have ``replicas(n)``, under everything.

Clients write, delete and read, linearizably and with bounded age; operators move replicas, retire
and maintain servers, hand leaderships over, alter one table, and create and delete another;
servers crash, hang, are cut off, lose syncs, space and disks, and at times most of them are down.
No acknowledged write may be lost, doubled or out of order, no group may have two leaders of a term
or two histories, and once the faults end every tablet has its replicas again, all alike, and
nothing is left of deleted ones. See `tests.simulation.replicated.replica_judges`.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

from stelae.client.check.facts import Severity
from stelae.client.database import AsyncDatabase
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.simulation.checkers import require_rows, unread_keys
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.replicated.planted_group import planted
from tests.simulation.replicated.replica_clients import FAULTS_S, Client
from tests.simulation.replicated.replica_judges import Always, Census, Cluster
from tests.simulation.replicated.replica_operators import Operators
from tests.simulation.tables import tables

HEAL_TIMEOUT_S = 240.0
CHECKS_MAX = 20
"""So often the check of operators may find what is merely a message that was lost."""
CALM_S = 25.0
"""Without a sign of healing for so long, servers whose replicas failed are started again, as an
operator does: a replica that failed comes back by itself only if its group can let it go."""


@dataclass
class Tally:
    """What happened in a run: it must be something."""

    operations: int = 0
    answered: int = 0
    old_reads: int = 0
    leaders: int = 0
    promoted: int = 0
    evicted: int = 0
    restarted: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Of servers' metrics."""
    done: dict[str, int] = field(default_factory=dict)
    """Of operators' orders."""


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.replicated.planted_group`."""
    with planted(bug):
        tally = await run_replicas(world)
    world.note("world", str(tally))


def make_cluster(world: World) -> SimCluster:
    """With little of everything, so that logs are cut, tablets copied and the dead replaced."""
    rng = world.rng("settings")
    return SimCluster(
        world,
        clean_log_factor=world.rng("cleaning").choice([1.0, 1.0, 2.0]),
        raft_keep_bytes=rng.choice([0, 500, 5000]),
        replica_dead_after_s=rng.choice([2.5, 5.0]),
        copies_max=rng.choice([1, 2]),
        copy_piece_bytes=rng.choice([500, 4000]),
        copy_pause_s=rng.choice([0.1, 0.5]),
        copy_idle_s=rng.choice([2.0, 5.0]),
        creation_timeout_s=rng.choice([6.0, 15.0]),
        client_expiry_s=rng.choice([60.0, 3600.0]),
    )


async def run_replicas(world: World) -> Tally:
    """Work under faults; then all is healed, and must be in order."""
    always = Always()
    with always.watching():
        return await _run(world, always)


async def _run(world: World, always: Always) -> Tally:
    cluster, history = make_cluster(world), History(world.loop.time)
    await cluster.start()
    look = Cluster(cluster)
    census = Census(look)
    rng = world.rng("table")
    counts = [count for count in (3, 3, 3, 5) if count <= len(cluster.tservers)]
    count = rng.choice(counts)
    admin = cluster.database("operators")
    await admin.create_table(
        tables.TABLE,
        tables.SCHEMA,
        key="id",
        partition=hash_partition("id", rng.choice([1, 2])),
        durability=replicas(count),
        timeout=60.0,
    )
    clients = [
        Client(f"c{n}", world, cluster.database(f"c{n}"), history, world.rng(f"client/{n}"))
        for n in range(world.options.workload.clients)
    ]
    operators = Operators(cluster, admin, count)
    world.may_lose_disk = look.may_lose
    world.leader_hint = lambda: _leading(look) if rng.random() < 0.7 else cluster.leader()
    nemesis = Nemesis.begin(world, FAULTS_S, losable=("tserver",))
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    tasks.append(world.spawn("operators", operators.run(until_s)))
    if rng.random() < 0.6:
        tasks.append(world.spawn("operators", operators.run_passing(until_s)))

    def ended() -> bool:
        census.take()
        return all(task.done() for task in tasks)

    await world.wait_until(ended, 600.0, "the clients to end", poll_s=0.1)
    for task in tasks:
        task.result()
    await nemesis.finish()
    await world.spawn("operators", operators.end())
    restarted = await _rest(world, look, census)
    await _read_all(world, cluster, history)
    require_rows(history)
    for client in clients:
        client.old.judge(history)
    await _rest(world, look, census)
    await world.spawn("operators", _check(admin))
    return _tally(world, always, census, history, clients, operators, restarted)


def _leading(look: Cluster) -> str | None:
    """The name of a server that leads some tablet."""
    for name, server in look.servers.items():
        for tablet, _ in look.groups():
            found = server.replicas.tablet(tablet.tablet_id)
            if found is not None and found.replica.is_leader:
                return name
    return None


async def _rest(world: World, look: Cluster, census: Census) -> int:
    """Wait until all is as it should be; returns how many servers had to be started again."""
    deadline_s, calm_since_s, said, restarted = world.loop.time() + HEAL_TIMEOUT_S, 0.0, "", 0
    while problem := look.unrest():
        now_s = world.loop.time()
        assert now_s < deadline_s, f"not in order after {HEAL_TIMEOUT_S} s: {problem}"
        if problem != said:
            world.note("world", problem)
            said, calm_since_s = problem, now_s
        if now_s - calm_since_s > CALM_S:
            calm_since_s = now_s
            for name, server in look.servers.items():
                if server.replicas._failed:
                    world.restart(name)
                    restarted += 1
        census.take()
        await asyncio.sleep(0.2)
    return restarted


async def _read_all(world: World, cluster: SimCluster, history: History) -> None:
    """Read every key once more, now that nothing fails."""
    database = cluster.database("reader")
    reader = Client("reader", world, database, history, world.rng("reader"))
    since = max((o.invoked for o in history.operations), default=0)

    async def read() -> None:
        table = await reader.table()
        for key in range(world.options.workload.keys):
            await reader.read(table, key, tables.HEAL_TIMEOUT_S)

    await world.spawn("reader", read())
    assert not unread_keys(history, since), "a key could not be read in a healed cluster"


async def _check(database: AsyncDatabase) -> None:
    """What operators would see is well, but for the backups, of which there are none."""
    errors: list[str] = []
    for _ in range(CHECKS_MAX):
        report = await database.check(timeout=5.0)
        found = [f for f in report.problems if f.severity is Severity.ERROR]
        errors = [str(finding) for finding in found if "no backup" not in finding.text]
        if not errors:
            return
        await database.runtime.clock.sleep(0.5)
    raise AssertionError(f"the check finds {errors}")


def _tally(
    world: World,
    always: Always,
    census: Census,
    history: History,
    clients: list[Client],
    operators: Operators,
    restarted: int,
) -> Tally:
    old = sum(len(client.old.reads) for client in clients)
    refused = sum(client.old.refused for client in clients)
    counts: dict[str, int] = {}
    for metrics in world.metrics.values():
        for name, value in metrics.counts.items():
            short = name.partition("{")[0]
            counts[short] = counts.get(short, 0) + int(value)
    return Tally(
        operations=len(history.operations) + old + refused,
        answered=len(history.operations) - history.count("unknown") + old,
        old_reads=old,
        leaders=len(always.leaders),
        promoted=census.promoted,
        evicted=census.evicted,
        restarted=restarted,
        counts=counts,
        done={**operators.done, "rotten": operators.rotten},
    )


def options(seed: int) -> Options:
    """Some of everything, in a time that is short: messages are lost, but not most of them."""
    drawn, rng = Options.draw(seed), random.Random(f"{seed}/replicas")
    work = drawn.workload
    busy = replace(
        work,
        clients=max(3, min(6, work.clients)),
        keys=max(2, min(10, work.keys)),
        operations=max(100, work.operations),
    )
    limits = replace(drawn.limits, segment_size_bytes=rng.choice([600, 1500, 1500, 4096]))
    return drawn.but(
        workload=busy,
        limits=limits,
        servers=Servers(
            masters=rng.choice([1, 3, 3]), tservers=rng.choice([3, 4, 4, 5]), backups=0
        ),
        drop_request_rate=min(0.05, drawn.drop_request_rate),
        drop_reply_rate=min(0.05, drawn.drop_reply_rate),
        restart_mean_s=min(1.0, drawn.restart_mean_s),
        lost_disk_every_s=0.0 if rng.random() < 0.4 else rng.uniform(2.0, 6.0),
        healing_s=3.0,
    )


SCENARIO = Scenario("replicas", run, options, limit_s=900.0)
