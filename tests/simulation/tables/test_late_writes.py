"""Writes to heads that are late by seconds: the heads were closed, cleaned and freed meanwhile, and
their backups started again."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.backup.fences import Fences
from stelae.core.errors import InvalidArgument, StaleTerm
from stelae.core.ids import Address
from stelae.core.messages.backups import WRITE_REPLICA, WriteReplica
from stelae.core.schema.durability import segments
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA, text

KEYS = 5
ROUNDS = 12
Late = tuple[str, WriteReplica, list[bytes]]


def recorded(world: World, owner: str, backups: list[str], found: list[Late]) -> None:
    """From now on note what the owner sends to begin a head, and to whom."""
    peers = world.server(owner)._runtime.peers
    call = peers.call

    async def noting(address: Address, method: Any, request: Any, **rest: Any) -> Any:
        if method is WRITE_REPLICA and request.create and not request.close:
            name = next(each for each in backups if world.address(each) == address)
            found.append((name, request, [bytes(blob) for blob in rest.get("blobs", ())]))
        return await call(address, method, request, **rest)

    peers.call = noting


async def late_writes(world: World) -> None:
    """Write and overwrite rows until much was freed; have the backups start again, and all that
    began a head come once more; then the owner dies, and the next one finds every row."""
    cleans: dict[str, Any] = {
        "clean_log_factor": 1.0,
        "clean_period_s": 0.05,
        "clean_roll_after_s": 0.1,
    }
    cluster = SimCluster(world, segment_bytes=2000, **cleans)
    await cluster.start()
    database = cluster.database("client")
    table = await database.create_table(
        "t", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=60.0
    )
    owner = next(n for n in cluster.tservers if world.server(n).holders())
    found: list[Late] = []
    recorded(world, owner, cluster.backups, found)
    for turn in range(ROUNDS):
        for key in range(KEYS):
            await table.upsert({"id": key, "text": text(turn)}, timeout=20.0)
        await asyncio.sleep(0.3)
    counts = world.metrics[owner].counts
    assert counts.get("segments_cleaned", 0) > 3
    assert counts.get("replicas_freed", 0) > 3
    await world.wait_until(lambda: cluster.is_whole(1, 2), 60.0, "full strength")
    ((tablet, holders),) = world.server(owner).holders().items()
    for name in cluster.backups:  # not those of the head: its replicas would be replaced, and the
        if (
            world.server(name).info.uuid not in holders[-1]
        ):  # catalog told that older ones are stale
            world.crash(name)
            await world.wait_ready(name)
    await world.wait_until(lambda: cluster.is_whole(1, 2), 60.0, "full strength again")
    held = {n: set(world.server(n)._holdings.segments(tablet)) for n in cluster.backups}
    late = [each for each in found if each[1].segment_id not in held[each[0]]]
    assert len(late) > 5, "heads were freed"
    network = world.client("network")

    async def arrive(name: str, request: WriteReplica, blobs: list[bytes]) -> bool:
        """Whether it is refused."""
        address, peers = world.address(name), network.peers
        try:
            await peers.call(address, WRITE_REPLICA, request, timeout_s=1.0, blobs=blobs)
        except (StaleTerm, InvalidArgument):
            return True
        return False

    refused = await asyncio.gather(*(arrive(*each) for each in late))
    world.crash(owner, restart=False)
    rows = await table.scan(timeout=60.0)
    assert {row["id"]: row["text"] for row in rows.to_pylist()} == {
        key: text(ROUNDS - 1) for key in range(KEYS)
    }
    assert all(refused), "a head was opened again"


def tell(seed: int) -> None:
    world = World(seed, Options(servers=Servers(tservers=2, backups=5), keep_unsynced_rate=0.0))
    world.run(late_writes(world), limit_s=600.0)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_head_that_was_freed_is_not_opened_again_after_a_restart(seed: int) -> None:
    """Else its old digest would have the next owner wait for segments that are gone."""
    tell(seed)


def test_backups_that_forget_closed_heads_at_a_restart_lose_the_log() -> None:
    """The story sees it: the tablet waits for what was freed, and does not come back."""
    load = Fences.load

    async def forgetful(self: Fences) -> None:
        await load(self)
        self._promised = msgspec.structs.replace(self._promised, heads_from={})

    planted = patch.object(Fences, "load", forgetful)
    with planted, pytest.raises(SimulationFailure, match="DeadlineExpired"):
        tell(1)
