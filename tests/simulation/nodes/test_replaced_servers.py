"""A server is started elsewhere under its name while its old process still runs: never both.

Ray takes a node for dead that is not. The old process is cut off from all servers, but clients
reach it. Its UUID is fenced, and another process has its name on another node, with an empty disk.
Then the cut ends.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.actors.backup import server as backup_server
from stelae.actors.safekeeper import server as safekeeper_server
from stelae.core.errors import InvalidArgument
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.nodes.planted_nodes import former_servers_are_believed

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
DURABILITIES: dict[str, Any] = {
    "logged": segments("disk", "disk"),
    "copied": replicas(3),
    "walled": wal(3, ("disk", "disk")),
}
HEALS_S = 120.0
TOGETHER_S = 20.0
"""For which the old process reaches everybody again."""


BUGS: dict[str, tuple[AbstractContextManager[Any], str, str]] = {
    "masters do not heed the fence": (
        former_servers_are_believed(),
        "backup",
        "the old process counts as live",
    ),
    "a replaced backup goes on": (
        patch.object(backup_server, "require_not_replaced", lambda *_: None),
        "backup",
        "the old process goes on",
    ),
    "a replaced safekeeper goes on": (
        patch.object(safekeeper_server, "require_not_replaced", lambda *_: None),
        "safekeeper",
        "the old process goes on",
    ),
}
"""Each with the kind of server at which it is seen, and what the story says then."""


class Story:
    """A cluster with a table of each durability, a writer, and one server that is replaced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world)
        self.written = 0
        self.goes_on = True
        self.tables: list[Any] = []

    async def begin(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.world.wait_until(lambda: self.cluster.leader() is not None, 30.0, "a leader")
        await asyncio.sleep(2.0)
        for name, durability in DURABILITIES.items():
            partition = hash_partition("id", buckets=2)
            self.tables.append(
                await self.database.create_table(
                    name, SCHEMA, key=["id"], partition=partition, durability=durability, timeout=60
                )
            )
        self.writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self.goes_on:
            for table in self.tables:
                await table.upsert({"id": self.written, "text": "x" * 40}, timeout=HEALS_S)
            self.written += 1
            await asyncio.sleep(0.05)

    async def check_rows(self) -> None:
        self.goes_on = False
        await self.writer
        for table in self.tables:
            assert (await table.scan(timeout=HEALS_S)).num_rows == self.written > 50

    def listed(self, name: str) -> list[str]:
        """UUIDs of servers of that name that a master counts as live."""
        found: dict[str, None] = {}
        for master in self.cluster.masters:
            server = self.world.server(master)
            if server is None or server.coordinator is None:
                continue
            for kind in ServerKind:
                live = server.liveness.live(kind, server._runtime.clock.monotonic())
                found.update((s.server.uuid, None) for s in live if s.server.name == name)
        return list(found)

    async def replace(self, name: str) -> tuple[str, str]:
        """Cut the server off, fence it, and start it elsewhere: its old process, its old UUID."""
        world = self.world
        others = [each for each in world.nodes if each not in (name, "client")]
        uuid = world.server(name).info.uuid
        with pytest.raises(InvalidArgument, match="lives: only a server that is away"):
            await self.database.replace_server(uuid)
        self._cut(name, others)
        await world.wait_until(lambda: not self.listed(name), HEALS_S, f"{name} is dead")
        await self.database.replace_server(uuid)
        await self.database.replace_server(uuid)
        zombie = world.move(name)
        for one, other in (([name], others), (others, [name])):
            world.unpartition(one, other)
        self._cut(zombie, [*others, name])
        return zombie, uuid

    def _cut(self, name: str, others: list[str]) -> None:
        self.world.partition([name], others)
        self.world.partition(others, [name])


async def _replaced(world: World, kind: str) -> None:
    story = Story(world)
    await story.begin()
    await asyncio.sleep(3.0)
    name = f"{kind}-2"
    zombie, uuid = await story.replace(name)
    await world.wait_until(lambda: bool(story.listed(name)), HEALS_S, "the new one is heard")
    world.network.unblock_all()
    until = world.loop.time() + TOGETHER_S
    while world.loop.time() < until:
        assert uuid not in story.listed(name), "the old process counts as live"
        await asyncio.sleep(0.05)
    assert not world.nodes[zombie].running, "the old process goes on"
    status = await story.database.status()
    (fence,) = status["replaced"]
    (there,) = [each for each in status["servers"] if each["id"] == name]
    assert (fence["uuid"], fence["successor"]) == (uuid, there["uuid"])
    assert there["state"] == "live"
    await story.check_rows()


def tell(kind: str, seed: int) -> None:
    world = World(seed, Options(servers=Servers(tservers=4, backups=3, safekeepers=4)))
    world.run(_replaced(world, kind), limit_s=900.0)


@pytest.mark.parametrize("kind", ["tserver", "backup", "safekeeper"])
def test_the_old_process_of_a_replaced_server_never_counts_again(kind: str) -> None:
    """It is refused, and ends at its next heartbeat. No acknowledged row is missing."""
    tell(kind, seed=1)


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_seen(bug: str) -> None:
    """Where a fence is not heeded, two processes of one name are at work."""
    planted, kind, says = BUGS[bug]
    with planted, pytest.raises(SimulationFailure, match=says):
        tell(kind, seed=1)
