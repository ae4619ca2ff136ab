"""A cluster of hosts that copy one tablet, and the stories of copies that several tests look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import pytest

from stelae.core.config.settings import GATHER_BYTES, Settings
from stelae.core.errors import (
    OutcomeUnknown,
    TabletNotReady,
)
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import (
    START_TABLET_COPY,
    DataState,
    StartTabletCopy,
)
from stelae.simulation import Options, World
from tests.simulation.copies.copy_host import (
    CHANGE,
    COPY_SETTINGS,
    EVERYONE,
    FOUNDERS,
    OTHER,
    SPARE,
    TABLET,
    Change,
    CopyHostServer,
    checksums,
    leading,
    uuid_of,
)
from tests.simulation.world.registers import PUT, Put, call_leader


def is_led(world: World, tablet_id: TabletId) -> bool:
    return leading(world, tablet_id) is not None


class Cluster:
    """Three members with rows in several images; `SPARE` has nothing yet."""

    def __init__(
        self,
        seed: int = 1,
        settings: Settings = COPY_SETTINGS,
        options: Options | None = None,
        tablets: tuple[TabletId, ...] = (TABLET,),
        flush_every_s: float = 0.1,
    ) -> None:
        self.flush_every_s = flush_every_s
        self.world = World(seed, options or Options())
        self.settings = settings
        self.tablets = tablets
        self.puts = 0

    def run(self, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        async def told() -> None:
            await self.start()
            await story(self)

        self.world.run(told(), limit_s=600.0)

    async def start(self) -> None:
        world = self.world
        for name in EVERYONE:
            world.start(
                name,
                partial(
                    CopyHostServer,
                    world=world,
                    name=name,
                    settings=self.settings,
                    tablets=self.tablets,
                    flush_every_s=self.flush_every_s,
                ),
            )
        self.client = world.client("client")
        for tablet_id in self.tablets:
            await self.until(partial(is_led, world, tablet_id), "a leader")
            await self.put(30, tablet_id)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.world.wait_until(condition, 60.0, what)

    async def put(self, count: int, tablet_id: TabletId = TABLET) -> None:
        """Rows that all stay."""
        for _ in range(count):
            self.puts += 1
            key = f"{'other/' if tablet_id == OTHER else ''}row{self.puts}"
            put = Put(key, f"client-{self.puts}")
            row = await call_leader(self.world, self.client, PUT, put, 0, FOUNDERS)
            assert row is not None
            await asyncio.sleep(0.02)

    def server(self, name: str) -> CopyHostServer:
        server = self.world.server(name)
        assert isinstance(server, CopyHostServer)
        return server

    @property
    def leader(self) -> str:
        name = leading(self.world)
        assert name is not None
        return name

    async def add(self, name: str = SPARE) -> None:
        """Make it a member; its copy begins."""
        leader = self.leader
        change = Change("add", name, self.world.address(name))
        await self.client.peers.call(self.world.address(leader), CHANGE, change, timeout_s=2.0)

    async def begun(self, name: str = SPARE, images: int = 1, tablet_id: TabletId = TABLET) -> None:
        """Wait until that many images were copied to it."""

        def is_so() -> bool:
            job = self.server(name).jobs._jobs.get(tablet_id)
            return job is not None and job.attempt is not None and len(job.attempt.held) >= images

        await self.world.wait_until(is_so, 60.0, "a copy has begun", poll_s=0.0005)

    async def finished(self, name: str = SPARE, tablet_id: TabletId = TABLET) -> None:
        """Wait until it holds the same rows as the leader."""

        def is_so() -> bool:
            found = checksums(self.world, tablet_id)
            lead = leading(self.world, tablet_id)
            return lead in found and name in found and repr(found[name]) == repr(found[lead])

        await self.world.wait_until(is_so, 60.0, "a copy has finished", poll_s=0.05)

    def count(self, name: str, metric: str) -> float:
        counts = self.world.metrics[name].counts
        return sum(n for key, n in counts.items() if key.partition("{")[0] == metric)

    async def order(self, name: str, source: str, term: int, state: DataState) -> None:
        """An order as a leader gives it."""
        order = StartTabletCopy(
            TABLET, uuid_of(source), self.world.address(source), term, state, None
        )
        await self.client.peers.call(
            self.world.address(name), START_TABLET_COPY, order, timeout_s=1.0
        )


SLOW = Options(bandwidth_bytes_s=20_000.0)


def images_of(cluster: Cluster, name: str) -> int:
    store = cluster.server(name).store
    superblock = store.superblock(TABLET)
    assert superblock is not None
    assert superblock.snapshot is not None
    return len(store.files_of(superblock.snapshot))


LARGE = GATHER_BYTES // 20 + 1
"""So much of a value, which is written twenty times more, makes a large command."""


async def resume_elsewhere(cluster: Cluster) -> None:
    """A copy of a log whose end is not committed, and is cut before the copy is complete."""
    world, old = cluster.world, cluster.leader
    others = [name for name in FOUNDERS if name != old]
    world.partition([old], others)
    world.partition(others, [old])
    replica = cluster.server(old).tablets[TABLET].replica
    for number in range(4):
        put = Put(
            f"lost{number}", "l" * LARGE + f"-{number}"
        )  # small ones would wait for the first
        with pytest.raises(OutcomeUnknown):
            await cluster.client.peers.call(world.address(old), PUT, put, timeout_s=0.03)
    await cluster.order(SPARE, old, replica.term, DataState.ABSENT)
    end = replica.core.log.last.index

    def nearly() -> bool:
        job = cluster.server(SPARE).jobs._jobs.get(TABLET)
        return bool(job and job.attempt and job.attempt.log_last.index >= end - 2)

    await world.wait_until(nearly, 60.0, "the copy is nearly complete", poll_s=0.0005)
    world.partition([old], [SPARE])
    world.partition([SPARE], [old])
    await cluster.until(lambda: leading(world) not in (None, old), "another leader")
    await cluster.put(8)
    new = cluster.leader
    term = cluster.server(new).tablets[TABLET].replica.term
    with pytest.raises(TabletNotReady):  # it is noted for when the first source fails
        await cluster.order(SPARE, new, term, DataState.DELETED)
    spare = cluster.server(SPARE)
    await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
    assert spare.data_state(TABLET) is DataState.READY
    await cluster.add()
    await cluster.finished()


SINGLE_ENTRIES = msgspec.structs.replace(COPY_SETTINGS, copy_piece_bytes=1)


async def tombstone_ahead(cluster: Cluster) -> tuple[str, str]:
    """A server whose tombstone acknowledged more than another one's replica has: (it, that one)."""
    world = cluster.world
    await cluster.add()
    await cluster.finished()
    leader = cluster.leader
    replica = cluster.server(leader).tablets[TABLET].replica
    await cluster.until(lambda: uuid_of(SPARE) in replica.members.voters, "it votes")
    ahead, behind = (name for name in FOUNDERS if name != leader)
    rest = [name for name in EVERYONE if name != behind]
    world.partition([behind], rest)
    world.partition(rest, [behind])
    await cluster.put(8)
    await cluster.finished(ahead)
    change = Change("remove", ahead, world.address(ahead))
    await cluster.client.peers.call(world.address(leader), CHANGE, change, timeout_s=2.0)
    server = cluster.server(ahead)
    async with server.lock(TABLET):
        await server.store.tombstone(TABLET, await server._stop(TABLET))
    await server.settle(TABLET)
    world.unpartition([behind], [ahead])
    world.unpartition([ahead], [behind])
    return ahead, behind
