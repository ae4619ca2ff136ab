"""Peers for tests; those of calls run on asyncio's own loop and on uvloop, as Ray actors do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from stelae.runtime.tcp import local
from tests.unit.runtime.tcp.peers_world import Servers


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops for what touches sockets, asyncio's for the rest."""
    if item.path.name in ("test_peers.py", "test_connections.py", "test_tls.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(params=["unix", "tcp"])
async def servers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Servers]:
    """Servers that are called by either way."""
    if request.param == "tcp":
        monkeypatch.setattr(local, "_socket", lambda: None)
    servers = Servers()
    yield servers
    for peers in servers.made:
        await peers.close()
