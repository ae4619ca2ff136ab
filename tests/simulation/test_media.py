"""Every durability strategy under faults of media, many seeds; and stories of single faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.replica_census import ReplicaCensus
from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.core.durability import Durability, segments, wal
from stelae.core.errors import NoSpace, OutcomeUnknown, OutOfMemory, RetryLater, StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.partition import hash_partition
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.node import SimulationFailure
from stelae.simulation.options import Options, Servers
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.storage.frames import MediumSpec
from tests.simulation.media import MEDIA
from tests.simulation.wal_cluster import SCHEMA, read_all, text, write

FAST_SEEDS, SEEDS = 6, 60
BUG_SEEDS = 150
CALL_S = 20.0


def test_strategies_and_faults_of_media_lose_nothing() -> None:
    """A few seeds of each test run."""
    outcomes = run_seeds(load_scenario("media"), FAST_SEEDS, budget_s=40.0)
    assert len(outcomes) >= 3


@pytest.mark.slow
def test_many_seeds_of_strategies_and_faults_of_media() -> None:
    """The same, with others for each commit."""
    outcomes = run_seeds(load_scenario("media"), SEEDS, budget_s=420.0)
    assert len(outcomes) >= SEEDS // 4


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["stale_head_replica", "short_head_replica"])
def test_a_planted_bug_of_media_is_found(bug: str) -> None:
    """The scenario can see it; the same seed is fine without it."""
    scenario = load_scenario("media")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


# ---- stories --------------------------------------------------------------------------------


class Here:
    """A cluster with all media, and a table."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **{"segment_bytes": 2000, "media": MEDIA, **options})
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def create(self, durability: Durability) -> AsyncTable:
        return await self.database.create_table(
            "t", SCHEMA, key="id", durability=durability, timeout=30.0
        )

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    def uuid(self, name: str) -> ServerUuid:
        found = self.world.server(name).info.uuid
        assert isinstance(found, str)
        return ServerUuid(found)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in self.cluster.backups:
            server = self.world.server(name)
            if server is not None and hasattr(server, "info") and server.info.uuid == uuid:
                return name
        return uuid

    def owner(self) -> str:
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and server.holders():
                return name
        raise AssertionError("nobody serves it")

    def holders(self) -> list[list[str]]:
        (held,) = self.world.server(self.owner()).holders().values()
        return [sorted(self.name_of(uuid) for uuid in uuids) for uuids in held]

    def is_sealed(self, count: int) -> bool:
        """Whether so many segments of the table are sealed, on two backups each."""
        return sum(len(names) == 2 for names in self.holders()) >= count

    async def until_whole(self, replicas: int = 2) -> None:
        await self.until(lambda: self.cluster.is_whole(1, replicas), "full strength")

    def count(self, name: str) -> int:
        counts = (metrics.counts for metrics in self.world.metrics.values())
        return int(sum(v for c in counts for k, v in c.items() if k.partition("{")[0] == name))


def tell(
    story: Callable[[Here], Awaitable[None]],
    backups: int = 4,
    seed: int = 1,
    safekeepers: int = 0,
    **options: Any,
) -> None:
    servers = Servers(tservers=2, backups=backups, safekeepers=safekeepers)
    world = World(seed, Options(servers=servers))
    here = Here(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=900.0)


STRATEGIES = [
    segments("disk", "disk"),
    segments("disk", "flash"),
    segments("ram", "ram", "disk"),
    segments("flash", "flash"),
    segments("pram", "ram"),
    segments("ram", "ram"),
    segments("disk"),
]


@pytest.mark.parametrize("durability", STRATEGIES, ids=str)
def test_each_strategy_survives_the_death_of_the_owner(durability: Any) -> None:
    """Whatever media are named, mixed or not: the rows are there, and each replica is where it is
    to be."""

    async def story(here: Here) -> None:
        table = await here.create(durability)
        await write(table, 0, 40)
        await here.until_whole(len(durability.media))
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole(len(durability.media))
        await read_all(table, 40)
        held: list[str] = []
        for name in here.cluster.backups:
            holdings = here.world.server(name)._holdings
            for log in holdings.logs:
                held += [holdings.find(log, s).medium for s in holdings.segments(log)]
        assert set(held) == set(durability.media)

    tell(story)


def test_unknown_media_and_too_many_replicas_are_told_in_words() -> None:
    """First the table waits, in words; once the masters know every backup, it is refused."""

    async def story(here: Here) -> None:
        for wrong, what in ((segments("tape"), "tape"), (segments(*["disk"] * 5), "disk")):
            with pytest.raises(RetryLater, match=what):
                await here.database.create_table(
                    "w", SCHEMA, key="id", durability=wrong, timeout=2.0
                )
        await asyncio.sleep(31.0)
        for wrong, what in ((segments("tape"), "tape"), (segments(*["disk"] * 5), "disk")):
            with pytest.raises(StelaeError, match=what) as caught:
                await here.database.create_table(
                    "w", SCHEMA, key="id", durability=wrong, timeout=2.0
                )
            assert not isinstance(caught.value, RetryLater)

    tell(story)


