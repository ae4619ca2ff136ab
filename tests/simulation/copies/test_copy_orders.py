"""What operators see of tablet copies, and how they end one, on a whole cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.actors.tserver.tablet_copy.session import SourceSession
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
TABLETS = 3
SLOW_S = 4.0
HOLD_S = 20.0


async def _begin(world: World, cluster: SimCluster) -> Any:
    """A table on three of four servers, all of it flushed."""
    await cluster.start()
    database = cluster.database("client")
    await world.wait_until(lambda: cluster.leader() is not None, 30.0, "a leader")
    await asyncio.sleep(1.0)
    await database.maintain_server("tserver-4", True)
    table = await database.create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition=hash_partition("id", buckets=TABLETS),
        durability=replicas(3),
        timeout=30.0,
    )
    for number in range(30):
        await table.upsert({"id": number, "text": "x" * 40}, timeout=10.0)
    for name in cluster.tservers:
        for tablet in world.server(name).replicas.running():
            await tablet.flush()
    return database


async def copies_in(database: AsyncDatabase) -> dict[str, Any]:
    """What the status tells of copies, by tablet."""
    return {each["tablet"]: each for each in (await database.status())["copies"]}


async def move_to_one_server(world: World, cluster: SimCluster) -> tuple[AsyncDatabase, list[str]]:
    """All tablets are to come to tserver-4, which takes one copy at a time."""
    settings = msgspec.structs.replace(cluster.settings, copy_pause_s=0.2)
    # The masters would let a server have more copies at a time than tserver-4 takes.
    cluster.settings = msgspec.structs.replace(settings, copies_max=TABLETS)
    database = await _begin(world, cluster)
    cluster.settings = msgspec.structs.replace(settings, copies_max=1)
    world.crash("tserver-4")
    await world.wait_ready("tserver-4")
    await database.maintain_server("tserver-4", False)
    tablets = [each.tablet.tablet_id for each in await database.locate_table("t")]
    for tablet_id in tablets:
        await database.move_replica(tablet_id, "tserver-1", "tserver-4", wait=False)
    return database, tablets


def test_copies_are_shown_throttled_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where to where, how far, and why it waits; a copy that was cancelled begins again after
    its hold, and the moves then come to their ends."""
    fetch = SourceSession.file

    async def slowly(self: SourceSession, file: Any) -> Any:
        await asyncio.sleep(SLOW_S)
        return await fetch(self, file)

    monkeypatch.setattr(SourceSession, "file", slowly)

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        database, tablets = await move_to_one_server(world, cluster)
        found: dict[str, Any] = {}
        while sorted(c["state"] for c in found.values()) != ["copying", "throttled", "throttled"]:
            assert world.loop.time() < 60.0, found
            await asyncio.sleep(0.05)
            found = await copies_in(database)
        assert {c["server"] for c in found.values()} == {"tserver-4"}
        assert {c["source"] for c in found.values()} <= {"tserver-1", "tserver-2", "tserver-3"}
        victim = next(c for c in found.values() if c["state"] == "copying")
        assert (victim["table"], victim["copied_bytes"]) == ("t", 0)
        assert victim["bytes"] > 0

        with pytest.raises(InvalidArgument, match="no tserver"):
            await database.cancel_copy(victim["tablet"], "nobody")
        cancelled = world.loop.time()
        assert await database.cancel_copy(victim["tablet"], "tserver-4", hold=HOLD_S)
        assert not await database.cancel_copy(victim["tablet"], "tserver-4", hold=HOLD_S)

        def voters() -> list[str]:
            records = world.server(cluster.leader() or "").catalog.groups()
            uuid = world.server("tserver-4").info.uuid
            return [t.tablet_id for t in records if uuid in t.configuration.voters]

        others = sorted(tablet for tablet in tablets if tablet != victim["tablet"])
        await world.wait_until(lambda: sorted(voters()) == others, 60.0, "the others are copied")
        assert world.loop.time() < cancelled + HOLD_S
        waiting = (await copies_in(database))[victim["tablet"]]
        assert waiting["state"] == "waiting"
        assert "an operator cancelled it" in waiting["problem"]
        await world.wait_until(lambda: len(voters()) == TABLETS, 60.0, "and then the last one")
        assert world.loop.time() >= cancelled + HOLD_S
        report = await database.check(checksums=True, wait=20)
        assert report.is_well, [str(problem) for problem in report.problems]
        assert await copies_in(database) == {}

    world = World(6, Options(servers=Servers(tservers=4)))
    world.run(story(world), limit_s=400.0)
