"""Tables get another durability while they are used: stories, and the scenario with its seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.recovery_rounds import RecoveryRounds
from stelae.actors.tablet_transfer import TabletTransfer
from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.coordinator.succession import OrderTransfer, Swap
from stelae.core.durability import Durability, replicas, segments, wal
from stelae.core.errors import (
    InvalidArgument,
    NotDoneYet,
    NotEnoughServers,
    StelaeError,
    TableNotFound,
    TooFewServers,
    TooManyReplicas,
)
from stelae.core.ids import ClientId, RequestId, ServerUuid
from stelae.core.messages import WRITE, ReplicaRole, Write, WriteOp
from stelae.core.partition import hash_partition
from stelae.core.records import TableRecord, TableState, TabletRecord
from stelae.core.succession import SuccessionStage
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.node import SimulationFailure
from stelae.simulation.options import Options, Servers
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.planted_durabilities import BUGS, planted
from tests.simulation.wal_cluster import SCHEMA, read_all, write

KINDS = {"segments": segments("disk", "disk"), "wal": wal(3, ("disk",)), "replicas": replicas(3)}
DIRECTIONS = list(permutations(KINDS, 2))


class Here:
    """A cluster with servers of every kind, and a client."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **{"segment_bytes": 2000, **options})
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def create(self, durability: Durability, buckets: int = 2) -> AsyncTable:
        return await self.database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=buckets),
            durability=durability,
            timeout=30.0,
        )

    @property
    def leader(self) -> Any:
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    @property
    def record(self) -> TableRecord:
        """The table, as the catalog has it."""
        (found,) = self.leader.catalog.tables.values()
        assert isinstance(found, TableRecord)
        return found

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    def settled(self) -> bool:
        """No tablet is hidden, and nothing is left of those that have made way."""
        if self.cluster.leader() is None:
            return False
        catalog = self.leader.catalog
        wanted = {t.tablet_id for table in catalog.tables for t in catalog.tablets_of(table)}
        held: set[str] = set()
        for name in self.cluster.tservers:
            server = self.world.server(name)
            held |= {r.tablet_id for r in server.reports()} if server is not None else set()
        return not catalog.successors() and held == wanted


def tell(story: Callable[[Here], Awaitable[None]], seed: int = 1, **options: Any) -> World:
    world = World(seed, Options(servers=Servers(tservers=4, backups=3, safekeepers=3)))
    here = Here(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world


@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_a_table_gets_another_durability_while_it_is_written(before: str, after: str) -> None:
    """What was acknowledged before, while and after stays, and survives the death of its servers;
    what was deleted stays deleted; and nothing is left of the tablets that were."""

    async def story(here: Here) -> None:
        table = await here.create(KINDS[before])
        await write(table, 0, 60)
        for number in range(1000, 1020):
            await table.upsert({"id": number, "text": "to be deleted"})
        await table.delete(1000)
        old = {t.tablet_id for t in here.leader.catalog.tablets_of(here.record.table_id)}
        writing = asyncio.create_task(write(table, 60, 60))
        await asyncio.sleep(0.02)
        for number in range(1001, 1010):
            await table.delete(number)
        await table.alter(durability=KINDS[after], timeout=60.0)
        for number in range(1010, 1020):
            await table.delete(number)
        await writing
        await read_all(table, 120)
        assert here.record.durability == KINDS[after]
        assert here.record.state is TableState.RUNNING
        assert here.record.becoming is None
        new = here.leader.catalog.tablets_of(here.record.table_id)
        assert [t.number for t in new] == [0, 1]
        assert not old & {t.tablet_id for t in new}
        await here.until(here.settled, "the old tablets to be gone")
        for victim in here.cluster.tservers:
            here.world.crash(victim)
        await read_all(table, 120)
        await write(table, 120, 10)
        await read_all(table, 130)

    tell(story)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (segments("disk", "disk"), segments("disk")),
        (wal(3, ("disk",)), wal(1, ("disk", "disk"))),
        (replicas(3), replicas(1)),
    ],
)
def test_media_and_numbers_change_as_well(before: Durability, after: Durability) -> None:
    """Of the same kind too: by successors, and by healing for replicas."""

    async def story(here: Here) -> None:
        table = await here.create(before)
        await write(table, 0, 30)
        await table.alter(durability=after, timeout=60.0)
        await read_all(table, 30)
        assert here.record.durability == after
        await here.until(here.settled, "the old tablets to be gone")

    tell(story)