def test_a_full_disk_is_avoided_and_writes_wait_only_if_none_is_left() -> None:
    """Placement knows it from heartbeats; with all full, writes hear NoSpace, reads go on."""

    async def story(here: Here) -> None:
        table = await here.create(segments("pram", "pram"))
        await write(table, 0, 20)
        full = here.cluster.backups[:2]
        for name in full:  # the file must not grow, and all of its frames are taken
            medium = here.world.server(name)._media["pram"]
            medium.allocator._free.clear()
            here.world.nodes[name].disk.full = True
        await asyncio.sleep(1.0)
        refused = here.count("backup_no_space")
        await write(table, 20, 40)
        assert here.count("backup_no_space") == refused
        rest = here.cluster.backups[2:]
        for name in rest:
            here.world.server(name)._media["pram"].allocator._free.clear()
            here.world.nodes[name].disk.full = True
        heard: list[Exception] = []
        number = 60
        for _ in range(80):
            try:
                await table.upsert({"id": number, "text": text(number)}, timeout=1.0)
                number += 1
            except (NoSpace, OutcomeUnknown) as error:
                heard.append(error)
                if isinstance(error, NoSpace):
                    break
        assert isinstance(heard[-1], NoSpace), heard
        row = await table.get(3, timeout=CALL_S)
        assert row is not None
        for name in here.cluster.backups:
            here.world.nodes[name].disk.full = False
        await asyncio.sleep(2.0)  # until heartbeats have said so
        for key in range(number, number + 10):
            await table.upsert({"id": key, "text": text(key)}, timeout=CALL_S)
        await read_all(table, number + 10)

    tell(story)


async def decay(here: Here) -> list[Any]:
    """Frames of the first backup decay; each time an owner dies, replicas are read at random. The
    replicas that were found to be damaged, by then replaced."""
    table = await here.create(segments("disk", "disk"))
    await write(table, 0, 40)
    await here.until_whole()
    name = here.cluster.backups[0]
    server = here.world.server(name)
    decayed = []
    for log in server._holdings.logs:
        for segment in server._holdings.segments(log):
            replica = server._holdings.find(log, segment)
            if replica.facts.state.value != "sealed":
                continue
            ((offset, _),) = server._media["disk"].layout.pieces(replica.frames, 100, 1)
            here.world.nodes[name].disk.corrupt("disk/frames", offset)
            decayed.append(replica)
    assert decayed
    for _ in range(8):
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 40)
    assert here.count("backup_damaged_replicas") >= 1
    found = [replica for replica in decayed if replica.damaged]
    assert found
    return found


def test_a_damaged_replica_is_passed_over_and_replaced() -> None:
    """A frame decays; the owner dies: the other replica is read, and a good one takes its place.
    The bad one's frames are free again while its backup runs."""

    async def story(here: Here) -> None:
        damaged = await decay(here)
        await here.world.wait_until(
            lambda: all(replica.freed for replica in damaged), 150.0, "frames are free again"
        )

    tell(story, 6, 7, metadata_first=False)


def test_this_would_see_frames_that_stay_taken() -> None:
    """A census that does not ask for damaged replicas leaves them until their backup restarts."""

    async def story(here: Here) -> None:
        damaged = await decay(here)
        await asyncio.sleep(150.0)
        assert all(replica.freed for replica in damaged), "frames are taken"

    def tell_each() -> (
        None
    ):  # a replica may be made anew just where it was, and the frames are free
        for seed in (1, 2, 3):
            tell(story, 6, seed, metadata_first=False)

    tell_each()
    compare = ReplicaCensus._compare

    async def blind(self: Any, backup: Any, held: Any, believed: Any) -> bool:
        return await compare(self, backup, msgspec.structs.replace(held, damaged=()), believed)

    planted = patch.object(ReplicaCensus, "_compare", blind)
    with planted, pytest.raises(SimulationFailure, match="frames are taken"):
        tell_each()


