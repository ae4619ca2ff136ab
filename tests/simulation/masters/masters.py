"""The masters under faults: clients create, delete, look up and list tables; everything is real.

While it runs: whoever is shown a table is shown a whole one, the catalog of every master is whole
at every moment, and no two tservers may serve one tablet at once. At the end, all faults healed:
all answers together are those of one catalog (`tests.simulation.masters.catalog_history`); the
masters' catalogs are equal, and are what the last list says; every request that was done was done
once; every tablet is served by its owner and nobody else; rows that were acknowledged are there;
nothing is left of what was deleted, and what the catalog does not know was left alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

from stelae.client.routing import masters as masters_client
from stelae.core.errors import OutcomeUnknown, RetryLater, StelaeError
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.servers import TabletProgress
from stelae.core.records.records import TableState, TabletState
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.nemesis import Action, Nemesis, draw_schedule, gray_faults_of, node_faults_of
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.machines import FORMER
from stelae.simulation.world.options import Servers
from tests.simulation.masters.catalog_history import CatalogHistory
from tests.simulation.masters.ddl_client import DdlClient
from tests.simulation.masters.planted_masters import planted
from tests.unit.actors.backup.backup_world import LOG, Owner, Rows

WORK_S = 5.0
WATCH_S = 0.02
HEAL_TIMEOUT_S = 60.0
SETTLED_S = 6.0
"""After faults: by then a late copy of a request without an outcome has come, or never will."""
STRUCK_CHANGES_RATE = 0.5
"""In so many runs the leader also dies now and then just as it carries out a change."""
ATTEMPT_TIMEOUT_S = 0.5
"""Clients turn to another master sooner than they do by default: more happens in a run."""
LEADER_STRUCK_EVERY_S = (0.0, 0.3, 0.7, 1.5)
LEADER_STRIKES = {
    "crash_leader": 0.0,
    "crash_in_sync_leader": 0.0,
    "isolate_leader": 0.6,
    "pause_leader": 1.8,
    "slow_disk_leader": 0.0,
    "full_disk_leader": 0.0,
}
"""Kinds of strikes, with the least time they last: there is to be a new leader meanwhile."""
STRANGER = TabletId(LOG)
"""A log on one backup, of a tablet that the catalog does not know: it is not for us to delete."""


async def run(world: World, bug: str = "") -> None:
    """Clients work under faults; then all is healed, and must be in order."""
    with planted(bug), patch.object(masters_client, "ATTEMPT_TIMEOUT_S", ATTEMPT_TIMEOUT_S):
        await _run(world)


async def _run(world: World) -> None:
    cluster = SimCluster(world)
    await cluster.start()
    await _place_stranger(world, cluster)
    history = CatalogHistory(world.loop.time)
    names = [f"c{number}" for number in range(world.options.workload.clients)]
    clients = [DdlClient(world, cluster, name, history) for name in names]
    if world.schedule is None:
        world.schedule = draw_faults(world, cluster, names)
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    if world.rng("struck changes").random() < STRUCK_CHANGES_RATE:
        for client in clients:
            client.strike_leader = partial(nemesis.strike, _in_sync(world, cluster))
    watcher = asyncio.get_running_loop().create_task(watch(world, cluster))
    until_s = world.loop.time() + WORK_S
    tasks = [world.spawn(client.name, client.work(until_s)) for client in clients]
    await asyncio.sleep(WORK_S)
    await nemesis.finish()
    await world.wait_until(
        lambda: all(task.done() for task in tasks), HEAL_TIMEOUT_S, "answers for all clients"
    )
    for task in tasks:
        task.result()
    await finish(world, cluster, clients)
    check_stranger(world, cluster)
    if watcher.done():
        watcher.result()
    watcher.cancel()


def draw_faults(world: World, cluster: SimCluster, clients: Sequence[str]) -> list[Action]:
    """The options' faults, and some that strike whichever master leads."""
    rng = world.rng("nemesis")
    servers = {"master": cluster.masters, "tserver": cluster.tservers, "backup": cluster.backups}
    drawn = draw_schedule(world.options, rng, servers, clients, WORK_S)
    every_s = rng.choice(LEADER_STRUCK_EVERY_S)
    kinds = rng.sample(list(LEADER_STRIKES), rng.randint(1, 3))
    at_s = rng.expovariate(1.0 / every_s) if every_s else WORK_S
    while at_s < WORK_S:
        kind, master = rng.choice(kinds), rng.choice(cluster.masters)
        lasting_s = LEADER_STRIKES[kind]
        lasting_s += rng.expovariate(1.0 / world.options.fault_duration_mean_s)
        drawn.append(Action(at_s, kind, (master,), (), lasting_s, rng.random()))
        at_s += rng.expovariate(1.0 / every_s)
    drawn += gray_faults_of(world, WORK_S)
    drawn += node_faults_of(world, WORK_S)
    return sorted(drawn, key=lambda action: action.at_s)


