"""A server that was replaced: what masters note of it, and how a configuration store ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.server import CasStore
from stelae.actors.master.heartbeat_requests import ServerRequests
from stelae.actors.server.replaced import Replaced
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.servers import HEARTBEAT, Heartbeat, HeartbeatReply
from stelae.core.records.records import ServerInfo, ServerKind, ServerMark
from stelae.core.rpc import Call, Reply
from stelae.core.runtime import ProcessIdentity
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.world.instance import SimRuntime

UUID = ServerUuid("old")
HEARD = 5


@pytest.mark.parametrize("kind", [ServerKind.SAFEKEEPER, ServerKind.BACKUP])
def test_a_replaced_server_is_not_registered_again(kind: ServerKind) -> None:
    """Its record would name its present machine, and a safekeeper's no successor any more."""
    info = ServerInfo(
        kind, f"{kind.value}-1", UUID, 1, Address("old:1"), ProcessIdentity("n", 1, 0)
    )
    runtime = World(1, Options()).client("master")
    master = SimpleNamespace(catalog=Catalog(), runtime=runtime, liveness=Liveness(Settings()))
    requests = ServerRequests(cast(Any, master))
    assert requests._draft_register(info) is not None
    master.catalog.marks[UUID] = ServerMark(UUID, info.name, kind=kind, replaced=True)
    assert requests._draft_register(info) is None


class Master:
    """Says of each server that it was replaced, as a leader or as a follower."""

    def __init__(self, runtime: SimRuntime, *, is_leader: bool) -> None:
        self.tasks = Tasks()
        self.heard = 0
        self._runtime = runtime
        self._is_leader = is_leader

    async def start(self) -> None:
        await self._runtime.peers.listen("m" * 32, {HEARTBEAT: self._heartbeat})  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.tasks.close()

    async def _heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        self.heard += 1
        return Reply(HeartbeatReply(self._is_leader, 1, call.body.sent, replaced=True))


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_configuration_store_ends_once_a_leader_says_that_it_was_replaced(
    is_leader: bool,
) -> None:
    """A master that follows does not know whether the fence stands."""
    world = World(1, Options())

    def store(runtime: SimRuntime) -> CasStore:
        masters = [world.address("m1")]
        backend = FilesBackend(runtime.disk)
        return CasStore(runtime, backend, name="cas_store-1", cluster="demo", masters=masters)

    async def story() -> None:
        world.start("m1", lambda runtime: Master(runtime, is_leader=is_leader), kind="master")
        await world.wait_ready()
        node = world.start(
            "cas_store-1", store, kind="cas_store", auto_restart=False, exits=(Replaced,)
        )
        master: Any = world.server("m1")
        await world.wait_until(
            lambda: not node.running or master.heard >= HEARD, 60.0, "it ends, or goes on"
        )
        assert (node.running, master.heard) == ((False, 1) if is_leader else (True, HEARD))

    world.run(story())
