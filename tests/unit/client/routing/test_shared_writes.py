"""Writes of one row that go in one message to each server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.part import Part
from stelae.client.routing.shared_writes import TOGETHER_BYTES
from stelae.client.table.gathering import COMPANY_S, Gathering
from stelae.core.errors import InvalidArgument, OutcomeUnknown, StelaeError
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import (
    SMALL_ROW_BYTES_MAX,
    WRITE_EACH,
    WRITES_MAX,
    WriteEach,
    WriteEachReply,
    WriteOp,
    WriteReply,
)
from stelae.core.rpc import Reply
from stelae.storage.entries.outcomes import done, refused

ALONE = WriteReply(0, 1)
UNKNOWN = OutcomeUnknown("here", "a write", 1.0)


class Tablets:
    """Tablets that give each row its key as version."""

    def __init__(self, **odd: Any) -> None:
        self.sent: list[list[int]] = []
        """Of each message the rows of each part."""
        self.alone: list[tuple[int, StelaeError | None]] = []
        self.outcome: Callable[[WriteEachReply], Any] = odd.get("outcome", Reply)
        self.servers = odd.get("servers", 1)
        self.posts = odd.get("posts", True)
        self.undone: set[int] = odd.get("undone", set())
        self.is_group = odd.get("is_group", False)
        indexes = ("an index",) if odd.get("has_index", False) else ()
        self.table = SimpleNamespace(schema=SimpleNamespace(indexes=indexes))

    def tablet(self, number: int) -> Any:
        tablet = SimpleNamespace(tablet_id=str(number), owner=None, is_group=self.is_group)
        return SimpleNamespace(address=f"here{number % self.servers}", tablet=tablet)

    def post(self, address: Any, method: Any, order: WriteEach, told: Any, **given: Any) -> bool:
        assert method is WRITE_EACH
        if not self.posts:
            return False
        self.sent.append([len(part.rows) for part in order.parts])
        outcomes = tuple(
            [
                tuple([b"" if row[0] in self.undone else done(row[0], 1) for row in part.rows])
                for part in order.parts
            ]
        )
        asyncio.get_running_loop().call_soon(told, self.outcome(WriteEachReply(outcomes)))
        return True

    async def send_alone(
        self, part: Part, request: RequestId, left_s: float, tried: StelaeError | None
    ) -> WriteReply:
        assert request.sequence == part.rows[0][0]
        self.alone.append((request.sequence, tried))
        await asyncio.sleep(0.01)
        return ALONE


def part_of(key: int, tablet: int, text: str = "x") -> Part:
    return Part(tablet, WriteOp.UPSERT, ((key, text),), (), (), 1)


def written(
    tablets: Tablets, tablet_of: list[int], timeout_s: float = 30.0, text: str = "x"
) -> list[int]:
    """The version that each write got, of those that began in one turn."""

    async def write_all() -> list[int]:
        gathering = Gathering(runtime_of(tablets), tablets)  # type: ignore[arg-type]
        replies = await asyncio.gather(
            *[
                gathering.send(
                    part_of(key, tablet, text),
                    RequestId(ClientId("c"), key, 1),
                    timeout_s,
                    tablets.send_alone,
                )
                for key, tablet in enumerate(tablet_of)
            ]
        )
        return [reply.first_version for reply in replies]

    return asyncio.run(write_all())


def runtime_of(tablets: Tablets) -> Any:
    metrics = SimpleNamespace(count=lambda name: None)
    clock = SimpleNamespace(monotonic=time.monotonic)
    return SimpleNamespace(peers=tablets, clock=clock, metrics=metrics)


def test_one_goes_by_itself_and_those_after_it_by_server() -> None:
    """Each has its own answer, whatever tablet its row is in."""
    tablets = Tablets(servers=2)
    assert written(tablets, [0, 0, 1, 2, 3, 2]) == [0, 1, 2, 3, 4, 5]
    assert sorted(tablets.sent) == [[1, 1], [1, 2]]
    assert tablets.alone == [(0, None)]


def test_a_message_has_so_many_rows_and_bytes_at_most() -> None:
    """More go out in several."""
    tablets = Tablets()
    assert written(tablets, [0] * (WRITES_MAX + 11), text="") == list(range(WRITES_MAX + 11))
    assert tablets.sent == [[WRITES_MAX], [10]]
    tablets, text = Tablets(), "x" * SMALL_ROW_BYTES_MAX
    assert written(tablets, [0] * 21, text=text) == list(range(21))
    assert all(sum(parts) * SMALL_ROW_BYTES_MAX <= TOGETHER_BYTES for parts in tablets.sent)
    assert sum(map(sum, tablets.sent)) == 20


def test_what_was_not_done_or_is_unknown_goes_on_from_there() -> None:
    """By itself, under its own id; the others have their answers."""
    tablets = Tablets(undone={2})
    assert written(tablets, [0, 0, 1, 1]) == [0, 1, 0, 3]
    assert tablets.alone == [(0, None), (2, None)]

    def unknown(reply: WriteEachReply) -> Any:
        first, *rest = reply.outcomes
        return Reply(WriteEachReply(((refused(UNKNOWN),) * len(first), *rest)))

    tablets = Tablets(outcome=unknown)
    assert written(tablets, [0, 0, 1, 1]) == [0, 0, 2, 3]
    assert tablets.alone[0] == (0, None)
    assert isinstance(tablets.alone[1][1], OutcomeUnknown)


@pytest.mark.parametrize(
    ("odd", "tried"),
    [
        ({"outcome": lambda reply: UNKNOWN}, OutcomeUnknown),
        ({"outcome": lambda reply: InvalidArgument("no such method")}, type(None)),
        ({"outcome": lambda reply: Reply(WriteEachReply(()))}, type(None)),
        ({"outcome": lambda reply: Reply(WriteEachReply(((),) * 2))}, type(None)),
        ({"posts": False}, type(None)),
    ],
    ids=["unknown", "refused", "cut", "cut parts", "not connected"],
)
def test_a_message_that_fails_fails_nobody(odd: dict[str, Any], tried: type) -> None:
    """Each goes on by itself, and knows whether it may have been done."""
    tablets = Tablets(**odd)
    assert written(tablets, [0, 0, 1]) == [0, 0, 0]
    assert [key for key, _ in tablets.alone] == [0, 1, 2]
    assert [type(error) for _, error in tablets.alone[1:]] == [tried] * 2


def test_who_has_little_time_shares_no_message_with_others() -> None:
    """Nor does a table with indexes, or one without an owner: that is for another way."""
    shared = Tablets()
    asyncio.run(_one(shared, ATTEMPT_TIMEOUT_S))
    assert shared.sent == [[1]]
    for odd, timeout_s in [
        ({}, ATTEMPT_TIMEOUT_S / 2),
        ({"has_index": True}, 30.0),
        ({"is_group": True}, 30.0),
    ]:
        tablets = Tablets(**odd)
        asyncio.run(_one(tablets, timeout_s))
        assert tablets.sent == []
        assert tablets.alone == [(1, None)]


async def _one(tablets: Tablets, timeout_s: float) -> None:
    """One write while another is under way."""
    gathering = Gathering(runtime_of(tablets), tablets)  # type: ignore[arg-type]
    gathering._under_way = 1
    request = RequestId(ClientId("c"), 1, 1)
    await gathering.send(part_of(1, 0), request, timeout_s, tablets.send_alone)


def test_who_is_cancelled_before_the_message_leaves_is_not_in_it() -> None:
    """And the others are."""

    async def story() -> None:
        tablets = Tablets()
        gathering = Gathering(runtime_of(tablets), tablets)  # type: ignore[arg-type]
        gathering._under_way = 1
        tasks = [
            asyncio.create_task(
                gathering.send(
                    part_of(key, 0), RequestId(ClientId("c"), key, 1), 30.0, tablets.send_alone
                )
            )
            for key in range(1, 4)
        ]
        asyncio.get_running_loop().call_soon(tasks[1].cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [WriteReply, asyncio.CancelledError, WriteReply]
        assert tablets.sent == [[2]]
        assert gathering._under_way == 1

    asyncio.run(story())


def test_one_that_is_alone_a_moment_after_several_waits_for_others_too() -> None:
    """Those that were answered together go on together, and the first of them is alone for a
    moment. Later it is not taken for one of several."""

    async def story() -> None:
        tablets, now_s = Tablets(), 7.0
        runtime = runtime_of(tablets)
        runtime.clock.monotonic = lambda: now_s
        gathering = Gathering(runtime, tablets)  # type: ignore[arg-type]

        async def write(key: int) -> None:
            request = RequestId(ClientId("c"), key, 1)
            await gathering.send(part_of(key, 0), request, 30.0, tablets.send_alone)

        await write(1)
        assert tablets.sent == []
        await asyncio.gather(write(2), write(3))
        assert tablets.sent == [[1]]
        now_s += COMPANY_S / 2
        await write(4)
        assert tablets.sent == [[1], [1]]
        now_s += COMPANY_S
        await write(5)
        assert tablets.sent == [[1], [1]]
        assert [key for key, _ in tablets.alone] == [1, 2, 5]

    asyncio.run(story())
