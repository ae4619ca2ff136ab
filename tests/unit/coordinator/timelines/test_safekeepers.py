"""Decisions about safekeepers: where timelines begin, where they go, what is garbage."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.timelines.migration_steps import check_target
from stelae.coordinator.timelines.safekeepers import (
    Fleet,
    Held,
    Safekeeper,
    choose_initial,
    count_timelines,
    decide_evacuation,
    decide_replacements,
    decide_scrub,
    needs_work,
)
from stelae.core.errors import InvalidArgument, NotEnoughServers, TooFewServers
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration

ACTIVE, OFFLINE, GONE = SafekeeperStatus
NOW = 1000.0


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(map(SafekeeperId, numbers))


def fleet(*safekeepers: Safekeeper) -> Fleet:
    return {one.safekeeper_id: one for one in safekeepers}


def keeper(
    number: int,
    node: str = "",
    status: SafekeeperStatus = ACTIVE,
    silent_s: float = 0.0,
    rack: str = "",
) -> Safekeeper:
    return Safekeeper(SafekeeperId(number), node or f"n{number}", status, NOW - silent_s, rack)


def record(name: str, *members: int) -> TimelineRecord:
    timeline = TimelineId(TableId("t"), TabletId(name))
    return TimelineRecord(timeline, TimelineConfiguration(1, ids(*members)))


def replaced(
    records: list[TimelineRecord], keepers: Fleet, limit: int = 100
) -> dict[str, tuple[int, ...]]:
    moves = decide_replacements(records, keepers, NOW, silence_s=10.0, grace_s=60.0, limit=limit)
    return {move.timeline.tablet_id: move.request.desired for move in moves}


def test_a_timeline_begins_on_different_nodes_with_the_least_loaded() -> None:
    """Spread over nodes first, then load, then the lowest id; only active ones just heard of."""
    keepers = fleet(
        *(keeper(1, "a"), keeper(2, "a"), keeper(3, "b"), keeper(4, "c", OFFLINE)),
        *(keeper(5, "d", silent_s=11.0), keeper(6, "b")),
    )
    load = {SafekeeperId(1): 3, SafekeeperId(3): 1}
    assert choose_initial(keepers, 2, load, NOW, 10.0) == (2, 6)
    assert choose_initial(keepers, 3, load, NOW, 10.0) == (2, 6, 3)
    with pytest.raises(NotEnoughServers):
        choose_initial(keepers, 5, load, NOW, 10.0)
    with pytest.raises(TooFewServers):
        choose_initial(keepers, 6, load, NOW, 10.0)


def test_a_timeline_begins_in_different_racks_and_then_on_different_nodes() -> None:
    """Load counts only among places that are equally good; a node without a rack is one."""
    keepers = fleet(
        *(keeper(1, "a", rack="r"), keeper(2, "b", rack="r"), keeper(3, "c", rack="s")),
        *(keeper(4, "c", rack="s"), keeper(5, "d")),
    )
    load = {SafekeeperId(3): 7, SafekeeperId(4): 7, SafekeeperId(5): 9}
    assert choose_initial(keepers, 3, load, NOW, 10.0) == (1, 3, 5)
    assert choose_initial(keepers, 4, load, NOW, 10.0) == (1, 3, 5, 2)
    assert choose_initial(keepers, 5, load, NOW, 10.0) == (1, 3, 5, 2, 4)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SafekeeperStatus)), max_size=8),
    st.integers(1, 4),
)
def test_no_choice_ever_doubles_a_member_or_wastes_a_node(
    drawn: list[tuple[int, SafekeeperStatus]], count: int
) -> None:
    """Members are distinct and active, and use as many nodes as there are."""
    keepers = fleet(*(keeper(n + 1, f"n{node}", s) for n, (node, s) in enumerate(drawn)))
    active = [one for one in keepers.values() if one.status is ACTIVE]
    if len(active) < count:
        with pytest.raises(TooFewServers):
            choose_initial(keepers, count, {}, NOW, 10.0)
        return
    chosen = choose_initial(keepers, count, {}, NOW, 10.0)
    assert len(set(chosen)) == count
    assert all(keepers[one].status is ACTIVE for one in chosen)
    nodes = {keepers[one].node for one in chosen}
    assert len(nodes) == min(count, len({one.node for one in active}))


def test_the_dead_are_replaced_after_the_grace_time_and_the_decommissioned_at_once() -> None:
    """Offline ones are expected back; the rest of the set stays as it is, in its order."""
    records = [record("a", 1, 2, 3), record("b", 2, 3, 4), record("c", 3, 1, 5)]
    others = [*map(keeper, (2, 3, 4, 5, 6))]
    both: dict[str, tuple[int, ...]] = {"a": (6, 2, 3), "c": (3, 6, 5)}
    cases: list[tuple[Safekeeper, dict[str, tuple[int, ...]]]] = [
        (keeper(1, silent_s=59.0), {}),
        (keeper(1, status=OFFLINE, silent_s=1e6), {}),
        (keeper(1, silent_s=61.0), both),
        (keeper(1, status=GONE), both),
    ]
    for lost, expected in cases:
        load = [record(f"load {n}", 4, 5, 2) for n in range(9)]
        assert replaced(records + load, fleet(lost, *others)) == expected


def test_what_cannot_be_changed_is_left_alone_and_the_most_endangered_comes_first() -> None:
    """No majority heard, joint, or deleted: nothing is begun. The limit cuts the safest."""
    keepers = fleet(
        *(keeper(n, silent_s=100.0) for n in (1, 2)),
        *(keeper(n) for n in (3, 4, 5, 6, 7)),
    )
    joint = record("joint", 1, 3, 4).joint_with(ids(3, 4, 5))
    records = [
        record("two lost of five", 1, 2, 3, 4, 5),
        record("one lost of five", 1, 3, 4, 5, 6),
        record("hopeless", 1, 2, 3),
        joint,
        record("gone", 1, 3, 4).removed(),
    ]
    found = replaced(records, keepers)
    assert list(found) == ["two lost of five", "one lost of five"]
    assert set(found["two lost of five"]) == {3, 4, 5, 6, 7}
    assert list(replaced(records, keepers, limit=1)) == ["two lost of five"]
    assert replaced([record("x", 1, 3, 4)], fleet(*map(keeper, (3, 4)))) == {}


def test_an_evacuation_moves_what_it_can_up_to_its_limit() -> None:
    """``migrate src -> dst limit``: not what has the target already, nor what is being changed."""
    records = [
        record("a", 1, 2, 3),
        record("b", 2, 1, 4),
        record("c", 4, 3, 1),
        record("d", 1, 3, 2).joint_with(ids(2, 3, 5)),
        record("e", 2, 3, 5),
    ]
    keepers = (keeper(1), keeper(4), keeper(6), keeper(7, status=OFFLINE))
    statuses = {each.safekeeper_id: each.status for each in keepers}
    source, target = ids(1, 6)
    moves = decide_evacuation(records, statuses, source, target)
    assert [(m.timeline.tablet_id, m.request.desired) for m in moves] == [
        ("a", (6, 2, 3)),
        ("b", (2, 6, 4)),
        ("c", (4, 3, 6)),
    ]
    assert len(decide_evacuation(records, statuses, source, target, 2)) == 2
    to_member = decide_evacuation(records, statuses, source, SafekeeperId(4))
    assert [move.timeline.tablet_id for move in to_member] == ["a"]
    for wrong in (SafekeeperId(1), SafekeeperId(7), SafekeeperId(9)):
        with pytest.raises(InvalidArgument):
            decide_evacuation(records, statuses, source, wrong)
    with pytest.raises(InvalidArgument, match="limit"):
        decide_evacuation(records, statuses, source, target, 0)


def test_a_wish_is_checked_before_anything_is_written() -> None:
    """Unknown, doubled, too few, decommissioned, and offline ones that would have to join."""
    current = TimelineConfiguration(1, ids(1, 2, 3))
    statuses = {SafekeeperId(n): ACTIVE for n in (1, 2, 4)}
    statuses |= {SafekeeperId(3): OFFLINE, SafekeeperId(5): OFFLINE, SafekeeperId(6): GONE}
    check_target(ids(1, 3, 4), current, statuses, 3)
    for wrong, reason in (
        (ids(1, 1, 2), "twice"),
        (ids(1, 2), "3 or more"),
        ((), "3 or more"),
        (ids(1, 2, 9), "no safekeeper 9"),
        (ids(1, 2, 6), "decommissioned"),
        (ids(1, 2, 5), "offline"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            check_target(wrong, current, statuses, 3)


def test_garbage_is_only_what_the_store_proves() -> None:
    """A departed member's copy goes under the newest generation; deleted ones for good; unknown
    timelines, members of either set, copies newer than our view, and within a change all stay."""
    records = [
        record("member", 1, 2, 3),
        record("left", 2, 3, 4),
        record("joining", 2, 3).joint_with(ids(1, 2)),
        record("others change", 2, 3).joint_with(ids(3, 4)),
        record("deleted", 1, 2).removed(),
        record("newer", 2, 3),
    ]
    by_id = {one.timeline: one for one in records}
    unknown = TimelineId(TableId("t"), TabletId("unknown"))
    held = [Held(one.timeline, 2 if one.timeline.tablet_id == "newer" else 1) for one in records]
    found = decide_scrub(SafekeeperId(1), [*held, Held(unknown, 1)], by_id)
    assert [(order.timeline.tablet_id, order.forever) for order in found] == [
        ("left", False),
        ("deleted", True),
    ]
    assert [order.configuration.generation for order in found] == [1, 2]


def test_only_what_can_be_done_now_is_work() -> None:
    """Who is offline is not asked; who is decommissioned is struck off; the rest is told."""
    done = msgspec.structs.replace(record("a", 1, 2), notified_generation=1, delivered_generation=1)
    statuses = {SafekeeperId(1): ACTIVE, SafekeeperId(2): OFFLINE, SafekeeperId(3): GONE}
    assert not needs_work(done, statuses)
    assert needs_work(done.joint_with(ids(1)), {})
    left = msgspec.structs.replace(done, departed=ids(2))
    left = msgspec.structs.replace(left, configuration=TimelineConfiguration(1, ids(1)))
    assert not needs_work(left, statuses)
    assert needs_work(left, {SafekeeperId(2): ACTIVE})
    assert needs_work(left, {SafekeeperId(2): GONE})
    assert needs_work(msgspec.structs.replace(done, notified_generation=0), {})
    undelivered = msgspec.structs.replace(done, delivered_generation=0)
    assert needs_work(undelivered, statuses)
    assert not needs_work(undelivered, dict.fromkeys(ids(1, 2), OFFLINE))


def test_load_counts_both_sets_and_no_deleted_timelines() -> None:
    """A joining member has work from the first moment."""
    records = [record("a", 1, 2).joint_with(ids(2, 3)), record("b", 1).removed()]
    assert count_timelines(records) == {1: 1, 2: 1, 3: 1}
