"""`stelae.coordinator.leaving`: tablets with segments leave a server that is to be retired."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.coordinator.catalog import CatalogBatch
from stelae.coordinator.decide import Move
from stelae.coordinator.leaving import Close, what_stays
from stelae.core.durability import segments
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages import TabletProgress, TabletReport
from stelae.core.records import ServerMark, TableRecord, TabletRecord, TabletState
from tests.unit.coordinator.test_decide import World, report, server, tablet

P = TabletProgress


def other(**changes: Any) -> TabletRecord:
    """Tablet ``b``, like `tablet`."""
    return msgspec.structs.replace(tablet(), tablet_id=TabletId("b"), number=1, **changes)


def retire(world: World, name: str) -> None:
    mark = world.catalog.mark(ServerUuid(name))
    mark = ServerMark(ServerUuid(name), name, retiring=True, generation=mark.generation + 1)
    world.put(CatalogBatch(marks=(mark,)))


def serving(*tablets: str, **changes: Any) -> list[TabletReport]:
    return [msgspec.structs.replace(report(t, 1, P.SERVING), **changes) for t in tablets]


def test_tablets_leave_one_after_the_other() -> None:
    """Golden conversation: close, closed, moved and recovered; only then the next one."""
    world = World(tablet(), other())
    world.beat("s1", *serving("a", "b"))
    world.beat("s2")
    assert world.decide() == []
    retire(world, "s1")
    close = Close(server("s1"), TabletId("a"), 1)
    assert world.decide() == [close]
    assert world.decide() == [close], "until it is closed"
    world.now += 0.1
    world.beat("s1", *serving("b"))
    (move,) = (action for action in world.decide() if isinstance(action, Move))
    assert [(t.tablet_id, t.owner, t.term) for t in move.tablets] == [("a", "s2", 2)]
    assert not [action for action in world.decide() if isinstance(action, Close)]
    moved = world.tablet
    world.put(
        CatalogBatch(
            tablets=(
                msgspec.structs.replace(
                    moved, state=TabletState.RUNNING, generation=moved.generation + 1
                ),
            )
        )
    )
    world.now += 0.1
    world.beat("s2", report("a", 2, P.SERVING))
    world.beat("s1", *serving("b"))
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]


@pytest.mark.parametrize(
    ("reports", "others"),
    [
        (serving("a", under_replicated=1), True),
        ([report("a", 1, P.PREPARED)], True),
        (serving("a"), False),
    ],
)
def test_a_tablet_stays_where_it_is_until_it_is_sure_to_arrive(
    reports: list[TabletReport], others: bool
) -> None:
    """While a segment lacks a replica, or it is not served yet, or there is nobody to get it."""
    world = World(tablet())
    world.beat("s1", *reports)
    if others:
        world.beat("s2")
    retire(world, "s1")
    assert not [action for action in world.decide(obey=False) if isinstance(action, Close)]


def test_rows_in_memory_only_stay_and_are_told_of() -> None:
    """Their tablets are never closed for this; each reason has its words."""
    world = World(tablet())
    table = world.catalog.tables[tablet().table_id]
    fleeting: TableRecord = msgspec.structs.replace(table, durability=segments(), generation=2)
    world.beat("s1", *serving("a"))
    world.beat("s2")
    retire(world, "s1")
    seen = world.seen("s1")
    assert what_stays(world.catalog, seen, True) == (0, "")
    assert "no other live tserver" in what_stays(world.catalog, seen, False)[1]
    world.beat("s1", *serving("a", under_replicated=2))
    assert "lack replicas on backups" in what_stays(world.catalog, world.seen("s1"), True)[1]
    world.put(CatalogBatch((fleeting,)))
    world.beat("s1", *serving("a"))
    assert world.decide() == []
    count, problem = what_stays(world.catalog, world.seen("s1"), True)
    assert (count, "tables t, with segments()" in problem) == (1, True)
    assert what_stays(world.catalog, None, True) == (0, "")


def test_a_live_owner_without_a_mark_gets_its_time() -> None:
    """What a server that is not to be retired leaves out of its reports is moved later."""
    world = World(tablet())
    world.beat("s1", *serving("a"))
    world.beat("s2")
    world.now += 0.1
    world.beat("s1")
    assert world.decide() == []
