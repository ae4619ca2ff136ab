"""Servers that retire and cannot: operators are told; those of ``replicas`` know who retires."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from stelae.core.errors import RetryLater
from stelae.core.schema.durability import replicas
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from tests.simulation.replicated.replica_judges import Cluster
from tests.simulation.replicated.replica_operators import Operators

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
STILL_S = 20.0


def test_one_of_two_of_four_servers_that_retire_can_only_go_if_the_other_stays() -> None:
    """Three replicas cannot leave two of four servers, which operators are told; when they have
    taken one order back, the other server gets rid of all it has. Operators of the scenario see
    it if a server retires of which they do not want that."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await database.create_table("t", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0)
        operators, look = Operators(cluster, database, 3), Cluster(cluster)
        await operators.end()
        held = [s["name"] for s in await database.tservers() if s["replicas"]]
        for name in held[:2]:
            await database.retire_server(name, wait=False)
        with pytest.raises(AssertionError, match="retire, not None"):
            await operators.end()
        await asyncio.sleep(STILL_S)
        stuck = [s["name"] for s in await database.tservers() if s["retiring"] and s["replicas"]]
        assert len(stuck) == 1, "one replica went to the fourth server"
        with pytest.raises(RetryLater, match="want 3 servers, and 2 are live"):
            await database.retire_server(stuck[0], timeout=STILL_S)
        assert look.unrest().endswith("is to be retired")
        (other,) = [name for name in held[:2] if name != stuck[0]]
        await database.retire_server(other, cancel=True)
        done = await database.retire_server(stuck[0], timeout=60.0)
        assert done.replicas == 0
        await world.wait_until(lambda: not look.unrest(), 60.0, "rest")
        await asyncio.sleep(1.0)
        assert look.unrest() == ""

    world = World(1, Options(servers=Servers(tservers=4)))
    world.run(story(world), limit_s=600.0)
