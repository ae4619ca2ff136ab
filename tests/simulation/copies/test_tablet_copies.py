"""Tablet copies in the simulated world: seeds, and each way in which one can end at its receiver.

Their sources are in `tests.simulation.copies.test_copy_sources`, images in
`tests.simulation.copies.test_copied_images`. That a resume must not use a stale session is seen in
`tests.simulation.replicated.test_planted_replicas`.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.core.errors import (
    Overloaded,
    StaleTerm,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.messages.replicas import (
    START_TABLET_COPY,
    DataState,
    StartTabletCopy,
)
from stelae.simulation import Options
from stelae.simulation.runner import derive_seeds, replay_command, run_seed
from tests.simulation.copies.copied_cluster import SLOW, Cluster
from tests.simulation.copies.copy_host import (
    COPY_SETTINGS,
    DROP,
    FOUNDERS,
    OTHER,
    SPARE,
    TABLET,
    Drop,
    uuid_of,
)
from tests.simulation.copies.tablet_copies import SCENARIO

SEEDS = 12


@pytest.mark.parametrize("seed", derive_seeds("tablet_copies", SEEDS), ids=lambda s: f"seed{s}")
def test_copies_under_faults_lose_nothing_and_leave_nothing(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command(SCENARIO.name, seed)}\n{outcome.failure}"


def test_a_member_without_the_tablet_gets_it_by_a_copy_and_becomes_a_voter() -> None:
    """All rows come, the session ends, nothing stays pinned, and the member votes."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.finished()
        leader = cluster.server(cluster.leader)
        await cluster.until(lambda: not leader.sources.sessions, "the session ends")
        members = leader.tablets[TABLET].replica
        await cluster.until(lambda: uuid_of(SPARE) in members.members.voters, "it is promoted")
        await asyncio.sleep(2.0)
        assert not members.flushes._pins
        assert not leader.store._pins.get(TABLET)

    Cluster().run(story)


def test_a_tablet_that_is_deleted_for_good_while_it_is_copied_stays_deleted() -> None:
    """The job ends by itself, and no order revives the tablet."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        drop = Drop(TABLET, True)
        await cluster.client.peers.call(cluster.world.address(SPARE), DROP, drop, timeout_s=2.0)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
        superblock = spare.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.forever
        with pytest.raises(TabletDeleted):
            await cluster.order(SPARE, cluster.leader, 99, DataState.DELETED)

    Cluster(options=SLOW).run(story)


def test_orders_that_are_not_as_things_are_change_nothing() -> None:
    """A rogue leader of a lower term, late orders, wrong beliefs: no replica is deleted."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        follower = next(name for name in FOUNDERS if name != leader)
        server = cluster.server(follower)
        replica = server.tablets[TABLET].replica
        with pytest.raises(StaleTerm):
            await cluster.order(follower, leader, replica.term - 1, DataState.READY)
        for state in (DataState.ABSENT, DataState.DELETED, DataState.COPYING):
            with pytest.raises(TabletNotReady):
                await cluster.order(follower, leader, replica.term, state)
        await cluster.order(follower, leader, replica.term, DataState.READY)  # late: it lacks none
        await cluster.until(lambda: not server.jobs._jobs, "the job ends")
        assert server.jobs.problems[TABLET].endswith("as far as its source")
        assert server.tablets[TABLET].replica is replica
        leading_server = cluster.server(leader)
        assert not leading_server.sources.sessions

    Cluster().run(story)


def test_a_full_disk_ends_a_copy_and_the_next_one_succeeds() -> None:
    """The tombstone stays while there is no room; once there is, the leader orders it again."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        disk, spare = cluster.world.nodes[SPARE].disk, cluster.server(SPARE)
        disk.full = True
        await cluster.until(lambda: cluster.count(SPARE, "copies_given_up") > 0, "it is given up")
        assert not [path for path in disk.paths() if path.startswith("data/")]
        await asyncio.sleep(0.5)
        assert spare.data_state(TABLET) is not DataState.READY
        disk.full = False
        await cluster.finished()
        assert cluster.server(SPARE) is spare

    Cluster(options=SLOW).run(story)


@pytest.mark.parametrize("step", range(12))
def test_a_receiver_that_crashes_at_any_step_is_copied_to_again(step: int) -> None:
    """Whatever was there when it crashed; rows, term and vote are right in the end."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await cluster.until(lambda: bool(cluster.server(SPARE).jobs._jobs), "a copy begins")
        await asyncio.sleep(0.0137 * step * (1 + step / 4))
        world.crash(SPARE, restart=False)
        world.restart(SPARE)
        await cluster.until(lambda: world.nodes[SPARE].ready, "it is back")
        await cluster.finished()

    Cluster(seed=step, options=Options(bandwidth_bytes_s=200_000.0)).run(story)


def test_a_follower_whose_log_is_too_old_is_replaced_by_a_copy() -> None:
    """Its own replica is deleted only once the source has said what there is to copy."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        behind = next(name for name in FOUNDERS if name != cluster.leader)
        world.crash(behind, restart=False)
        world.nodes[behind].auto_restart = False
        await cluster.put(20)
        world.restart(behind)
        await cluster.until(lambda: world.nodes[behind].ready, "it is back")
        await cluster.finished(behind)
        assert cluster.count(behind, "copies_received") == 1
        superblock = cluster.server(behind).store.superblock(TABLET)
        assert superblock is not None
        assert superblock.generation > 3
        assert [p for p in world.nodes[behind].disk.paths() if p.startswith("quarantine/")]

    Cluster().run(story)


def test_copies_beyond_the_pool_are_throttled_and_come_later() -> None:
    """One at a time here: the other is told to wait, and is not forgotten."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun()
        order = StartTabletCopy(
            OTHER,
            uuid_of(cluster.leader),
            cluster.world.address(cluster.leader),
            99,
            DataState.ABSENT,
        )
        address = cluster.world.address(SPARE)
        with pytest.raises(Overloaded):
            await cluster.client.peers.call(address, START_TABLET_COPY, order, timeout_s=1.0)
        await cluster.finished()
        term = cluster.server(cluster.leader).tablets[OTHER].replica.term
        order = msgspec.structs.replace(order, term=term)
        await cluster.client.peers.call(address, START_TABLET_COPY, order, timeout_s=1.0)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: spare.data_state(OTHER) is DataState.READY, "the other one")

    settings = msgspec.structs.replace(COPY_SETTINGS, copies_max=1)
    Cluster(settings=settings, options=SLOW, tablets=(TABLET, OTHER)).run(story)


def test_a_cancelled_copy_leaves_a_tombstone_and_can_be_made_anew() -> None:
    """Cancelling waits until all that was written is removed."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        spare = cluster.server(SPARE)
        copied, size = spare.jobs.progress(TABLET)
        assert 0 < copied < size
        cancelling = cluster.world.spawn(SPARE, spare.jobs.cancel(TABLET))
        await cluster.until(cancelling.done, "it is cancelled")
        assert cancelling.result()
        assert spare.data_state(TABLET) is DataState.DELETED
        assert spare.jobs.problems[TABLET] == "cancelled"
        await cluster.finished()
        assert TABLET not in spare.jobs.problems

    Cluster(options=SLOW).run(story)
