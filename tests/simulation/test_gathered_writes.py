"""Many tasks of one process that each write a row: sent and logged together, each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver import TabletServer
from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.core.durability import Durability, replicas, segments
from stelae.core.errors import StelaeError
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages import WRITE_MANY, WriteMany, WriteOp
from stelae.core.rpc import Call
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.options import Servers
from stelae.simulation.runner import find_bug, run_seed
from stelae.simulation.scenarios import load_scenario
from stelae.storage.outcomes import answer
from tests.simulation.planted_group import GATHERED

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
KINDS = [replicas(3), segments("disk", "disk")]
TASKS = 40
BUG_SEEDS = 20
Story = Callable[[World, SimCluster, AsyncDatabase, AsyncTable], Awaitable[None]]


def play(story: Story, durability: Durability, seed: int = 1) -> None:
    world = World(seed, Options(servers=Servers(masters=1, tservers=3, backups=3)))
    cluster = SimCluster(world)

    async def run() -> None:
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t", SCHEMA, key="id", durability=durability, timeout=60.0
        )
        await world.spawn("client", story(world, cluster, database, table))

    world.run(run(), limit_s=300.0)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[WriteMany]:
    """Every message of several writes that a server took."""
    seen: list[WriteMany] = []
    take = TabletServer._on_write_many

    async def watched(self: TabletServer, call: Call[WriteMany]) -> Any:
        seen.append(call.body)
        return await take(self, call)

    watched.is_prompt = True  # type: ignore[attr-defined]
    monkeypatch.setattr(TabletServer, "_on_write_many", watched)
    return seen


@pytest.mark.parametrize("durability", KINDS, ids=["replicas", "segments"])
def test_calls_of_one_moment_travel_together(
    messages: list[WriteMany], durability: Durability
) -> None:
    """Each gets the version of its own row; a call that is alone is sent by itself."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        for n in range(5):
            await table.upsert({"id": n, "value": "alone"})
        assert messages == []
        found = await asyncio.gather(
            *[table.upsert({"id": n, "value": f"v{n}"}) for n in range(TASKS)]
        )
        together = sum(len(many.requests) for many in messages)
        assert TASKS // 2 < together < TASKS
        assert len(messages) < TASKS // 4
        for n in range(TASKS):
            row = await table.get(n, with_version=True)
            assert row is not None
            assert row == {"id": n, "value": f"v{n}", "_version": found[n][0]}
        await asyncio.gather(*[table.delete(n) for n in range(TASKS)])
        assert (await table.scan()).num_rows == 0

    play(story, durability)


def test_they_share_entries_of_the_log() -> None:
    """Also those of clients that have nothing to do with each other, and come during one sync."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        tablet_id = (await database.locate_table("t"))[0].tablet.tablet_id
        [leader] = [
            found
            for name in cluster.tservers
            if (found := world.server(name).replicas.tablet(tablet_id)).replica.is_leader
        ]
        others = [await cluster.database(f"c{n}").table("t") for n in range(TASKS)]
        before = leader.replica.core.log.last.index
        await asyncio.gather(
            *[other.upsert({"id": n, "value": "x"}) for n, other in enumerate(others)]
        )
        assert leader.replica.core.log.last.index - before <= TASKS // 4

    play(story, replicas(3))


@pytest.mark.parametrize("durability", KINDS, ids=["replicas", "segments"])
def test_a_wrong_one_among_them_harms_nobody(durability: Durability) -> None:
    """It alone is refused: the others are written. Repeated, all get the same answers again."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        where = (await database.locate_table("t"))[0]
        requests = tuple([RequestId(ClientId("mine"), n, 1) for n in range(1, 6)])
        rows: list[tuple[Any, str]] = [(n, "fine") for n in range(4)]
        rows.append(("no number", "wrong"))
        many = WriteMany(where.tablet.tablet_id, 1, WriteOp.UPSERT, (), requests, tuple(rows))
        runtime, answers = database.runtime, []
        for _ in range(2):
            reply = await runtime.peers.call(where.address, WRITE_MANY, many, timeout_s=5.0)
            answers.append([outcome_text(outcome) for outcome in reply.body.outcomes])
        assert answers[0] == answers[1]
        assert [text.split()[0] for text in answers[0]] == ["WriteReply"] * 4 + ["InvalidArgument"]
        assert (await table.scan()).num_rows == 4

    play(story, durability)


def outcome_text(outcome: bytes) -> str:
    try:
        reply = answer(outcome)
    except StelaeError as error:
        return f"{type(error).__name__} {error}"
    return f"WriteReply {reply.first_version}"


@pytest.mark.parametrize("durability", KINDS, ids=["replicas", "segments"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_message_that_fails_fails_nobody(
    messages: list[WriteMany], durability: Durability, seed: int
) -> None:
    """The server that has them dies: each call goes on by itself, and is done once."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        where = (await database.locate_table("t"))[0]
        [name] = [n for n in cluster.tservers if world.server(n).info.address == where.address]
        last: dict[int, int] = {}

        async def write(key: int) -> None:
            for turn in range(30):
                versions = await table.upsert({"id": key, "value": f"{turn}"}, timeout=60.0)
                assert int(versions[0]) > last.get(key, 0)
                last[key] = int(versions[0])

        tasks = [asyncio.create_task(write(key)) for key in range(TASKS // 2)]
        await database.runtime.clock.sleep(0.02)
        world.crash(name)
        await asyncio.gather(*tasks)
        assert messages, "nothing travelled together"
        found = await table.scan(with_versions=True)
        rows = {row["id"]: (row["value"], row["_version"]) for row in found.to_pylist()}
        assert rows == {key: ("29", version) for key, version in last.items()}
        assert len(last) == TASKS // 2

    play(story, durability, seed)


@pytest.mark.parametrize("bug", sorted(GATHERED))
def test_an_answer_that_goes_to_the_wrong_call_is_found(bug: str) -> None:
    """By any client's history: one write then has two versions; the seed is fine without it."""
    scenario = load_scenario("replicas")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
