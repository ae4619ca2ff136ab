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
from stelae.core.errors import DeadlineExpired
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import TabletLocation
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
