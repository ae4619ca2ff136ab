"""The ``indexes`` scenario: rows found by value, under load and everything that may go wrong.

Clients write, delete, read and look rows up by an indexed column; indexes are made and dropped
under them; indexlets are so small that they split all the time, and servers are retired, so that
they move; servers of every kind crash, hang and are cut off; the table has any durability, and in
some runs gets another one; in some its tablets are split at their recoveries, which are many then.
What the ``tables`` scenario demands of rows holds, and (`IndexJudge`):

- a look-up finds every row that had the value all the time that it took;
- it finds nothing that never had it, each row once, in order;
- once the faults end, it finds exactly what a scan does, and each index serves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.errors import (
    IndexExists,
    IndexNotFound,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.messages.indexes import HandOverStage, IndexletProgress
from stelae.core.records.records import TableState, TabletState
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.indexes import IndexletState
from stelae.core.schema.partition import hash_partition
from stelae.simulation.checkers import require_rows
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.indexes.index_judge import IndexJudge, group_of
from tests.simulation.indexes.planted_finds import planted
from tests.simulation.recovery.blackouts import Blackouts
from tests.simulation.successions import durabilities
from tests.simulation.tables import tables

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.string()),
        pa.field("group", pa.string()),
    ]
)
COLUMN = "group"
GROUPS: tuple[str | None, ...] = ("a", "b", "c", None)
DURABILITIES: tuple[Durability, ...] = (
    segments("disk", "disk"),
    segments("disk", "disk"),
    wal(3, ("disk", "disk")),
    replicas(3),
    replicas(3),
    replicas(1),
)
FAULTS_S = 25.0
HEAL_TIMEOUT_S = 240.0
BUG_TIMEOUT_S = 60.0
CALM_S = 10.0
PAUSE_S = 2.0
CHANGES_MAX = 14
SLOW_SHARE = 0.5
"""Of runs: the rows of a recovered tablet follow so slowly that most work meets it without them."""
LOADING_S = (25.0, 60.0)
"""So long the rows of a whole run would take then. An alter of durability waits for them."""
SPLIT_SHARE = 0.3
"""Of runs: recoveries split tablets of which a few segments have been written."""
SPLIT_ABOVE_BYTES = (1500, 6000)
BLACKOUT_SHARE = 0.3
"""Of runs: all servers lose their power at once, again and again."""
BLACKOUT_GAPS_S = (8.0, 16.0)
CRASHES_S = (2.0, 5.0)
"""Between crashes of tablet servers then, on average."""
ROW_BYTES = 150
FETCHES = ("single_rows_fetched", "row_pieces_fetched", "segment_columns_read")
AT_ONCE_SHARE = 0.3
"""Of the runs: their clients make several look-ups at once, which go together. The rows of tables
with owners only are read together."""
OWNED = (segments("disk", "disk"), wal(3, ("disk", "disk")))
MORE_AT_ONCE = (0, 2, 4)
FIND_SHARE = 0.6
UNRELIABLE = (RetryLater, RetryElsewhere, OutcomeUnknown)


@dataclass
class Tally:
    """What happened in a run: it must be something."""

    finds: int = 0
    demanded: int = 0
    """Rows that look-ups had to find."""
    changes: dict[str, int] = field(default_factory=dict)
    """Of indexlets, by the masters; and what operators did."""
    restarted: int = 0
    fetched: int = 0
    """Rows and pieces of rows that somebody waited for, and columns for fills, from backups."""


class Client(tables.Client):
    """A client that also looks rows up. The group of a row stands in its value."""

    judge: IndexJudge
    at_once: random.Random | None = None
    """Draws how many look-ups it makes at the same time; None: one."""

    async def _one(self, table: AsyncTable) -> None:
        if self._rng.random() < FIND_SHARE:
            more = 0 if self.at_once is None else self.at_once.choice(MORE_AT_ONCE)
            await asyncio.gather(*[self._find(table) for _ in range(1 + more)])
        else:
            await super()._one(table)

    def _value(self) -> str:
        group = self._rng.choice(GROUPS)
        return f"{group or ''}:{super()._value()}"

    def row(self, table: AsyncTable, key: int, value: str) -> dict[str, Any]:
        return {"id": key, "value": value, "group": group_of(value)}

    def value(self, table: AsyncTable, row: dict[str, Any]) -> str:
        value: str = row["value"]
        assert row["group"] == group_of(value), f"a row of two writes: {row}"
        return value

    async def _find(self, table: AsyncTable) -> None:
        groups, asked = self._wanted()
        found = self.judge.begin(self.name, groups, is_reverse=self._rng.random() < 0.3)
        try:
            rows = await table.find(
                COLUMN,
                **asked,
                reverse=found.is_reverse,
                with_versions=True,
                if_filling=self._rng.choice(("wait", "scan")),
                timeout=self.timeout_s,
            )
        except StelaeError as error:
            self.judge.failed(found)
            if isinstance(error, Rejected) and not isinstance(error, IndexNotFound):
                raise
        else:
            self.judge.ok(found, rows.to_pylist())

    def _wanted(self) -> tuple[tuple[str | None, ...], dict[str, Any]]:
        """What is looked for, and how it is asked for."""
        if self._rng.random() < 0.6:
            group = self._rng.choice(GROUPS)
            return (group,), {"value": group}
        low, high = sorted(self._rng.choices(["a", "b", "c"], k=2))
        groups = tuple(group for group in ("a", "b", "c") if low <= group <= high)
        return groups, {"between": (low, high)}


class Operator:
    """Makes and drops indexes, and retires servers, at random."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._rng = cluster.world.rng("operator")
        self._drops = self._rng.random() < 0.6
        self._retires = self._rng.random() < 0.5
        self.counts: dict[str, int] = {}

    async def run(self, until_s: float) -> None:
        for _ in range(CHANGES_MAX):
            await self._database.runtime.clock.sleep(self._rng.expovariate(1.0) * PAUSE_S)
            if self._world.loop.time() >= until_s:
                return
            try:
                await self._change()
            except (*UNRELIABLE, IndexExists, IndexNotFound, InvalidArgument) as error:
                self._world.note("operator", f"it ends with {error!r}")

    async def _change(self) -> None:
        table = await self._database.table(tables.TABLE)
        kinds = ["create", "other"]
        kinds += ["drop"] if self._drops else []
        kinds += ["retire", "welcome"] if self._retires else []
        kind = self._rng.choice(kinds)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._world.note("operator", kind)
        wait, timeout = self._rng.random() < 0.5, self._rng.choice((2.0, 8.0))
        match kind:
            case "create":
                await table.create_index(COLUMN, wait=wait, timeout=timeout)
            case "other":
                if any(index["column"] == "value" for index in await table.indexes()):
                    await table.drop_index("value", timeout=timeout)
                else:
                    await table.create_index("value", wait=wait, timeout=timeout)
            case "drop":
                await table.drop_index(COLUMN, timeout=timeout)
            case "retire" | "welcome":
                await self._retire(kind == "welcome")

    async def _retire(self, cancel: bool) -> None:
        """One at a time, so that there are homes."""
        name = self._cluster.tservers[0]
        await self._database.retire_server(name, wait=False, cancel=cancel, timeout=4.0)

    async def calm(self) -> None:
        """No server is retired any more, and there is an index to look at."""
        for name in self._cluster.tservers[:1]:
            await self._patiently(partial(self._welcome, name))
        await self._patiently(self._create)

    async def _welcome(self, name: str) -> None:
        await self._database.retire_server(name, wait=False, cancel=True, timeout=8.0)

    async def _create(self) -> None:
        table = await self._database.table(tables.TABLE)
        try:
            await table.create_index(COLUMN, wait=False, timeout=8.0)
        except IndexExists:
            return

    async def _patiently(self, work: Callable[[], Awaitable[object]]) -> None:
        until_s = self._world.loop.time() + HEAL_TIMEOUT_S
        while True:
            try:
                await work()
                return
            except (*UNRELIABLE, InvalidArgument):
                if self._world.loop.time() > until_s:
                    raise
                await self._database.runtime.clock.sleep(0.2)


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.indexes.planted_finds`."""
    with planted(bug):
        tally = await run_indexes(world, HEAL_TIMEOUT_S if not bug else BUG_TIMEOUT_S)
    world.note("world", str(tally))


def _settings(world: World, rng: random.Random) -> tuple[dict[str, Any], float]:
    """Of the cluster; and how long it is between crashes of tablet servers, 0: there are none."""
    settings = durabilities._settings(rng)
    settings["indexlet_entries_max"] = rng.choice([2, 5, 1000])
    loading = world.rng("rows follow")
    if loading.random() < SLOW_SHARE:
        settings["metadata_first"] = True
        work = world.options.workload
        size_bytes = work.clients * work.operations * (work.value_bytes + ROW_BYTES)
        settings["load_bytes_per_s"] = size_bytes / loading.choice(LOADING_S)
    splitting = world.rng("tablets are split")
    if splitting.random() >= SPLIT_SHARE:
        return settings, 0.0
    crash_every_s = splitting.choice(CRASHES_S)
    settings["metadata_first"] = True
    settings["split_above_bytes"] = splitting.choice(SPLIT_ABOVE_BYTES)
    return settings, crash_every_s


async def run_indexes(world: World, heal_s: float = HEAL_TIMEOUT_S) -> Tally:
    """Work under faults; then all is healed, and must be in order."""
    rng = world.rng("table")
    settings, crash_every_s = _settings(world, rng)
    cluster, history = SimCluster(world, **settings), History(world.loop.time)
    judge = IndexJudge(history)
    await cluster.start()
    admin = cluster.database("operators")
    durability = rng.choice(DURABILITIES)
    if crash_every_s:
        durability = segments("disk", "disk")
    elif _is_at_once(world):
        durability = world.rng("at once/table").choice(OWNED)
    world.note("world", f"the table has {durability}")
    await admin.create_table(
        tables.TABLE,
        SCHEMA,
        key="id",
        partition=hash_partition("id", rng.choice([1, 2, 3])),
        durability=durability,
        indexes=[COLUMN] if rng.random() < 0.8 else [],
        timeout=60.0,
    )
    clients = [
        _client(f"c{n}", world, cluster, history, judge)
        for n in range(world.options.workload.clients)
    ]
    nemesis = Nemesis.begin(world, FAULTS_S, losable=())
    until_s = world.loop.time() + FAULTS_S
    operator = Operator(cluster, admin)
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    tasks.append(world.spawn("operators", operator.run(until_s)))
    if crash_every_s:
        crashes = _crash(world, cluster, crash_every_s, until_s)
        tasks.append(world.spawn("operators", crashes))
    if world.rng("power").random() < BLACKOUT_SHARE:
        blackouts = Blackouts(cluster, admin, BLACKOUT_GAPS_S)
        tasks.append(world.spawn("operators", blackouts.run(until_s)))
    if rng.random() < 0.2:
        alterer = durabilities.Alterer(cluster, admin)
        tasks.append(world.spawn("operators", alterer.run(until_s)))
    await world.wait_until(lambda: all(t.done() for t in tasks), 600.0, "the clients to end")
    for task in tasks:
        task.result()
    await nemesis.finish()
    restarted = await _calm(world, cluster, operator, heal_s)
    restarted += await _rest(world, cluster, heal_s)
    await _read_all(world, cluster, history, judge)
    require_rows(history)
    judge.require()
    return _tally(world, judge, operator, restarted)


async def _crash(world: World, cluster: SimCluster, every_s: float, until_s: float) -> None:
    rng = world.rng("crashes of tservers")
    while True:
        await asyncio.sleep(rng.expovariate(1 / every_s))
        if world.loop.time() >= until_s:
            return
        world.crash(rng.choice(cluster.tservers))


def _is_at_once(world: World) -> bool:
    return world.rng("at once").random() < AT_ONCE_SHARE


def _client(
    name: str, world: World, cluster: SimCluster, history: History, judge: IndexJudge
) -> Client:
    client = Client(name, world, cluster.database(name), history, world.rng(f"client/{name}"))
    client.judge = judge
    if _is_at_once(world):
        client.at_once = world.rng(f"at once/{name}")
        client.timeout_s = max(tables.CALL_TIMEOUTS_S)  # the impatient go by themselves
    return client


async def _read_all(world: World, cluster: SimCluster, history: History, judge: IndexJudge) -> None:
    """Every row by its key, and by its group, now that nothing fails."""
    reader = _client("reader", world, cluster, history, judge)
    table = await reader.table()
    for key in range(world.options.workload.keys):
        await reader.read(table, key, HEAL_TIMEOUT_S)
    scanned = (await table.scan(with_versions=True, timeout=HEAL_TIMEOUT_S)).to_pylist()
    for group in GROUPS:
        found = await table.find(COLUMN, group, with_versions=True, timeout=HEAL_TIMEOUT_S)
        wanted = sorted((row for row in scanned if row["group"] == group), key=lambda r: r["id"])
        assert found.to_pylist() == wanted, f"group {group!r}: {found.to_pylist()} for {wanted}"
    pages: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = await table.find_page(
            COLUMN, between=(None, None), limit=2, after=after, timeout=HEAL_TIMEOUT_S
        )
        pages += page.rows.to_pylist()
        after = page.token
        if after is None:
            break
    wanted = sorted(
        (row for row in scanned if row["group"] is not None), key=lambda r: (r["group"], r["id"])
    )
    found_ids = [row["id"] for row in pages]
    assert found_ids == [row["id"] for row in wanted], f"on pages: {found_ids}"


def unrest(cluster: SimCluster) -> str:
    """What is not as it should be; empty: nothing."""
    leader = cluster.leader()
    if leader is None:
        return "no master leads"
    catalog = cluster.world.server(leader).catalog
    (table,) = catalog.live_tables()
    if table.state is not TableState.RUNNING or catalog.successors():
        return f"table: {table.state.value}"
    for tablet in catalog.tablets_of(table.table_id):
        if tablet.state is not TabletState.RUNNING:
            return f"tablet: {tablet.state.value}"
    failed = durabilities.broken(cluster)
    return _index_unrest(cluster, catalog) or (f"failed: {', '.join(failed)}" if failed else "")


def _index_unrest(cluster: SimCluster, catalog: Catalog) -> str:
    reports: dict[str, list[Any]] = {}
    for name in cluster.tservers:
        server = cluster.world.server(name)
        if server is None or not hasattr(server, "info"):
            return f"{name} is away"
        for report in server.indexlets.reports():
            reports.setdefault(report.indexlet_id, []).append((server.info.uuid, report))
    for indexlet in catalog.indexes.indexlets.values():
        if indexlet.succeeds or indexlet.state is not IndexletState.SERVING:
            return f"indexlet: {indexlet.state.value}, succeeds {indexlet.succeeds[:8]}"
        held = reports.pop(indexlet.indexlet_id, [])
        if [uuid for uuid, _ in held] != [indexlet.owner]:
            return f"indexlet: held by {len(held)}"
        ((_, report),) = held
        serves = report.progress is IndexletProgress.SERVING
        if not serves or report.hand_over is not HandOverStage.NONE or report.tablets_to_compare:
            return f"indexlet: {report}"
    return f"left: {len(reports)} indexlets" if reports else ""


async def _calm(world: World, cluster: SimCluster, operator: Operator, heal_s: float) -> int:
    """Operators end what they have begun. Meanwhile they start servers again of which a disk
    failed: an alter waits for the only replica of a tablet, and an index for the alter."""
    began_s = looked_s = world.loop.time()
    calm, restarted = world.spawn("operators", operator.calm()), 0
    while not calm.done():
        now_s = world.loop.time()
        assert now_s < began_s + heal_s, f"no index again within {heal_s} s: {unrest(cluster)}"
        if now_s - looked_s > CALM_S:
            looked_s = now_s
            restarted += await _start_again(world, cluster)
        await asyncio.sleep(0.2)
    calm.result()
    return restarted


async def _start_again(world: World, cluster: SimCluster) -> int:
    """Servers of which something failed; whether there are any."""
    failed = durabilities.broken(cluster)
    for name in failed:
        world.restart(name)
        await asyncio.sleep(0.5)
    return min(1, len(failed))


async def _rest(world: World, cluster: SimCluster, heal_s: float) -> int:
    """Wait until all is as it should be; returns how often servers had to be started again."""
    began_s = calm_since_s = world.loop.time()
    said, restarted = "", 0
    while problem := unrest(cluster):
        now_s = world.loop.time()
        assert now_s < began_s + heal_s, f"not in order after {heal_s} s: {problem}"
        if problem != said:
            world.note("world", problem)
            said, calm_since_s = problem, now_s
        if now_s - calm_since_s > CALM_S:
            calm_since_s = now_s
            again = await _start_again(world, cluster)
            assert again or now_s < began_s + heal_s / 2, f"it does not heal by itself: {problem}"
            restarted += again
        await asyncio.sleep(0.2)
    return restarted


def _tally(world: World, judge: IndexJudge, operator: Operator, restarted: int) -> Tally:
    changes = dict(operator.counts)
    for metrics in world.metrics.values():
        for name, value in metrics.counts.items():
            if name.startswith(("indexlet_changes", "index_")):
                changes[name] = changes.get(name, 0) + int(value)
    counts = [metrics.counts for metrics in world.metrics.values()]
    fetched = int(sum([c.get(name, 0.0) for c in counts for name in FETCHES]))
    return Tally(judge.finds, judge.demanded, changes, restarted, fetched)


def options(seed: int) -> Options:
    """As where durabilities are altered, with few keys, so that groups have quiet rows."""
    drawn, rng = durabilities.options(seed), random.Random(f"{seed}/indexes")
    work = replace(drawn.workload, keys=rng.choice([3, 8, 20, 50]), clients=rng.choice([2, 3, 5]))
    servers = replace(drawn.servers, tservers=rng.choice([3, 4, 5]))
    return drawn.but(workload=work, servers=servers)


SCENARIO = Scenario("indexes", run, options, limit_s=1200.0)
