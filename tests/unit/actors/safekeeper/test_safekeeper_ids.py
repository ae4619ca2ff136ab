"""A safekeeper and the masters: the id that they give it, and what they tell it by heartbeat."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper.safekeeper_id import load_safekeeper_id, store_safekeeper_id
from stelae.actors.safekeeper.server import Safekeeper
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    TabletNotReady,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages.safekeepers import (
    PING,
    Ping,
)
from stelae.core.messages.servers import HEARTBEAT, Heartbeat, HeartbeatReply
from stelae.core.records.records import ServerKind
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import Call, Reply
from stelae.simulation import Options, World
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.safekeeper.safekeeper_checks import ME
from tests.unit.actors.safekeeper.safekeeper_world import (
    SETTINGS,
    TIMELINE,
    SafekeepersWorld,
    members,
)


class Master:
    """Answers heartbeats as a leader does, with what the test says."""

    def __init__(self, here: SafekeepersWorld, safekeeper: Safekeeper) -> None:
        self.beats: list[Heartbeat] = []
        self.reply: dict[str, Any] = {}
        self.here = here
        self.safekeeper = safekeeper

    async def on_heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        self.beats.append(call.body)
        base = HeartbeatReply(True, 1, call.body.sent, processed=True, servers_version=1)
        return Reply(msgspec.structs.replace(base, **self.reply))


def id_world(scenario: Any, *, seed: int = 1) -> None:
    """One safekeeper without an id, and a master."""
    world = World(seed, Options())

    async def main() -> None:
        master_client = world.client("master")
        here = SafekeepersWorld(world, SETTINGS)
        world.start(
            "sk1",
            lambda runtime: Safekeeper(
                runtime,
                name="sk1",
                cluster="c",
                masters=[world.address("master")],
                settings=SETTINGS,
            ),
            kind="safekeeper",
        )
        await world.wait_ready()
        master = Master(here, here.server(1))
        await master_client.peers.listen(ServerUuid("e" * 32), {HEARTBEAT: master.on_heartbeat})
        await here.voice.listen()
        await scenario(here, master)

    world.run(main())


def test_a_safekeeper_gets_its_id_from_the_masters_and_keeps_it() -> None:
    """Until then it takes nothing; the id is durable, and told in the next heartbeat."""

    async def scenario(here: SafekeepersWorld, master: Master) -> None:
        await here.world.wait_until(lambda: len(master.beats) > 2, 5.0, "heartbeats")
        beat = master.beats[-1]
        assert (beat.server.kind, beat.server.safekeeper_id) == (ServerKind.SAFEKEEPER, None)
        with pytest.raises(TabletNotReady, match="no id yet"):
            await here.put(1, members(1, 1))
        with pytest.raises(InvalidArgument, match="none yet"):
            await here.ports.ping(ME, timeout_s=1.0)
        master.reply = {"safekeeper_id": ME}
        await here.world.wait_until(
            lambda: master.beats[-1].server.safekeeper_id == ME, 5.0, "it says its id"
        )
        await here.ports.ping(ME, timeout_s=1.0)
        server, other = here.server(1).info, Ping(SafekeeperId(2))
        with pytest.raises(InvalidArgument, match="its id is 1"):
            await here.client.peers.call(
                server.address, PING, other, timeout_s=1.0, destination=server.uuid
            )
        master.reply = {}
        await here.put(1, members(1, 1))
        await here.restart(1)
        assert here.server(1).safekeeper_id == ME
        await here.world.wait_until(
            lambda: master.beats[-1].logs == (TIMELINE.tablet_id,), 5.0, "it says what it has"
        )

    id_world(scenario)


def test_a_safekeeper_that_the_masters_call_otherwise_ends() -> None:
    """Its disk and those masters do not belong together: two would answer to one id."""

    async def scenario(here: SafekeepersWorld, master: Master) -> None:
        master.reply = {"safekeeper_id": ME}
        await here.world.wait_until(lambda: here.server(1).safekeeper_id == ME, 5.0, "an id")
        master.reply = {"safekeeper_id": SafekeeperId(2)}
        await asyncio.sleep(5.0)

    with pytest.raises(SimulationFailure, match="is safekeeper 1 by its disk"):
        id_world(scenario)


def test_an_id_belongs_to_one_server_and_begins_with_one() -> None:
    """A file that was copied from another server's folder would make two of one id."""
    world = World(1, Options())

    async def main() -> None:
        disk, mine = world.client("sk1").disk, ServerUuid("a" * 32)
        assert await load_safekeeper_id(disk, mine) is None
        for wrong in (0, -3):
            with pytest.raises(InvalidArgument, match="ids begin with 1"):
                await store_safekeeper_id(disk, mine, SafekeeperId(wrong))
        assert await load_safekeeper_id(disk, mine) is None
        await store_safekeeper_id(disk, mine, ME)
        assert await load_safekeeper_id(disk, mine) == ME
        with pytest.raises(CorruptData, match="was given to server"):
            await load_safekeeper_id(disk, ServerUuid("b" * 32))

    world.run(main())


def test_a_leader_that_fences_a_safekeeper_tells_it_nothing_of_others() -> None:
    """Its list is for servers that belong to the cluster; an id it takes all the same."""

    async def scenario(here: SafekeepersWorld, master: Master) -> None:
        server = here.server(1)
        other = msgspec.structs.replace(server.info, name="b1", kind=ServerKind.BACKUP)
        master.reply = {
            "fenced": True,
            "safekeeper_id": ME,
            "servers": (other,),
            "servers_version": 7,
        }
        await here.world.wait_until(lambda: server.safekeeper_id == ME, 5.0, "an id")
        await asyncio.sleep(1.0)
        assert server.members.version != 7
        assert not server.members.all_backups()
        master.reply["fenced"] = False
        await here.world.wait_until(lambda: server.members.version == 7, 5.0, "the list")
        assert server.members.all_backups() == [other]

    id_world(scenario)


def test_a_timeline_of_a_dropped_table_goes_for_ever_by_heartbeat() -> None:
    """As often as it is said; a configuration does not bring it back."""

    async def scenario(here: SafekeepersWorld, master: Master) -> None:
        master.reply = {"safekeeper_id": ME}
        await here.world.wait_until(lambda: here.server(1).safekeeper_id == ME, 5.0, "an id")
        await here.put(1, members(1, 1))
        master.reply = {"drop": (TIMELINE.tablet_id,)}
        await here.world.wait_until(lambda: not here.server(1).timelines.held, 5.0, "it is dropped")
        assert await here.put(1, members(99, 1)) is None

    id_world(scenario)
