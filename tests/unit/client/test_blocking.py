"""Blocking calls of one tablet: straight where all is well, else by the loop with the same id."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.routing.session import Session
from stelae.client.table.blocking import BlockingTable
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NoSpace,
    NotLeader,
    OutcomeUnknown,
    OutOfMemory,
    RowExists,
    StelaeError,
    TabletNotHere,
    TooStale,
    Unavailable,
)
from stelae.core.ids import Address, ClientId, ServerUuid
from stelae.core.messages.rows import GET, WRITE, Get, GetReply, Write, WriteOp, WriteReply
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from tests.unit.client.routing.scripted import OWNER, TSERVER, Scripted, cache_of, locations

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64()), ("value", pa.string())]), ["id"])


class World:
    """A table whose direct calls end as ``script`` says; the loop's way always succeeds."""

    def __init__(
        self,
        *script: Any,
        buckets: int = 1,
        address: Address = TSERVER,
        grouped: bool = False,
    ) -> None:
        self.script = list(script)
        self.direct: list[tuple[str, Any, float]] = []
        self.called: list[tuple[Address, ServerUuid]] = []
        self.runtime = Scripted()
        partition = hash_partition("id", buckets)
        found = locations(SCHEMA, partition, address=address, grouped=grouped)
        self.session = Session(ClientId("c"))
        self.table = AsyncTable(
            self.runtime,  # type: ignore[arg-type]
            Settings(arrow_rows=4),
            self.session,
            cache_of(self.runtime, found),
        )
        self.runtime.peers.otherwise[WRITE.name] = lambda r: WriteReply(700, len(r.rows))
        self.runtime.peers.otherwise[GET.name] = lambda r: GetReply((((1, "loop"), 700),))
        self.blocking = BlockingTable(self.table, self, self.run)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def call(
        self,
        address: Address,
        method: Any,
        request: Any,
        *,
        timeout_s: float,
        destination: ServerUuid,
    ) -> Any:
        assert timeout_s > 0
        self.called.append((address, destination))
        self.direct.append((method.name, request, timeout_s))
        answer = self.script.pop(0)
        if isinstance(answer, StelaeError):
            raise answer
        return answer

    def by_loop(self, method: str) -> list[Any]:
        return self.runtime.peers.sent(method)


def write(world: World, *ids: int, timeout_s: float = 30.0) -> list[int]:
    rows = [{"id": n, "value": "x"} for n in ids]
    versions: list[int] = world.blocking.write(WriteOp.UPSERT, rows, None, timeout_s).tolist()
    return versions


def test_a_small_write_goes_straight_and_not_by_the_loop() -> None:
    """That is what it is for."""
    world = World(WriteReply(5, 2))
    assert write(world, 1, 2) == [5, 6]
    ((name, sent, _),) = world.direct
    assert (name, sent.rows) == (WRITE.name, ((1, "x"), (2, "x")))
    assert world.called == [(TSERVER, OWNER)]
    assert not world.by_loop(WRITE.name)


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknown("t", "write", 1.0), Unavailable("t", "gone"), TabletNotHere("a", "t")],
)
def test_what_is_out_of_the_ordinary_is_repeated_by_the_loop_with_the_same_id(
    error: StelaeError,
) -> None:
    """The first attempt may have been carried out: only the same id makes the second one safe."""
    world = World(error)
    assert write(world, 1) == [700]
    ((_, first, _),) = world.direct
    (second,) = world.by_loop(WRITE.name)
    assert isinstance(first, Write)
    assert second == first
    with world.session.request(f"{world.table.record.table_id}/0") as request:
        assert (request.sequence, request.first_incomplete) == (2, 2)


def test_an_unknown_outcome_is_not_forgotten_when_the_loop_finds_no_room() -> None:
    """To say that nothing was done would be wrong: the first attempt may have been."""
    world = World(OutcomeUnknown("t", "write", 1.0))
    world.runtime.peers.script(WRITE.name, OutOfMemory("t", 2, 1))
    with pytest.raises(OutcomeUnknown):
        write(world, 1)
    world = World(OutcomeUnknown("t", "write", 1.0))
    world.runtime.peers.otherwise[WRITE.name] = lambda r: Unavailable("t", "gone")
    with pytest.raises(OutcomeUnknown):
        write(world, 1, timeout_s=0.5)


@pytest.mark.parametrize(
    "error", [RowExists("t", "1", 3), OutOfMemory("t", 2, 1), NoSpace("b", "disk")]
)
def test_what_a_repetition_would_not_change_is_raised_at_once(error: StelaeError) -> None:
    """As on the loop's way."""
    world = World(error)
    with pytest.raises(type(error)):
        write(world, 1)
    assert not world.by_loop(WRITE.name)


