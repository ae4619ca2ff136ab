"""A move that cannot finish: what operators see of it, and that they can give it up at any time."""

from __future__ import annotations

import asyncio

import pytest

from stelae.client.admin.operators import MoveStage
from stelae.core.errors import RetryLater
from tests.simulation.recovery.healed_cluster import Healed, play


@pytest.mark.parametrize("masters_change", [False, True])
def test_a_move_that_hangs_says_why_and_is_given_up(masters_change: bool) -> None:
    """Its target has no room. The order to give up is kept by the catalog, so it holds under a new
    leader of the masters, and may be repeated; the members are as before, and the same move works
    once there is room."""

    async def story(healed: Healed) -> None:
        world, cluster = healed.world, healed.cluster
        database, members = cluster.database("operator"), healed.members()
        (spare,) = [n for n in cluster.tservers if healed.uuid(n) not in members]
        source = healed.followers()[0]
        world.nodes[spare].disk.full = True
        seen: list[MoveStage] = []
        with pytest.raises(RetryLater, match="it goes on by itself until it is cancelled") as told:
            await database.move_replica(
                healed.tablet, source, spare, progress=seen.append, timeout=6.0
            )
        assert not any(stage.is_done for stage in seen)
        assert any("no space left" in stage.why for stage in seen), seen
        assert seen[-1].text in str(told.value)
        record = healed.record()
        assert record is not None
        assert record.move is not None
        if masters_change:
            world.crash(cluster.leader() or "")
        for _ in range(2):
            given_up = await database.move_replica(healed.tablet, "", "", timeout=20.0)
            assert given_up.move is None
        await healed.until(healed.is_whole, "it is as it was")
        await healed.until(lambda: sorted(healed.members()) == sorted(members), "the members")
        await healed.write(5)
        await asyncio.sleep(5.0)
        assert sorted(healed.members()) == sorted(members)

        world.nodes[spare].disk.full = False
        done = await database.move_replica(healed.tablet, source, spare, timeout=60.0)
        assert done.move is None
        assert healed.uuid(spare) in healed.members()
        assert healed.uuid(source) not in healed.members()
        await healed.check()

    play(story, tservers=4, dead_after_s=30.0)
