"""The ``cold_starts`` scenario: everything stops at once, and comes up again without some machines.

Each time all servers die; all but some backups start again, the masters with empty memories. An
operator in a hurry gives up whatever is reported as missing, and does not say of any backup that it
is gone: as long as one is away that the cluster once heard, that must be refused, or rows are gone
that nobody has lost. Then the others start, too. What the ``tables`` scenario demands holds
throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryLater
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.recovery.planted_cold_starts import planted
from tests.simulation.tables import tables

PATIENCE_S = 1.5
"""Of the operator, for one answer."""


class ColdStarts:
    """Stops and starts everything, again and again."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._rng = cluster.world.rng("cold starts")
        self.starts = self.refused = 0

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._rng.uniform(1.0, 5.0))
            await self._start_without(self._chosen())
            self.starts += 1

    def _chosen(self) -> list[str]:
        """All backups of some segment, if any is served; or just some."""
        backups = self._cluster.backups
        owners = [
            segments
            for name in self._cluster.tservers
            if (server := self._world.server(name)) is not None and hasattr(server, "info")
            for segments in server.holders().values()
            if segments
        ]
        if not owners:
            return self._rng.sample(backups, self._rng.randrange(1, len(backups)))
        uuids = self._rng.choice(self._rng.choice(owners))
        servers = {name: self._world.server(name) for name in backups}
        return [n for n, s in servers.items() if hasattr(s, "info") and s.info.uuid in uuids]

    async def _start_without(self, away: Sequence[str]) -> None:
        cluster, rng = self._cluster, self._rng
        everything = [*cluster.masters, *cluster.tservers, *cluster.backups]
        self._world.note("nemesis", f"all stop; all but {', '.join(away)} start")
        for name in everything:
            self._world.crash(name, restart=False)
        rng.shuffle(everything)
        for name in everything:
            if name not in away:
                self._world.restart(name)
                await asyncio.sleep(rng.uniform(0.0, 0.1))
        end_s = self._world.loop.time() + rng.uniform(0.0, 8.0)
        while self._world.loop.time() < end_s:
            await self._give_up_what_is_missing()
            await asyncio.sleep(rng.uniform(0.1, 0.5))
        for name in away:
            self._world.restart(name)
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    async def _give_up_what_is_missing(self) -> None:
        try:
            report = await self._database.losses(timeout=PATIENCE_S)
            if report.waiting:
                await self._database.accept_loss(report, by="somebody", timeout=PATIENCE_S)
        except InvalidArgument:
            self.refused += 1
        except (RetryLater, OutcomeUnknown):
            pass  # nobody leads, or somebody does not answer yet

    async def judge(self, history: History) -> None:
        accepted = (await self._database.losses()).accepted
        said = f"{self.starts} cold starts, {self.refused} acceptances refused"
        self._world.note("world", said)
        assert not accepted, "rows were given up while their backups were only just starting"


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.recovery.planted_cold_starts`."""
    with planted(bug):
        await tables.run_tables(world, (), longest_gap_s=4.0, make_beside=ColdStarts)


def options(seed: int) -> Options:
    """Few messages are lost, so that operators get answers."""
    drawn = tables.spare_options(seed)
    return drawn.but(
        drop_request_rate=min(0.05, drawn.drop_request_rate),
        drop_reply_rate=min(0.05, drawn.drop_reply_rate),
    )


SCENARIO = Scenario("cold_starts", run, options, limit_s=1200.0)
