"""The ``entries`` scenario: what is in the indexes, against the rows, under every kind of fault.

Clients write few keys with few values, so that calls meet each other: one by one, in batches with a
key more than once, in part of the columns, on conditions, at the same time. Indexes are made and
dropped, indexlets split, the table gets another durability, servers crash, hang and are cut off.

At every look no row of a tablet that may answer is missing in an indexlet that may answer. Once all
faults have ended the indexes hold the entries of all rows, and no others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from stelae.actors.tserver.indexes import indexlet_hand_over
from stelae.actors.tserver.indexes import removals as index_removals
from stelae.actors.tserver.indexes.indexed_tablet import IndexedTablet
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    NotDoneYet,
    OutcomeUnknown,
    Rejected,
    RetryElsewhere,
    RetryLater,
)
from stelae.core.messages.indexes import IndexletProgress
from stelae.core.messages.servers import TabletProgress
from stelae.core.records.records import TableRecord, TabletState
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.indexes import IndexDefinition, IndexletState, in_range
from stelae.core.schema.partition import hash_partition
from stelae.simulation.cluster import SimCluster
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from stelae.storage.indexes import indexlet as indexlet_storage
from stelae.storage.indexes.keys import EntryCodec
from tests.simulation.indexes.planted_indexes import planted
from tests.simulation.tables import tables
from tests.simulation.tables.remembered_images import batches_of, remembered_images

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.string()),
        pa.field("n", pa.int32()),
    ]
)
TABLE = "rows"
TABLETS = 2
VALUES = ("a", "b", "b\0", None)
FAULTS_S = 12.0
HEAL_TIMEOUT_S = 240.0
CALM_S = 15.0
"""Without a sign of healing for so long, servers are started again, as an operator does."""
LOOK_S = 0.05
JUDGED_MAX = 5
CALL_TIMEOUTS_S = (1.0, 4.0)
DURABILITIES: tuple[Durability, ...] = (
    segments("disk", "disk"),
    segments("disk", "disk"),
    replicas(3),
    replicas(3),
    wal(3, ("disk", "disk")),
)


@dataclass
class Tally:
    """What happened in a run."""

    answered: int = 0
    refused: int = 0
    looks: int = 0
    """At rows with an indexlet that may answer for them."""
    indexlets: int = 0
    """In the end."""
    indexes: int = 0
    """Made while the table is in use."""
    alters: int = 0


class Writer:
    """One client: calls drawn at random, several at a time."""

    def __init__(self, world: World, name: str, database: AsyncDatabase, tally: Tally) -> None:
        self._world = world
        self._database = database
        self._rng = world.rng(f"client/{name}")
        self._tally = tally
        self.timeout_s = self._rng.choice(CALL_TIMEOUTS_S)

    async def run(self, until_s: float) -> None:
        table = await _table(self._database)
        while self._world.loop.time() < until_s:
            count = self._rng.choice((1, 1, 1, 2, 6))
            await asyncio.gather(*[self._call(table) for _ in range(count)])
            pause_s = self._rng.expovariate(1 / max(0.01, self._world.options.workload.think_s))
            await self._database.runtime.clock.sleep(pause_s)

    def _row(self) -> dict[str, Any]:
        rng = self._rng
        key = rng.randrange(self._world.options.workload.keys)
        return {"id": key, "value": rng.choice(VALUES), "n": rng.randrange(3)}

    async def _call(self, table: AsyncTable) -> None:
        rng, row = self._rng, self._row()
        given: dict[str, Any] = {"timeout": self.timeout_s}
        dice = rng.random()
        try:
            if dice < 0.35:
                if rng.random() < 0.2:
                    given["if_version"] = rng.randrange(1, 60)
                await table.upsert(row, **given)
            elif dice < 0.5:
                column = rng.choice(("value", "n"))
                await table.update({"id": row["id"], column: row[column]}, **given)
            elif dice < 0.6:
                await table.insert(row, **given)
            elif dice < 0.75:
                await table.delete(row["id"], **given)
            else:
                rows = [self._row() for _ in range(rng.randrange(2, 12))]
                await table.upsert(rows, **given)
            self._tally.answered += 1
        except Rejected:
            self._tally.answered += 1
        except (RetryLater, RetryElsewhere, OutcomeUnknown):
            self._tally.refused += 1


async def _table(database: AsyncDatabase) -> AsyncTable:
    while True:
        try:
            return await database.table(TABLE)
        except (OutcomeUnknown, RetryLater):
            await database.runtime.clock.sleep(0.1)


async def change(world: World, database: AsyncDatabase, tally: Tally, until_s: float) -> None:
    """Make and drop indexes, and alter the table, now and then."""
    rng = world.rng("changes")
    table = await _table(database)
    while world.loop.time() < until_s:
        await database.runtime.clock.sleep(rng.uniform(0.3, 5.0))
        column, dice = rng.choice(("value", "n", "n")), rng.random()
        try:
            if dice < 0.6:
                await table.create_index(column, wait=False, timeout=2.0)
                tally.indexes += 1
            elif dice < 0.8:
                await table.drop_index(column, timeout=2.0)
            elif dice < 0.9:
                name = f"more{tally.alters}"
                await table.alter(add_columns={name: pa.int8()}, wait=False, timeout=2.0)
                tally.alters += 1
            else:
                durability = rng.choice(DURABILITIES)
                await table.alter(durability=durability, wait=False, timeout=2.0)
                tally.alters += 1
        except (Rejected, RetryLater, RetryElsewhere, OutcomeUnknown, NotDoneYet):
            continue


# ---- looking from outside ---------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """An indexlet that may answer."""

    server: str
    indexlet: Indexlet


class Watch:
    """Whoever sees all servers at the same moment."""

    def __init__(self, cluster: SimCluster, tally: Tally) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._tally = tally

    def catalog(self) -> Any:
        """Of the leader master; None: nobody leads."""
        leader = self._cluster.leader()
        return None if leader is None else self._world.server(leader).coordinator._catalog

    def table(self) -> TableRecord | None:
        """Its record."""
        catalog = self.catalog()
        if catalog is None:
            return None
        records: list[TableRecord] = [t for t in catalog.tables.values() if t.name == TABLE]
        return records[0] if records else None

    def tablets(self) -> list[IndexedTablet]:
        """Those that are in their places, and may answer now."""
        catalog = self.catalog()
        if catalog is None:
            return []
        found: list[IndexedTablet] = []
        for name in self._cluster.tservers:
            server = self._world.server(name)
            if server is None or not self._world.nodes[name].ready:
                continue
            own = [t for t in server._tablets.values() if server._lease.is_valid]
            groups = [t for t in server.replicas.running() if t.replica.lease_valid()]
            for tablet in (*own, *groups):
                record = catalog.tablets.get(tablet.tablet_id)
                if record is None or record.state is not TabletState.RUNNING or record.succeeds:
                    continue
                if isinstance(tablet, Tablet):
                    if tablet.progress is not TabletProgress.SERVING or tablet.term != record.term:
                        continue
                elif not tablet.replica.leader_ready:
                    continue
                found.append(tablet)
        return found

    def indexlets(self) -> list[Held]:
        """Those that may answer now."""
        found: list[Held] = []
        for name in self._cluster.tservers:
            server = self._world.server(name)
            if server is None or not server._lease.is_valid:
                continue
            held = server.indexlets._indexlets.values()
            found += [Held(name, each) for each in held if _answers(each)]
        return found

    def rows(self, tablet: IndexedTablet, index: IndexDefinition) -> dict[bytes, None]:
        """The entries that a tablet's rows need."""
        memory = tablet.index_memory
        codec = EntryCodec(memory.schema, index)
        batches = [*batches_of(memory.scan_snapshot(), codec.columns)]
        if not batches:
            return {}
        # At once: batches are small, and there are many looks.
        return dict.fromkeys(codec.encode_batch(pa.concat_batches(batches)).to_pylist())

    def look(self) -> None:
        """Raise AssertionError if a row is missing in an indexlet that may answer for it."""
        held = self.indexlets()
        if not held:
            return
        entries = {id(each): set(each.indexlet.entries.live_entries()) for each in held}
        # A tablet may have heard of the drop of an index before the indexlet's owner has. So the
        # definitions are those of the indexlets that answer, and not those of the tablet.
        indexes = {index.index_id: index for each in held for index in _definition(each.indexlet)}
        for tablet in self.tablets():
            for index in indexes.values():
                mine = [h for h in held if h.indexlet.record.index_id == index.index_id]
                for entry in self.rows(tablet, index):
                    for each in mine:
                        record = each.indexlet.record
                        if in_range(entry, record.low, record.high):
                            self._tally.looks += 1
                            assert entry in entries[id(each)], (
                                f"{each.server} lacks {entry!r} of tablet {tablet.tablet_id} in "
                                f"indexlet {record.indexlet_id}, term {record.term}"
                            )

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            self.look()
            await asyncio.sleep(LOOK_S)

    def difference(self) -> str:
        """How the indexes differ from the rows; empty: they do not, and all of it serves."""
        table, catalog = self.table(), self.catalog()
        tablets = self.tablets()
        records = () if table is None else catalog.tablets_of(table.table_id)
        there = [each for each in records if not each.succeeds and not each.state.is_gone]
        if table is None or not there or len(tablets) != len(there):
            return f"{len(tablets)} tablets serve"
        for tablet in tablets:
            if under_way := tablet.entries_under_way():
                return f"tablet {tablet.tablet_id} has entries under way: {under_way}"
        for index in table.schema.indexes:
            records = catalog.indexes.of_index(index.index_id)
            if any(record.state is not IndexletState.SERVING for record in records):
                return f"index {index.column_id} is not served: {records}"
            needed: dict[bytes, None] = {}
            for tablet in tablets:
                if index not in tablet.index_memory.schema.indexes:
                    return "a tablet has not heard of an index"
                needed |= self.rows(tablet, index)
            mine = [h for h in self.indexlets() if h.indexlet.record.index_id == index.index_id]
            if len(mine) != len(records):
                return f"{len(mine)} of {len(records)} indexlets serve"
            if unrest := _unrest(mine):
                return unrest
            found = sorted(e for h in mine for e in h.indexlet.entries.live_entries())
            if found != sorted(needed):
                extra = [e for e in found if e not in needed]
                return f"too much {extra}, missing {sorted(set(needed) - set(found))}"
        return ""


