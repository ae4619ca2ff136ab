"""Servers at which one object after the other failed, of whatever kind was to go there. Pure.

A server that is heard by the masters and works for nobody is the emptiest one, so it is the best
choice for each object again. Memory by object and server lets every object fail there once.

Rules:

1. A server is doubted once two different objects failed there, and none has succeeded since. One
   object alone may itself be at fault.
2. Its pause doubles with each failure from then on, of whatever object.
3. One success ends the doubt. A doubt is forgotten some time after its pause.
4. Where nobody waits for the choice (`KnownFailures`), a doubted server is left alone during its
   pause. After that come objects that have not failed there, and then those that have. Where
   somebody waits, only the object's own failures count: the server may be the only one.

In memory only, and lost with the leadership: each server is then tried twice more. Decisions §73.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from stelae.coordinator.placement.assignment import Avoided
from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid, TabletId

K = TypeVar("K")

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""Pauses of a doubted server."""
FORGOTTEN_AFTER_S = 1800.0
"""Time after such a pause until the doubt is forgotten."""


@dataclass(slots=True)
class _Doubt(Generic[K]):
    """Failures at one server since the last success there."""

    first: K
    """The object that failed first."""
    until: float
    times: int = 0
    """Failures from the first one of another object on."""


class DoubtedServers(Generic[K]):
    """See the module. ``now`` is the leader's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._doubts: dict[ServerUuid, _Doubt[K]] = {}

    def failed(self, key: K, server: ServerUuid, now: float) -> None:
        """``key`` failed at ``server``."""
        doubt = self._doubts.get(server)
        if doubt is None:
            self._doubts[server] = _Doubt(key, now)
        elif doubt.times or doubt.first != key:
            doubt.until = now + doubled_s(FIRST_PAUSE_S, doubt.times, LONGEST_PAUSE_S)
            doubt.times += 1

    def succeeded(self, server: ServerUuid) -> None:
        """Something works at ``server`` (rule 3)."""
        self._doubts.pop(server, None)

    def prune(self, now: float) -> None:
        """Forget what is old. Servers come and go, so this is to be called again and again."""
        old = now - FORGOTTEN_AFTER_S
        for server in [server for server, each in self._doubts.items() if each.until < old]:
            del self._doubts[server]

    def pauses(self) -> dict[ServerUuid, float]:
        """The doubted servers, and until when each is paused (rule 1)."""
        return {server: each.until for server, each in self._doubts.items() if each.times}


class KnownFailures(NamedTuple):
    """What those know who choose a server while nobody waits for the choice."""

    own: Avoided
    """The servers where a tablet failed itself."""
    doubted: Mapping[ServerUuid, float] = {}
    """Doubted servers, and until when each is paused."""

    def may_go(self, tablet_id: TabletId, server: ServerUuid, now: float) -> bool:
        """Whether a tablet may go there now: no pause is under way."""
        own_until = self.own(tablet_id).get(server, now)
        return now >= own_until and now >= self.doubted.get(server, now)

    def rank(self, tablet_id: TabletId, server: ServerUuid) -> tuple[float, float]:
        """The larger, the sooner it is to be tried: (0, 0) where nothing has failed."""
        return -self.own(tablet_id).get(server, 0.0), -self.doubted.get(server, 0.0)
