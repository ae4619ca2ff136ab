"""Faults that single draws seldom hit together, aimed where the promise is thinnest.

`segments("disk", "disk")` promises to survive the loss of a tserver and of one replica at the same
instant, and a tserver that is cut off from everyone but its clients must fall silent.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from stelae.simulation.cluster import SimCluster


class DoubleFaults:
    """Draws faults from ``rng`` until ``until_s`` of the loop's time."""

    def __init__(self, cluster: SimCluster, rng: random.Random, may_lose: Callable[[str], bool]):
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self._may_lose = may_lose

    async def run(self, until_s: float) -> None:
        """Wait, strike, wait until the cluster is whole again (as far as the promise needs it)."""
        loop = self._world.loop
        clock = self._world.nodes["admin"].runtime
        assert clock is not None
        while loop.time() < until_s:
            await clock.clock.sleep(self._rng.uniform(0.5, 4.0))
            if self._rng.random() < 0.5:
                self._kill_pair()
            else:
                await self._cut_off(clock.clock.sleep)

    def _heads(self) -> list[tuple[str, list[str]]]:
        """(tserver, backups of a head of its) for all heads that are open on two backups."""
        names = {
            server.info.uuid: name
            for name in self._cluster.backups
            if (server := self._world.server(name)) is not None and hasattr(server, "info")
        }
        found = []
        for tserver in self._cluster.tservers:
            server = self._world.server(tserver)
            if server is None:
                continue
            for segments in server.holders().values():
                backups = [names[uuid] for uuid in segments[-1] if uuid in names]
                if len(backups) == 2:
                    found.append((tserver, backups))
        return found

    def _kill_pair(self) -> None:
        """In one replica's next sync, lose the tserver and the other replica's disk."""
        heads = self._heads()
        if not heads:
            return
        tserver, backups = self._rng.choice(heads)
        self._rng.shuffle(backups)
        syncing, lost = backups
        fraction = self._rng.random()
        life = self._world.nodes[tserver].lives
        self._world.note("nemesis", f"arms {syncing}: {tserver} and the disk of {lost} will go")

        def strike() -> None:
            if self._world.nodes[tserver].lives != life or not self._may_lose(lost):
                return
            self._world.crash(tserver)
            self._world.crash(lost, lose_disk=True)

        def in_sync(latency_s: float) -> None:
            loop = self._world.loop
            loop.call_later(latency_s * fraction, strike, context=loop.context)

        self._world.nodes[syncing].disk.on_sync = in_sync

    async def _cut_off(self, sleep: Callable[[float], object]) -> None:
        """Cut a tserver off from masters and backups, while clients still reach it."""
        world = self._world
        serving = sorted({tserver for tserver, _ in self._heads()})
        if not serving:
            return
        zombie = [self._rng.choice(serving)]
        others = [*self._cluster.masters, *self._cluster.backups]
        world.note("nemesis", f"cuts {zombie[0]} off from all but clients")
        world.partition(zombie, others)
        world.partition(others, zombie)
        await sleep(self._rng.uniform(2.5, 7.0))  # type: ignore[misc]
        world.unpartition(zombie, others)
        world.unpartition(others, zombie)
