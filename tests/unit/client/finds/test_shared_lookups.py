"""Look-ups of one client that begin in the same turn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.client.finds.shared_lookups import SharedLookups
from stelae.core.errors import InvalidArgument
from stelae.core.messages.indexes import LOOKUP_MANY, LookupManyReply, LookupRange, LookupReply
from stelae.core.rpc import Reply


class Peers:
    """An indexlet that answers each look-up with what it was asked for."""

    def __init__(
        self, *, refuses: bool = False, posts: bool = True, cuts: int = 0, fails: bool = False
    ) -> None:
        self.sent: list[int] = []
        self.refuses, self.posts, self.cuts, self.fails = refuses, posts, cuts, fails

    def post(self, address: Any, method: Any, order: Any, done: Any, **given: Any) -> bool:
        assert method is LOOKUP_MANY
        if not self.posts:
            return False
        if self.fails:
            raise ValueError("cannot be encoded")
        self.sent.append(len(order.ranges))
        answers = tuple([LookupReply((r.low,), False, b"", b"") for r in order.ranges])
        outcome = InvalidArgument("no such method") if self.refuses else None
        reply = Reply(LookupManyReply(answers[self.cuts :]))
        asyncio.get_running_loop().call_soon(done, outcome or reply)
        return True


def found(peers: Peers, count: int, terms: int = 1) -> list[bytes | None]:
    """What each of so many look-ups is told, of indexlets in so many terms."""
    told: dict[int, bytes | None] = {}

    async def work() -> None:
        runtime: Any = SimpleNamespace(peers=peers)
        shared = SharedLookups(runtime)
        for n in range(count):
            indexlet = SimpleNamespace(indexlet_id="i", term=n % terms, owner=None)
            at: Any = SimpleNamespace(address="here", indexlet=indexlet)

            def done(said: LookupReply | None, n: int = n) -> None:
                assert n not in told
                told[n] = None if said is None else said.entries[0]

            shared.add(at, LookupRange(b"%d" % n, b"", 10, False), done)
        assert not peers.sent, "they go out at the end of the turn"
        for _ in range(3):
            await asyncio.sleep(0)
        assert not shared._waiting

    asyncio.run(work())
    return [told[n] for n in range(count)]


def test_those_of_a_turn_go_together() -> None:
    """Each has its own answer; a message has so many at most."""
    peers = Peers()
    assert found(peers, 100) == [b"%d" % n for n in range(100)]
    assert peers.sent == [64, 36]


def test_each_indexlet_has_its_own_message() -> None:
    """And each term."""
    peers = Peers()
    assert found(peers, 5, 2) == [b"%d" % n for n in range(5)]
    assert peers.sent == [3, 2]


@pytest.mark.parametrize("odd", [{"refuses": True}, {"posts": False}, {"cuts": 1}, {"fails": True}])
def test_what_goes_wrong_together_is_to_be_asked_for_one_by_one(odd: dict[str, Any]) -> None:
    """A server of before does not know the message; and nobody is forgotten over a bug."""
    assert found(Peers(**odd), 5) == [None] * 5
