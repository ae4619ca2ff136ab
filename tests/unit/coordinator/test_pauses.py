"""`stelae.coordinator.backoff.pacing`: what waits is remembered, and nothing else for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.backoff.pacing import LEAST, Pauses


def test_a_pause_ends_and_may_be_begun_again() -> None:
    """At its very end it is over; what was never paused always is."""
    pauses: Pauses[str] = Pauses()
    pauses.begin("a", 5.0, 0.0)
    assert [pauses.is_over("a", now) for now in (0.0, 4.9, 5.0)] == [False, False, True]
    pauses.begin("a", 9.0, 5.0)
    assert not pauses.is_over("a", 6.0)
    assert pauses.is_over("b", 0.0)


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(0, 3), st.floats(0, 0.2)), max_size=800))
def test_it_agrees_with_one_that_forgets_nothing_and_stays_small(
    steps: list[tuple[int, float, float]],
) -> None:
    """However many different keys come: few of them wait at a time."""
    pauses: Pauses[int] = Pauses()
    model: dict[int, float] = {}
    now = 0.0
    for key, pause_s, passes_s in steps:
        now += passes_s
        pauses.begin(key, now + pause_s, now)
        model[key] = now + pause_s
        waiting = sum(until > now for until in model.values())
        assert pauses.is_over(key, now) == (model[key] <= now)
        assert pauses.is_over(key + 1, now) == (model.get(key + 1, now) <= now)
        assert waiting <= len(pauses) <= len(model)


def test_keys_that_never_come_again_are_forgotten() -> None:
    """As those of changes of members, which name an entry of a log."""
    pauses: Pauses[int] = Pauses()
    for number in range(10_000):
        pauses.begin(number, number + 3.0, float(number))
    assert len(pauses) <= 3 * LEAST
