"""`stelae.coordinator.placement.doubted`: servers at which one object after the other failed."""

from __future__ import annotations

import pytest

from stelae.coordinator.placement.doubted import (
    FIRST_PAUSE_S,
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    DoubtedServers,
    KnownFailures,
)
from stelae.coordinator.placement.rebalance import Placed, by_failures
from stelae.core.ids import ServerUuid, TableId, TabletId

S, OTHER = ServerUuid("s"), ServerUuid("other")
T = TabletId("t")


def test_a_server_is_doubted_once_two_objects_failed_there() -> None:
    """One object that fails again and again may itself be at fault."""
    doubted: DoubtedServers[str] = DoubtedServers()
    for now in (0.0, 1.0, 2.0):
        doubted.failed("one", S, now)
    assert doubted.pauses() == {}
    doubted.failed("two", S, 3.0)
    assert doubted.pauses() == {S: 3.0 + FIRST_PAUSE_S}


@pytest.mark.parametrize("objects", [12, 2], ids=["another each time", "two in turns of three"])
def test_pauses_double_with_whatever_fails(objects: int) -> None:
    """Up to a limit; also if the object is the same as the last time."""
    doubted: DoubtedServers[int] = DoubtedServers()
    pauses_s = []
    for number in range(12):
        doubted.failed(number if objects > 2 else (number + 2) // 3 % objects, S, 0.0)
        pauses_s.append(doubted.pauses().get(S, 0.0))
    assert pauses_s[:4] == [0.0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses_s[-1] == LONGEST_PAUSE_S


def test_one_success_ends_the_doubt_of_that_server() -> None:
    """And of no other."""
    doubted: DoubtedServers[str] = DoubtedServers()
    for server in (S, OTHER):
        doubted.failed("one", server, 0.0)
        doubted.failed("two", server, 0.0)
    doubted.succeeded(S)
    assert list(doubted.pauses()) == [OTHER]
    doubted.failed("three", S, 0.0)
    assert list(doubted.pauses()) == [OTHER], "it begins with the first failure again"


def test_a_doubt_is_forgotten_some_time_after_its_pause() -> None:
    """Servers come and go without an end."""
    doubted: DoubtedServers[str] = DoubtedServers()
    doubted.failed("one", S, 0.0)
    doubted.failed("two", S, 0.0)
    doubted.prune(FIRST_PAUSE_S + FORGOTTEN_AFTER_S)
    assert list(doubted.pauses()) == [S]
    doubted.prune(FIRST_PAUSE_S + FORGOTTEN_AFTER_S + 0.1)
    assert doubted.pauses() == {}


def test_no_tablet_goes_to_a_paused_server() -> None:
    """Whether it failed there itself, or others did."""
    known = KnownFailures(lambda tablet_id: {OTHER: 7.0} if tablet_id == T else {}, {S: 5.0})
    assert [known.may_go(T, S, now) for now in (4.9, 5.0)] == [False, True]
    assert [known.may_go(T, OTHER, now) for now in (6.9, 7.0)] == [False, True]
    assert known.may_go(TabletId("u"), OTHER, 0.0)


def test_its_own_failure_weighs_more_than_those_of_others() -> None:
    """After a pause the next tablet is tried at a doubted server, not the same one again."""
    known = KnownFailures(lambda tablet_id: {OTHER: 1.0}, {S: 5.0, ServerUuid("later"): 6.0})
    order = [ServerUuid("good"), S, ServerUuid("later"), OTHER]
    assert sorted(order[::-1], key=lambda server: known.rank(T, server), reverse=True) == order


def test_steps_are_looked_for_where_nothing_failed_then_where_others_did() -> None:
    """And last where the same tablet failed; none to a server that is paused."""
    failed, other = (Placed(TabletId(name), TableId("t"), (), S) for name in ("t", "u"))
    known = KnownFailures(lambda tablet_id: {S: 1.0} if tablet_id == T else {}, {S: 5.0})

    def allowed(now: float) -> list[list[bool]]:
        steps = ((other, OTHER), (other, S), (failed, S))
        return [[may(*step) for step in steps] for may in by_failures([T], known, now)]

    assert allowed(5.0) == [[True, False, False], [True, True, False], [True, True, True]]
    assert allowed(4.9) == [[True, False, False]] * 3