def test_a_table_goes_there_and_back_before_it_is_there() -> None:
    """An alter back takes the first one back; versions only grow."""

    async def story(here: Here) -> None:
        table = await here.create(KINDS["segments"], buckets=5)
        await write(table, 0, 60)
        row = await table.get(7, with_version=True)
        assert row is not None
        await table.alter(durability=KINDS["replicas"], wait=False)
        await here.until(
            lambda: any(t.change for t in here.leader.catalog.tablets_of(here.record.table_id)),
            "the first tablet to have changed",
        )
        with pytest.raises(InvalidArgument, match="wait until that is done, or alter it back"):
            await table.alter(durability=KINDS["wal"])
        await table.alter(durability=KINDS["segments"], timeout=60.0)
        assert here.record.durability == KINDS["segments"]
        await read_all(table, 60)
        again = await table.get(7, with_version=True)
        assert again == row, "a change keeps versions"
        (version,) = await table.upsert({"id": 7, "text": "new"})
        assert int(version) > row["_version"]
        await here.until(here.settled, "the successors to be gone")

    tell(story)


def test_what_there_are_too_few_servers_for_is_refused() -> None:
    """With numbers, and nothing is changed: for a while, as long as more may be heard of, and then
    for good. It is not waited for servers as long as for tablets."""

    async def story(here: Here) -> None:
        table = await here.create(KINDS["segments"])
        with pytest.raises(NotEnoughServers, match="5 live tservers, there are 4"):
            await table.alter(durability=replicas(5), timeout=2.0)
        asked = here.world.loop.time()
        with pytest.raises(NotEnoughServers, match="5 live safekeepers, there are 3"):
            await table.alter(durability=wal(5), timeout=600.0)
        assert here.world.loop.time() - asked < 40.0
        with pytest.raises(TooFewServers, match="5 tservers; the cluster has 4"):
            await table.alter(durability=replicas(5), timeout=20.0)
        with pytest.raises(TooManyReplicas, match="1 backups with medium 'gold'"):
            await table.alter(durability=segments("gold"), timeout=20.0)
        for wrong in ("replicas(3)", 3):
            with pytest.raises(InvalidArgument, match="give segments"):
                await table.alter(durability=wrong)  # type: ignore[arg-type]
        assert here.record.becoming is None
        assert here.record.state is TableState.RUNNING

    tell(story)


def test_an_alter_that_takes_longer_than_its_caller_waits_goes_on() -> None:
    """The caller hears that it does, and for which tablets it waits."""

    async def story(here: Here) -> None:
        table = await here.create(KINDS["segments"])
        await write(table, 0, 60)
        with pytest.raises(NotDoneYet, match=r"goes on by itself \(it waits for tablets [0-9a-f]"):
            await table.alter(durability=KINDS["wal"], timeout=0.05)
        await here.until(lambda: here.record.durability == KINDS["wal"], "the alter to be done")
        await read_all(table, 60)

    tell(story)


def test_a_table_that_changes_can_be_dropped_and_renamed() -> None:
    """Nothing of it is left anywhere; a name changes at once."""

    async def story(here: Here) -> None:
        table = await here.create(KINDS["replicas"], buckets=4)
        await write(table, 0, 40)
        await table.alter(durability=KINDS["wal"], wait=False)
        await table.rename("other")
        await write(table, 40, 10)
        await here.database.delete_table("other")
        with pytest.raises(TableNotFound):
            await here.database.table("other")
        await here.until(here.settled, "all tablets to be gone")

    tell(story)


def test_writes_wait_for_a_moment_only() -> None:
    """The longest pause of a writer while both tablets of its table change, in calm."""
    pauses: list[float] = []

    async def story(here: Here) -> None:
        table = await here.create(KINDS["segments"])
        await write(table, 0, 100)
        task = asyncio.create_task(table.alter(durability=KINDS["wal"], timeout=60.0))
        number = 0
        while not task.done():
            began = here.world.loop.time()
            await table.upsert({"id": number % 100, "text": "x" * 500}, timeout=20.0)
            pauses.append(here.world.loop.time() - began)
            number += 1
        await task

    tell(story)
    assert max(pauses) < 0.5, f"a write waited {max(pauses)} s"


# ---- who makes way dies before the masters have decided ------------------------------------


