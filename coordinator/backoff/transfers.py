"""Leaderships that were to be handed over: to whom, and where that did not happen. Pure.

A part of `stelae.coordinator.backoff.pacing`: in memory only, and lost with the leadership. A new
leader master orders a transfer once more.

The choice of a target is deterministic. A follower that is heard and well, and that can still not
take over (its votes do not arrive, or it never catches up under load), would be chosen each time.

Rules:

1. A transfer has failed if the tablet's leader says itself that it could not do it in time; or if
   it still leads in the same term, by a heartbeat of later than `TRANSFER_S` after the order; or if
   it leads again in a later term. A leader steps down before its target stands for election.
2. Anything else counts for nothing: an order that did not arrive, or another leader.
3. The target that failed is left alone for a pause that doubles, and comes last after that
   (`stelae.coordinator.backoff.owners`). Until a pause ends, the leader stays as it is.

Source: decisions §61; Raft thesis §3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.core.errors import DeadlineExpired, OutcomeUnknown, StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import TRANSFER_ATTEMPT

TRANSFER_S = 10.0
"""Time within which a leader that has the order leads no more. Leaders try for one election
timeout."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A transfer, as it was ordered first."""

    leader: ServerUuid
    term: int
    target: ServerUuid
    told_at: float


class Transfers:
    """See the module. ``now`` is the leader master's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._orders: dict[TabletId, _Order] = {}
        """At most one for each tablet; each ends after `TRANSFER_S` and one heartbeat."""
        self._failed: FailedOwners[TabletId] = FailedOwners()
        self._missed: dict[TabletId, None] = {}
        """Transfers that failed in this round or the last one."""

    def begin_round(self, now: float) -> None:
        """Forget what is over."""
        self._failed.begin_round(now)

    def told(
        self, tablet_id: TabletId, leader: ServerUuid, term: int, target: ServerUuid, now: float
    ) -> None:
        """The order goes to ``leader``, which leads in ``term``; again, or for the first time."""
        known = self._orders.get(tablet_id)
        same = known is not None and (known.leader, known.term, known.target) == (
            leader,
            term,
            target,
        )
        if not same:  # the time of the first order counts: it is repeated until it is done
            self._orders[tablet_id] = _Order(leader, term, target, now)

    def refused(
        self, tablet_id: TabletId, target: ServerUuid, error: StelaeError, now: float
    ) -> None:
        """The order came to this error."""
        known = self._orders.get(tablet_id)
        if known is None or known.target != target or isinstance(error, OutcomeUnknown):
            return  # the leader may have it: its next heartbeats say what becomes of it
        del self._orders[tablet_id]
        # Rule 2: a call that expired on its way names its method, and says nothing of the target.
        if isinstance(error, DeadlineExpired) and error.args[0] == TRANSFER_ATTEMPT:
            self._fail(tablet_id, target, now)

    def pending(self) -> tuple[TabletId, ...]:
        """The tablets with an order: `look` is to be told of each."""
        return tuple(self._orders)

    def look(
        self, tablet_id: TabletId, leader: ServerUuid | None, term: int, heard_at: float, now: float
    ) -> None:
        """Note what became of the order. ``leader`` leads in ``term``, as it said at ``heard_at``;
        None: nobody is known to lead, or the tablet is gone."""
        order = self._orders[tablet_id]
        if leader is None:
            # A hand-over is just that for a moment. One without an end is another's to heal.
            if now >= order.told_at + 2 * TRANSFER_S:
                del self._orders[tablet_id]
        elif leader != order.leader:
            del self._orders[tablet_id]
            if leader == order.target:
                self._failed.succeeded(tablet_id, leader)
        elif term > order.term or heard_at >= order.told_at + TRANSFER_S:  # rule 1
            del self._orders[tablet_id]
            self._fail(tablet_id, order.target, now)

    def _fail(self, tablet_id: TabletId, target: ServerUuid, now: float) -> None:
        self._failed.failed(tablet_id, (target,), now)
        self._missed[tablet_id] = None

    def take_missed(self) -> tuple[TabletId, ...]:
        """The tablets whose leadership stayed where it was, since this was asked the last time."""
        missed, self._missed = tuple(self._missed), {}
        return missed

    def avoid(self, tablet_id: TabletId) -> Mapping[ServerUuid, float]:
        """The servers that did not take over, and until when each is paused."""
        return self._failed.avoid(tablet_id)

    def known_failures(self) -> KnownFailures:
        """The same, with the servers that did not take over one tablet after the other."""
        return KnownFailures(self.avoid, self._failed.doubted())
