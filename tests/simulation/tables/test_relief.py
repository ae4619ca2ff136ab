"""Tablets that one server owns follow when servers join: for want of memory, and for evenness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.client.check.facts import StatusFacts, Verdict
from stelae.client.check.tablets import judge_tablets
from stelae.coordinator.moves import departures
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Limits, Options, Servers, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.tables.planted_moves import planted
from tests.simulation.tables.sick_owners import sick_owners

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
LIMIT_BYTES = 1 << 20
BUCKETS = 12
FILL = 0.66
"""Of each server's memory."""
TEXT = "x" * 500
BATCH = 40
CALM_S = 5.0
FILLED_S = 200.0
"""Upper bound until a server that cannot open three of all tablets has as many others."""
HOPELESS_S = 120.0
"""Time with a server that opens nothing. Without a pause a tablet goes there each 5 s."""


class Crowd:
    """A cluster of three servers that are two thirds full, and clients of it."""

    def __init__(self, seed: int, fill: float = FILL, **settings: Any) -> None:
        options = Options(servers=Servers(backups=3), limits=Limits(segment_size_bytes=16 << 10))
        self.world = World(seed, options)
        self.cluster = SimCluster(
            self.world,
            memory_limit_bytes=LIMIT_BYTES,
            metadata_first=True,
            row_piece_bytes=16 << 10,
            **{"load_bytes_per_s": 0.0, **settings},
        )
        self.written, self.fill = 0, fill

    async def begin(self) -> Any:
        """Write until memory is as full as it is to be."""
        await self.cluster.start()
        self.database = self.cluster.database("client")
        table = await self.database.create_table(
            "rows",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=BUCKETS),
            durability=segments("disk", "disk"),
            timeout=30.0,
        )
        while self.used() < self.fill * LIMIT_BYTES * len(self.cluster.tservers):
            await self.write(table)
        return table

    async def write(self, table: Any) -> None:
        rows = [{"id": self.written + n, "text": TEXT} for n in range(BATCH)]
        await table.upsert(rows, timeout=30.0)
        self.written += BATCH

    def servers(self) -> list[Any]:
        found = (self.world.server(name) for name in self.cluster.tservers)
        return [server for server in found if server is not None]

    def terms(self) -> dict[str, int]:
        """Of each tablet: it rises whenever the tablet moves."""
        catalog = self.world.server(self.cluster.leader() or "").catalog
        return {tablet.tablet_id: tablet.term for tablet in catalog.live_tablets()}

    def used(self) -> int:
        return sum(t.memory_bytes for s in self.servers() for t in s._tablets.values())

    def are_loaded(self) -> bool:
        """All tablets are served, with all of their rows in memory."""
        tablets = [t for server in self.servers() for t in server._tablets.values() if t.holders()]
        return len(tablets) == BUCKETS and not any(tablet.is_loading for tablet in tablets)

    def loaded_s(self, tablets: list[Any]) -> list[float]:
        """How long their rows were on their way."""
        reports = [report for server in self.servers() for report in server.reports()]
        return [report.loaded_s for report in reports if report.tablet_id in tablets]

    async def verdicts(self) -> list[tuple[Verdict, str]]:
        """What `stelae check` says of tablets."""
        status = await self.database.status()
        judged = judge_tablets(msgspec.convert(status, StatusFacts, strict=False))
        return [reason for each in judged for reason in each.reasons]


def tell(story: Callable[[Crowd], Coroutine[Any, Any, None]], crowd: Crowd) -> None:
    crowd.world.run(story(crowd), limit_s=900.0)


async def _lost_and_back(crowd: Crowd) -> None:
    world, cluster = crowd.world, crowd.cluster
    table = await crowd.begin()
    names = list(cluster.tservers)
    for name in names[1:]:
        world.crash(name, restart=False)
    (survivor,) = crowd.servers()
    await world.wait_until(
        lambda: len([t for t in survivor._tablets.values() if t.holders()]) == BUCKETS,
        60.0,
        "one server has all tablets",
    )
    await world.wait_until(
        lambda: any(t.lacks_memory for t in survivor._tablets.values()), 60.0, "it is full"
    )
    await asyncio.sleep(2.0)
    said = await crowd.verdicts()
    assert any("no memory for" in text for _, text in said), said
    for name in names[1:]:
        world.restart(name)
    await asyncio.sleep(5.0)
    world.crash(cluster.leader() or "")
    await world.wait_until(crowd.are_loaded, 120.0, "all rows are in memory")
    await asyncio.sleep(30.0)
    assert crowd.are_loaded()
    held = [sorted(server._tablets) for server in crowd.servers()]
    assert len(held) == 3
    assert all(server.cleaner.used_bytes <= 0.95 * LIMIT_BYTES for server in crowd.servers())
    for _ in range(5):
        await crowd.write(table)
    await asyncio.sleep(30.0)
    assert held == [sorted(server._tablets) for server in crowd.servers()], "it is at rest"
    assert await crowd.verdicts() == []
    rows = await table.scan(timeout=30.0)
    assert rows.num_rows == crowd.written


