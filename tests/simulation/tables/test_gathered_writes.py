"""Many tasks of one process that each write a row: sent and logged together, each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.actors.tserver.client_writes import ClientWrites
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.backups import WRITE_REPLICA, WRITE_REPLICAS
from stelae.core.messages.rows import WRITE, WRITE_MANY, Write, WriteMany, WriteOp
from stelae.core.rpc import Call
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.runner import find_bug, run_seed
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.options import Servers
from stelae.simulation.world.world import SimulationFailure
from stelae.storage.entries.outcomes import answer
from tests.simulation.replicated.planted_group import GATHERED
from tests.simulation.tables.held_back import held_back
from tests.simulation.tables.planted import SHARED, SHARED_AIMED

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
KINDS: list[Durability] = [replicas(3), segments("disk", "disk"), wal(3)]
NAMES = ["replicas", "segments", "wal"]
TASKS = 40
TABLETS = 6
BUG_SEEDS = 20
Story = Callable[[World, SimCluster, AsyncDatabase, AsyncTable], Coroutine[Any, Any, None]]


def play(story: Story, durability: Durability, seed: int = 1) -> None:
    world = World(seed, Options(servers=Servers(masters=1, tservers=3, backups=3, safekeepers=3)))
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
def messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[WriteMany, ...]]:
    """Every message of several writes that a server took: by tablet."""
    seen: list[tuple[WriteMany, ...]] = []

    def watch(name: str) -> None:
        take = getattr(ClientWrites, name)

        async def watched(self: ClientWrites, call: Call[Any]) -> Any:
            seen.append((call.body,) if isinstance(call.body, WriteMany) else call.body.parts)
            return await take(self, call)

        watched.is_prompt = True  # type: ignore[attr-defined]
        monkeypatch.setattr(ClientWrites, name, watched)

    watch("_on_write_many")
    watch("_on_write_each")
    return seen


@pytest.mark.parametrize("durability", KINDS, ids=NAMES)
def test_calls_of_one_moment_travel_together(
    messages: list[tuple[WriteMany, ...]], durability: Durability
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
        together = sum(len(part.requests) for parts in messages for part in parts)
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


@pytest.mark.parametrize("durability", KINDS, ids=NAMES)
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


@pytest.mark.parametrize("durability", KINDS, ids=NAMES)
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_message_that_fails_fails_nobody(
    messages: list[tuple[WriteMany, ...]], durability: Durability, seed: int
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


class Caller:
    """One that writes a row with each call, over the network, as a client of its own."""

    def __init__(self, database: AsyncDatabase, name: str, key: int) -> None:
        self._database = database
        self._id = ClientId(name)
        self.key = key
        self.versions: list[int] = []

    def request(self, sequence: int, tablet_id: TabletId, value: object) -> Write:
        """Its row, with that value."""
        request = RequestId(self._id, sequence, sequence)
        return Write(tablet_id, 1, WriteOp.UPSERT, request, ((self.key, value),))

    async def write(self, sequence: int, value: object) -> None:
        """The same call, again and again, until it is answered. Raises its refusal."""
        while True:
            where = (await self._database.locate_table("t"))[0]
            request = self.request(sequence, where.tablet.tablet_id, value)
            address = where.address
            try:
                reply = await self._database.runtime.peers.call(
                    address, WRITE, request, timeout_s=2.0
                )
            except InvalidArgument:
                raise
            except StelaeError:
                await self._database.runtime.clock.sleep(0.05)
            else:
                assert reply.body.row_count == 1
                self.versions.append(reply.body.first_version)
                return


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[Write]]:
    """Calls of several callers that a server carried out together."""
    seen: list[list[Write]] = []
    take = ClientWrites._on_writes

    async def watched(self: ClientWrites, calls: Sequence[Call[Write]]) -> Any:
        seen.append([call.body for call in calls])
        return await take(self, calls)

    monkeypatch.setattr(ClientWrites, "_on_writes", watched)
    return seen


@pytest.mark.parametrize("durability", KINDS, ids=NAMES)
def test_calls_of_many_clients_are_carried_out_together(
    groups: list[list[Write]], durability: Durability
) -> None:
    """Each has its own version; a wrong one among them is refused alone; a repeated one gets its
    first answer."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        callers = [Caller(database, f"caller-{n}", n) for n in range(TASKS)]
        values: list[object] = [f"v{n}" if n % 7 else n for n in range(TASKS)]
        for _ in range(2):
            outcomes = await asyncio.gather(
                *[caller.write(1, value) for caller, value in zip(callers, values, strict=True)],
                return_exceptions=True,
            )
            wrong = [n for n, outcome in enumerate(outcomes) if outcome is not None]
            assert wrong == [n for n in range(TASKS) if n % 7 == 0]
            assert all(isinstance(outcomes[n], InvalidArgument) for n in wrong)
        assert sum(map(len, groups)) > TASKS // 2
        found = (await table.scan(with_versions=True)).to_pylist()
        assert len(found) == TASKS - len(wrong)
        for row in found:
            assert row["value"] == values[row["id"]]
            assert callers[row["id"]].versions == [row["_version"]] * 2

    play(story, durability)


