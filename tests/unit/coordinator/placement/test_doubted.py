"""`stelae.coordinator.placement.doubted`: servers at which one object after the other failed."""

from __future__ import annotations

import pytest

from stelae.coordinator.placement.doubted import (
    FIRST_PAUSE_S,
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    DoubtedServers,
)
from stelae.core.ids import ServerUuid

S, OTHER = ServerUuid("s"), ServerUuid("other")


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


def test_the_later_pause_counts_for_an_object_that_failed_there_itself() -> None:
    """Its own failures elsewhere count as before."""
    doubted: DoubtedServers[str] = DoubtedServers()
    doubted.failed("one", S, 0.0)
    doubted.failed("two", S, 0.0)
    assert doubted.with_own({S: 5.0, OTHER: 7.0}) == {S: FIRST_PAUSE_S, OTHER: 7.0}
    assert doubted.with_own({S: 50.0}) == {S: 50.0}
