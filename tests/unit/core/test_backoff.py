"""Pauses between repeated calls."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.backoff import Backoff, doubled_s, jittered_s
from tests.unit.client.routing.scripted import Clock

FIRST_S = 0.1
LONGEST_S = 1.0
SEEDS = range(200)


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_s() for _ in range(count)]


@given(st.integers(0, 1 << 32), st.floats(0.001, 10.0), st.floats(1.0, 500.0), st.floats(1.0, 4.0))
def test_every_pause_lies_within_a_quarter_of_the_present_one_and_below_the_longest(
    seed: int, first_s: float, ratio: float, factor: float
) -> None:
    """The present pause grows by its factor and stops at 80 % of the longest one."""
    longest_s = first_s * ratio
    present_s = min(first_s, longest_s / 1.25)
    for pause_s in pauses(Backoff(random.Random(seed), first_s, longest_s, factor=factor), 30):
        assert pause_s >= 0.75 * present_s * (1 - 1e-9)
        assert pause_s <= 1.25 * present_s * (1 + 1e-9)
        assert pause_s <= longest_s
        present_s = min(present_s * factor, longest_s / 1.25)


@pytest.mark.parametrize(
    ("number", "present_s"), [(0, 0.1), (1, 0.2), (2, 0.4), (3, 0.8), (9, 0.8)]
)
def test_pauses_of_many_servers_are_spread_evenly_at_every_step(
    number: int, present_s: float
) -> None:
    """Each quarter of the range holds about a quarter of the draws, the longest pauses included:
    servers that failed together do not call together."""
    drawn = [pauses(Backoff(random.Random(s), FIRST_S, LONGEST_S), 10)[number] for s in SEEDS]
    counts = [0, 0, 0, 0]
    for pause_s in drawn:
        counts[int((pause_s / present_s - 0.75) * 8)] += 1
    assert min(counts) > len(SEEDS) / 8
    assert len(set(drawn)) == len(drawn)


def test_a_reset_begins_again_with_the_first_pause() -> None:
    """After a success the next failure waits as briefly as the first did."""
    backoff = Backoff(random.Random(1), FIRST_S, LONGEST_S)
    assert pauses(backoff, 5)[-1] >= 0.6
    backoff.reset()
    first_s, second_s = pauses(backoff, 2)
    assert 0.075 <= first_s <= 0.125
    assert 0.15 <= second_s <= 0.25


def test_the_same_generator_gives_the_same_pauses() -> None:
    """A simulated run can be repeated, and another seed gives another run."""
    first, again, other = (
        pauses(Backoff(random.Random(seed), FIRST_S, LONGEST_S), 20) for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


async def test_a_pause_sleeps_on_the_clock_it_is_given() -> None:
    """For as long as `next_s` says, one call after the other."""
    clock = Clock()
    expected = pauses(Backoff(random.Random(3), FIRST_S, LONGEST_S), 4)
    backoff = Backoff(random.Random(3), FIRST_S, LONGEST_S)
    for _ in range(4):
        await backoff.pause(clock)
    assert clock.sleeps == expected


async def test_a_pause_ends_by_its_deadline() -> None:
    """It is cut at the deadline, takes no time after it, and grows all the same."""
    clock = Clock()
    backoff = Backoff(random.Random(3), FIRST_S, LONGEST_S)
    until = clock.monotonic() + 0.05
    await backoff.pause(clock, until)
    assert clock.monotonic() == until
    clock.time += 1.0
    await backoff.pause(clock, until)
    assert clock.sleeps == [pytest.approx(0.05), 0.0]
    await backoff.pause(clock, clock.monotonic() + 10.0)
    assert 0.3 <= clock.sleeps[-1] <= 0.5


@given(st.integers(0, 1 << 32), st.floats(0.0, 3.0))
def test_a_pause_leaves_time_for_an_attempt_or_none_at_all(seed: int, left_s: float) -> None:
    """What is left before the deadline is at least a first pause, or nothing: a call that is sent
    without time for its answer turns "definitely not executed" into an unknown outcome."""

    async def story() -> None:
        clock = Clock()
        backoff = Backoff(random.Random(seed), FIRST_S, LONGEST_S)
        until = clock.monotonic() + left_s
        while clock.monotonic() < until:
            await backoff.pause(clock, until)
            rest_s = until - clock.monotonic()
            assert abs(rest_s) < 1e-9 or rest_s >= FIRST_S - 1e-9

    asyncio.run(story())


def test_pauses_that_would_shrink_or_take_no_time_are_refused() -> None:
    """Such a loop would be busy; it is an error of the program."""
    for first_s, longest_s, factor in [(0.0, 1.0, 2.0), (2.0, 1.0, 2.0), (0.1, 1.0, 0.5)]:
        with pytest.raises(AssertionError):
            Backoff(random.Random(1), first_s, longest_s, factor=factor)


def test_a_pause_doubled_without_jitter_stays_below_its_limit() -> None:
    """However often it is doubled: a count of years overflows nothing."""
    assert [doubled_s(0.5, times, 10.0) for times in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert doubled_s(0.5, 1_000_000, 10.0) == 10.0


def test_jitter_alone_keeps_the_mean() -> None:
    """A pause that another rule computes is spread evenly around it."""
    rng = random.Random(1)
    drawn = [jittered_s(4.0, rng) for _ in range(2000)]
    assert 3.0 <= min(drawn) < 3.05
    assert 4.95 < max(drawn) <= 5.0
    assert sum(drawn) / len(drawn) == pytest.approx(4.0, abs=0.05)
