"""How the images of a tablet reach a copy: by the object store, or in pieces; damaged, or in part
there from an attempt before."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.actors.tserver.tablet_copy.receiver import IMAGES_AT_A_TIME
from stelae.core.messages.replicas import (
    FETCH_FILE,
    DataState,
)
from stelae.simulation import Options
from tests.simulation.copies.copied_cluster import SLOW, Cluster, images_of
from tests.simulation.copies.copy_host import (
    COPY_SETTINGS,
    FOUNDERS,
    SPARE,
    TABLET,
)


def test_images_come_by_the_object_store_a_few_at_a_time_and_none_stays_there() -> None:
    """No image goes in pieces; what has arrived is let go of while the copy goes on."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        pieces: list[str] = []
        shared: list[int] = []

        def watch(sender: str, receiver: str, method: str) -> bool:
            if method == FETCH_FILE.name:
                pieces.append(receiver)
            shared.append(len(world.objects.shared))
            return False

        world.network.drop_filter = watch
        images = images_of(cluster, cluster.leader)
        await cluster.add()
        await cluster.finished()
        assert images > 6
        assert not pieces
        assert cluster.count(SPARE, "copy_objects_received") >= images
        assert 1 < max(shared) <= 4
        sources = cluster.server(cluster.leader).sources
        await cluster.until(lambda: not sources.sessions, "the session ends")
        assert not world.objects.shared

    Cluster().run(story)


@pytest.mark.parametrize("why", ["lost", "full", "not shared"])
def test_images_come_in_pieces_where_objects_do_not(why: str) -> None:
    """Objects that are gone when they are asked for, a full store, servers that share none."""

    async def story(cluster: Cluster) -> None:
        for name in FOUNDERS:
            runtime = cluster.world.nodes[name].runtime
            assert runtime is not None
            runtime.objects.is_full = why == "full"
        await cluster.add()
        await cluster.finished()
        lost = cluster.count(SPARE, "copy_objects_lost")
        assert (3 <= lost <= 6) if why == "lost" else not lost
        assert cluster.count(SPARE, "copy_objects_received") == 0
        assert (cluster.count(cluster.leader, "copy_objects_refused") > 0) == (why == "full")
        assert cluster.count(SPARE, "copies_received") == 1

    rate = 1.0 if why == "lost" else 0.0
    options = Options(lost_object_rate=rate, shares_objects=why != "not shared")
    Cluster(options=options).run(story)


def test_a_source_that_dies_with_objects_on_their_way_is_replaced() -> None:
    """They are lost with it; the rest comes from the next leader, and is complete."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await world.wait_until(lambda: len(world.objects.shared) > 1, 60.0, "objects", poll_s=1e-4)
        dead = cluster.leader
        world.crash(dead, restart=False)
        world.nodes[dead].auto_restart = False
        await cluster.finished()
        assert cluster.leader != dead
        assert cluster.count(SPARE, "copies_resumed") + cluster.count(SPARE, "copies_given_up") > 0

    Cluster(options=SLOW).run(story)


def test_a_session_that_expires_leaves_nothing_in_the_object_store() -> None:
    """Its receiver is gone for good."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await world.wait_until(lambda: len(world.objects.shared) > 0, 60.0, "objects", poll_s=1e-4)
        world.crash(SPARE, restart=False)
        world.nodes[SPARE].auto_restart = False
        sources = cluster.server(cluster.leader).sources
        await cluster.until(lambda: not sources.sessions, "the session ends")
        assert not world.objects.shared

    Cluster(options=SLOW).run(story)


def test_a_broken_connection_costs_no_image_that_was_there() -> None:
    """Only what is missing is fetched after the connection came back."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=3)
        leader = cluster.leader
        cluster.world.partition([leader], [SPARE])
        await asyncio.sleep(0.4)
        cluster.world.unpartition([leader], [SPARE])
        await cluster.finished()
        assert cluster.count(SPARE, "copies_resumed") >= 1
        assert cluster.count(leader, "copy_sessions") == 1
        store = cluster.server(leader).store
        superblock = store.superblock(TABLET)
        assert superblock is not None
        assert superblock.snapshot is not None
        sizes = sorted(file.size_bytes for file in store.files_of(superblock.snapshot))
        lost = sum(sizes[-IMAGES_AT_A_TIME:])  # what was on its way
        assert lost < sum(sizes) / 2
        assert cluster.count(leader, "copy_bytes_sent") < sum(sizes) + lost + 2000

    Cluster(options=SLOW).run(story)


def test_a_session_that_expired_is_not_used_again_and_what_it_gave_counts() -> None:
    """A new session brings a new plan; images that are the same in both are not fetched twice."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=3)
        leader = cluster.leader
        cluster.world.partition([leader], [SPARE])
        await asyncio.sleep(1.0)
        await cluster.put(5)
        cluster.world.unpartition([leader], [SPARE])
        await cluster.finished()
        assert cluster.count(leader, "copy_sessions") == 2
        assert cluster.count(SPARE, "copies_received") == 1

    settings = msgspec.structs.replace(COPY_SETTINGS, copy_idle_s=0.4)
    Cluster(settings=settings, options=SLOW).run(story)


@pytest.mark.parametrize("change", ["flip", "unreadable"])
def test_a_damaged_image_is_the_sources_problem(change: str) -> None:
    """The source is told which tablet is damaged; the receiver keeps nothing of it."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        disk = cluster.world.nodes[leader].disk
        path = next(path for path in disk.paths() if path.startswith(f"data/{TABLET}"))
        if change == "flip":
            disk.corrupt(path, 100)
        else:
            disk.make_unreadable(path)
        await cluster.add()
        server = cluster.server(leader)
        await cluster.until(lambda: TABLET in server.corrupt, "the damage is found")
        await cluster.until(lambda: cluster.count(SPARE, "copies_given_up") > 0, "given up")
        assert cluster.server(SPARE).data_state(TABLET) is not DataState.READY

    Cluster().run(story)
