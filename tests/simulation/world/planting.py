"""How a scenario runs with one of its planted bugs in the servers, or with none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

Bug = Callable[[], AbstractContextManager[Any]]
Place = tuple[Any, str, Any]


def planting(*bugs: Mapping[str, Bug]) -> Callable[[str], AbstractContextManager[Any]]:
    """A scenario's ``planted``: a context in which all have the bug of that name; "" is none."""
    known = {name: bug for some in bugs for name, bug in some.items()}

    def planted(bug: str) -> AbstractContextManager[Any]:
        return known[bug]() if bug else nullcontext()

    return planted


def replacing(
    *bugs: Mapping[str, tuple[Any, str, Any]],
) -> Callable[[str], AbstractContextManager[Any]]:
    """The same for bugs that are (owner, name, what stands there instead)."""
    known = {name: place for some in bugs for name, place in some.items()}

    def planted(bug: str) -> AbstractContextManager[Any]:
        return patch.object(*known[bug]) if bug else nullcontext()

    return planted