def _answers(indexlet: Indexlet) -> bool:
    return indexlet.progress is IndexletProgress.SERVING and indexlet.lineage.lacking is None


def _definition(indexlet: Indexlet) -> list[IndexDefinition]:
    """Return the definition of an indexlet's index: one."""
    index_id = indexlet.record.index_id
    return [index for index in indexlet.table.schema.indexes if index.index_id == index_id]


def _unrest(held: Sequence[Held]) -> str:
    """What these indexlets have to do yet; empty: nothing."""
    for each in held:
        indexlet = each.indexlet
        if indexlet.report().tablets_to_compare:
            return f"indexlet {indexlet.indexlet_id} is to be compared with tablets"
        if indexlet.is_handing_over:
            return f"indexlet {indexlet.indexlet_id} is handed over"
    return ""


async def run(world: World, bug: str = "") -> None:
    """Start a cluster, let clients work under faults, end the faults, and judge."""
    tally = Tally()
    with _small(world.rng("sizes")), planted(bug):
        await _run(world, tally)
    world.note("judge", str(tally))


@contextmanager
def _small(rng: random.Random) -> Iterator[None]:
    """Sizes at which everything happens that happens to large indexes."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(indexlet_storage, "TAIL_MAX", rng.choice((2, 8, 4096))))
        stack.enter_context(patch.object(indexlet_hand_over, "PIECE_BYTES", rng.choice((30, 4096))))
        stack.enter_context(remembered_images())
        if rng.random() < 0.3:
            stack.enter_context(patch.object(index_removals, "QUEUE_BYTES", 300))
        yield


async def _run(world: World, tally: Tally) -> None:
    rng = world.rng("entries")
    cluster = SimCluster(world, indexlet_entries_max=rng.choice((4, 12, 1000)))
    await cluster.start()
    admin = cluster.database("admin")
    await admin.create_table(
        TABLE,
        SCHEMA,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=rng.choice(DURABILITIES),
        indexes=["value"],
        timeout=60.0,
    )
    watch = Watch(cluster, tally)
    count = world.options.workload.clients
    writers = [Writer(world, f"c{n}", cluster.database(f"c{n}"), tally) for n in range(count)]
    nemesis = Nemesis.begin(world, FAULTS_S)
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(f"c{n}", writer.run(until_s)) for n, writer in enumerate(writers)]
    tasks.append(world.spawn("admin", change(world, admin, tally, until_s)))
    tasks.append(world.spawn("admin", watch.run(until_s)))
    await world.wait_until(
        lambda: all(t.done() for t in tasks) or any(t.done() and t.exception() for t in tasks),
        600.0,
        "the clients to end",
    )
    for task in tasks:
        if task.done():
            task.result()
    await nemesis.finish()
    await _heal(world, cluster, watch)
    tally.indexlets = len(watch.indexlets())
    await _judge_find(cluster, watch)


async def _heal(world: World, cluster: SimCluster, watch: Watch) -> None:
    """Wait until the indexes are what the rows say, looking all the time."""
    end_s = world.loop.time() + HEAL_TIMEOUT_S
    calm_s, last = world.loop.time(), ""
    while difference := watch.difference():
        now_s = world.loop.time()
        if difference != last:
            calm_s, last = now_s, difference
        if now_s - calm_s > CALM_S and "tablets serve" in difference:
            for name in cluster.tservers:
                world.restart(name)
                await asyncio.sleep(1.0)
            calm_s = world.loop.time()
        assert now_s < end_s, f"the indexes are not the rows': {difference}"
        watch.look()
        await asyncio.sleep(0.1)


async def _judge_find(cluster: SimCluster, watch: Watch) -> None:
    """What a client finds is what a scan shows. Messages get lost in healed clusters, too."""
    reader = cluster.database("reader")
    for _ in range(JUDGED_MAX):
        with suppress(OutcomeUnknown):
            return await _judge_once(reader, watch)
    raise AssertionError("no scan or look-up is answered")


async def _judge_once(reader: AsyncDatabase, watch: Watch) -> None:
    table = await _table(reader)
    record = watch.table()
    assert record is not None
    rows = (await table.scan(timeout=60.0)).to_pylist()
    if record.schema.index_of("value") is None:
        return
    for value in VALUES:
        found = (await table.find("value", value, timeout=60.0)).to_pylist()
        wanted = sorted([row["id"] for row in rows if row["value"] == value])
        assert [row["id"] for row in found] == wanted, f"{value!r}: {found}, not {wanted}"


def options(seed: int) -> Options:
    """Enough load that each fault meets some, and few kinds of faults at a time. No disk is lost:
    that is not what is looked at."""
    drawn = tables.options(seed)
    rng = random.Random(f"{seed}/entries")
    workload = replace(
        drawn.workload,
        clients=rng.randrange(3, 6),
        keys=rng.choice((3, 8, 20)),
        think_s=rng.choice((0.01, 0.03)),
    )
    servers = replace(drawn.servers, tservers=rng.randrange(3, 6), safekeepers=4)
    found = drawn.but(
        workload=workload,
        servers=servers,
        latency_mean_s=min(0.005, drawn.latency_mean_s),
        restart_mean_s=min(0.5, drawn.restart_mean_s),
        fault_duration_mean_s=min(2.0, drawn.fault_duration_mean_s),
    )
    names = [f.name for f in fields(Options) if f.name.endswith(("_rate", "_every_s"))]
    off = [name for name in names if rng.random() < 0.6]
    found = found.but(**dict.fromkeys(off, 0.0))
    return found.but(
        lost_disk_every_s=0.0,
        sync_error_every_s=0.0,
        crash_every_s=rng.choice((0.0, 1.0, 3.0)),
        pause_every_s=rng.choice((0.0, 0.0, 3.0)),
    )


SCENARIO = Scenario("entries", run, options)


async def settled(cluster: SimCluster) -> None:
    """Wait until the indexes have the entries of all rows and no others, wherever the rows are."""
    watch = Watch(cluster, Tally())
    for _ in range(300):
        if not (difference := watch.difference()):
            return
        watch.look()
        await asyncio.sleep(0.1)
    raise AssertionError(difference)
