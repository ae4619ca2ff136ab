"""Reads of several tablets in one message."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from stelae.actors.tserver.shared_gets import SharedGets
from stelae.core.errors import InvalidArgument, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.messages.rows import GET_EACH, GETS_MAX, Get, GetEach, GetEachReply, GetReply
from stelae.core.rpc import Call


class Tablet:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    def get_now(self, request: Get) -> GetReply | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: GetReply | None = self.answer
        return answer


def answered(tablets: dict[str, Tablet], names: list[str]) -> GetEachReply:
    def serving(tablet_id: TabletId) -> Any:
        if tablet_id not in tablets:
            raise TabletNotReady(tablet_id, "opening")
        return tablets[tablet_id]

    handler = SharedGets(serving).handlers()[GET_EACH]
    gets = tuple([Get(TabletId(name), ((1,),)) for name in names])
    coroutine = handler(Call(GetEach(gets), (), 1.0))
    with pytest.raises(StopIteration) as ended:  # it waits for nothing
        coroutine.send(None)
    reply: GetEachReply = ended.value.value.body
    return reply


def test_each_is_answered_by_itself() -> None:
    """One that waits, is refused, or is not here is told nothing; the others are."""
    rows = GetReply((((1,), 2),))
    tablets = {
        "here": Tablet(rows),
        "waits": Tablet(None),
        "refuses": Tablet(InvalidArgument("no such column")),
    }
    reply = answered(tablets, ["here", "waits", "refuses", "gone", "here"])
    assert reply.answers == (rows, None, None, None, rows)
    assert [tablet.calls for tablet in tablets.values()] == [2, 0, 0]


def not_reached(tablet_id: TabletId) -> NoReturn:
    raise AssertionError(tablet_id)


def test_a_message_has_so_many_reads() -> None:
    """At most."""
    handler = SharedGets(not_reached).handlers()[GET_EACH]
    gets = tuple([Get(TabletId("t"), ())] * (GETS_MAX + 1))
    with pytest.raises(InvalidArgument):
        asyncio.run(handler(Call(GetEach(gets), (), 1.0)))
