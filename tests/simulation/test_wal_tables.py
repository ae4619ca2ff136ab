"""Tables with ``wal(n, …)`` in a whole cluster: stories, each of one thing that must not hurt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.migration_runner import RunnerSettings
from stelae.client.database import AsyncDatabase
from stelae.client.masters import MastersClient
from stelae.client.table import AsyncTable
from stelae.coordinator.migration_steps import MigrationSettings
from stelae.core.configurations import TimelineRecord
from stelae.core.durability import replicas, wal
from stelae.core.errors import (
    InvalidArgument,
    MigrationUnderWay,
    NotEnoughServers,
    RetryLater,
    StelaeError,
    TabletNotFound,
)
from stelae.core.ids import ClientId, RequestId, ServerUuid, TabletId
from stelae.core.messages import WRITE, Write, WriteOp
from stelae.core.partition import hash_partition
from stelae.core.timeline_messages import (
    ABORT_MIGRATION,
    LIST_MIGRATIONS,
    LIST_SAFEKEEPERS,
    LOCATE_TIMELINE,
    MIGRATE_SAFEKEEPER,
    MIGRATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    SET_SAFEKEEPER_STATUS,
    AbortMigration,
    ListMigrations,
    ListSafekeepers,
    LocateTimeline,
    MigrateSafekeeper,
    MigrateTimeline,
    ScrubSafekeeper,
    SetSafekeeperStatus,
)
from stelae.core.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.options import Servers

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


class Here:
    """A cluster in a world, and what stories ask of it."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **{"segment_bytes": 2000, **options})
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def create(self, name: str = "t", count: int = 3, buckets: int = 2) -> AsyncTable:
        return await self.database.create_table(
            name,
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=buckets),
            durability=wal(count, ("disk", "disk")),
            timeout=30.0,
        )

    @property
    def leader(self) -> Any:
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in [*self.cluster.tservers, *self.cluster.safekeepers]:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    def owners(self) -> list[str]:
        """Names of tservers that own tablets."""
        tablets = self.leader.catalog.live_tablets()
        return sorted({self.name_of(tablet.owner) for tablet in tablets})

    def keeper(self, number: int) -> str:
        """The name of a safekeeper."""
        name: str = self.leader.catalog.timelines.safekeepers[number].name
        return name

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    async def until_registered(self, count: int) -> None:
        """So many safekeepers have their ids, and are heard under them."""

        def are_there() -> bool:
            statuses = self.leader.timelines.statuses
            return sum(status is SafekeeperStatus.ACTIVE for status in statuses.values()) == count

        await self.until(are_there, f"{count} safekeepers")

    def held(self) -> dict[str, list[TabletId]]:
        """Which timelines each running safekeeper has."""
        return {
            name: sorted(server.timelines.held)
            for name in self.cluster.safekeepers
            if (server := self.world.server(name)) is not None
        }


async def write(table: AsyncTable, first: int, count: int) -> None:
    for number in range(first, first + count):
        await table.upsert({"id": number, "text": text(number)}, timeout=20.0)


def text(number: int) -> str:
    return f"{number}:" + "x" * 100


async def read_all(table: AsyncTable, count: int) -> None:
    """Each row is there, as it was written, by key and by scan."""
    for number in range(count):
        row = await table.get(number, timeout=20.0)
        assert row is not None, f"row {number} was acknowledged"
        assert row["text"] == text(number), number
    found = await table.scan(timeout=20.0)
    assert sorted(found.column("id").to_pylist()) == list(range(count))


