"""Rows that look-ups of one client read together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.shared_reads import KEYS_MAX, Alike, SharedReads
from stelae.client.routing.sharing import PAUSE_S, SLOWER_S
from stelae.core.errors import InvalidArgument, Unavailable
from stelae.core.messages.rows import GET_EACH, GetEach, GetEachReply, GetReply
from stelae.core.rpc import Reply

ALONE = "alone"


class Tablets:
    """Tablets that give each key as its row, of which a client knows where they are."""

    def __init__(self, **odd: Any) -> None:
        self.sent: list[int] = []
        self.silent: set[str] = set()
        self.limits_s: list[float] = []
        self.outcome: Callable[[GetEachReply], Any] = odd.get("outcome", Reply)
        self.servers = odd.get("servers", 1)
        self.waits: set[str] = set()
        """Tablets that cannot answer at once."""
        self.is_group, self.address = odd.get("is_group", False), odd.get("address", "here")
        self.posts, self.is_split = odd.get("posts", True), odd.get("is_split", False)

    def tablet(self, number: int) -> Any:
        if self.is_split:
            raise WasSplit(number)
        tablet = SimpleNamespace(tablet_id=str(number), owner=None, is_group=self.is_group)
        address = self.address and f"{self.address}{number % self.servers}"
        return SimpleNamespace(address=address, tablet=tablet)

    def post(self, address: Any, method: Any, order: GetEach, done: Any, **given: Any) -> bool:
        assert method is GET_EACH
        if not self.posts:
            return False
        if any(get.tablet_id in self.silent for get in order.gets):
            self.limits_s.append(given["timeout_s"])
            late = Unavailable("here", "no answer in time")
            asyncio.get_running_loop().call_later(given["timeout_s"], done, late)
            return True
        self.sent.append(sum(len(get.keys) for get in order.gets))
        answers = tuple(
            [
                None
                if get.tablet_id in self.waits
                else GetReply(tuple([((get.tablet_id, *key), 1) for key in get.keys]))
                for get in order.gets
            ]
        )
        asyncio.get_running_loop().call_soon(done, self.outcome(GetEachReply(answers)))
        return True

    async def alone(self, left_s: float) -> GetReply:
        self.sent.append(1)
        await asyncio.sleep(0.01)
        return GetReply((((ALONE,), 1),))


def found(tablets: Tablets, counts: list[int], tablet_count: int = 1) -> list[list[Any]]:
    """What reads of so many keys each gave that began in the same turn."""
    clock = SimpleNamespace(monotonic=time.monotonic)
    runtime: Any = SimpleNamespace(peers=tablets, clock=clock)
    cache: Any = tablets

    async def read_all() -> list[list[Any]]:
        reads = SharedReads(runtime, cache)
        replies = await asyncio.gather(
            *(
                reads.get(
                    Alike(n % tablet_count, (), 1),
                    [(f"{n}/{k}",) for k in range(count)],
                    30.0,
                    tablets.alone,
                )
                for n, count in enumerate(counts)
            )
        )
        assert not reads._waiting
        assert not reads._under_way
        return [[row[0] for row in reply.rows if row is not None] for reply in replies]

    return asyncio.run(read_all())


def test_one_goes_by_itself_and_those_after_it_by_server() -> None:
    """Each has its own rows, in its own order."""
    tablets = Tablets(servers=2)
    answers = found(tablets, [1, 2, 1, 3, 1], 2)
    assert answers[0] == [(ALONE,)]
    assert answers[1] == [("1", "1/0"), ("1", "1/1")]
    assert answers[2] == [("0", "2/0")]
    assert answers[3] == [("1", f"3/{n}") for n in range(3)]
    assert sorted(tablets.sent) == [1, 2, 5]


def test_tablets_of_one_server_share_a_message() -> None:
    """And those who want rows of the same tablet share what is read of it."""
    tablets = Tablets()
    answers = found(tablets, [1, 2, 1, 3, 1], 2)
    assert answers[1:3] == [[("1", "1/0"), ("1", "1/1")], [("0", "2/0")]]
    assert sorted(tablets.sent) == [1, 7]


def test_who_wants_a_row_that_has_to_wait_asks_for_it_alone() -> None:
    """Nobody else waits; its tablet shares nothing for a while."""
    tablets = Tablets()
    tablets.waits = {"1"}
    answers = found(tablets, [1, 1, 1, 1, 1], 2)
    assert answers == [[(ALONE,)], [(ALONE,)], [("0", "2/0")], [(ALONE,)], [("0", "4/0")]]
    assert sorted(tablets.sent) == [1, 1, 1, 4]


def test_a_message_has_so_many_keys_at_most() -> None:
    """More go out in several; what is long goes by itself."""
    tablets = Tablets()
    answers = found(tablets, [1, *[20] * 5, KEYS_MAX])
    assert [len(answer) for answer in answers] == [1, *[20] * 5, 1]
    assert tablets.sent == [1, 1, 60, 40]


@pytest.mark.parametrize(
    "odd",
    [
        {"outcome": lambda reply: InvalidArgument("too many")},
        {"outcome": lambda reply: Reply(GetEachReply(reply.answers[1:]))},
        {"outcome": lambda reply: Reply(GetEachReply((GetReply(reply.answers[0].rows[1:]),)))},
        {"is_group": True},
        {"address": ""},
        {"posts": False},
        {"is_split": True},
    ],
    ids=["refused", "cut", "cut rows", "group", "nowhere", "not connected", "split"],
)
def test_what_is_out_of_the_ordinary_is_asked_for_one_by_one(odd: dict[str, Any]) -> None:
    """By whoever knows what to do about it."""
    assert found(Tablets(**odd), [1, 2, 3]) == [[(ALONE,)]] * 3


def test_a_row_that_cannot_be_read_holds_up_those_who_want_it_only() -> None:
    """The others wait a little longer than usual, once; and its tablet shares nothing for a
    while."""
    tablets, later_s = Tablets(), 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
    runtime: Any = SimpleNamespace(peers=tablets, clock=clock)
    cache: Any = tablets

    async def turn(reads: SharedReads) -> None:
        await asyncio.gather(
            *(reads.get(Alike(n % 2, (), 1), [(f"{n}",)], 30.0, tablets.alone) for n in range(1, 6))
        )

    async def turns() -> None:
        nonlocal later_s
        reads = SharedReads(runtime, cache)
        tablets.servers = 2
        tablets.silent = {"0"}
        await turn(reads)
        assert tablets.limits_s == [SLOWER_S]
        await turn(reads)
        assert len(tablets.limits_s) == 1
        later_s, tablets.silent = PAUSE_S, set()
        tablets.sent.clear()
        await turn(reads)
        assert sorted(tablets.sent) == [1, 2, 2]
        assert 0 < reads._sharing._usual_s < SLOWER_S
        assert not reads._sharing._pauses

    asyncio.run(turns())
