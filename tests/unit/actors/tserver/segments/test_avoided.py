"""Backups that do not answer are avoided longer each time, and never for good."""

from __future__ import annotations

from stelae.actors.tserver.segments.avoided import (
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    REPORTED_AFTER_S,
    AvoidedBackups,
)
from stelae.core.ids import ServerUuid

A, B = ServerUuid("a"), ServerUuid("b")


def test_pauses_of_two_backups_overlap_in_the_end() -> None:
    """Tried in turn, each would else be free again whenever the other has failed."""
    avoided, now = AvoidedBackups(), 100.0
    both = []
    for _ in range(8):
        for backup in (A, B):
            if backup not in avoided.at(now):
                now += 2.0  # as long as a try takes
                avoided.failed(backup, now, 2.0)
            both.append(set(avoided.at(now)) == {A, B})
    assert both[-1]


def test_what_several_segments_learn_of_one_failure_counts_once() -> None:
    """Ten segments on a backup that dies do not make ten doublings."""
    avoided = AvoidedBackups()
    for _ in range(10):
        avoided.failed(A, 100.0, 2.0)
    assert avoided.at(100.0) == {A: 102.0}
    assert avoided.at(102.0) == {}


def test_a_pause_has_an_end_and_failures_are_forgotten() -> None:
    """By an answer at once; else a while after the last pause."""
    avoided, now = AvoidedBackups(), 0.0
    for _ in range(20):
        avoided.failed(A, now, 2.0)
        until = avoided.at(now)[A]
        assert until <= now + LONGEST_PAUSE_S
        now = until
    avoided.answered(A)
    assert avoided.at(now) == {}
    avoided.failed(A, now, 2.0)
    assert avoided.at(now) == {A: now + 2.0}
    avoided.failed(B, now + 3 + FORGOTTEN_AFTER_S, 2.0)
    avoided.failed(A, now + 3 + FORGOTTEN_AFTER_S, 2.0)
    assert avoided.at(now + 3 + FORGOTTEN_AFTER_S)[A] == now + 5 + FORGOTTEN_AFTER_S


def test_masters_are_told_of_what_failed_again_until_it_is_tried_or_answers() -> None:
    """One failure is no news; nobody probes a backup, so it has to come up for a try again."""
    avoided = AvoidedBackups()
    avoided.failed(A, 0.0, 2.0)
    assert avoided.lasting(0.0) == ()
    avoided.failed(A, 2.0, 2.0)
    assert avoided.lasting(2.0) == (A,)
    assert avoided.lasting(6.0 + REPORTED_AFTER_S - 0.1) == (A,)
    assert avoided.lasting(6.0 + REPORTED_AFTER_S) == ()
    avoided.failed(A, 70.0, 2.0)
    assert avoided.lasting(70.0) == (A,)
    avoided.answered(A)
    assert avoided.lasting(70.0) == ()
