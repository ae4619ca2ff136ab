"""Request ids: rising, apart for each receiver, and honest about what is still open."""

from __future__ import annotations

import pytest

from stelae.client.routing.session import Session
from stelae.core.ids import ClientId


def session() -> Session:
    return Session(ClientId("c"))


def test_sequences_rise_and_the_first_incomplete_is_the_lowest_open_one() -> None:
    """What is done in the middle does not move it."""
    it = session()
    one, two, three = it.request(), it.request(), it.request()
    first, second = one.__enter__(), two.__enter__()
    assert (first.sequence, first.first_incomplete) == (1, 1)
    assert (second.sequence, second.first_incomplete) == (2, 1)
    two.__exit__(None, None, None)
    assert three.__enter__().first_incomplete == 1
    one.__exit__(None, None, None)
    with it.request() as fourth:
        assert (fourth.sequence, fourth.first_incomplete) == (4, 3)


def test_a_request_that_fails_is_given_up() -> None:
    """Its caller has heard the end of it; servers may forget its result."""
    it = session()
    with pytest.raises(ValueError, match="x"), it.request():
        raise ValueError("x")
    with it.request() as second:
        assert second.first_incomplete == 2


def test_a_request_stuck_at_one_tablet_does_not_hold_back_the_others() -> None:
    """Each tablet keeps results by itself, and bounds them: its floor must go on rising."""
    it = session()
    with it.request("tablet a"):
        for n in range(1, 4):
            with it.request("tablet b") as there:
                assert (there.sequence, there.first_incomplete) == (n, n)
    with it.request("tablet a") as here:
        assert (here.sequence, here.first_incomplete) == (2, 2)
