"""Threads that take only the CPU which others leave."""

from __future__ import annotations

import os
import threading

import pytest

from stelae.runtime.processes import in_modest_thread


async def test_a_modest_thread_has_the_least_priority_and_leaves_the_others_theirs() -> None:
    """Its result and its errors come back; whoever waits keeps the priority it had."""
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def look() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def fail() -> None:
        raise ValueError("as it should")

    assert await in_modest_thread(look) == 19
    with pytest.raises(ValueError, match="as it should"):
        await in_modest_thread(fail)
    assert look() == before
