"""Bugs planted into the masters' side of timelines, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with this bug; with none if it is empty."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