@pytest.mark.parametrize("durability", KINDS, ids=NAMES)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_server_that_dies_with_a_group_loses_and_doubles_nothing(
    groups: list[list[Write]], durability: Durability, seed: int
) -> None:
    """Each call goes on by itself, with its id, and is done once, at the next owner or leader."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        where = (await database.locate_table("t"))[0]
        [name] = [n for n in cluster.tservers if world.server(n).info.address == where.address]
        callers = [Caller(database, f"caller-{n}", n) for n in range(TASKS // 2)]

        async def run(caller: Caller) -> None:
            for turn in range(1, 21):
                await caller.write(turn, f"{turn}")

        tasks = [asyncio.create_task(run(caller)) for caller in callers]
        await database.runtime.clock.sleep(0.02)
        world.crash(name)
        await asyncio.gather(*tasks)
        assert groups, "nothing was carried out together"
        found = (await table.scan(with_versions=True)).to_pylist()
        assert {row["id"]: (row["value"], row["_version"]) for row in found} == {
            caller.key: ("20", caller.versions[-1]) for caller in callers
        }
        given = [version for caller in callers for version in caller.versions]
        assert all(caller.versions == sorted(set(caller.versions)) for caller in callers)
        assert len(set(given)) == len(given), "no two calls were given one version"

    play(story, durability, seed)


def test_calls_on_several_tablets_of_a_server_travel_together(
    messages: list[tuple[WriteMany, ...]],
) -> None:
    """Each has its own answer. A tablet that cannot do its part at once holds up no other, and its
    calls go on by themselves, in a message of their own."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        many = await database.create_table(
            "many",
            SCHEMA,
            key="id",
            partition=hash_partition("id", TABLETS),
            durability=segments("disk", "disk"),
        )
        odd = (await database.locate_table("many"))[0].tablet.tablet_id
        begin = ClientWrites._begin

        def but_one(self: ClientWrites, part: WriteMany) -> Any:
            return None if part.tablet_id == odd else begin(self, part)

        with patch.object(ClientWrites, "_begin", but_one):
            versions = await asyncio.gather(
                *[many.upsert({"id": n, "value": f"v{n}"}) for n in range(TASKS)]
            )
        parts = [part for parts in messages for part in parts]
        assert sum(len(part.requests) for part in parts) > TASKS / 2
        assert max(map(len, messages)) > 1
        again = [part for part in parts if part.tablet_id == odd]
        assert len(again) == 1, "it was asked once, and for others not in the same message"
        found = (await many.scan(with_versions=True)).to_pylist()
        assert {row["id"]: (row["value"], row["_version"]) for row in found} == {
            n: (f"v{n}", versions[n][0]) for n in range(TASKS)
        }
        await asyncio.gather(*[many.delete(n) for n in range(TASKS)])
        assert (await many.scan()).num_rows == 0

    # In other worlds some calls of the odd tablet meet no others that they could travel with.
    play(story, segments("disk", "disk"), seed=3)


def test_an_owner_that_falls_silent_holds_up_nobody_for_long() -> None:
    """Calls in a message to it go on by themselves soon, under the same ids."""

    async def story(
        world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
    ) -> None:
        where = (await database.locate_table("t"))[0]
        [name] = [n for n in cluster.tservers if world.server(n).info.address == where.address]
        for turn in range(5):
            await asyncio.gather(
                *[table.upsert({"id": n, "value": f"{turn}"}) for n in range(TASKS)]
            )
        world.crash(name)
        began = world.loop.time()
        versions = await asyncio.gather(
            *[table.upsert({"id": n, "value": "last"}, timeout=60.0) for n in range(TASKS)]
        )
        assert world.loop.time() - began < 30.0
        found = (await table.scan(with_versions=True)).to_pylist()
        assert {row["id"]: (row["value"], row["_version"]) for row in found} == {
            n: ("last", versions[n][0]) for n in range(TASKS)
        }

    play(story, segments("disk", "disk"))


@pytest.mark.parametrize("bug", sorted(GATHERED))
def test_an_answer_that_goes_to_the_wrong_call_is_found(bug: str) -> None:
    """By any client's history: one write then has two versions; the seed is fine without it."""
    scenario = load_scenario("replicas")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


async def _owner_dies_with_what_backups_lack(
    world: World, cluster: SimCluster, database: AsyncDatabase, table: AsyncTable
) -> None:
    """Rows come to the owner, nothing of them to backups, and it dies: none was acknowledged but
    what the next owner has."""
    await table.upsert({"id": -1, "value": "before"})
    where = (await database.locate_table("t"))[0]
    with held_back(world, WRITE_REPLICA), held_back(world, WRITE_REPLICAS):
        calls = [
            asyncio.create_task(table.upsert({"id": n, "value": "x"}, timeout=60.0))
            for n in range(TASKS)
        ]
        await asyncio.sleep(0.2)
        told = [call.done() for call in calls].count(True)
        [owner] = [
            name for name in cluster.tservers if world.server(name).info.uuid == where.tablet.owner
        ]
        world.crash(owner, restart=False)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    acknowledged = {n for n, end in enumerate(ended) if not isinstance(end, BaseException)}
    there = set((await table.scan(timeout=60.0)).column("id").to_pylist())
    assert acknowledged <= there, f"{len(acknowledged - there)} rows are gone; {told} told early"
    assert acknowledged == set(range(TASKS)), "each goes on at the next owner"


def test_nobody_is_told_before_a_log_has_what_came_together() -> None:
    """Whoever would have been told by an owner that then dies goes on at the next one."""
    play(_owner_dies_with_what_backups_lack, segments("disk", "disk"))


def test_a_server_that_tells_earlier_is_found() -> None:
    """The story sees it; chance rarely does: the owner has to die in just that moment."""
    with (
        SHARED_AIMED["shared_writes_wait_for_nothing"](),
        pytest.raises(SimulationFailure) as found,
    ):
        play(_owner_dies_with_what_backups_lack, segments("disk", "disk"))
    assert "rows are gone" in str(found.value)


@pytest.mark.parametrize("bug", sorted(SHARED))
def test_a_bug_of_messages_on_several_tablets_is_found(bug: str) -> None:
    """By the clients of `tables`, whose bursts go to two tablets."""
    scenario = load_scenario("tables")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
