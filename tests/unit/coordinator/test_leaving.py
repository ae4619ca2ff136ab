"""`stelae.coordinator.moves.leaving`: tablets with segments leave a server that is to be
retired."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.operator_orders import progress_of
from stelae.coordinator.decide import Move
from stelae.coordinator.moves.departures import GENTLE_BYTES_PER_S, LONGEST_REST_S, REST, Close
from stelae.coordinator.moves.leaving import owned_that_count, what_stays
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ServerMark, TableRecord, TabletRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.core.schema.own_tables import AUDIT_TABLE
from tests.unit.coordinator.decide_world import World, report, server, tablet

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
    assert_first_leaves(world)
    assert world.decide() == [], "who writes to both has a rest first"
    world.now += 0.3 * REST - 0.1
    both_beat(world)
    assert world.decide() == []
    world.now += 0.2
    both_beat(world)
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]


def test_the_rest_begins_when_rows_have_followed() -> None:
    """Bringing them back keeps disks and processors busy, which writers feel: so they come slowly.
    They are not waited for without end."""
    world = World(tablet(), other())
    assert_first_leaves(world, remote_bytes=9)
    assert world.decide() == []
    world.now += 0.5
    both_beat(world, loaded_s=0.5)
    world.now += 0.3 * REST - 0.1
    both_beat(world, loaded_s=0.5)
    assert world.decide() == []
    world.now += 0.2
    both_beat(world, loaded_s=0.5)
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]

    world = World(tablet(), other())
    assert_first_leaves(world, remote_bytes=9)
    assert world.decide() == []
    world.now += LONGEST_REST_S - 0.1
    both_beat(world, remote_bytes=9)
    assert world.decide() == []
    world.now += 0.2
    both_beat(world, remote_bytes=9)
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]


def test_a_new_leader_goes_on_at_once_and_a_pause_that_failed_is_not_paid_for() -> None:
    """The pace is only in memory; and a rest has an end, however long a pause was."""
    world = World(tablet(), other())
    assert_first_leaves(world)
    world.pacing = Pacing()
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]

    world = World(tablet(), other())
    assert_first_leaves(world, pause_s=1.5, heard_again=20)
    assert world.decide() == []
    world.now += LONGEST_REST_S
    both_beat(world)
    assert world.decide() == [Close(server("s1"), TabletId("b"), 1)]


def both_beat(world: World, **changes: Any) -> None:
    world.beat("s2", msgspec.structs.replace(report("a", 2, P.SERVING), **changes))
    world.beat("s1", *serving("b"))


def assert_first_leaves(
    world: World, *, pause_s: float = 0.3, heard_again: int = 1, **changes: Any
) -> None:
    """Tablet ``a`` of ``s1`` goes to ``s2``, and is served there after that time, so many times."""
    world.beat("s1", *serving("a", "b"))
    world.beat("s2")
    assert world.decide() == []
    retire(world, "s1")
    close = Close(server("s1"), TabletId("a"), 1)
    assert world.decide() == [close]
    assert world.decide() == [close], "until it is closed"
    world.beat("s1", *serving("b"))
    (move,) = (action for action in world.decide() if isinstance(action, Move))
    assert [(t.tablet_id, t.owner, t.term) for t in move.tablets] == [("a", "s2", 2)]
    rates = [world.pacing.departures.load_rate(t) for t in (world.tablet, other())]
    assert rates == [GENTLE_BYTES_PER_S, 0.0]
    for _ in range(heard_again):
        world.now += pause_s
        world.beat("s2", report("a", 2, P.OPENING))
        world.beat("s1", *serving("b"))
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
    both_beat(world, **changes)


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


def test_a_table_of_stelaes_own_keeps_no_tserver() -> None:
    """Where nobody else could take its tablets they do not count; else they leave as all do."""
    world = World(tablet())
    table = world.catalog.tables[tablet().table_id]
    own: TableRecord = msgspec.structs.replace(table, name=AUDIT_TABLE, generation=2)
    world.beat("s1", *serving("a"))
    seen = world.seen("s1")
    assert len(owned_that_count(world.catalog, seen, False)) == 1
    world.put(CatalogBatch((own,)))
    assert owned_that_count(world.catalog, seen, False) == []
    assert what_stays(world.catalog, seen, False) == (0, "")
    assert len(owned_that_count(world.catalog, seen, True)) == 1
    retire(world, "s1")
    found = progress_of(world.catalog, world.liveness, "s1", world.now)
    assert (found.tablets, found.problem) == (0, "")
    world.beat("s2")
    assert progress_of(world.catalog, world.liveness, "s1", world.now).tablets == 1


def test_a_live_owner_without_a_mark_gets_its_time() -> None:
    """What a server that is not to be retired leaves out of its reports is moved later."""
    world = World(tablet())
    world.beat("s1", *serving("a"))
    world.beat("s2")
    world.now += 0.1
    world.beat("s1")
    assert world.decide() == []
