"""A watch over the promise itself: the backups' disks hold the whole log of every tablet, always.

A run sees a lost log only if a crash asks for it in that very moment. This asks all the time: while
all backups run and answer, a recovery planned from what they hold must find every segment.
"""

from __future__ import annotations

import asyncio

from stelae.client.database import AsyncDatabase
from stelae.core.errors import SegmentsMissing, StelaeError
from stelae.core.ids import TabletId, segment_id
from stelae.core.messages.backups import INVENTORY, Inventory, LogInventory
from stelae.core.records.records import ServerInfo, TabletRecord, TabletState
from stelae.recovery.inherited import logs_of, plan_of
from stelae.simulation.cluster import SimCluster

_Inventories = dict[TabletId, dict[ServerInfo, LogInventory]]
PERIOD_S = 0.03
ANSWER_TIMEOUT_S = 0.3
LOOKS = 3
"""Backups are asked one after the other, and replicas move meanwhile: so often in a row a log must
be found incomplete before it counts."""


def newest_tablets(cluster: SimCluster) -> dict[TabletId, TabletRecord]:
    """What the newest of the masters' catalogs says of each tablet, also while nobody leads."""
    newest: dict[TabletId, TabletRecord] = {}
    for name in cluster.masters:
        master = cluster.world.server(name)
        for tablet in master.catalog.tablets.values() if master is not None else ():
            known = newest.get(tablet.tablet_id)
            if known is None or known.generation < tablet.generation:
                newest[tablet.tablet_id] = tablet
    return newest


class LogWatch:
    """Asks through the network, as a client of the backups; what cannot be asked is not judged."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase, replicas: int) -> None:
        self._cluster = cluster
        self._runtime = database.runtime
        self._replicas = replicas
        self._misses: dict[tuple[TabletId, int], int] = {}
        self._whole: dict[TabletId, tuple[TabletRecord, _Inventories]] = {}
        """What was found to be a whole log last: the same is one again."""
        self.looks = 0
        """So often the logs were judged."""

    async def run(self, until_s: float) -> None:
        """Look until ``until_s`` of the loop's time.

        Raises:
            SegmentsMissing: a log could not be recovered, though every backup is there.
        """
        while self._cluster.world.loop.time() < until_s:
            await self._look()
            await self._runtime.clock.sleep(PERIOD_S)

    async def _look(self) -> None:
        tablets = self._tablets()  # before the backups are asked: marks of epochs follow replicas
        backups = self._backups()
        if not tablets or backups is None:
            self._misses.clear()
            return
        logs = [*logs_of([*tablets.values()])]
        asked = await asyncio.gather(*(self._ask(backup, logs) for backup in backups))
        held = dict(zip(backups, asked, strict=True))
        if any(not logs for logs in asked) or self._backups() != backups:
            self._misses.clear()
            return
        self.looks += 1
        for tablet_id, tablet in tablets.items():
            inventories = {
                log: {backup: logs[log] for backup, logs in held.items()}
                for log in logs_of([tablet])
            }
            key = tablet_id, tablet.term
            if any(_is_later(logs, tablet.term) for logs in inventories[tablet_id].values()):
                self._misses.pop(key, None)  # no master that runs knows of the owner
                continue
            if self._whole.get(tablet_id) == (tablet, inventories):
                self._misses.pop(key, None)
                continue
            try:
                plan_of(tablet, self._replicas, inventories)
            except SegmentsMissing:
                self._misses[key] = self._misses.get(key, 0) + 1
                if self._misses[key] >= LOOKS:
                    raise
            else:
                self._misses.pop(key, None)
                self._whole[tablet_id] = tablet, inventories

    def _tablets(self) -> dict[TabletId, TabletRecord]:
        """What the newest of the masters' catalogs says of tablets that have a log. Nothing while
        nobody leads: only who did may have applied what the owners and backups go by already."""
        if self._cluster.leader() is None:
            return {}
        return {
            tablet_id: tablet
            for tablet_id, tablet in newest_tablets(self._cluster).items()
            if tablet.state is not TabletState.CREATING and not tablet.state.is_gone
        }

    def _backups(self) -> list[ServerInfo] | None:
        """All of them, if all run."""
        servers = [self._cluster.world.server(name) for name in self._cluster.backups]
        if any(server is None or not hasattr(server, "info") for server in servers):
            return None
        return [server.info for server in servers if server is not None]

    async def _ask(
        self, backup: ServerInfo, tablets: list[TabletId]
    ) -> dict[TabletId, LogInventory]:
        """What it holds of these logs; nothing if it does not answer."""
        try:
            reply = await self._runtime.peers.call(
                backup.address,
                INVENTORY,
                Inventory(tuple(tablets)),
                timeout_s=ANSWER_TIMEOUT_S,
                destination=backup.uuid,
            )
        except StelaeError:
            return {}
        return {log.tablet_id: log for log in reply.body.logs}


def _is_later(held: LogInventory, term: int) -> bool:
    """Whether there are segments of an owner after that of ``term``."""
    return any(replica.segment_id >= segment_id(term + 1, 1) for replica in held.replicas)
