"""What the leader master tried a moment ago, so that it is not tried again at once. Pure.

The only memory of `stelae.coordinator.decide`; lost with the leadership, which does no
harm. Source: seed Kudu multi-master (retried until done or superseded); design §7.

Names of what the coordinator does contain terms and entries, so there are ever new ones: whatever
is over is forgotten, at the latest when as many have come again as were left after the last time.
So this never holds more than twice what truly waits, and a little.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.backoff.successions import SuccessionPacing
from stelae.coordinator.backoff.transfers import Transfers
from stelae.coordinator.groups.health import Unwell
from stelae.coordinator.groups.replacements import Additions
from stelae.coordinator.moves.departures import Departures
from stelae.coordinator.placement.tablet_sizes import TabletSizes
from stelae.core.ids import TabletId
from stelae.core.schema.indexes import IndexletId


@dataclass(slots=True)
class Pacing:
    """What was tried a moment ago, so that it is not tried again at once.

    Only in memory: a new leader tries everything once more, which is harmless.
    """

    _not_ordered_before: dict[TabletId, float] = field(default_factory=dict)
    owners: FailedOwners[TabletId] = field(default_factory=FailedOwners)
    """Where tablets failed: they go elsewhere if they can."""
    indexlets: FailedOwners[IndexletId] = field(default_factory=FailedOwners)
    """Where indexlets, or their successors, failed."""
    transfers: Transfers = field(default_factory=Transfers)
    """Leaders that were told to hand over, and to whom that failed."""
    sizes: TabletSizes = field(default_factory=TabletSizes)
    """Memory that tablets will need where they are opened."""
    unwell: Unwell = field(default_factory=Unwell)
    """Replicas that are in doubt, since when."""
    additions: Additions = field(default_factory=Additions)
    """Replicas that leaders were told to add."""
    successions: SuccessionPacing = field(default_factory=SuccessionPacing)
    departures: Departures = field(default_factory=Departures)
    """Tablets that leave their servers by plan."""
    _creating_since: dict[TabletId, float] = field(default_factory=dict)
    """When this leader first saw a tablet CREATING."""

    def begin_round(self, now: float) -> None:
        """The leader looks at everything: what is over is forgotten."""
        self.owners.begin_round(now)
        self.indexlets.begin_round(now)
        self.transfers.begin_round(now)

    def creating(self, tablets: Iterable[TabletId], now: float) -> None:
        """These tablets, and no others, are being created."""
        known = self._creating_since
        self._creating_since = {tablet_id: known.get(tablet_id, now) for tablet_id in tablets}

    def created_for_s(self, tablet_id: TabletId, now: float) -> float:
        """How long it has been in creation."""
        return now - self._creating_since.get(tablet_id, now)

    def ordered(self, tablet_id: TabletId, until: float) -> None:
        """The owner has been told to open it, or could not be: leave it alone until then."""
        self._not_ordered_before[tablet_id] = until

    def may_order(self, tablet_id: TabletId, now: float) -> bool:
        return now >= self._not_ordered_before.get(tablet_id, now)

    def moved(self, tablet_id: TabletId) -> None:
        """It has a new owner, who can be told at once."""
        self._not_ordered_before.pop(tablet_id, None)

    def succeeded(self, tablet_id: TabletId) -> None:
        """The tablet runs. Where it failed before is remembered until it has run for a while."""
        self._not_ordered_before.pop(tablet_id, None)


K = TypeVar("K", bound=Hashable)
LEAST = 100
"""So many are no burden."""


class Pauses(Generic[K]):
    """Until when each key is to be left alone."""

    def __init__(self) -> None:
        self._until: dict[K, float] = {}
        self._limit = LEAST

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, key: K, until: float, now: float) -> None:
        """Leave it alone until then, from ``now`` on."""
        self._until[key] = until
        if len(self._until) > self._limit:
            self._until = {k: end for k, end in self._until.items() if end > now}
            self._limit = 2 * len(self._until) + LEAST

    def is_over(self, key: K, now: float) -> bool:
        """Whether it may be done again, or was never paused."""
        return now >= self._until.get(key, now)
