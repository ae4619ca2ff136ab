"""Programs that some tests need and not every machine has: without them they are skipped.

Where ``STELAE_REQUIRE_SERVICES=1`` is set, as CI does once it has installed them, such a test fails
in place of that: one that nobody runs any more is to be noticed.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

VARIABLE = "STELAE_REQUIRE_SERVICES"

T = TypeVar("T")


def need(found: T | None, missing: str) -> T:
    """What was found. Without it the test that runs is skipped, or fails; ``missing`` says why."""
    if found is not None:
        return found
    if os.environ.get(VARIABLE) == "1":
        pytest.fail(f"{missing} ({VARIABLE} is set)")
    pytest.skip(missing)
