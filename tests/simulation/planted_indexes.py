"""Bugs of indexes, planted on purpose: each must be found by the scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

BUGS: dict[str, Callable[[], Any]] = {}


def planted(bug: str) -> Any:
    """A context in which the servers have this bug; "" for none."""
    return BUGS[bug]() if bug else contextlib.nullcontext()
