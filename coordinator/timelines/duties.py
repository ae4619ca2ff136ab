"""What the leader master has to do about timelines: from catalog, store and liveness alone. Pure.

Level-triggered, as `stelae.coordinator.decide` is: a new leader goes on where the former
one died.

- A tablet that is being created needs its timeline, on the safekeepers that its record names.
- A timeline whose tablet is gone is removed, for good.
- What a driver left unfinished is finished as soon as those who are needed are there.
- What operators have ordered is carried out until it is decided, by whichever master leads.
- A member that is lost for long, or decommissioned, is replaced; a change that cannot be finished
  without such members is taken back.

A safekeeper that is not heard counts as offline for what could not be done without it anyway: no
driver waits for it.

Implements seed 004 ("storage_controller implementation", "API"); design §10.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    FinishPending,
    MoveTo,
    Remove,
    Request,
    Statuses,
    Verdict,
)
from stelae.coordinator.timelines.placement import timeline_of
from stelae.coordinator.timelines.safekeepers import (
    Avoided,
    Fleet,
    decide_replacements,
    is_hopeless,
    needs_work,
)
from stelae.core.errors import InvalidArgument, TabletNotFound
from stelae.core.ids import TabletId
from stelae.core.records.configurations import MigrationOrder, TimelineId, TimelineRecord
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus


@dataclass(frozen=True, slots=True)
class Duty:
    """A request about one timeline, and why."""

    timeline: TimelineId
    request: Request
    reason: str


def statuses_now(fleet: Fleet, now: float, silence_s: float) -> Statuses:
    """What operators say of safekeepers; who is not heard is offline."""
    return {
        one.safekeeper_id: SafekeeperStatus.OFFLINE
        if one.status is SafekeeperStatus.ACTIVE and now - one.heard_s > silence_s
        else one.status
        for one in fleet.values()
    }


def creations(catalog: Catalog) -> list[Duty]:
    """The timelines of tablets that are being created."""
    return [
        Duty(timeline_of(tablet), Create(tablet.timeline.sk_set), "its tablet is created")
        for tablet in catalog.opening_tablets()
        if tablet.state is TabletState.CREATING and tablet.timeline is not None
    ]


def wish_of(order: MigrationOrder) -> MoveTo | Abort:
    """What a driver is asked for by an order."""
    return Abort() if order.desired is None else MoveTo(order.desired)


def is_void(catalog: Catalog, order: MigrationOrder) -> bool:
    """Whether the tablet is gone, and nobody is to move its timeline any more."""
    tablet = catalog.tablets.get(order.timeline.tablet_id)
    return tablet is None or tablet.state.is_gone


def decides(request: Request, verdict: Verdict, order: MigrationOrder) -> bool:
    """Whether a run of ``request`` that ended so leaves nothing to be done of an order.

    One in which nothing moved, or that was overtaken, decides nothing: it is made again. A change
    that was taken back is not begun again, whoever took it back.
    """
    if verdict in (Verdict.WAITING, Verdict.OVERTAKEN):
        return False
    was_taken_back = isinstance(request, Abort) and verdict is Verdict.ABORTED
    return was_taken_back or request == wish_of(order)


def left_to_do(
    catalog: Catalog, records: Sequence[TimelineRecord], statuses: Statuses
) -> list[Duty]:
    """What to remove and what to finish; ``records``: of the store."""
    found: list[Duty] = []
    for record in records:
        # Deleted tables are packed away: nobody looks for the tablets of deleted timelines.
        tablet = None if record.deleted else catalog.tablets.get(record.timeline.tablet_id)
        if tablet is not None and tablet.state.is_gone:
            found.append(Duty(record.timeline, Remove(), "its tablet is gone"))
        elif needs_work(record, statuses):
            left = ", ".join(record.unfinished)
            found.append(Duty(record.timeline, FinishPending(), f"left: {left}"))
    return found


def replacements(
    records: Sequence[TimelineRecord],
    fleet: Fleet,
    under_way: Mapping[TimelineId, Request],
    now: float,
    *,
    silence_s: float,
    grace_s: float,
    limit: int,
    broken: Mapping[TimelineId, Collection[SafekeeperId]] = MappingProxyType({}),
    avoid: Avoided = MappingProxyType({}),
) -> list[Duty]:
    """Members that are lost for good, as far as anybody can tell, give way to others; a change is
    taken back if they are those that it needs.

    ``under_way``: what runs already. What merely finishes keeps no replacement waiting: there is
    always something to finish while a lost member has not been told of the last change.
    """
    hopeless = [record for record in records if is_hopeless(record, fleet, now, grace_s)]
    aborts = [
        Duty(record.timeline, Abort(), "most of the new members are lost") for record in hopeless
    ]
    moves = decide_replacements(
        records,
        fleet,
        now,
        silence_s=silence_s,
        grace_s=grace_s,
        limit=limit,
        broken=broken,
        avoid=avoid,
    )
    return aborts + [
        Duty(move.timeline, move.request, move.reason)
        for move in moves
        if _may_begin(move.request, under_way.get(move.timeline))
    ]


def _may_begin(new: Request, old: Request | None) -> bool:
    return old is None or supersedes(new, old)


def timeline_tablet(catalog: Catalog, tablet_id: TabletId) -> TabletRecord:
    """A live tablet with a timeline. Raises TabletNotFound, InvalidArgument."""
    tablet = catalog.tablets.get(tablet_id)
    if tablet is None:
        raise TabletNotFound(tablet_id)
    if tablet.timeline is None:
        raise InvalidArgument(f"tablet {tablet_id} has no timeline: its table is not wal(…)")
    if tablet.state.is_gone:
        raise InvalidArgument(f"tablet {tablet_id} is {tablet.state.value}")
    return tablet


def supersedes(new: Request, old: Request) -> bool:
    """Whether a request ends the run of another one about the same timeline, which may be ended
    at any point: what it left is found in the store."""
    if isinstance(new, Remove | Abort):
        return not isinstance(old, Remove) and new != old
    return isinstance(new, MoveTo) and isinstance(old, FinishPending)


def named(request: Request) -> str:
    """For people."""
    match request:
        case MoveTo(desired):
            return f"move to {list(desired)}"
        case Create(members):
            return f"create on {list(members)}"
        case FinishPending():
            return "finish"
        case Abort():
            return "abort"
        case Remove():
            return "remove"