def test_many_rows_many_tablets_and_unserved_tablets_go_by_the_loop() -> None:
    """A direct call is of few rows on one tablet that is known to be served."""
    world = World(buckets=16)
    assert len(write(world, 1, 2, 3)) == 3
    assert {len(sent.rows) for sent in world.by_loop(WRITE.name)} != {3}
    assert not world.direct
    world = World(address=Address(""))
    with pytest.raises(StelaeError):
        write(world, 1, timeout_s=0.1)
    assert not world.direct


def test_a_get_goes_straight_and_falls_back_likewise() -> None:
    """A read may be repeated in any case."""
    world = World(
        GetReply((((1, "direct"), 9),)), OutcomeUnknown("t", "get", 1.0), GetReply((None,))
    )
    get = world.blocking.get
    assert get(1, None, True, None, 30.0) == {"id": 1, "value": "direct", "_version": 9}
    assert get(1, ["id", "value"], False, None, 30.0) == {"id": 1, "value": "loop"}
    assert get(1, None, False, None, 30.0) is None
    assert [name for name, _, _ in world.direct] == [GET.name] * 3
    first = world.direct[0][1]
    assert isinstance(first, Get)
    assert first.keys == ((1,),)


def test_a_deadline_is_shared_by_both_ways() -> None:
    """The loop gets what the direct attempt left; no attempt takes longer than one on the loop."""
    world = World()

    def slow(*_: Any, timeout_s: float, **__: Any) -> Any:
        world.runtime.clock.time += timeout_s
        world.direct.append(("", None, timeout_s))
        raise OutcomeUnknown("t", "write", timeout_s)

    world.call = slow  # type: ignore[method-assign]
    assert write(world, 1, timeout_s=30.0) == [700]
    assert write(world, 1, timeout_s=7.0) == [700]
    with pytest.raises(OutcomeUnknown):
        write(world, 1, timeout_s=3.0)
    assert [limit for _, _, limit in world.direct] == [5.0, 5.0, 3.0]
    limits = [limit for _, name, _, limit in world.runtime.peers.calls if name == WRITE.name]
    assert limits == [5.0, 2.0]


def test_deletes_go_straight_too() -> None:
    """One key or a few."""
    world = World(WriteReply(5, 1))
    assert world.blocking.delete(7, None, 30.0).tolist() == [5]
    assert world.direct[0][1].rows == ((7,),)
    assert world.blocking.delete([], None, 30.0).tolist() == []


def test_a_deadline_that_has_passed_is_told_as_such() -> None:
    """Nothing is sent, by either way."""
    world = World(WriteReply(1, 1))
    with pytest.raises(DeadlineExpired):
        write(world, 1, timeout_s=0.0)
    assert world.direct == []
    assert world.by_loop(WRITE.name) == []


# ---- tablets whose replicas are a group -------------------------------------------------------

OTHER = Address("t:2"), ServerUuid("e" * 32)


def test_calls_go_straight_to_the_leader_and_to_the_next_one_by_its_hint() -> None:
    """The write that learns of it goes on by the loop, with its id; the next one goes straight."""
    world = World(NotLeader("t", 2, "t:2"), WriteReply(8, 1), grouped=True)
    assert write(world, 1) == [700]
    assert write(world, 2) == [8]
    assert world.called == [(TSERVER, OWNER), OTHER]
    (again,) = world.by_loop(WRITE.name)
    assert again == world.direct[0][1]
    assert [address for address, name, *_ in world.runtime.peers.calls if name == WRITE.name] == [
        "t:2"
    ]


def test_a_leader_that_does_not_answer_is_left_to_the_loop_soon() -> None:
    """The loop can look for another one meanwhile, which a blocking call cannot."""
    world = World(OutcomeUnknown("t", "write", 1.0), grouped=True)
    world.runtime.peers.otherwise[GET.name] = lambda r: GetReply(())
    assert write(world, 1) == [700]
    assert world.direct[0][2] <= 1.0
    assert world.by_loop(WRITE.name) == [world.direct[0][1]]


def test_reads_that_may_be_old_go_straight_to_replicas_in_turn() -> None:
    """And to the others by the loop if one is too stale."""
    found = GetReply((((1, "direct"), 9),))
    world = World(found, found, found, TooStale("t", "9 s", 1.0), grouped=True)
    for _ in range(3):
        assert world.blocking.get(1, None, False, 1.0, 30.0) == {"id": 1, "value": "direct"}
    assert sorted(address for address, _ in world.called) == ["t:1", "t:2", "t:3"]
    assert all(request.max_staleness_s == 1.0 for _, request, _ in world.direct)
    assert world.blocking.get(1, None, False, 1.0, 30.0) == {"id": 1, "value": "loop"}
    with pytest.raises(InvalidArgument):
        world.blocking.get(1, None, False, -1.0, 30.0)


def test_without_a_known_leader_the_loop_finds_it() -> None:
    """Nothing is sent at random."""
    world = World(grouped=True)
    route = world.table.cache.group(0)
    assert route is not None
    route.leader = None
    assert write(world, 1) == [700]
    assert not world.direct
    assert [request.keys for request in world.by_loop(GET.name)] == [()] * 3
