"""Where syncs are done: it follows from what they took, and bulk never holds up the loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stelae.runtime.sync_pace import QUICK_SYNC_S, SMALL_BYTES, SyncPace

QUICK_S, SLOW_S = QUICK_SYNC_S / 2, 0.1


def quick(pace: SyncPace, count: int) -> None:
    for _ in range(count):
        pace.measured(QUICK_S, 1)


def test_the_first_syncs_are_done_in_a_thread_and_quick_ones_end_that() -> None:
    """Nothing is known of a disk at first."""
    pace = SyncPace()
    assert not pace.is_quick(1)
    quick(pace, 10)
    assert pace.is_quick(1)


def test_one_very_slow_sync_ends_it_and_more_quick_ones_are_asked_for_each_time() -> None:
    """A disk that is quick now and then does not hold up the loop again and again."""
    pace = SyncPace()
    asked = []
    for _ in range(6):
        count = 0
        while not pace.is_quick(1):
            quick(pace, 1)
            count += 1
        asked.append(count)
        pace.measured(SLOW_S, 1)
        assert not pace.is_quick(1)
    assert asked == sorted(asked)
    assert asked[-1] >= 16 * asked[0]


def test_much_that_was_written_is_never_synced_on_the_loop() -> None:
    """However quick the disk is with little."""
    pace = SyncPace()
    quick(pace, 10)
    assert pace.is_quick(SMALL_BYTES)
    assert not pace.is_quick(SMALL_BYTES + 1)


def test_a_new_file_begins_as_the_last_one_of_the_disk_ended() -> None:
    """Logs begin new files all the time."""
    pace = SyncPace()
    quick(pace, 10)
    assert SyncPace(like=pace).is_quick(1)
    pace.measured(SLOW_S, 1)
    assert not SyncPace(like=pace).is_quick(1)


@given(st.lists(st.booleans(), min_size=2000, max_size=2000))
def test_of_a_disk_that_is_often_slow_few_syncs_are_done_on_the_loop(slow: list[bool]) -> None:
    """Fewer than one in a hundred of 2,000, whatever their order."""
    pace, held_up = SyncPace(), 0
    for is_slow in slow:
        held_up += is_slow and pace.is_quick(1)
        pace.measured(SLOW_S if is_slow else QUICK_S, 1)
    assert held_up <= 16
