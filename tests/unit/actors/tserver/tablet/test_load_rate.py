"""`stelae.actors.tserver.tablet.load_rate`: what a tablet's calls come to, and how seldom that is
told."""

from __future__ import annotations

import pytest

from stelae.actors.tserver.tablet.load_rate import (
    BYTES_PER_CALL,
    COARSE,
    WARM_S,
    LoadRate,
    size_of,
    weight_of,
)
from stelae.core.messages.servers import LOAD_UNKNOWN

BEAT_S = 0.2


class Driven:
    """A tablet that is called evenly, and looked at with each heartbeat."""

    def __init__(self) -> None:
        self.rate = LoadRate()
        self.now = 1000.0
        self.calls = 0.0
        self.told: list[float] = []

    def run(self, seconds: float, per_s: float) -> float:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            self.calls += per_s * BEAT_S
            seen = self.rate.look(int(self.calls), self.now)
            if not self.told or self.told[-1] != seen:
                self.told.append(seen)
        return self.told[-1]


@pytest.mark.parametrize("per_s", [1.0, 40.0, 3000.0])
def test_a_steady_rate_is_known_soon_and_told_once(per_s: float) -> None:
    """Not too low at the beginning, as a mean that starts from nothing would be."""
    driven = Driven()
    assert driven.run(WARM_S - 1, per_s) == LOAD_UNKNOWN
    found = driven.run(100, per_s)
    assert found == pytest.approx(per_s, rel=COARSE)
    assert len(driven.told) == 2, driven.told


def test_an_idle_tablet_has_nothing_to_tell() -> None:
    """Not known at first, then nothing for ever; nor do a few calls an hour make it busy."""
    driven = Driven()
    driven.run(1000, 0.0)
    driven.run(3600, 0.002)
    assert driven.told == [LOAD_UNKNOWN, 0.0]


def test_a_rate_follows_the_load_in_coarse_steps_and_ends_at_nothing() -> None:
    """A few reports for the whole of it; and it is told of within a time constant."""
    driven = Driven()
    driven.run(60, 0.0)
    assert driven.run(30, 1000.0) > 400
    assert driven.run(90, 1000.0) == pytest.approx(1000.0, rel=COARSE)
    assert driven.run(400, 0.0) == 0.0
    assert len(driven.told) < 50
    assert driven.run(1000, 0.0) == 0.0


def test_who_leads_anew_has_no_rate_of_its_last_time() -> None:
    """It was not known how busy the tablet was meanwhile, nor that it is idle now."""
    driven = Driven()
    driven.run(60, 100.0)
    driven.rate.stop()
    driven.calls += 10_000_000
    assert driven.run(1, 5.0) == LOAD_UNKNOWN
    assert driven.run(60, 5.0) == pytest.approx(5.0, rel=COARSE)


def test_many_rows_weigh_more_than_one() -> None:
    """One call of a megabyte is a lot of calls of one row."""
    assert weight_of(0) == weight_of(BYTES_PER_CALL - 1) == 1
    assert weight_of(1 << 20) == 65
    assert size_of(memoryview(bytes(7))) == size_of(b"1234567") == 7