@pytest.mark.parametrize("seed", [1, 2])
def test_who_survives_gets_everything_and_gives_it_up_to_those_who_join_again(seed: int) -> None:
    """Two of three servers are lost; the third has all tablets, and no memory for their rows, and
    says so. When the others are back, everything ends in memory, though the leader master is lost
    on the way; nothing is missing, writes go on, and then nothing moves any more."""
    tell(_lost_and_back, Crowd(seed))


async def _followed_slowly(crowd: Crowd) -> None:
    """One server is lost and comes back; rows follow so slowly that several tablets are on their
    way at once. No tablet has to move a second time."""
    world = crowd.world
    await crowd.begin()
    *_, lost = crowd.cluster.tservers
    world.crash(lost, restart=False)
    await world.wait_until(
        lambda: any(t.lacks_memory for s in crowd.servers() for t in s._tablets.values()),
        120.0,
        "too little memory for all",
    )
    before = crowd.terms()
    world.restart(lost)
    await world.wait_until(crowd.are_loaded, 200.0, "all rows are in memory")
    await asyncio.sleep(20.0)
    moved = {each: term - before[each] for each, term in crowd.terms().items()}
    assert any(moved.values())
    assert max(moved.values()) == 1, f"some moved again: {moved}"


async def _no_room_anywhere(crowd: Crowd) -> None:
    """One server has a little too much, and no other has room for a tablet of it: all stay."""
    await crowd.begin()
    small = await crowd.database.create_table(
        "small", SCHEMA, key=["id"], durability=segments("disk", "disk"), timeout=30.0
    )
    await asyncio.sleep(10.0)
    before, written = crowd.terms(), 0
    while not any(s.cleaner.used_bytes > 0.92 * LIMIT_BYTES for s in crowd.servers()):
        await small.upsert({"id": written, "text": TEXT}, timeout=30.0)
        written += 1
    await asyncio.sleep(30.0)
    assert crowd.terms() == before, "something moved"


STORIES: dict[str, tuple[Callable[[], object], str]] = {
    "absent_rows_weigh_nothing": (
        lambda: tell(_followed_slowly, Crowd(7, load_bytes_per_s=50e3)),
        "moved again",
    ),
    "rooms_are_endless": (lambda: tell(_no_room_anywhere, Crowd(6, fill=0.84)), "something moved"),
}


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(STORIES))
def test_nothing_moves_in_vain(bug: str) -> None:
    """A tablet goes only where it can stay, all of its rows counted. With the bug it moves on."""
    story, what = STORIES[bug]
    story()
    with planted(bug), pytest.raises(SimulationFailure, match=what):
        story()


async def _joined(crowd: Crowd) -> None:
    world, cluster = crowd.world, crowd.cluster
    table = await crowd.begin()
    await asyncio.sleep(20.0)
    before = [sorted(server._tablets) for server in crowd.servers()]
    assert [len(tablets) for tablets in before] == [4, 4, 4]
    began = world.loop.time()
    joined = cluster.add_tserver()

    def count() -> int:
        server = world.server(joined)
        return 0 if server is None else sum(bool(t.holders()) for t in server._tablets.values())

    while count() < 3:
        assert world.loop.time() < began + 200.0, "it is filled"
        await crowd.write(table)
        await asyncio.sleep(0.5)
    assert world.loop.time() - began >= 2 * CALM_S, "not in a hurry"
    await world.wait_until(crowd.are_loaded, 60.0, "all rows are in memory")
    held = [sorted(server._tablets) for server in crowd.servers()]
    assert [len(tablets) for tablets in held] == [3, 3, 3, 3]
    await asyncio.sleep(5 * CALM_S)
    assert held == [sorted(server._tablets) for server in crowd.servers()], "it is at rest"
    assert (await table.scan(timeout=30.0)).num_rows == crowd.written


def test_a_server_that_joins_is_filled_where_operators_want_that() -> None:
    """One tablet after the other goes to it, each after a calm, while clients write; then all have
    as many, and nothing moves any more."""
    tell(_joined, Crowd(3, rebalance_after_s=CALM_S))


@pytest.mark.parametrize(
    ("bug", "what"),
    [("evens_out_in_a_hurry", "not in a hurry"), ("evens_out_for_ever", "it is at rest")],
)
def test_a_planted_bug_of_evening_out_is_found(bug: str, what: str) -> None:
    """Steps that come too soon, and steps that come to no end."""
    with planted(bug), pytest.raises(SimulationFailure, match=what):
        tell(_joined, Crowd(3, rebalance_after_s=CALM_S))


