"""A tablet's calls: exactly once, limits, what readers wait for, closing."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.tserver.tablet.small_writes import one_by_one
from stelae.core.errors import (
    InvalidArgument,
    OutOfMemory,
    Overloaded,
    RowExists,
    StaleRequest,
    StelaeError,
    TabletNotHere,
    TooLarge,
)
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import Get, GetReply, Write, WriteMany, WriteOp
from stelae.core.rpc import Call
from stelae.storage.entries import client_results
from stelae.storage.entries.outcomes import answer
from tests.unit.actors.tserver.owned_tablet.tablet_world import SETTINGS, TABLET, TabletWorld, run

BIG = "x" * 700

# ---- calls that come in one message -------------------------------------------------------------


def _messages(rng: random.Random) -> list[WriteMany]:
    """Some with requests of earlier ones, and rows that are none; of no key twice in one, since
    the simulated loop begins calls that come together in any order."""
    messages, sequence = [], 0
    for _ in range(12):
        op = rng.choice((WriteOp.UPSERT, WriteOp.UPSERT, WriteOp.DELETE))
        requests: list[RequestId] = []
        rows: list[tuple[Any, ...]] = []
        known = list(range(1, sequence + 1))
        for number in rng.sample(range(8), rng.randrange(1, 6)):
            sequence += 1
            is_repeated = known and rng.random() < 0.1
            name = known.pop(rng.randrange(len(known))) if is_repeated else sequence
            requests.append(RequestId(ClientId("client"), name, 1))
            key = number if rng.random() > 0.08 else "no number"
            rows.append((key,) if op is WriteOp.DELETE else (key, f"v{sequence}"))
        messages.append(WriteMany(TABLET, 1, op, (), tuple(requests), tuple(rows)))
    return messages


def _refusals(outcomes: Sequence[bytes]) -> list[str]:
    found = []
    for outcome in outcomes:
        try:
            answer(outcome)
            found.append("")
        except StelaeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("seed", range(25))
def test_calls_of_one_message_come_to_what_each_of_them_would_by_itself(seed: int) -> None:
    """What is refused, which rows there are, and what a repeated call is told, are the same."""
    seen: list[Any] = []

    async def scenario(here: TabletWorld, *, together: bool) -> None:
        await here.serve("b1", "b2")
        tablet, messages = here.tablet, _messages(random.Random(seed))
        outcomes: list[tuple[bytes, ...]] = []
        for many in messages:
            call = Call(many, (), 30.0)
            write = tablet.write_many(call, None) if together else one_by_one(tablet, call, None)
            outcomes.append(await write)
        for many, told in zip(messages, outcomes, strict=True):
            if not any(_refusals(told)):  # a row that is none is not remembered
                assert await tablet.write_many(Call(many, (), 30.0), None) == told
        rows = [await here.get(key) for key in range(8)]
        seen.append((list(map(_refusals, outcomes)), rows, tablet._memory.next_version))

    run(functools.partial(scenario, together=True))
    run(functools.partial(scenario, together=False))
    assert seen[0] == seen[1]


def test_calls_of_one_message_share_an_entry_that_a_recovery_reads_as_each_of_them() -> None:
    """One entry with a result for each; the segment's image has all the rows."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        before = here.tablet._memory.last_index
        requests = tuple(here.request() for _ in range(5))
        rows = tuple((n, f"v{n}") for n in range(5))
        many = WriteMany(TABLET, 1, WriteOp.UPSERT, (), requests, rows)
        outcomes = await here.tablet.write_many(Call(many, (), 30.0), None)
        assert here.tablet._memory.last_index == before + 1
        versions = [answer(outcome).first_version for outcome in outcomes]
        assert versions == list(range(versions[0], versions[0] + 5))
        late = await here.write(rows[3], request=requests[3])
        assert late.first_version == versions[3]
        assert here.tablet._memory.last_index == before + 1

    run(scenario)


# ---- exactly once -----------------------------------------------------------------------------


def test_a_repeated_write_gets_its_first_answer_also_side_by_side() -> None:
    """The same request id: one row version, whether the copies come together or later."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        request = here.request()
        answers = await asyncio.gather(*(here.write((1, "a"), request=request) for _ in range(3)))
        await here.write((1, "b"))
        answers.append(await here.write((1, "a"), request=request))
        assert len({answer.first_version for answer in answers}) == 1
        assert await here.get(1) == "b"

    run(scenario)


def test_a_refused_insert_stays_refused_when_its_copy_comes_late() -> None:
    """The client was told no: a late copy must not be carried out once the row is gone."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write((1, "a"))
        request = here.request()
        with pytest.raises(RowExists):
            await here.write((1, "b"), op=WriteOp.INSERT, request=request)
        await here.write((1,), op=WriteOp.DELETE)
        with pytest.raises(RowExists):
            await here.write((1, "b"), op=WriteOp.INSERT, request=request)
        assert await here.get(1) is None

    run(scenario)