def test_a_loss_of_power_of_all_flash_is_not_served_as_if_nothing_were_lost() -> None:
    """Both replicas of the head may be short: the longest of both is taken. With one of them away
    the tablet waits, as that one may hold more."""

    async def story(here: Here) -> None:
        table = await here.create(segments("flash", "flash"))
        await write(table, 0, 40)
        await here.until_whole()
        head = here.holders()[-1]
        here.world.options = here.world.options.but(keep_unsynced_rate=0.0)
        for name in here.cluster.backups:
            here.world.nodes[name].disk._options = here.world.options
            here.world.crash(name, restart=False)
        here.world.crash(here.owner())
        for name in here.cluster.backups:
            if name != head[0]:
                here.world.restart(name)
        await asyncio.sleep(8.0)
        with pytest.raises(StelaeError):
            await table.get(1, timeout=2.0)
        (loss,) = (await here.database.losses()).waiting
        assert loss.is_end_lost
        here.world.restart(head[0])
        await here.until_whole()
        found = (await table.scan(timeout=CALL_S)).column("id").to_pylist()
        assert sorted(found) == list(range(len(found))), "a prefix of what was written"

    tell(story)


def test_copysets_hold_whole_segments_and_are_made_anew_when_a_member_is_lost() -> None:
    """Six backups in groups of two: each segment lies in one. One dies for good: its group is no
    more, and by and by all segments lie in groups again, with never fewer replicas meanwhile."""

    async def story(here: Here) -> None:
        catalog = lambda: here.world.server(here.cluster.leader()).catalog  # noqa: E731
        await here.until(lambda: len(catalog().backups.copysets.groups) == 3, "three groups")

        def groups() -> list[set[str]]:
            found = catalog().backups.copysets.groups
            return [{here.name_of(uuid) for uuid in group} for group in found]

        def all_grouped() -> bool:
            if here.cluster.leader() is None or not here.cluster.is_whole(1, 2):
                return False
            return all(set(names) in groups() for names in here.holders())

        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until(all_grouped, "each segment in a group")
        lost = here.holders()[0][0]
        here.world.crash(lost, lose_disk=True, restart=False)
        await here.until(lambda: len(groups()) == 2, "its group is dissolved")
        await write(table, 60, 20)
        await here.until(all_grouped, "each segment in a group again", 120.0)
        here.world.restart(lost)
        await here.until(lambda: len(groups()) == 3, "who is left over finds a new one")
        await here.until(all_grouped, "and still", 120.0)
        here.world.crash(here.owner())
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 80)

    tell(story, backups=6, copyset_size=2, replica_dead_after_s=3.0)


def test_several_lost_backups_are_made_up_for_heads_first_at_a_bounded_rate() -> None:
    """Two of five die: writes go on at once, the rest comes at the rate that was set, and status
    says how far it is."""

    async def story(here: Here) -> None:
        table = await here.create(segments("disk", "disk", "disk"))
        await write(table, 0, 120)
        await here.until_whole(3)
        head = here.holders()[-1]
        lost = [head[0], next(name for name in here.cluster.backups if name not in head)]
        for name in lost:
            here.world.crash(name, lose_disk=True, restart=False)
        await asyncio.sleep(3.0)
        began = here.world.loop.time()
        await table.upsert({"id": 120, "text": text(120)}, timeout=CALL_S)
        assert here.world.loop.time() - began < 3.0, "the head is whole again already"
        seen: list[tuple[int, int]] = []
        for _ in range(600):
            seen += [
                (each["segments_of"] - each["segments"], each["segments_of"])
                for each in (await here.database.status())["shortages"]
            ]
            if here.cluster.is_whole(1, 3):
                break
            await asyncio.sleep(0.1)
        took_s = here.world.loop.time() - began
        assert here.cluster.is_whole(1, 3)
        done = [made for made, _ in seen]
        assert done == sorted(done), seen
        assert len(set(done)) >= 4, seen
        total = max(of for _, of in seen)
        assert took_s > 0.5 * total * 2000 / 8000, "it kept to its rate"
        await asyncio.sleep(1.0)  # until a heartbeat has said so
        assert not (await here.database.status())["shortages"]

    tell(story, backups=5, rereplication_bytes_per_s=8000)


@pytest.mark.parametrize("durability", [segments("disk", "disk"), wal(3, ("disk", "disk"))])
def test_what_is_sealed_for_the_first_time_does_not_wait_for_what_is_made_anew(
    durability: Durability,
) -> None:
    """However slowly lost replicas are to be replaced, a recovery seals the former head at once,
    and a log on safekeepers is sealed as it grows."""

    async def story(here: Here) -> None:
        table = await here.create(durability)
        await write(table, 0, 60)
        await here.until(lambda: here.is_sealed(5), "segments on both disks", 5.0)
        for number in range(2):
            here.world.crash(here.owner())
            began = here.world.loop.time()
            await table.upsert({"id": number, "text": text(number)}, timeout=60.0)
            assert here.world.loop.time() - began < 5.0
        await read_all(table, 60)

    tell(story, rereplication_bytes_per_s=50, safekeepers=3)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_cold_start_of_everything_with_or_without_one_machine(absent: int) -> None:
    """All servers lose power at once; started again on their disks, one backup of them not, they
    serve all that was acknowledged, and are at full strength."""

    async def story(here: Here) -> None:
        here.world.options = here.world.options.but(keep_unsynced_rate=0.0)
        table = await here.create(segments("disk", "disk"))
        await write(table, 0, 60)
        await here.until_whole()
        cluster = here.cluster
        for name in [*cluster.masters, *cluster.tservers, *cluster.backups]:
            here.world.nodes[name].disk._options = here.world.options
            here.world.crash(name, restart=False)
        await asyncio.sleep(5.0)
        for name in [*cluster.masters, *cluster.tservers, *cluster.backups[absent:]]:
            here.world.restart(name)
        await asyncio.sleep(1.0)
        await here.until_whole()
        await read_all(table, 60)
        assert not (await here.database.losses()).waiting

    tell(story)