def _in_sync(world: World, cluster: SimCluster) -> Action:
    """The leader dies in the midst of its next sync."""
    fraction = world.rng("moment").random()
    return Action(0.0, "crash_in_sync_leader", (cluster.masters[0],), fraction=fraction)


async def _place_stranger(world: World, cluster: SimCluster) -> None:
    owner = Owner(world, cluster.backups[0])
    while True:
        try:
            await owner.write(Rows())
            return
        except StelaeError:  # lost on the way; writing it again changes nothing
            await asyncio.sleep(0.1)


async def finish(world: World, cluster: SimCluster, clients: list[DdlClient]) -> None:
    """Everything healed: the cluster comes to rest in the one right state."""
    history = clients[0].history
    await asyncio.sleep(SETTLED_S)
    await world.wait_until(
        lambda: in_order(world, cluster), HEAL_TIMEOUT_S, "a cluster in order", poll_s=0.05
    )
    task = world.spawn(clients[0].name, _last_looks(clients))
    await world.wait_until(task.done, HEAL_TIMEOUT_S, "the last answers")
    tables = task.result()
    history.require()
    for name in cluster.masters:
        listed = {t.name: t.table_id for t in world.server(name).catalog.live_tables()}
        assert listed == tables, f"{name} has {listed}, and told {tables}"
    _check_once(world, cluster, clients)


async def _last_looks(clients: list[DdlClient]) -> dict[str, TableId]:
    """List and look once more, and read what was written."""
    tables = await clients[0].list()
    for name in tables:
        await clients[0].look(name)
    rows = {table: key for client in clients for table, key in client.rows.items()}
    while True:
        try:
            await clients[0].read_rows(tables, rows)
            return tables
        except (RetryLater, OutcomeUnknown):  # reads may be repeated, where answers get lost
            await asyncio.sleep(0.1)


def _check_once(world: World, cluster: SimCluster, clients: list[DdlClient]) -> None:
    """Of all time: each create that was done made one table, and no other made any."""
    catalog = world.server(cluster.masters[0]).catalog
    made: dict[str, TableId] = {}
    for table in catalog.every_table():
        mark = table.schema.arrow.names[1]
        assert mark not in made, f"{mark} was done twice: {made[mark]} and {table.table_id}"
        made[mark] = table.table_id
    history = clients[0].history
    lost = [mark for mark in history.marks("ok") if mark not in made]
    assert not lost, f"acknowledged, and no trace of it: {lost}"
    possible = history.marks("ok", "unknown")
    ghosts = [mark for mark in made if mark not in possible]
    assert not ghosts, f"refused, and done all the same: {ghosts}"
    for client in clients:
        wrong = {mark: i for mark, i in client.ids.items() if made.get(mark) != i}
        assert not wrong, f"{client.name} was shown tables that never were: {wrong}"


# ---- invariants -----------------------------------------------------------------------------


async def watch(world: World, cluster: SimCluster) -> None:
    """See at every moment that service is exclusive and that catalogs are whole."""
    looked_at: dict[str, tuple[int, int]] = {}
    while True:
        _check_service(world, cluster)
        for name in cluster.masters:
            master = world.server(name)
            if master is None:
                continue
            version = (world.nodes[name].lives, master.catalog.applied)
            if looked_at.get(name) != version:
                looked_at[name] = version
                check_whole(name, master.catalog)
        await asyncio.sleep(WATCH_S)


def _check_service(world: World, cluster: SimCluster) -> None:
    """Of each tablet at most one tserver may serve, by its lease and its state."""
    serving: dict[TabletId, str] = {}
    for name in cluster.tservers:
        server = world.server(name)
        if server is None or not server._lease.is_valid:
            continue
        for tablet in server._tablets.values():
            if tablet.progress is TabletProgress.SERVING:
                other = serving.setdefault(tablet.tablet_id, name)
                assert other == name, f"{other} and {name} both serve {tablet.tablet_id}"


