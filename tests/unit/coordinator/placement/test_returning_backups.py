"""Backups that come and go: when a copyset takes them in again."""

from __future__ import annotations

import pytest

from stelae.coordinator.placement.copysets import next_groups
from stelae.coordinator.placement.returning_backups import (
    FORGOTTEN_WAITS,
    LONGEST_WAIT_S,
    ReturningBackups,
)
from stelae.core.ids import ServerUuid
from tests.unit.coordinator.placement.test_copysets import some

A, B, C = ServerUuid("a"), ServerUuid("b"), ServerUuid("c")
AFTER_S = 30.0


def waits_s(returning: ReturningBackups, now: float, after_s: float = AFTER_S) -> int:
    """The seconds, from ``now`` on, for which ``a``, which is present, is left out."""
    for second in range(100_000):
        if A not in returning.look((), (A,), now + second, after_s):
            return second
    raise AssertionError("for ever")


def test_a_backup_waits_longer_with_each_loss_up_to_a_bound() -> None:
    """At first as long as it had to be away to count as lost."""
    returning, now, found = ReturningBackups(), 0.0, []
    for _ in range(8):
        returning.look((A,), (), now, AFTER_S)
        returning.look((A,), (), now + 50.0, AFTER_S)  # the same absence
        now += 100.0
        found.append(waits_s(returning, now))
        now += found[-1]
    assert found == [30, 60, 120, 240, 480, 600, 600, 600]


def test_a_break_begins_the_time_again_and_is_no_loss() -> None:
    """It is away for less than it takes to count as lost, or shunned."""
    returning = ReturningBackups()
    returning.look((A,), (), 0.0, AFTER_S)
    assert returning.look((), (A,), 10.0, AFTER_S) == (A,)
    assert returning.look((), (), 35.0, AFTER_S) == (A,)
    assert waits_s(returning, 36.0) == 30


def test_what_never_was_lost_does_not_wait() -> None:
    """A backup that joins, and one that was away for a moment."""
    returning = ReturningBackups()
    returning.look((), (A,), 0.0, AFTER_S)
    returning.look((), (), 1.0, AFTER_S)
    assert returning.look((), (A, B), 2.0, AFTER_S) == ()
    assert returning.known == ()


def test_losses_are_forgotten_after_long_or_with_the_backup() -> None:
    """Not once the wait is over: a backup that is lost once an hour waits a little, one that is
    lost as soon as it is taken in waits ever longer."""
    returning = ReturningBackups()
    returning.look((A, B), (), 0.0, AFTER_S)
    returning.look((), (A,), 1.0, AFTER_S)
    returning.look((), (A,), FORGOTTEN_WAITS * LONGEST_WAIT_S, AFTER_S)
    assert [*returning.known] == [A, B]
    returning.look((), (A,), 1.0 + FORGOTTEN_WAITS * LONGEST_WAIT_S, AFTER_S)
    assert [*returning.known] == [B]
    returning.forget({A: None})
    assert [*returning.known] == []


@pytest.mark.parametrize("after_s", [601.0, 7200.0])
def test_a_wait_is_never_shorter_than_the_absence_that_counts(after_s: float) -> None:
    """Operators may set that above the bound."""
    returning = ReturningBackups()
    for now in (0.0, 10_000.0):
        returning.look((A,), (), now, after_s)
        returning.look((), (), now + 1.0, after_s)
    assert waits_s(returning, 20_000.0, after_s) == after_s


def test_a_backup_that_is_back_joins_no_group_while_it_waits() -> None:
    """Others do; it stays left over, also where it would make up a pair."""
    groups = next_groups([], some("abcde"), (), 2, (A,))
    assert groups == (("b", "c"), ("d", "e"))
    assert next_groups([(B, C)], some("abcd"), (), 2, (A,)) == ((B, C),)


def test_a_group_that_stands_keeps_a_member_that_was_lost_and_is_back() -> None:
    """It was back before the group was dissolved: nothing has moved."""
    assert next_groups([(A, B)], some("ab"), (), 2, (A,)) == ((A, B),)


def test_those_with_least_left_to_wait_join_where_there_is_no_group_without_them() -> None:
    """As many as one group lacks: rows could be written nowhere otherwise."""
    assert next_groups([], some("abc"), (), 2, (B, A)) == (("b", "c"),)
    assert next_groups([], some("ab"), (), 2, (B, A)) == (("a", "b"),)
    assert next_groups([], some("ab"), (), 3, (B, A)) == ()
    assert next_groups([], some("abc"), (B,), 2, (B, A)) == (("a", "c"),)
