"""Backups that the masters hear, and a tablet's owner does not reach: writes go on without them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.actors.tserver.segments.avoided import AvoidedBackups
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, SimulationFailure, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
ROUNDS = 12
LIMIT_S = 15.0
"""Upper bound of one round of writes; with backups that answer it takes a fraction of a second."""


async def writes_go_on(world: World, cut_off: int) -> None:
    cluster = SimCluster(world, segment_bytes=2000)
    await cluster.start()
    database = cluster.database("client")
    table = await database.create_table(
        "t", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=30.0
    )
    (owner,) = cluster.tservers
    for name in cluster.backups[:cut_off]:  # empty ones, and so the first to be chosen
        world.network.block(owner, name)
        world.network.block(name, owner)
    for turn in range(ROUNDS):
        rows = [{"id": 100 * turn + n, "text": "x" * 100} for n in range(20)]
        await table.upsert(rows, timeout=LIMIT_S)
    world.network.unblock_all()
    found = await table.scan(timeout=30.0)
    assert found.num_rows == 20 * ROUNDS
    await world.wait_until(lambda: cluster.is_whole(1, 2), 60.0, "full strength")


def tell(seed: int, backups: int, cut_off: int) -> None:
    options = Options(servers=Servers(tservers=1, backups=backups), keep_unsynced_rate=1.0)
    world = World(seed, options)
    world.run(writes_go_on(world, cut_off), limit_s=600.0)


@pytest.mark.parametrize(("backups", "cut_off"), [(5, 2), (8, 3), (8, 5)])
@pytest.mark.parametrize("seed", [1, 2])
def test_writes_go_on_beside_backups_that_do_not_answer(
    seed: int, backups: int, cut_off: int
) -> None:
    """Their pauses grow until they overlap; once they are reached again they are used again."""
    tell(seed, backups, cut_off)


def test_without_growing_pauses_writes_stop() -> None:
    """The planted bug: a backup is avoided just as long as the try of the next one takes."""

    def short(self: AvoidedBackups, backup: Any, now: float, first_s: float) -> None:
        pass

    def told_of_some() -> None:
        for seed in range(1, 6):
            tell(seed, 8, 5)

    with patch.object(AvoidedBackups, "failed", short), pytest.raises(SimulationFailure):
        told_of_some()


def test_masters_hear_of_backups_that_do_not_answer_and_pass_it_on() -> None:
    """Both tservers avoid the same two: status says so, all take them last; and it ends."""

    async def story(world: World) -> None:
        cluster = SimCluster(world, segment_bytes=2000)
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", buckets=4),
            durability=segments("disk", "disk"),
            timeout=30.0,
        )
        cut_off = sorted(cluster.backups)[:2]
        for name in cut_off:
            for tserver in cluster.tservers:
                world.network.block(tserver, name)

        async def write() -> None:
            rows = [{"id": n, "text": "x" * 100} for n in range(60)]
            await table.upsert(rows, timeout=LIMIT_S)

        async def avoided() -> dict[str, list[str]]:
            status = await database.status(timeout=10.0)
            servers = [each for each in status["servers"] if each["kind"] == "backup"]
            return {each["id"]: sorted(each["avoided_by"]) for each in servers}

        both = sorted(cluster.tservers)
        for _ in range(200):
            await write()
            found = await avoided()
            if [found[name] for name in cut_off] == [both, both]:
                break
        assert {name for name, by in found.items() if by} == set(cut_off)
        await asyncio.sleep(1.0)
        uuids = sorted(world.server(name).info.uuid for name in cut_off)
        for name in cluster.tservers:
            assert sorted(world.server(name).members.shunned) == uuids
        world.network.unblock_all()
        for _ in range(300):
            await write()
            if not any((await avoided()).values()):
                break
            await asyncio.sleep(1.0)
        assert not any((await avoided()).values())

    options = Options(servers=Servers(tservers=2, backups=5), keep_unsynced_rate=1.0)
    world = World(1, options)
    world.run(story(world), limit_s=900.0)