def test_rows_follow_slowly_where_a_server_is_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers to other tablets are not to notice; whose server died has its rows back at once."""
    monkeypatch.setattr(departures, "GENTLE_BYTES_PER_S", 50e3)

    async def story(crowd: Crowd) -> None:
        world, cluster = crowd.world, crowd.cluster
        table = await crowd.begin()
        await asyncio.sleep(5.0)
        leaving, dying, _ = cluster.tservers
        first = sorted(world.server(leaving)._tablets)
        await crowd.database.retire_server(leaving, timeout=200.0)
        await world.wait_until(crowd.are_loaded, 60.0, "all rows are in memory")
        assert all(took > 0.5 for took in crowd.loaded_s(first))
        second = sorted(world.server(dying)._tablets)
        world.crash(dying, restart=False)
        await world.wait_until(crowd.are_loaded, 60.0, "all rows are in memory")
        assert all(took < 0.5 for took in crowd.loaded_s(second))
        assert (await table.scan(timeout=30.0)).num_rows == crowd.written

    tell(story, Crowd(4, fill=0.2))


async def _joined_and_sick(crowd: Crowd) -> None:
    """The server that joins cannot open the first three tablets that it is given, which are the
    best steps."""
    world = crowd.world
    await crowd.begin()
    await asyncio.sleep(20.0)
    joined = crowd.cluster.add_tserver()

    def count() -> int:
        server = world.server(joined)
        return 0 if server is None else sum(bool(t.holders()) for t in server._tablets.values())

    sick: dict[str, None] = {}

    def is_sick(server: str, tablet: str) -> bool:
        if server == joined and len(sick) < 3:
            sick[tablet] = None
        return server == joined and tablet in sick

    with sick_owners(is_sick) as failed:
        await world.wait_until(lambda: count() == 3, FILLED_S, "it is filled with others")
        await world.wait_until(crowd.are_loaded, 60.0, "all rows are in memory")
    assert len(failed) >= 3, "three tablets failed there"


async def _joined_and_hopeless(crowd: Crowd) -> None:
    """The server that joins can open no tablet at all, and is the emptiest one all the time."""
    await crowd.begin()
    await asyncio.sleep(20.0)
    joined = crowd.cluster.add_tserver()
    with sick_owners(lambda server, _: server == joined) as failed:
        await asyncio.sleep(HOPELESS_S)
    tablets = {tablet for _, tablet, _ in failed}
    assert len(tablets) >= 2, f"it was tried with {len(tablets)} tablets, once each"
    assert len(failed) <= 6, f"{len(failed)} tablets were away in vain"
    await crowd.world.wait_until(crowd.are_loaded, 60.0, "all rows are in memory")


async def _relieved_of_others(crowd: Crowd) -> None:
    """Two of three servers come back, and neither can open the tablet that leaves the third first:
    the third keeps that one, and has memory for it once the others are gone."""
    world, (survivor, *names) = crowd.world, crowd.cluster.tservers
    await crowd.begin()
    for name in names:
        world.crash(name, restart=False)
    await world.wait_until(
        lambda: any(t.lacks_memory for t in crowd.servers()[0]._tablets.values()),
        90.0,
        "it is full",
    )
    assert world.server(survivor) is not None
    sick = ""

    def is_sick(server: str, tablet: str) -> bool:
        nonlocal sick
        sick = sick or (tablet if server in names else "")
        return server in names and tablet == sick

    with sick_owners(is_sick) as failed:
        for name in names:
            world.restart(name)
        await world.wait_until(crowd.are_loaded, 120.0, "others are gone")
        assert len(failed) >= 2, "both have failed to open it"
        assert len([key for key in failed if key[0] == names[0]]) <= 3, "it was tried all the time"


SICK_STORIES = {"evening": (_joined_and_sick, CALM_S), "relief": (_relieved_of_others, 0.0)}


@pytest.mark.parametrize("what", sorted(SICK_STORIES))
def test_one_tablet_that_cannot_go_does_not_keep_others(what: str) -> None:
    """It was the best to move each time; after it failed it comes last."""
    story, calm_s = SICK_STORIES[what]
    tell(story, Crowd(3, rebalance_after_s=calm_s))


@pytest.mark.parametrize("what", sorted(SICK_STORIES))
def test_a_leader_that_forgets_where_tablets_failed_is_found(what: str) -> None:
    """The planted bug: the same tablet is sent to the same server again and again."""
    story, calm_s = SICK_STORIES[what]
    with planted("forgets_where_tablets_failed"), pytest.raises(SimulationFailure):
        tell(story, Crowd(3, rebalance_after_s=calm_s))


def test_a_server_that_opens_nothing_is_left_alone() -> None:
    """Every step towards it is a pause for a tablet, and each tablet would try it once."""
    tell(_joined_and_hopeless, Crowd(3, fill=0.3, rebalance_after_s=CALM_S))


def test_a_leader_that_forgets_which_server_opens_nothing_is_found() -> None:
    """The planted bug: only the failures of the same tablet count."""
    with planted("forgets_servers_that_failed"), pytest.raises(SimulationFailure, match="in vain"):
        tell(_joined_and_hopeless, Crowd(3, fill=0.3, rebalance_after_s=CALM_S))
