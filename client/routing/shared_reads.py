"""Rows that look-ups of one client read at the same time, as one message to each server.

Look-ups that were answered by one message (`stelae.client.finds.shared_lookups`) go on in the same
turn of the loop, each to the tablets of its rows. Those that ask the same server go out together at
the turn's end, as reads by tablet (`GET_EACH`). The server answers at once what it can answer
without waiting for anything: so a row that cannot be read now holds up only those who want it. They
ask for it by themselves, as if for the first time; so do all of a message that goes wrong.

How long a message may take, and which tablets share none, says `stelae.client.routing.sharing`.

Bounds: `KEYS_MAX` keys in a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.sharing import Receiver, Sharing
from stelae.core.errors import StelaeError
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import GET_EACH, Get, GetEach, GetEachReply, GetReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.values import WireRow

KEYS_MAX = 64

Done: TypeAlias = Callable[[GetReply | None], None]


class Alike(NamedTuple):
    """What reads have in common that are one read of a tablet."""

    number: int
    columns: tuple[str, ...]
    schema_version: int


class _Waiting(NamedTuple):
    alike: Alike
    where: TabletLocation
    keys: Sequence[WireRow]
    done: Done


class SharedReads:
    """Those of one table."""

    def __init__(self, runtime: Runtime, cache: TableCache) -> None:
        self._runtime = runtime
        self._sharing = Sharing(runtime, cache)
        self._waiting: list[_Waiting] = []
        self._under_way = 0

    async def get(
        self,
        alike: Alike,
        keys: Sequence[WireRow],
        timeout_s: float,
        alone: Callable[[float], Awaitable[GetReply]],
    ) -> GetReply:
        """Rows of one tablet; by ``alone``, with the time that is left, if not with others'. One by
        itself waits for nobody."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        self._under_way += 1
        try:
            if self._under_way > 1 and timeout_s >= ATTEMPT_TIMEOUT_S:
                answer: asyncio.Future[GetReply | None]
                answer = asyncio.get_running_loop().create_future()
                self.add(alike, keys, partial(_tell, answer))
                found = await answer
                if found is not None:
                    return found
            return await alone(deadline - clock.monotonic())
        finally:
            self._under_way -= 1

    def add(self, alike: Alike, keys: Sequence[WireRow], done: Done) -> None:
        """Have these rows of a tablet read with others', at the end of this turn. ``done`` is told
        them, once, maybe at once; None: they are to be asked for by themselves."""
        where = self._sharing.where(alike.number) if len(keys) < KEYS_MAX else None
        if where is None:
            done(None)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(_Waiting(alike, where, keys, done))

    # ---- messages ---------------------------------------------------------------------------

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        parts: dict[Receiver, list[_Waiting]] = {}
        for one in waiting:
            parts.setdefault(Receiver.of(one.where), []).append(one)
        for receiver, ones in parts.items():
            part: list[_Waiting] = []
            count = 0
            for one in ones:
                if count + len(one.keys) > KEYS_MAX:
                    self._post(receiver, part)
                    part, count = [], 0
                part.append(one)
                count += len(one.keys)
            self._post(receiver, part)

    def _post(self, receiver: Receiver, part: list[_Waiting]) -> None:
        reads: dict[Alike, list[_Waiting]] = {}
        for one in part:
            reads.setdefault(one.alike, []).append(one)
        each = GetEach(tuple([_order(alike, ones) for alike, ones in reads.items()]))
        done = partial(self._answered, list(reads.values()))
        is_sent = False
        try:
            is_sent = self._sharing.post(receiver, GET_EACH, each, done)
        finally:
            if not is_sent:
                _by_themselves(part)

    def _answered(
        self, reads: Sequence[Sequence[_Waiting]], outcome: Reply[GetEachReply] | StelaeError
    ) -> None:
        if isinstance(outcome, StelaeError) or len(outcome.body.answers) != len(reads):
            for ones in reads:
                self._not_now(ones)
            return
        for ones, found in zip(reads, outcome.body.answers, strict=True):
            if found is None or len(found.rows) != sum([len(one.keys) for one in ones]):
                self._not_now(ones)
            elif len(ones) == 1:
                ones[0].done(found)
            else:
                first = 0
                for one in ones:
                    end = first + len(one.keys)
                    one.done(GetReply(found.rows[first:end]))
                    first = end

    def _not_now(self, ones: Sequence[_Waiting]) -> None:
        self._sharing.pause([ones[0].alike.number])
        _by_themselves(ones)


def _order(alike: Alike, ones: Sequence[_Waiting]) -> Get:
    keys = tuple(ones[0].keys) if len(ones) == 1 else tuple([k for one in ones for k in one.keys])
    return Get(ones[0].where.tablet.tablet_id, keys, alike.columns, alike.schema_version)


def _by_themselves(part: Sequence[_Waiting]) -> None:
    for one in part:
        one.done(None)


def _tell(answer: asyncio.Future[GetReply | None], found: GetReply | None) -> None:
    if not answer.done():
        answer.set_result(found)
