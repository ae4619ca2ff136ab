"""A server that was replaced: what masters note of it, and how a configuration store ends."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest

from stelae.actors.cas_store.server import CasStore
from stelae.actors.master.heartbeat_requests import ServerRequests
from stelae.actors.server.replaced import Replaced
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.servers import HeartbeatReply
from stelae.core.records.records import ServerInfo, ServerKind, ServerMark
from stelae.core.runtime import ProcessIdentity

UUID = ServerUuid("old")


@pytest.mark.parametrize("kind", [ServerKind.SAFEKEEPER, ServerKind.BACKUP])
def test_a_replaced_server_is_not_registered_again(kind: ServerKind) -> None:
    """Its record would name its present machine, and a safekeeper's no successor any more."""
    info = ServerInfo(
        kind, f"{kind.value}-1", UUID, 1, Address("old:1"), ProcessIdentity("n", 1, 0)
    )
    master = MagicMock(catalog=Catalog())
    requests = ServerRequests(master)
    master.runtime.clock.now.return_value = 1.0
    assert requests._draft_register(info) is not None
    master.catalog.marks[UUID] = ServerMark(UUID, info.name, kind=kind, replaced=True)
    assert requests._draft_register(info) is None


def test_a_replaced_configuration_store_ends_at_its_heartbeat() -> None:
    """A master that follows does not know whether the fence stands."""
    runtime = MagicMock()
    runtime.clock.sleep = AsyncMock(side_effect=asyncio.CancelledError)
    store = CasStore(runtime, MagicMock(), name="cas_store-1", cluster="demo")
    store.info, store._masters = MagicMock(), MagicMock(update=AsyncMock())
    store.info.name = "cas_store-1"

    def beat(*, is_leader: bool) -> None:
        reply = HeartbeatReply(is_leader=is_leader, term=1, sent=1.0, replaced=True)
        runtime.peers.call = AsyncMock(return_value=MagicMock(body=reply))
        asyncio.run(store._heartbeat(Address("m:1")))

    with pytest.raises(Replaced, match="cas_store-1: another server has this name"):
        beat(is_leader=True)
    with pytest.raises(asyncio.CancelledError):
        beat(is_leader=False)
