"""Who leads a tablet with replicas, as one client knows it."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stelae.client.routing import group_route
from stelae.client.routing.group_calls import GroupCall
from stelae.client.routing.group_route import GroupRoute
from stelae.core.errors import DeadlineExpired, InvalidArgument, NotLeader
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import ReplicaLocation, TabletLocation
from stelae.core.records.records import TabletRecord, TabletState


def test_who_comes_in_the_turn_in_which_a_search_ends_begins_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that has ended, and is not forgotten yet, must not be waited for in vain: a call
    that finds no leader would ask again without ever letting the loop go on."""
    searches: list[asyncio.Event] = []

    class Search:
        def __init__(self, *args: Any) -> None:
            self._end = asyncio.Event()
            searches.append(self._end)

        async def run(self) -> None:
            await self._end.wait()

    async def refresh() -> None:
        return None

    async def story() -> None:
        record = TabletRecord(
            TabletId("t"), TableId("u"), 0, TabletState.RUNNING, 0, ServerUuid(""), 0
        )
        route = GroupRoute(TabletLocation(record, Address("")))
        runtime: Any = None
        first = asyncio.create_task(route.find_leader(runtime, refresh))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        searches[0].set()
        second = asyncio.create_task(route.find_leader(runtime, refresh))
        await first
        for _ in range(5):
            await asyncio.sleep(0)
        assert not second.done()
        assert len(searches) == 2
        searches[1].set()
        await second

    monkeypatch.setattr(group_route, "LeaderSearch", Search)
    asyncio.run(story())


def test_what_is_left_of_a_deadline_after_rounding_is_nothing() -> None:
    """A clock may not tell such a moment's end from its beginning, and a call would go on in it."""
    moments = iter([0.0])

    class Clock:
        def monotonic(self) -> float:
            return next(moments, 5.0 - 1e-9)

    class Nowhere:
        leader = None
        answers: ClassVar[dict[Address, str]] = {}
        location = SimpleNamespace(problem="")
        tablet_id = "t"

        async def find_leader(self, *_: Any) -> None:
            raise AssertionError("there is no time to look for a leader")

    runtime: Any = SimpleNamespace(clock=Clock(), rng=random.Random(1))
    cache: Any = SimpleNamespace(group=lambda number: Nowhere(), refresh=None, named=str)

    async def attempt(*_: Any) -> None:
        raise AssertionError("there is no leader")

    async def story() -> None:
        for max_staleness in (None, 1.0):
            nonlocal moments
            moments = iter([0.0])
            call = GroupCall(runtime, cache, 0, "get", attempt, 5.0)
            with pytest.raises(DeadlineExpired, match="a leader of tablet t"):
                await (call.at_leader(None) if max_staleness is None else call.anywhere(None))

    asyncio.run(story())


def test_reads_of_old_rows_go_to_a_replica_on_the_callers_machine() -> None:
    """Of several there each in turn; one that did not answer lately comes after those elsewhere."""
    names = ("a:1", "b:1", "c:1", "d:1")
    replicas = tuple(ReplicaLocation(ServerUuid(n), Address(n), voter=True) for n in names)
    record = TabletRecord(TabletId("t"), TableId("u"), 0, TabletState.RUNNING, 0, ServerUuid(""), 0)
    route = GroupRoute(TabletLocation(record, Address(""), replicas=replicas))
    near = {"b:1", "d:1"}

    def order(now: float) -> list[str]:
        found = route.readers(random.Random(1), now, near.__contains__)
        return [target.address for target in found]

    firsts = [order(0.0) for _ in range(4)]
    assert all(set(each[:2]) == near for each in firsts)
    assert {each[0] for each in firsts} == near
    assert sorted(firsts[0]) == list(names)
    route.shun(route.target(Address("b:1")), 0.0)
    assert order(0.1)[0] == "d:1"
    assert order(0.1)[-1] == "b:1"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_refusal_by_an_address_alone_is_asked_for_again(is_known: bool) -> None:
    """A hint names an address only, which a server of another kind may have by now: it refuses what
    it does not know. A second refusal, or one by the server that was named, is believed."""
    old = (ReplicaLocation(ServerUuid("a"), Address("a:1"), voter=True),)
    new = (*old, ReplicaLocation(ServerUuid("b"), Address("b:1"), voter=True))
    record = TabletRecord(TabletId("t"), TableId("u"), 0, TabletState.RUNNING, 0, ServerUuid(""), 0)
    asked: list[tuple[str, str | None]] = []

    class Route(GroupRoute):
        async def find_leader(self, *_: Any) -> None:
            if is_known:
                self.take(TabletLocation(record, Address(""), replicas=new))
            self.lead(Address("b:1"))

    route = Route(TabletLocation(record, Address(""), replicas=old))
    route.lead(Address("a:1"))

    async def attempt(where: TabletLocation, server: ServerUuid | None, limit_s: float) -> str:
        asked.append((where.address, server))
        if server == "a":
            raise NotLeader("a", 1, "b:1")
        if server == "b":
            return "done"
        raise InvalidArgument("no method 'tserver.write' here")

    class Clock:
        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            return None

    runtime: Any = SimpleNamespace(clock=Clock(), rng=random.Random(1))
    cache: Any = SimpleNamespace(group=lambda number: route, refresh=None, named=str)
    call = GroupCall(runtime, cache, 0, "write", attempt, 5.0)
    if is_known:
        assert asyncio.run(call.at_leader(None)) == "done"
        assert asked == [("a:1", "a"), ("b:1", None), ("b:1", "b")]
    else:
        with pytest.raises(InvalidArgument, match="no method"):
            asyncio.run(call.at_leader(None))
        assert asked == [("a:1", "a"), ("b:1", None), ("b:1", None)]
