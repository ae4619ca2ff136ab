"""What messages that carry several calls of one client have in common: whom they go to, how long.

Calls on several tablets of one server share a message, and its answer comes once all of them have
theirs. So a message may take `SLOWER_S` longer than usual: its server may be gone, or one tablet
may wait for something that others have nothing to do with. Nothing is shared for `PAUSE_S` on a
tablet of such a message, nor on one that could not do its part at once.

Tablets with an owner only: whom of a group to ask is another matter
(`stelae.client.routing.group_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.rpc import Method, Reply
from stelae.core.runtime import Runtime

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

SLOWER_S = 0.25
PAUSE_S = 2.0
_SMOOTHING = 1 / 8


class Receiver(NamedTuple):
    """A server, as the owner of tablets."""

    address: Address
    owner: ServerUuid | None

    @staticmethod
    def of(where: TabletLocation) -> Receiver:
        return Receiver(where.address, where.tablet.owner)


class Sharing:
    """Of messages of one kind, for one table."""

    def __init__(self, runtime: Runtime, cache: TableCache) -> None:
        self._runtime = runtime
        self._cache = cache
        self._usual_s = 0.0
        self._pauses: dict[int, float] = {}
        """Tablets, and until when each call on one of them goes by itself."""

    def where(self, number: int) -> TabletLocation | None:
        """The tablet, if calls on it may be shared now."""
        if self._is_paused(number):
            return None
        try:
            found = self._cache.tablet(number)
        except WasSplit:
            return None
        return found if found.address and not found.tablet.is_group else None

    def pause(self, numbers: Iterable[int]) -> None:
        """Calls on these tablets go by themselves for a while."""
        until_s = self._runtime.clock.monotonic() + PAUSE_S
        self._pauses.update(dict.fromkeys(numbers, until_s))

    def post(
        self,
        to: Receiver,
        method: Method[Q, R],
        body: Q,
        done: Callable[[Reply[R] | StelaeError], None],
    ) -> bool:
        """Send a message; as `Peers.post`, with as much patience as messages have had to have."""
        clock = self._runtime.clock
        begin_s = clock.monotonic()

        def answered(outcome: Reply[Any] | StelaeError) -> None:
            if isinstance(outcome, OutcomeUnknown | Reply):  # or the next one would be as late
                self._note_duration(clock.monotonic() - begin_s)
            done(outcome)

        return self._runtime.peers.post(
            to.address,
            method,
            body,
            answered,
            timeout_s=min(self._usual_s + SLOWER_S, ATTEMPT_TIMEOUT_S),
            destination=to.owner,
        )

    def _is_paused(self, number: int) -> bool:
        until_s = self._pauses.get(number)
        if until_s is None:
            return False
        if self._runtime.clock.monotonic() < until_s:
            return True
        self._pauses.pop(number, None)
        return False

    def _note_duration(self, duration_s: float) -> None:
        """Smoothed. One that was much too long counts as one that was just too long."""
        sample_s = min(duration_s, self._usual_s + SLOWER_S)
        self._usual_s += (sample_s - self._usual_s) * _SMOOTHING
