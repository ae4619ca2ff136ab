"""Tests of calls run on asyncio's own loop and on uvloop, which Ray actors run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops for what touches sockets, asyncio's for the rest."""
    if item.path.name in ("test_peers.py", "test_tls.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