async def slow_swap(here: Here, before: Durability, after: Durability) -> None:
    """The tablet says that it has made way, and its server dies before the entry; a client writes
    as soon as it can. Whoever then serves it, the write is there after the alter."""
    table = await here.create(before, buckets=1)
    await write(table, 0, 20)
    leader, swap = here.leader.coordinator, asyncio.Event()
    succession, asked = leader._succession, asyncio.Event()

    async def late(action: Any) -> None:
        if isinstance(action, Swap):
            asked.set()
            await swap.wait()
        await succession(action)

    begin = leader._begin

    def without_orders(action: Any) -> None:
        """Whoever serves it next is not told to make way before the entry."""
        if not (asked.is_set() and isinstance(action, OrderTransfer)) or swap.is_set():
            begin(action)

    leader._succession, leader._begin = late, without_orders
    altering = asyncio.create_task(table.alter(durability=after, timeout=90.0))
    await asked.wait()
    (victim,) = [
        name
        for name in here.cluster.tservers
        for report in here.world.server(name).reports()
        if report.succession is not None
        and report.succession.stage is SuccessionStage.CLOSED
        and (report.group is None or report.group.role is ReplicaRole.LEADER)
    ]
    here.world.crash(victim, restart=False)
    writing = asyncio.create_task(write(table, 20, 1))
    await asyncio.wait([writing], timeout=15.0)  # somebody else owns it, or leads, by now
    swap.set()
    await writing
    await altering
    here.world.restart(victim)
    await read_all(table, 21)


@pytest.mark.parametrize(
    ("before", "after", "bug"),
    [
        ("wal", "replicas", "old_word_counts"),
        ("segments", "wal", "old_word_counts"),
        ("replicas", "segments", "fence_not_in_the_log"),
    ],
)
def test_a_source_whose_server_dies_before_the_swap_loses_nothing(
    before: str, after: str, bug: str
) -> None:
    """An owner's word does not hold for the next owner; a group's log is heeded by the next
    leader. Without that a write is lost."""

    async def story(here: Here) -> None:
        await slow_swap(here, KINDS[before], KINDS[after])

    tell(story)
    with planted(bug), pytest.raises(SimulationFailure, match="was acknowledged"):
        tell(story)


async def stale_read(here: Here) -> None:
    """A client that knows the tablet that was asks it, after another one has written anew."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 5)
    reader = await here.cluster.database("reader").table("t")
    await reader.get(1)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    owner = here.name_of(source.owner)
    close = here.world.server(owner)._close
    here.world.server(owner)._close = lambda tablet_id: asyncio.sleep(0)  # the order comes late
    await table.alter(durability=KINDS["wal"], timeout=60.0)
    await table.upsert({"id": 1, "text": "anew"})
    row = await reader.get(1, timeout=20.0)
    assert row is not None
    assert row["text"] == "anew", "a stale read"
    here.world.server(owner)._close = close


def test_a_source_answers_no_read_after_its_successor_may_have_been_written() -> None:
    """However late it hears that it is replaced. With the bug it does."""
    tell(stale_read)
    with planted("reads_go_on"), pytest.raises(SimulationFailure, match="a stale read"):
        tell(stale_read)


async def same_request_twice(here: Here) -> None:
    """The answer to a write is lost, the table changes, and the same request comes once more."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 5)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    request = RequestId(ClientId("somebody"), 1, 1)
    rows = ((99, "once"),)
    sent = Write(source.tablet_id, 1, WriteOp.INSERT, request, rows, ("id", "text"))
    first = await call(here, source, WRITE, sent)
    await table.alter(durability=KINDS["replicas"], timeout=60.0)
    await table.upsert({"id": 99, "text": "later"})
    (successor,) = here.leader.catalog.tablets_of(here.record.table_id)
    again = await call(
        here, successor, WRITE, msgspec.structs.replace(sent, tablet_id=successor.tablet_id)
    )
    assert again == first, "it was carried out again"
    row = await table.get(99)
    assert row == {"id": 99, "text": "later"}


async def call(here: Here, tablet: TabletRecord, method: Any, body: Any) -> Any:
    """A call on whichever server serves a tablet."""
    for name in here.cluster.tservers:
        server = here.world.server(name)
        for report in server.reports():
            is_led = report.group is None or report.group.role is ReplicaRole.LEADER
            if report.tablet_id == tablet.tablet_id and is_led:
                peers = here.database.runtime.peers
                reply = await peers.call(server.info.address, method, body, timeout_s=5.0)
                return reply.body
    raise AssertionError(f"nobody serves {tablet.tablet_id}")


