"""A process (a notebook's kernel, say) that launches, closes and launches again, with HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.soak]


def test_http_answers_after_a_second_launch_in_one_process(
    launch_small: Callable[..., Any],
) -> None:
    """What Serve remembers of the first Ray of a process is not taken for the second's."""
    for _ in range(2):
        database = launch_small("twice", serve={"port": 0})
        try:
            answer = httpx.get(f"{database.http_url}/healthz", timeout=30.0)
            assert answer.status_code == 200
        finally:
            database.close()
