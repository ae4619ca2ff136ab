"""Look-ups that come to an indexlet while it is being filled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock, patch

import msgspec
import pytest

from stelae.actors.tserver.indexes import indexlet as module
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.core.errors import IndexletNotHere, IndexletNotReady, Overloaded
from stelae.core.messages.indexes import IndexletProgress, Lookup, LookupMany, LookupRange
from stelae.core.schema.indexes import IndexletId
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from tests.unit.actors.tserver.indexes.test_indexlet import RECORD, TABLE, successor


def filling() -> Indexlet:
    record = msgspec.structs.replace(RECORD, succeeds=IndexletId(""))
    return Indexlet(World(1, Options()).client("t"), Tasks(), "t", record, TABLE, lambda: True)


async def looked_up(indexlet: Indexlet, timeout_s: float = 30.0) -> None:
    """Wait for the fill, and look up."""
    await indexlet.wait_filled(timeout_s)
    indexlet.lookup(Lookup(RECORD.indexlet_id, 1, b""))


async def test_they_are_answered_in_the_moment_it_serves() -> None:
    """All of them."""
    indexlet = filling()
    with patch.object(module, "LOOKUP_WAIT_S", 30.0):
        waiting = [asyncio.create_task(looked_up(indexlet, 60.0)) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert not any(each.done() for each in waiting)
    indexlet.progress = IndexletProgress.COMPLETE
    indexlet.serve()
    await asyncio.gather(*waiting)
    assert not indexlet._waiting


@pytest.mark.parametrize("timeout_s", [30.0, 0.02])
async def test_they_are_refused_after_a_moment(timeout_s: float) -> None:
    """However long the caller would wait; and before its time is over."""
    indexlet = filling()
    with patch.object(module, "LOOKUP_WAIT_S", 0.05), pytest.raises(IndexletNotReady):
        await asyncio.wait_for(looked_up(indexlet, timeout_s), 20.0)
    assert not indexlet._waiting


async def test_one_that_is_closed_lets_them_go() -> None:
    """It will not answer."""
    indexlet = filling()
    waiting = asyncio.create_task(looked_up(indexlet))
    await asyncio.sleep(0)
    indexlet.close()
    with pytest.raises(IndexletNotHere):
        await waiting


async def test_too_many_are_refused_at_once_and_so_is_who_asks_a_successor() -> None:
    """A successor answers nobody before it is in its place, which may take long."""
    with patch.object(module, "WAITING_MAX", 0):
        await asyncio.wait_for(filling().wait_filled(30.0), 20.0)
    await asyncio.wait_for(successor().wait_filled(30.0), 20.0)


def test_look_ups_together_are_bounded_by_their_bytes() -> None:
    """Those beyond are to be asked for by themselves; one is always answered."""
    indexlet = filling()
    indexlet.progress = IndexletProgress.SERVING
    large = [b"x" * 1000 for _ in range(3)]
    ranges = tuple([LookupRange(b"", b"", 10, False)] * 5)
    body = LookupMany(RECORD.indexlet_id, 1, ranges)
    with (
        patch.object(indexlet.entries, "lookup", lambda *_, **__: (large, False)),
        patch.object(module, "PIECE_BYTES", 5000),
    ):
        answers = indexlet.lookup_many(body).body.answers
    assert [answer is not None for answer in answers] == [True, True, False, False, False]


async def test_runs_are_merged_later_where_too_much_waits_to_be_worked_on() -> None:
    """The server goes on: whoever writes or looks up needs no merge."""
    indexlet = filling()
    tries = []

    async def offload(work: object) -> object:
        tries.append(work)
        if len(tries) == 1:
            raise Overloaded("work off the loop", 1024)
        return "merged"

    clock = SimpleNamespace(sleep=asyncio.sleep)
    runtime = SimpleNamespace(offload=offload, clock=clock, metrics=Mock())
    installed = asyncio.Event()
    plans = [SimpleNamespace(make=object()), SimpleNamespace(make=object()), None]
    with (
        patch.object(module, "PUT_OFF_S", 0.0),
        patch.object(indexlet, "_runtime", runtime),
        patch.object(indexlet.entries, "merge_plan", lambda: plans.pop(0)),
        patch.object(indexlet.entries, "install", lambda plan, run: installed.set()),
        patch.object(indexlet, "_waits_for_more", lambda: False),
    ):
        indexlet.to_merge.set()
        merging = asyncio.create_task(indexlet.merge_runs())
        async with asyncio.timeout(5.0):
            await installed.wait()
        merging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await merging
    assert len(tries) == 2
