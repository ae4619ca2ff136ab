"""What tests of a safekeeper's calls look at."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from stelae.core.errors import (
    StelaeError,
)
from stelae.core.messages.safekeepers import (
    HeldTimeline,
)
from stelae.core.records.timelines import LogPosition, SafekeeperId
from tests.unit.actors.safekeeper.safekeeper_world import (
    TIMELINE,
    SafekeepersWorld,
)

ME = SafekeeperId(1)
NONE = LogPosition(0, 0)


async def given(call: Coroutine[Any, Any, None]) -> str:
    """The name of the error that it raises, if it does."""
    try:
        await call
    except StelaeError as error:
        return type(error).__name__
    return ""


async def status(here: SafekeepersWorld, n: int) -> HeldTimeline:
    return await here.ports.timeline_status(SafekeeperId(n), TIMELINE.tablet_id, timeout_s=1.0)