def test_memory_that_is_full_after_a_recovery_stops_writes_alone() -> None:
    """One of two servers dies; with the rows of both the other is over its limit: they are there to
    be read and deleted, and writes are refused until there is room."""

    async def story(here: Here) -> None:
        table = await here.database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 2),
            durability=segments("disk", "disk"),
            timeout=30.0,
        )
        await write(table, 0, 60)
        await here.until(lambda: here.cluster.is_whole(2, 2), "full strength")
        lost, left = here.cluster.tservers
        assert all(here.world.server(name).holders() for name in (lost, left)), "each has one"
        here.world.server(left).cleaner.limit_bytes = 60 * len(text(0)) // 2
        here.world.crash(lost, restart=False)
        await here.until(lambda: here.cluster.is_whole(2, 2), "one has both")
        await read_all(table, 60)
        with pytest.raises(OutOfMemory):
            await table.upsert({"id": 100, "text": text(100)}, timeout=2.0)
        for key in range(60):
            await table.delete(key, timeout=CALL_S)
        await asyncio.sleep(1.0)
        assert (await table.scan(timeout=CALL_S)).num_rows == 0

    tell(story)


SEGMENT_BYTES, FRAMES = 16384, 30
SMALL = {
    "disk": MediumSpec(
        name="disk", path="disk", size_bytes=FRAMES * (SEGMENT_BYTES * 5 // 4 + 8192)
    )
}
"""Room for less than so many frames, and their records."""
RESERVE_SHARE = 0.4
"""Of so few frames; rows come in faster here than backups say how many are left."""


def large(number: int) -> dict[str, Any]:
    """A row, of which ten fill a segment."""
    return {"id": number, "text": text(number) + "y" * 1400}


async def fill_up(here: Here, table: AsyncTable) -> int:
    """Write rows, none of which dies, until no backup takes any; how many."""
    for number in range(1000):
        try:
            await table.upsert(large(number), timeout=5.0)
        except (NoSpace, OutcomeUnknown):
            return number
    raise AssertionError("disks without end")


async def write_once_there_is_room(table: AsyncTable, key: int) -> None:
    async with asyncio.timeout(120.0):
        while True:
            try:
                await table.upsert(large(key), timeout=5.0)
            except NoSpace:
                await asyncio.sleep(0.5)
            else:
                return


async def empty_a_full_cluster(here: Here) -> None:
    table = await here.create(segments("disk", "disk"))
    count = await fill_up(here, table)
    assert count > 100, "there was room"
    assert await table.get(3, timeout=CALL_S) is not None
    kept = [key for key in range(count) if key % 4 == 0]
    for key in range(count):
        if key % 4:
            await table.delete(key, timeout=CALL_S)
    for key in range(count, count + 40):
        await write_once_there_is_room(table, key)
        kept.append(key)
    here.world.crash(here.owner())
    await asyncio.sleep(1.0)
    await here.until_whole()
    found = (await table.scan(timeout=CALL_S)).to_pylist()
    assert {row["id"]: row for row in found} == {key: large(key) for key in kept}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_with_full_disks_can_be_emptied_and_filled_again(seed: int) -> None:
    """Rows are refused while there is room yet for deletes, survivors and heads: what dies is
    cleaned away, though the log is not long for its rows, and rows are taken again."""
    with patch("stelae.core.backup_views.RESERVE_SHARE", RESERVE_SHARE):
        tell(empty_a_full_cluster, seed=seed, media=SMALL, segment_bytes=SEGMENT_BYTES)


def test_this_would_see_disks_without_a_reserve() -> None:
    """The last frame is given to a row: nothing can be deleted, or moved to where it takes less."""
    spent = patch("stelae.core.backup_views.RESERVE_SHARE", 0.0)
    with spent, pytest.raises(SimulationFailure):
        tell(empty_a_full_cluster, media=SMALL, segment_bytes=SEGMENT_BYTES)