def test_a_request_whose_answer_the_client_has_is_not_carried_out_again() -> None:
    """Below the client's first incomplete request nothing is done any more."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        first = here.request()
        await here.write((1, "a"), request=first)
        await here.write((2, "b"), request=here.request(first_incomplete=2))
        with pytest.raises(StaleRequest):
            await here.write((1, "again"), request=first)

    run(scenario)


def test_a_repeated_write_is_answered_even_when_new_ones_are_refused() -> None:
    """OutOfMemory says "surely not done": it must not be said of what was done."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        request = here.request()
        done = await here.write((1, "a"), request=request)
        full = OutOfMemory("t", 2, 1)
        assert await here.write((1, "a"), request=request, refusal=full) == done
        with pytest.raises(OutOfMemory):
            await here.write((2, "b"), refusal=full)

    run(scenario)


def test_clients_that_fell_silent_make_room_when_there_are_too_many() -> None:
    """Results are expired when room is needed, not only when a head is full."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        ids = [msgspec.structs.replace(here.request(1), client_id=f"c{n}") for n in range(4)]
        for request in ids[:3]:
            await here.write((1, "a"), request=request)
        with pytest.raises(Overloaded):
            await here.write((1, "a"), request=ids[3])
        await asyncio.sleep(here.settings.client_expiry_s + 1)
        await here.write((1, "a"), request=ids[3])

    settings = msgspec.structs.replace(SETTINGS, client_expiry_s=60.0)
    with patch.object(client_results, "MAX_CLIENTS", 3):
        run(scenario, settings=settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": -1},
        {"first_incomplete": -(1 << 63)},
        {"first_incomplete": 9, "sequence": 8},
        {"sequence": 1 << 63},
        {"client_id": ""},
        {"client_id": "c" * 300},
    ],
)
def test_a_request_id_that_no_client_makes_is_refused(changes: dict[str, Any]) -> None:
    """Ids stand in every prologue: one that cannot be encoded would end the server at a roll."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        request = msgspec.structs.replace(here.request(), **changes)
        with pytest.raises(InvalidArgument):
            await here.write((1, "a"), request=request)
        for n in range(6):
            await here.write((n, BIG))

    run(scenario)


# ---- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x" * (1 << 20), "é" * (600 << 10)])
def test_a_row_over_the_limit_is_refused_whole(value: str) -> None:
    """1 MiB a row, counted as UTF-8; the other rows of the call are not written either."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        with pytest.raises(TooLarge):
            await here.write((1, "fine"), (2, value + "x"))
        assert await here.get(1) is None

    run(scenario)


def test_writes_beyond_the_queue_are_refused_as_overload() -> None:
    """What waits for backups is bounded."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        here.world.partition(["owner"], ["b1", "b2"])
        waiting = [asyncio.create_task(here.write((n, BIG))) for n in range(4)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await here.write((9, BIG))
        here.world.unpartition(["owner"], ["b1", "b2"])
        await asyncio.gather(*waiting)
        await here.write((9, BIG))

    run(scenario, settings=msgspec.structs.replace(SETTINGS, queue_bytes=3000))


# ---- reads ------------------------------------------------------------------------------------


def test_a_read_waits_until_what_it_saw_is_on_all_backups() -> None:
    """A reader never learns what a crash could take back."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write((1, "old"))
        here.world.partition(["owner"], ["b2"])
        writing = asyncio.create_task(here.write((1, "new")))
        await asyncio.sleep(0.01)
        reading = asyncio.create_task(here.get(1))
        other = await asyncio.wait_for(here.get(7), 1.0)
        await asyncio.sleep(0.3)
        assert other is None
        assert not reading.done()
        assert here.tablet.get_now(Get(TABLET, ((1,),))) is None
        assert here.tablet.get_now(Get(TABLET, ((7,),))) == GetReply((None,))
        here.world.unpartition(["owner"], ["b2"])
        assert await reading == "new"
        await writing
        now = here.tablet.get_now(Get(TABLET, ((1,),)))
        assert now is not None
        assert now.rows[0] is not None
        assert now.rows[0][0][1] == "new"

    run(scenario, backups=2)


def test_a_call_is_for_its_tablet_only() -> None:
    """A tablet that was closed while a large write was being read does not take it."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        call = Call(Write(TABLET, 1, WriteOp.UPSERT, here.request(), ((1, "a"),)), (), 5.0)
        rows = await here.tablet.read_rows(call)
        await here.tablet.close()
        with pytest.raises(TabletNotHere):
            await here.tablet.write(call, rows, None)

    run(scenario)