def check_whole(name: str, catalog: object) -> None:
    """Every live table has all its tablets, and every live tablet its table."""
    tables = {table.table_id: table for table in catalog.live_tables()}  # type: ignore[attr-defined]
    counts = dict.fromkeys(tables, 0)
    for tablet in catalog.live_tablets():  # type: ignore[attr-defined]
        assert tablet.table_id in counts, f"{name} has a tablet of no live table: {tablet}"
        counts[tablet.table_id] += 1
    for table_id, table in tables.items():
        count = table.partitioning.tablet_count
        assert counts[table_id] == count, f"{name} has half of {table.name}: {counts[table_id]}"


def in_order(world: World, cluster: SimCluster) -> bool:
    """Equal catalogs; every tablet served by its owner alone; nothing left of what was deleted."""
    masters = [world.server(name) for name in cluster.masters]
    if any(master is None for master in masters) or cluster.leader() is None:
        return False
    catalog = masters[0].catalog
    snapshot = catalog.snapshot()
    if any(master.catalog.snapshot() != snapshot for master in masters[1:]):
        return False
    live = {t.tablet_id: t for t in catalog.live_tablets()}
    held: dict[TabletId, str] = {}
    for name in cluster.tservers:
        server = world.server(name)
        if server is None:
            return False
        for report in server.reports():
            tablet = live.get(report.tablet_id)
            if tablet is None or report.progress is not TabletProgress.SERVING:
                return False
            if (tablet.owner, tablet.term) != (server.info.uuid, report.term):
                return False
            held[report.tablet_id] = name
    if sorted(held) != sorted(live) or not _backups_in_order(world, cluster, live):
        return False
    if any(tablet.state is not TabletState.RUNNING for tablet in live.values()):
        return False
    return all(catalog.tables[t.table_id].state is TableState.RUNNING for t in live.values())


def _backups_in_order(world: World, cluster: SimCluster, live: dict[TabletId, object]) -> bool:
    """Backups hold logs of live tablets only, and the stranger, if there is one."""
    for name in cluster.backups:
        server = world.server(name)
        if server is None:
            return False
        if any(log not in live and log != STRANGER for log in server._holdings.logs):
            return False
    return True


def check_stranger(world: World, cluster: SimCluster) -> None:
    """Nobody has deleted the log of a tablet that the catalog does not know.

    Another backup may have its disk: nodes of `nodes_masters` swap theirs. A backup that was
    started elsewhere has left its disk behind, with a former server that ended itself.
    """
    held = [world.server(name)._holdings.logs for name in cluster.backups]
    left = [node.disk for node in world.nodes.values() if node.kind == FORMER]
    assert any(STRANGER in logs for logs in held) or any(_has_stranger(disk) for disk in left), (
        "the log of an unknown tablet was deleted"
    )


def _has_stranger(disk: SimDisk) -> bool:
    contents = [disk.find(path) for path in disk.paths()]
    return any(each is not None and STRANGER.encode() in bytes(each.live) for each in contents)


def draw(seed: int) -> Options:
    """Swarm options, dense and short. Lost disks are another scenario's: no promise covers them."""
    drawn, rng = Options.draw(seed), random.Random(f"{seed}/masters")
    dense = {
        name: getattr(drawn, name) * 0.4
        for name in (
            "crash_every_s",
            "crash_in_sync_every_s",
            "pause_every_s",
            "partition_every_s",
            "clog_every_s",
            "reset_every_s",
            "slow_disk_every_s",
            "sync_error_every_s",
            "full_disk_every_s",
        )
    }
    masters, tservers, backups = rng.choice([1, 3, 3, 3, 5]), rng.choice([2, 3]), 3
    return drawn.but(
        **dense,
        lost_disk_every_s=0.0,
        slow_message_rate=rng.choice([0.0, 0.05, 0.2]),
        duplicate_rate=rng.choice([0.0, 0.3]),
        fault_duration_mean_s=rng.choice([0.2, 0.7, 1.5]),
        restart_mean_s=min(drawn.restart_mean_s, 0.5),
        servers=Servers(masters, tservers, backups),
        workload=drawn.workload.__class__(clients=rng.choice([3, 4, 6])),
    )


SCENARIO = Scenario("masters", run, draw, limit_s=300.0)