def test_a_request_is_known_to_the_successor() -> None:
    """It gets its first answer, and nothing happens. With the bug it is refused: the row exists."""
    tell(same_request_twice)
    with planted("results_left_out"), pytest.raises(SimulationFailure, match="RowExists"):
        tell(same_request_twice)


async def taken_back(here: Here) -> None:
    """The backups do not hear the owner, which dies; what it then wrote is nowhere. The next owner
    gives the same versions to what is written next, and that has to be in the successor."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 10)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    owner = here.name_of(source.owner)
    here.world.partition([owner], here.cluster.backups)
    with pytest.raises(StelaeError):
        await table.upsert({"id": 50, "text": "taken back"}, timeout=1.0)
    held = asyncio.Event()
    finish = TabletTransfer._finish

    async def late(self: TabletTransfer) -> None:
        await held.wait()
        await finish(self)

    with patch.object(TabletTransfer, "_finish", late):
        altering = asyncio.create_task(table.alter(durability=KINDS["replicas"], timeout=90.0))
        await asyncio.sleep(1.0)
        here.world.crash(owner, restart=False)
        here.world.unpartition([owner], here.cluster.backups)
        await write(table, 10, 1)
        held.set()
        await altering
    await read_all(table, 11)


def test_what_may_be_taken_back_is_not_brought_over() -> None:
    """A piece waits until it counts. With the bug a later write is taken for one that is there."""
    tell(taken_back)
    with planted("uncommitted"), pytest.raises(SimulationFailure, match="AssertionError"):
        tell(taken_back)


# ---- a recovery goes on while the table is altered ------------------------------------------


async def altered_in_recovery(here: Here, before: Durability, after: Durability) -> None:
    """An owner dies; while its backups are asked the table is altered, and altered back."""
    table = await here.create(before, buckets=1)
    await write(table, 0, 20)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    asked, held = asyncio.Event(), asyncio.Event()
    fence = RecoveryRounds._fence

    async def late(self: RecoveryRounds, *args: Any) -> None:
        asked.set()
        await held.wait()
        await fence(self, *args)

    with patch.object(RecoveryRounds, "_fence", late):
        here.world.crash(here.name_of(source.owner), restart=False)
        await asked.wait()
        await table.alter(durability=after, wait=False)
        await table.alter(durability=before, wait=False)
        held.set()
        await read_all(table, 20)
    await here.until(lambda: here.record.becoming is None, "the alter back to be done")
    assert here.record.durability == before
    await here.until(here.settled, "the successors to be gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (KINDS["wal"], KINDS["replicas"]),
        (KINDS["segments"], KINDS["wal"]),
        (KINDS["segments"], segments()),
    ],
)
def test_a_recovery_that_began_before_an_alter_back_finds_the_rows(
    before: Durability, after: Durability
) -> None:
    """Its record of the tablet is an older one, and names the same log."""

    async def story(here: Here) -> None:
        await altered_in_recovery(here, before, after)

    tell(story)


def test_a_recovery_that_takes_an_older_record_for_another_durability_loses_rows() -> None:
    """With the bug they are thought to have been in memory only, and nobody looks for them. (Where
    another kind of log is named, the server refuses to open the tablet.)"""

    async def story(here: Here) -> None:
        await altered_in_recovery(here, KINDS["segments"], segments())

    with planted("old_records_mislead"), pytest.raises(SimulationFailure, match="AssertionError"):
        tell(story)


# ---- under faults ---------------------------------------------------------------------------

FAST_SEEDS = 12
SEEDS = 200
BUG_SEEDS = 60
STORIES = (
    "fence_not_in_the_log",
    "old_records_mislead",
    "old_word_counts",
    "reads_go_on",
    "uncommitted",
)
"""Found by stories above: by chance they take too many seeds."""


def test_tables_get_other_durabilities_under_faults() -> None:
    """A few seeds: no acknowledged write is lost or doubled, reads are linearizable."""
    outcomes = run_seeds(load_scenario("durabilities"), FAST_SEEDS, budget_s=90.0)
    assert len(outcomes) >= 3


@pytest.mark.slow
def test_many_seeds_of_durabilities_under_faults() -> None:
    """The same, with others for each commit."""
    outcomes = run_seeds(load_scenario("durabilities"), SEEDS, budget_s=900.0)
    assert len(outcomes) >= SEEDS // 2


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted(set(BUGS) - set(STORIES)))
def test_a_planted_bug_of_durabilities_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("durabilities")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert run_seed(scenario, outcome.seed).failure is None
