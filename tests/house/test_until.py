"""The helper by which tests wait returns what held, and says what did not."""

from __future__ import annotations

import pytest

from tests.until import until, until_async


def test_it_returns_what_the_condition_gave_as_soon_as_that_is_true() -> None:
    """Looks before that one, and errors that count as a look, are repeated."""
    looks = iter(["", "error", "there", "later"])

    def look() -> str:
        found = next(looks)
        if found == "error":
            raise ValueError("not yet")
        return found

    assert until(look, 60.0, "a word", poll_s=0.0, retried=(ValueError,)) == "there"


def test_it_fails_by_the_name_of_what_was_waited_for() -> None:
    """With the error of the last look, and what is known by then; other errors end the wait."""

    def nobody() -> bool:
        raise ValueError("nobody leads")

    with pytest.raises(AssertionError, match=r"not within 0 s: a leader: ValueError\('nobody"):
        until(nobody, 0.0, "a leader", retried=(ValueError,))
    with pytest.raises(AssertionError, match="not within 0 s: 7 rows, not 9"):
        until(lambda: False, 0.0, lambda: "7 rows, not 9")
    with pytest.raises(ValueError, match="nobody leads"):
        until(nobody, 60.0, "a leader")


async def test_in_a_loop_it_takes_functions_and_coroutine_functions() -> None:
    """Both are repeated until true; a coroutine that hangs is cancelled at the limit."""
    looks = iter([0, 0, 3])
    assert await until_async(lambda: next(looks), 60.0, "a number", poll_s=0.0) == 3
    later = iter([[], ["row"]])

    async def look() -> list[str]:
        return list(next(later))

    assert await until_async(look, 60.0, "a row", poll_s=0.0) == ["row"]

    async def own_timeout() -> bool:
        raise TimeoutError("of the call itself")

    with pytest.raises(TimeoutError, match="of the call itself"):
        await until_async(own_timeout, 60.0, "an answer")
    with pytest.raises(AssertionError, match="not within 0 s: quiet"):
        await until_async(lambda: False, 0.0, "quiet")
