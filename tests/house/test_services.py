"""What a test needs of the machine is there, or its absence is told."""

from __future__ import annotations

import pytest

from tests.services import VARIABLE, need


def test_what_is_found_is_given() -> None:
    """Also where it is false."""
    assert need("", "a program is missing") == ""


@pytest.mark.parametrize(
    ("value", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_what_is_missing_is_a_skip_or_a_failure(
    value: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure exactly where services are required."""
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(outcome, match="a program is missing"):
        need(None, "a program is missing")
