"""When a snapshot is let go that Spark's JVM is asked about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stelae.connectors.spark_holds import FAILURES_MAX, _Hold


class Reference:
    """A weak reference in a JVM; ``answers`` of it, of which an error is raised."""

    def __init__(self, answers: list[bool | Exception], *, is_connected: bool = True) -> None:
        self.answers = answers
        self._gateway_client = SimpleNamespace(is_connected=is_connected)

    def refersTo(self, other: None) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Held:
    is_ended = False

    def end(self) -> None:
        self.is_ended = True


def looks(answers: list[bool | Exception], **more: Any) -> list[bool]:
    """Whether it was over at each look, up to the one that ended it."""
    held: Any = Held()
    hold = _Hold(Reference(list(answers), **more), held)
    found = []
    for _ in answers:
        found.append(hold.is_over())
        assert held.is_ended == found[-1]
        if found[-1]:
            break
    return found


def test_it_goes_with_what_it_is_of() -> None:
    """As the JVM's garbage collector says."""
    assert looks([False, True]) == [False, True]


def test_a_passing_error_lets_nothing_go() -> None:
    """Only as many in a row as show that the JVM has gone."""
    error = RuntimeError("no answer")
    few: list[bool | Exception] = [error] * (FAILURES_MAX - 1)
    assert looks([*few, False, *few, False]) == [False] * (2 * FAILURES_MAX)
    assert looks([*few, error]) == [*[False] * len(few), True]


def test_a_closed_gateway_does_at_once() -> None:
    """Nobody will ever answer."""
    assert looks([RuntimeError("closed")], is_connected=False) == [True]
