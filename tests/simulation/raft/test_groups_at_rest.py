"""What a tablet's group does while nobody calls: as little as can be, and no less than is promised.

A saving that nobody watches is soon none (Kudu lost its shared heartbeats for months): so what it
saves is counted here, beside what it must not change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.replicated_tablet import report as replica_report
from stelae.actors.tserver.replicated_tablet.report import LOOK_S, ReplicaReports
from stelae.consensus.raft.raft import Raft
from stelae.core.messages.servers import TabletReport
from stelae.simulation import World
from tests.simulation.replicated.ordered_group import report
from tests.simulation.replicated.tablet_group import SETTINGS, Caller, Group
from tests.simulation.replicated.test_planted_replicas import play

REST_S = 20.0
BEAT_S = SETTINGS.heartbeat_s


async def _at_rest(group: Group, client: Caller) -> None:
    await client.upsert(1, "one")
    await group.wait_agreement(group.names)
    await asyncio.sleep(2.0)


def test_heartbeats_of_a_group_at_rest_need_no_ready_and_no_task() -> None:
    """They are sent, and answered, where they arise; leader and term stay."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await _at_rest(group, client)
        counts: Counter[str] = Counter()
        light, ready = Raft.take_light, Raft.take_ready

        def counted_light(core: Raft) -> Any:
            counts["light"] += 1
            return light(core)

        def counted_ready(core: Raft) -> Any:
            counts["ready"] += 1
            return ready(core)

        leader = await group.wait_leader()
        tablet = group.tablet(leader)
        assert tablet is not None
        term = tablet.replica.term
        with (
            patch.object(Raft, "take_light", counted_light),
            patch.object(Raft, "take_ready", counted_ready),
        ):
            await asyncio.sleep(REST_S)
        beats = REST_S / (SETTINGS.raft_heartbeat_ticks * SETTINGS.group_tick_s)
        assert counts["light"] > 2 * beats, "leader and followers beat"
        assert counts["ready"] == 0
        assert (tablet.replica.is_leader, tablet.replica.term) == (True, term)
        await client.upsert(1, "two")

    play(story, 1)


def test_a_follower_at_rest_is_looked_at_closely_twice_a_second_and_at_once_after_a_write() -> None:
    """Its report is the very same one; with a new entry it is a new one, however soon."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await _at_rest(group, client)
        leader = await group.wait_leader()
        follower = next(name for name in group.names if name != leader)
        own, looks = group.tablet(follower), 0
        assert own is not None
        made = ReplicaReports._state

        def counted(self: ReplicaReports) -> Any:
            nonlocal looks
            looks += self is own._reports
            return made(self)

        def told() -> TabletReport:
            found = report(group, follower)
            assert found is not None
            return found

        first, began_s = told(), world.loop.time()
        with patch.object(ReplicaReports, "_state", counted):
            for _ in range(100):
                server = group.server(follower)
                assert server is not None
                assert told() is first
                await asyncio.sleep(BEAT_S / 4)
        passed_s = world.loop.time() - began_s
        assert looks <= passed_s / LOOK_S + 1, "each heartbeat looks at everything"
        await client.upsert(2, "two")
        await group.wait_agreement(group.names)
        later = told()
        assert later.group is not None
        assert first.group is not None
        assert later.group.last > first.group.last
        assert later.row_count == first.row_count + 1

    play(story, 1)
    assert replica_report.LOOK_S <= 0.5, "memory that is freed is told soon"
