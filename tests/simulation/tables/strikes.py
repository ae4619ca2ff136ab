"""Strikes: faults that single draws seldom bring together, aimed where the promise is thinnest.

`segments("disk", "disk")` promises to survive the loss of a tserver and of one replica at the same
instant, and a tserver that is cut off from everyone but its clients must fall silent. Of a head
with more replicas all but one, drawn anew each time, go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from stelae.simulation.cluster import SimCluster

KINDS = ("kill", "stall", "cut", "mute", "bounce")
LOSING_A_DISK = ("kill", "stall")
"""And the other replica's power: no promise covers it, unless both were on synced media."""


class Strikes:
    """Draws faults from ``rng`` until ``until_s`` of the loop's time."""

    def __init__(
        self,
        cluster: SimCluster,
        rng: random.Random,
        may_lose: Callable[[str], bool],
        writers: Sequence[str],
        *,
        kinds: Sequence[str] = KINDS,
        longest_gap_s: float = 4.0,
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self._may_lose = may_lose
        self._writers = writers
        self._kinds = kinds
        self._longest_gap_s = longest_gap_s

    async def run(self, until_s: float) -> None:
        """Wait, strike, wait until the cluster is whole again (as far as the promise needs it)."""
        loop = self._world.loop
        clock = self._world.nodes["admin"].runtime
        assert clock is not None
        while loop.time() < until_s:
            await clock.clock.sleep(self._rng.uniform(0.3, self._longest_gap_s))
            match self._rng.choice(self._kinds):
                case "kill":
                    self._kill_pair()
                case "stall":
                    await self._stall(clock.clock.sleep)
                case "cut":
                    await self._cut_off(clock.clock.sleep)
                case "mute":
                    await self._mute(clock.clock.sleep)
                case "bounce":
                    await self._bounce(clock.clock.sleep)
                case other:
                    raise AssertionError(other)

    def _heads(self) -> list[tuple[str, list[str]]]:
        """(tserver, backups of a head of its) for all heads that are open on several backups."""
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
                if len(backups) >= 2:
                    found.append((tserver, backups))
        return found

    def _kill_pair(self) -> None:
        """In one replica's next sync, lose the tserver and another replica's disk, and of all
        further ones the power.

        Often the syncing backup loses its power as well: then only what is synced is left.
        """
        heads = self._heads()
        if not heads:
            return
        tserver, backups = self._rng.choice(heads)
        self._rng.shuffle(backups)
        syncing, lost, *others = backups
        fraction, also_syncing = self._rng.random(), self._rng.random() < 0.7
        life = self._world.nodes[tserver].lives
        self._world.note("nemesis", f"arms {syncing}: {tserver} and the disk of {lost} will go")

        def strike() -> None:
            if self._world.nodes[tserver].lives != life or not self._may_lose(lost):
                return
            self._world.crash(tserver)
            self._world.crash(lost, lose_disk=True)
            for name in others + [syncing] * also_syncing:
                self._world.crash(name)

        def in_sync(latency_s: float) -> None:
            loop = self._world.loop
            loop.call_later(latency_s * fraction, strike, context=loop.context)

        self._world.nodes[syncing].disk.on_sync = in_sync

    async def _stall(self, sleep: Callable[[float], object]) -> None:
        """While one replica's backup hangs, lose the tserver and the other replica's disk."""
        world, rng = self._world, self._rng
        heads = self._heads()
        if not heads:
            return
        tserver, backups = rng.choice(heads)
        hanging, lost = rng.sample(backups, 2)
        if not self._may_lose(lost):  # later no head is whole, with one of its backups hanging
            return
        struck = tserver, *self._cluster.backups  # if another backup falls first, that is enough
        lives = [world.nodes[name].lives for name in struck]
        world.note("nemesis", f"stalls {hanging}: {tserver} and the disk of {lost} will go")
        world.pause(hanging)
        await sleep(rng.uniform(0.02, 0.4))  # type: ignore[misc]
        same = lives == [world.nodes[name].lives for name in struck]
        if same and all(world.server(name) is not None for name in struck):
            world.crash(tserver)
            world.crash(lost, lose_disk=True)
        world.resume(hanging)

    async def _cut_off(self, sleep: Callable[[float], object]) -> None:
        """Cut a tserver off from masters and backups, while clients still reach it.

        Sometimes only those that read do: one write that cannot be replicated stops all reads of
        a zombie, lease or not, because they wait for what they have seen to be durable.
        """
        world = self._world
        serving = sorted({tserver for tserver, _ in self._heads()})
        if not serving:
            return
        zombie = [self._rng.choice(serving)]
        others = [*self._cluster.masters, *self._cluster.backups]
        if self._rng.random() < 0.5:
            others += self._writers
        world.note("nemesis", f"cuts {zombie[0]} off from all but clients")
        world.partition(zombie, others)
        world.partition(others, zombie)
        await sleep(self._rng.uniform(2.5, 9.0))  # type: ignore[misc]
        world.unpartition(zombie, others)
        world.unpartition(others, zombie)

    async def _mute(self, sleep: Callable[[float], object]) -> None:
        """Let backups in turn hear a tserver but not answer it; at last the tserver dies.

        Its heads wander from backup to backup, while restarts make it ask them all what they hold.
        """
        world, rng = self._world, self._rng
        serving = sorted({tserver for tserver, _ in self._heads()})
        if not serving:
            return
        tserver = rng.choice(serving)
        world.note("nemesis", f"mutes the backups of {tserver} in turn")
        for _ in range(rng.randrange(3, 10)):
            muted = rng.sample(self._cluster.backups, rng.randrange(1, 3))
            world.partition(muted, [tserver])
            await sleep(rng.uniform(0.2, 1.5))  # type: ignore[misc]
            world.unpartition(muted, [tserver])
            if rng.random() < 0.3:
                world.restart(rng.choice(self._cluster.backups))
        world.crash(tserver)

    async def _bounce(self, sleep: Callable[[float], object]) -> None:
        """Leave a head's backups without a word for so long that its owner gives them up, with no
        other at hand; as they restart, with what they had, the owner dies.
        """
        world, rng = self._world, self._rng
        heads = self._heads()
        if not heads:
            return
        tserver, backups = rng.choice(heads)
        others = [backup for backup in self._cluster.backups if backup not in backups]
        world.note("nemesis", f"bounces {' and '.join(backups)} of {tserver}")
        for other in others:
            world.crash(other, restart=False)
        world.partition(backups, [tserver])
        await sleep(rng.uniform(0.55, 1.2))  # type: ignore[misc]
        for backup in backups:
            world.restart(backup)
        world.unpartition(backups, [tserver])
        await sleep(rng.uniform(0.1, 0.6))  # type: ignore[misc]
        world.crash(tserver)
        for other in others:
            world.restart(other)
