"""Look-ups of one client that begin in the same turn of the loop, as one message to an indexlet.

A message costs client and server more than a look-up does. What goes wrong goes wrong for all of a
message; each then goes on by itself (`stelae.client.finds.shared_finds`).

Bounds: `LOOKUPS_MAX` in a message, each with few entries; longer answers are asked for anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.core.errors import StelaeError
from stelae.core.messages.indexes import (
    LOOKUP_MANY,
    LOOKUPS_MAX,
    IndexletLocation,
    LookupMany,
    LookupManyReply,
    LookupRange,
    LookupReply,
)
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime


class _Waiting(NamedTuple):
    wanted: LookupRange
    done: Callable[[LookupReply | None], None]


class SharedLookups:
    """Those of one table."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: dict[tuple[str, int], list[_Waiting]] = {}

    def add(
        self,
        at: IndexletLocation,
        wanted: LookupRange,
        done: Callable[[LookupReply | None], None],
    ) -> None:
        """Have it sent at the end of this turn. ``done`` is told the answer, once; None: the
        look-up is to be made by itself."""
        key = at.indexlet.indexlet_id, at.indexlet.term
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            asyncio.get_running_loop().call_soon(self._send, at, key)
        waiting.append(_Waiting(wanted, done))

    def _send(self, at: IndexletLocation, key: tuple[str, int]) -> None:
        waiting = self._waiting.pop(key)
        for first in range(0, len(waiting), LOOKUPS_MAX):
            self._post(at, waiting[first : first + LOOKUPS_MAX])

    def _post(self, at: IndexletLocation, part: list[_Waiting]) -> None:
        indexlet = at.indexlet
        ranges = tuple([one.wanted for one in part])
        is_sent = False
        try:
            is_sent = self._runtime.peers.post(
                at.address,
                LOOKUP_MANY,
                LookupMany(indexlet.indexlet_id, indexlet.term, ranges),
                partial(_answered, part),
                timeout_s=ATTEMPT_TIMEOUT_S,
                destination=indexlet.owner,
            )
        finally:
            if not is_sent:
                _by_themselves(part)


def _by_themselves(part: Sequence[_Waiting]) -> None:
    for one in part:
        one.done(None)


def _answered(part: Sequence[_Waiting], outcome: Reply[LookupManyReply] | StelaeError) -> None:
    if isinstance(outcome, StelaeError) or len(outcome.body.answers) != len(part):
        _by_themselves(part)
        return
    for one, found in zip(part, outcome.body.answers, strict=True):
        one.done(found)
