"""`stelae.coordinator.ddl.losses` of tablets that are served without some of their rows."""

from __future__ import annotations

import msgspec
import pytest

from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.losses import (
    Incomplete,
    accepted_by,
    draft_accept,
    fingerprint,
    losses_of,
)
from stelae.coordinator.liveness.liveness import Run
from stelae.coordinator.status.losses import lacks_of, waiting_tablets, would_lose_more
from stelae.core.errors import InvalidArgument
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.losses import (
    AcceptLoss,
    Assessment,
    KeptSegment,
    LostSegment,
    SegmentFacts,
)
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import segments
from tests.unit.coordinator.groups.group_world import World

LACKS = (SegmentFacts(7, 10, 1000, 90),)
FOUND = Assessment((LostSegment(7, 10, 1000, 90),), False, True, (KeptSegment(8),), 500)


def served(world: World) -> TabletRecord:
    (tablet,) = world.create(segments("disk"))
    running = msgspec.structs.replace(
        tablet, state=TabletState.RUNNING, generation=tablet.generation + 1
    )
    world.put(CatalogBatch(tablets=(running,)))
    return running


def says(world: World, tablet: TabletRecord, **more: object) -> None:
    seen = world.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    assert seen is not None
    report = TabletReport(tablet.tablet_id, tablet.term, TabletProgress.SERVING)
    seen.reports[tablet.tablet_id] = msgspec.structs.replace(report, **more)


def test_its_owner_says_what_it_lacks_in_its_term() -> None:
    """A report of another term, or of nothing that is missing, is none."""
    world = World("a")
    tablet = served(world)
    assert waiting_tablets(world.catalog, world.liveness) == []
    says(world, tablet, lacks=LACKS)
    assert waiting_tablets(world.catalog, world.liveness) == [tablet]
    assert lacks_of(world.liveness, tablet) == LACKS
    says(world, tablet, lacks=LACKS, term=tablet.term + 1)
    assert waiting_tablets(world.catalog, world.liveness) == []


def test_what_is_in_its_servers_memory_only_is_not_lost_by_the_way() -> None:
    """A recovery would not find it."""
    world = World("a")
    tablet = served(world)
    says(world, tablet, lacks=LACKS)
    assert would_lose_more(world.liveness, [tablet]) == ""
    says(world, tablet, lacks=LACKS, in_memory_only=2)
    assert "2 segments" in would_lose_more(world.liveness, [tablet])
    recovering = msgspec.structs.replace(tablet, state=TabletState.RECOVERING)
    assert would_lose_more(world.liveness, [recovering]) == ""


def test_its_recovery_gives_up_what_is_named_and_nothing_else() -> None:
    """The same owner, in the next term; what is kept its log says when it is fenced. Once."""
    world = World("a")
    tablet = served(world)
    incomplete = {tablet.tablet_id: Incomplete(tablet, FOUND)}
    losses = losses_of(world.catalog, incomplete)
    assert losses[0].is_served
    order = AcceptLoss(world.request(), fingerprint(losses), "Ada")
    world.put(draft_accept(world.catalog, order, incomplete, 5.0))
    record = world.catalog.tablets[tablet.tablet_id]
    assert (record.state, record.term) == (TabletState.RECOVERING, tablet.term + 1)
    assert (record.owner, record.owner_incarnation) == (tablet.owner, tablet.owner_incarnation)
    assert record.kept is not None
    assert (record.kept.segments, record.kept.given_up) == ((), (7,))
    assert not record.kept.is_list
    assert [each.loss for each in accepted_by(world.catalog, order.request)] == losses
    again = AcceptLoss(world.request(), fingerprint(losses), "Ada")
    with pytest.raises(InvalidArgument):
        draft_accept(world.catalog, again, incomplete, 6.0)