def tell(
    story: Callable[[Here], Awaitable[None]], seed: int = 1, safekeepers: int = 3, **options: Any
) -> World:
    world = World(seed, Options(servers=Servers(safekeepers=safekeepers)))
    here = Here(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world


@pytest.mark.parametrize("cas_store", [False, True])
def test_a_table_survives_its_tservers_and_a_safekeeper(cas_store: bool) -> None:
    """What was acknowledged is read after the death of each tserver, and with a safekeeper less
    writes go on."""

    async def story(here: Here) -> None:
        table = await here.create()
        await write(table, 0, 40)
        for victim in here.owners():
            here.world.crash(victim)
        await read_all(table, 40)
        here.world.crash(here.keeper(2), restart=False)
        await write(table, 40, 20)
        await read_all(table, 60)

    tell(story, cas_store=cas_store)


def test_too_few_safekeepers_are_said_to_be_too_few() -> None:
    """Which kind of server, how many are needed and how many there are; no table is left."""

    async def story(here: Here) -> None:
        await here.until_registered(3)
        with pytest.raises(NotEnoughServers, match="needs 5 live safekeepers, there are 3"):
            await here.database.create_table(
                "t", SCHEMA, key=["id"], durability=wal(5), timeout=3.0
            )
        assert not await here.database.tables()

    tell(story)


async def ask(here: Here, method: Any, body: Any, timeout_s: float = 10.0) -> Any:
    """A call of an operator's to whichever master leads."""
    masters = MastersClient(here.database.runtime, list(here.cluster.addresses.values()))
    return await masters.call(method, body, timeout_s=timeout_s)


async def move(here: Here, tablet_id: TabletId, desired: tuple[SafekeeperId, ...]) -> None:
    """Order a migration, once the one before has put everything away."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, desired), 30.0)
            except MigrationUnderWay:
                await asyncio.sleep(0.2)
            else:
                return


def timelines(here: Here) -> dict[TabletId, TimelineConfiguration]:
    """Of all live tablets, as the catalog was told."""
    tablets = here.leader.catalog.live_tablets()
    return {t.tablet_id: t.timeline for t in tablets if t.timeline is not None}


def records(here: Here) -> list[TimelineRecord]:
    """What the configuration store has, if that is the catalog."""
    return [stored.record for stored in here.leader.catalog.timelines.all()]


def placed(here: Here) -> dict[str, list[TabletId]]:
    """Where timelines should be, by the catalog."""
    wanted: dict[str, list[TabletId]] = {name: [] for name in here.cluster.safekeepers}
    for tablet_id, configuration in timelines(here).items():
        for member in configuration.members:
            wanted[here.keeper(member)].append(tablet_id)
    return {name: sorted(held) for name, held in wanted.items()}


async def until_at_rest(here: Here, limit_s: float = 90.0) -> None:
    """Nothing is left to be done, and each safekeeper that runs has what it should have."""

    def is_at_rest() -> bool:
        if here.cluster.leader() is None or not all(r.is_finished for r in records(here)):
            return False
        return placed(here) == here.held()

    await here.until(is_at_rest, "all timelines at rest", limit_s)


def test_a_dropped_table_leaves_nothing_on_safekeepers() -> None:
    """Not even on one that was away when it was dropped; and its record says so for ever."""

    async def story(here: Here) -> None:
        table = await here.create()
        await here.create("stays")
        await write(table, 0, 10)
        await here.until(lambda: len(records(here)) == 4, "four timelines")
        dropped = [
            r.timeline for r in records(here) if r.timeline.table_id == table.record.table_id
        ]
        here.world.crash("safekeeper-1", restart=False)
        await here.database.delete_table("t")
        await asyncio.sleep(3.0)
        here.world.restart("safekeeper-1")
        await until_at_rest(here)
        assert {name: len(held) for name, held in here.held().items()} == {
            name: 2 for name in here.cluster.safekeepers
        }
        known = here.leader.catalog.timelines
        assert [known.current(timeline).record.is_over for timeline in dropped] == [True, True]

    tell(story)


def test_a_dead_safekeeper_is_replaced_and_writes_go_on() -> None:
    """After the grace time another one has its place in every timeline; when it comes back it
    holds nothing any more."""

    async def story(here: Here) -> None:
        table = await here.create()
        await write(table, 0, 30)
        victim = here.keeper(next(iter(timelines(here).values())).sk_set[0])
        here.world.crash(victim, restart=False)
        await write(table, 30, 10)
        registry = here.leader.catalog.timelines.safekeepers
        (dead,) = [number for number, record in registry.items() if record.name == victim]
        await here.until(
            lambda: not any(dead in c.members for c in timelines(here).values()), "replacement"
        )
        await write(table, 40, 10)
        here.world.restart(victim)
        await until_at_rest(here)
        assert here.held()[victim] == []
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 50)

    tell(story, safekeepers=4, safekeeper_dead_after_s=5.0)


def test_timelines_move_while_clients_write() -> None:
    """To other members, one safekeeper's all or so many; each ends by itself, and nothing is left
    behind; the writer follows to members that it has never heard of."""

    async def story(here: Here) -> None:
        table = await here.create()
        await here.until_registered(6)
        writing = asyncio.create_task(write(table, 0, 150))
        before = timelines(here)
        for tablet_id, configuration in before.items():
            others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in configuration.members)
            scheduled = await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, others))
            assert [one.desired_set for one in scheduled.scheduled] == [others]
        await here.until(
            lambda: all(c.generation == 3 for c in timelines(here).values()), "both moved"
        )
        await until_at_rest(here)
        members = next(iter(timelines(here).values())).sk_set
        target = next(SafekeeperId(n) for n in range(1, 7) if n not in members)
        order = MigrateSafekeeper(members[0], target, 1)
        moved = await ask(here, MIGRATE_SAFEKEEPER, order)
        assert len(moved.scheduled) == 1
        await here.until(
            lambda: any(target in c.sk_set for c in timelines(here).values()), "one moved"
        )
        await writing
        await until_at_rest(here)
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 150)
        ended = (await ask(here, LIST_MIGRATIONS, ListMigrations())).ended
        assert {result.verdict for result in ended} == {"done"}

    tell(story, safekeepers=6)


def test_a_migration_that_cannot_go_on_is_aborted() -> None:
    """The new members have gone: the old ones alone are members again, and writes go on."""

    async def story(here: Here) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in first.members)
        names = [here.keeper(n) for n in others]
        await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, others))
        await here.until(lambda: records(here)[0].configuration.is_joint, "a joint one")
        for name in names:
            here.world.crash(name, restart=False)
        await asyncio.sleep(4.0)
        assert records(here)[0].configuration.is_joint
        result = await ask(here, ABORT_MIGRATION, AbortMigration(tablet_id))
        assert result.verdict in ("aborted", "under way")
        await here.until(lambda: not records(here)[0].configuration.is_joint, "the abort")
        await write(table, 0, 20)
        assert set(timelines(here)[tablet_id].members) == set(first.members)
        for name in names:
            here.world.restart(name)
        await until_at_rest(here)
        assert [n for n, held in here.held().items() if held] == sorted(
            here.keeper(n) for n in first.members
        )

    tell(story, safekeepers=6, safekeeper_dead_after_s=300.0)


def test_a_change_to_members_that_are_lost_takes_itself_back() -> None:
    """Nothing is committed without most of the new members: after the grace time the old ones are
    alone again, and the write that waited is acknowledged."""

    async def story(here: Here) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in first.members)
        names = [here.keeper(n) for n in others]
        await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, others))
        await here.until(lambda: records(here)[0].configuration.is_joint, "a joint one")
        for name in names:
            here.world.crash(name, restart=False)
        await table.upsert({"id": 0, "text": text(0)}, timeout=30.0)
        assert timelines(here)[tablet_id].sk_set == first.sk_set
        assert not records(here)[0].configuration.is_joint
        await read_all(table, 1)

    tell(story, safekeepers=6, safekeeper_dead_after_s=5.0)


def test_without_its_store_nothing_moves_and_everything_is_written() -> None:
    """The store is away: writes and recoveries go on, and a migration waits for it."""

    async def story(here: Here) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        here.world.crash("cas-store", restart=False)
        other = next(SafekeeperId(n) for n in range(1, 5) if n not in first.members)
        desired = (*first.sk_set[:2], other)
        await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, desired))
        await write(table, 0, 20)
        here.world.crash(here.owners()[0])
        await read_all(table, 20)
        assert timelines(here)[tablet_id] == first
        view = await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id))
        assert view.store_problem
        assert view.running is not None
        here.world.restart("cas-store")
        await here.until(lambda: timelines(here)[tablet_id].sk_set == desired, "the migration")
        await write(table, 20, 10)
        await read_all(table, 30)

    tell(story, safekeepers=4, cas_store=True)


def test_a_store_that_starts_again_has_everything_and_the_next_leader_finds_it() -> None:
    """It listens elsewhere then, and heartbeats there; a new leader master goes on with what it has
    kept, while another move is under way."""

    async def story(here: Here) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        before = (await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id))).history
        assert before[0].record.generation == 1
        was_at = here.world.server("cas-store").info.address
        here.world.crash("cas-store", restart=False)
        here.world.restart("cas-store")
        await here.world.wait_ready()
        assert here.world.server("cas-store").info.address != was_at
        desired = first.sk_set
        for number in range(3):
            other = next(SafekeeperId(n) for n in range(1, 5) if n not in desired)
            desired = (*desired[1:], other)
            await move(here, tablet_id, desired)
            here.world.crash(here.cluster.leader() or "")
            if number:
                here.world.crash("cas-store")
            await write(table, 5 * number, 5)
            await here.until(here.cluster.leader, "a leader")
            await move(here, tablet_id, desired)
            await here.until(
                lambda wanted=desired: (
                    here.cluster.leader() and timelines(here)[tablet_id].sk_set == wanted
                ),
                "the migration",
            )
        await read_all(table, 15)
        after = (await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id), 30.0)).history
        assert after[: len(before)] == before
        assert [row.revision for row in after] == [*range(1, len(after) + 1)]
        assert after[-1].record.generation == 7

    tell(story, safekeepers=4, cas_store=True)


def test_a_cluster_without_its_store_server_says_so() -> None:
    """The status has it, alive and then not; nobody else is told of it."""

    async def story(here: Here) -> None:
        await here.until_registered(3)

        async def state() -> list[str]:
            servers = (await here.database.status())["servers"]
            return [each["state"] for each in servers if each["kind"] == "cas_store"]

        assert await state() == ["live"]
        keeper = here.world.server(here.keeper(1))
        assert keeper.members.find(here.world.server("cas-store").info.uuid) is None
        here.world.crash("cas-store", restart=False)
        await asyncio.sleep(2 * here.cluster.settings.dead_after_s)
        assert await state() == ["dead"]

    tell(story, cas_store=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_migration_goes_on_under_the_next_leader(seed: int) -> None:
    """The leader master dies somewhere in it; nobody has to ask again."""

    async def story(here: Here) -> None:
        table = await here.create()
        await here.until_registered(6)
        wanted = {}
        for tablet_id, configuration in timelines(here).items():
            others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in configuration.members)
            await ask(here, MIGRATE_TIMELINE, MigrateTimeline(tablet_id, others))
            wanted[tablet_id] = others
        await here.until(lambda: any(r.configuration.is_joint for r in records(here)), "joint")
        await asyncio.sleep(0.01 * seed)
        joint = [r.timeline.tablet_id for r in records(here) if r.generation > 1]
        here.world.crash(here.cluster.leader() or "")
        await write(table, 0, 20)
        await until_at_rest(here)
        for tablet_id in joint:
            assert timelines(here)[tablet_id].sk_set == wanted[tablet_id]
        await read_all(table, 20)

    tell(story, seed, safekeepers=6)


def test_a_scrub_removes_what_is_proven_garbage_and_nothing_else() -> None:
    """A timeline that a safekeeper should have left, by the store, goes; one that the store does
    not know stays."""

    async def story(here: Here) -> None:
        await here.create()
        await until_at_rest(here)
        ids = here.leader.catalog.timelines.safekeepers
        tablet_id, configuration = next(iter(timelines(here).items()))
        other = next(n for n in ids if n not in configuration.members)
        server = here.world.server(here.keeper(other))
        stray = TimelineConfiguration(1, (SafekeeperId(other),))
        await server.timelines.store(tablet_id).create(tablet_id, stray)
        await server.timelines.store(TabletId("f" * 32)).create(TabletId("f" * 32), stray)
        here.world.restart(here.keeper(other))
        await asyncio.sleep(3.0)
        reply = await ask(here, SCRUB_SAFEKEEPER, ScrubSafekeeper(other))
        assert [timeline.tablet_id for timeline in reply.removed] == [tablet_id]
        assert reply.unknown == ("f" * 32,)
        again = await ask(here, SCRUB_SAFEKEEPER, ScrubSafekeeper(other))
        assert not again.removed

    tell(story, safekeepers=4)


@pytest.mark.parametrize("seed", range(3))
def test_an_owner_that_was_replaced_can_neither_acknowledge_nor_answer(seed: int) -> None:
    """Cut off from the masters, but not from clients nor, for a while, from safekeepers: once
    another one owns its tablets, nothing that it says is wrong, and nothing it writes counts."""

    async def story(here: Here) -> None:
        world, cluster = here.world, here.cluster
        table = await here.create(buckets=1)
        await write(table, 0, 20)
        (old,) = here.owners()
        tablet = next(iter(world.server(old)._tablets.values()))
        world.partition([old], cluster.masters)
        world.partition(cluster.masters, [old])
        await here.until(lambda: here.owners() != [old], "another owner")
        assert not world.server(old)._lease.is_valid
        await write(table, 20, 10)
        request = Write(
            tablet.tablet_id, 1, WriteOp.UPSERT, RequestId(ClientId("raw"), 1, 1), ((0, "wrong"),)
        )
        address = world.server(old).info.address
        with pytest.raises(StelaeError):
            await here.database.runtime.peers.call(address, WRITE, request, timeout_s=2.0)
        world.server(old)._lease._until = world.loop.time() + 1e6  # even without that rule
        with pytest.raises(StelaeError):
            await here.database.runtime.peers.call(address, WRITE, request, timeout_s=2.0)
        world.heal()
        await read_all(table, 30)

    tell(story, seed)


def test_a_decommissioned_safekeeper_is_emptied_and_waited_for_no_more() -> None:
    """Its timelines go to others at once; what it cannot be told is nobody's work any more."""

    async def story(here: Here) -> None:
        table = await here.create()
        await here.until_registered(4)
        victim = next(iter(timelines(here).values())).sk_set[0]
        here.world.crash(here.keeper(victim), restart=False)
        order = SetSafekeeperStatus(victim, SafekeeperStatus.DECOMMISSIONED)
        await ask(here, SET_SAFEKEEPER_STATUS, order)
        await here.until(
            lambda: (
                not any(victim in c.members for c in timelines(here).values())
                and all(record.is_finished for record in records(here))
            ),
            "all moved, and nothing left to be done",
        )
        await write(table, 0, 10)
        listed = await ask(here, LIST_SAFEKEEPERS, ListSafekeepers())
        (view,) = [one for one in listed.safekeepers if one.record.safekeeper_id == victim]
        assert (view.timelines, view.is_live) == (0, False)
        refused = MigrateTimeline(next(iter(timelines(here))), (victim, *ids_but(here, victim, 2)))
        with pytest.raises(InvalidArgument, match=f"safekeeper {victim} is decommissioned"):
            await ask(here, MIGRATE_TIMELINE, refused)

    tell(story, safekeepers=4, safekeeper_dead_after_s=300.0)


def ids_but(here: Here, but: SafekeeperId, count: int) -> tuple[SafekeeperId, ...]:
    known = sorted(here.leader.catalog.timelines.safekeepers)
    return tuple(SafekeeperId(number) for number in known if number != but)[:count]


@pytest.mark.parametrize(
    ("desired", "reason"),
    [
        ((1, 2), "3 or more"),
        ((1, 2, 2), "named twice"),
        ((1, 2, 9), "no safekeeper 9"),
        ((1, 2, 3, 4), "there are 3"),
    ],
)
def test_members_that_cannot_be_are_refused_before_anything_is_begun(
    desired: tuple[int, ...], reason: str
) -> None:
    """With the reason; the store is as it was."""

    async def story(here: Here) -> None:
        await here.create(buckets=1)
        await here.until_registered(4)
        (tablet_id,) = timelines(here)
        before = records(here)
        order = MigrateTimeline(tablet_id, tuple(map(SafekeeperId, desired)))
        with pytest.raises(InvalidArgument, match=reason):
            await ask(here, MIGRATE_TIMELINE, order)
        with pytest.raises(TabletNotFound):
            await ask(
                here, MIGRATE_TIMELINE, MigrateTimeline(TabletId("f" * 32), (order.desired_set))
            )
        await asyncio.sleep(1.0)
        assert [r.configuration for r in records(here)] == [r.configuration for r in before]

    tell(story, safekeepers=4)


def test_servers_of_other_kinds_are_never_taken_for_each_other() -> None:
    """A safekeeper owns no tablet, is not among tservers or backups, and the status says what it
    is; a check finds nothing to complain of."""

    async def story(here: Here) -> None:
        await here.create()
        await here.database.create_table(
            "r", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0
        )
        await until_at_rest(here)
        await asyncio.sleep(1.0)
        status = await here.database.status()
        kinds = {server["id"]: server for server in status["servers"]}
        for name in here.cluster.safekeepers:
            assert kinds[name]["kind"] == "safekeeper"
            assert kinds[name]["status"] == "active"
            assert kinds[name]["timelines"] == 2
            assert "tablets" not in kinds[name]
        assert {t["leader"] for t in status["tablets"]} <= set(here.cluster.tservers)
        assert sum("timeline" in t for t in status["tablets"]) == 2
        report = await here.database.check(timeout=5.0)
        assert not [str(finding) for finding in report.problems]

    tell(story)


def test_a_member_below_which_the_disk_failed_is_replaced() -> None:
    """Its safekeeper lives, and keeps other timelines; this one does nothing there any more: it
    goes to another, and what is left of it is removed."""

    async def story(here: Here) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        victim = first.sk_set[1]
        here.world.nodes[here.keeper(victim)].disk.fail_next_sync = True
        await write(table, 0, 20)

        async def broken() -> int:
            listed = await ask(here, LIST_SAFEKEEPERS, ListSafekeepers())
            return sum(one.broken for one in listed.safekeepers)

        for _ in range(50):
            if await broken():
                break
            await asyncio.sleep(0.1)
        assert await broken() == 1
        await here.until(
            lambda: victim not in timelines(here)[tablet_id].members, "another member", 30.0
        )
        await write(table, 20, 10)
        await until_at_rest(here)
        assert here.held()[here.keeper(victim)] == []
        await read_all(table, 30)

    tell(story, safekeepers=4, safekeeper_dead_after_s=3.0, timeline_scan_s=0.5)


def test_a_safekeeper_that_hangs_keeps_no_other_timeline_waiting() -> None:
    """Many tablets are created while one of their safekeepers does not answer, and is not known to
    be away yet: a majority is enough for each of them."""

    async def story(here: Here) -> None:
        await here.until_registered(3)
        here.world.pause("safekeeper-2")
        began = here.world.loop.time()
        table = await here.create(buckets=64)
        await write(table, 0, 64)
        assert here.world.loop.time() - began < 12.0
        here.world.resume("safekeeper-2")
        await until_at_rest(here)

    tell(story, safekeepers=3)


def test_operators_watch_a_migration_to_its_end() -> None:
    """By the client: listed, moved, waited for; and one that ends otherwise is told of."""

    async def story(here: Here) -> None:
        database = here.database
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((_, tablet_id, first),) = (await database.timelines("t")).timelines
        (spare,) = {one.record.safekeeper_id for one in await database.safekeepers()} - set(
            first.sk_set
        )
        desired = [*first.sk_set[:2], spare]
        (scheduled,) = await database.migrate_timeline(tablet_id, desired)
        assert scheduled.desired_set == tuple(desired)
        looks: list[str] = []
        view = await database.wait_migrated(
            tablet_id, desired, on_look=lambda seen: looks.append(seen.store_problem)
        )
        assert view.configuration.generation == 3
        assert [stored.record.generation for stored in view.history][-1] == 3
        assert set(looks) == {""}
        await write(table, 0, 5)
        assert (await database.abort_migration(tablet_id)).verdict == "done"
        with pytest.raises(RetryLater, match="there is nothing to take back"):
            await database.wait_migrated(tablet_id, first.sk_set, timeout=5.0)
        moved = await database.migrate_table("t", first.sk_set)
        assert [one.timeline.tablet_id for one in moved] == [tablet_id]
        await database.wait_migrated(tablet_id, first.sk_set)
        assert not await database.migrate_table("t", first.sk_set)
        assert (await database.set_safekeeper_status(spare, "offline")).record.status == "offline"
        with pytest.raises(InvalidArgument, match="one of active, offline, decommissioned"):
            await database.set_safekeeper_status(spare, "retired")
        with pytest.raises(InvalidArgument, match="no active safekeeper"):
            await database.migrate_safekeeper(first.sk_set[0], spare)
        assert (await database.scrub_safekeeper(first.sk_set[0])).removed == ()
        assert len((await database.migrations()).ended) == 1
        assert (await database.locate_timeline(tablet_id)).running is None

    tell(story, safekeepers=4)


def test_a_table_waits_for_the_store_and_says_so() -> None:
    """Its timelines cannot begin without the store; the client is told why, and once the store is
    there the table is too."""

    async def story(here: Here) -> None:
        await here.until_registered(3)
        here.world.crash("cas-store", restart=False)
        with pytest.raises(StelaeError, match="its timeline cannot be created: nothing moves"):
            await here.database.create_table(
                "t", SCHEMA, key=["id"], durability=wal(3), timeout=15.0
            )
        here.world.restart("cas-store")
        table = await here.database.table("t")
        await write(table, 0, 5)
        await read_all(table, 5)

    migration = MigrationSettings(members_min=1, patience_s=6.0, stall_s=2.0)
    runner = RunnerSettings(migration=migration)
    tell(story, cas_store=True, migrations=runner)
