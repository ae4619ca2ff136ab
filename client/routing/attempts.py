"""What all ways of repeating a call have in common: one attempt, its limit, and the pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stelae.core.ids import ServerUuid
from stelae.core.messages.catalog import TabletLocation

T = TypeVar("T")

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.25
PATIENCE = 2.0
"""Each pause is so many times the one before."""
IMPATIENCE = 1.15
"""Of those who wait for something that mostly comes within a second: they hear of it sooner."""
ATTEMPT_TIMEOUT_S = 5.0
CONCURRENT_TABLETS = 16
"""Tablets that one call reads at the same time."""

Attempt = Callable[[TabletLocation, ServerUuid | None, float], Awaitable[T]]
"""(where, whom the call is meant for if that is known, timeout in seconds) → answer"""

DEFAULT_TIMEOUT_S = 30.0
"""Of a call on a table, where its caller does not say."""
