"""The masters themselves are added, removed and replaced under faults, while clients do DDL.

What clients are told must stay true, as in the scenario ``masters``, whose checks run here too. An
operator adds spares, removes any master, the leader too, and lets one at a time lose its disk,
which then is replaced under its new UUID (not the last one that somebody has heard of, who then
could find nobody). At the end the masters that there are hold the one right
catalog, and every server has found them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryElsewhere, RetryLater
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.masters import (
    ADD_MASTER,
    LIST_MASTERS,
    REMOVE_MASTER,
    AddMaster,
    MasterSet,
    RemoveMaster,
)
from stelae.core.rpc import Empty
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from tests.simulation.masters.catalog_history import CatalogHistory
from tests.simulation.masters.ddl_client import DdlClient
from tests.simulation.masters.masters import HEAL_TIMEOUT_S, finish, watch

WORK_S = 15.0
SETTLED_S = 6.0
"""After an order whose outcome is not known: by then a late copy of it has come, or never will."""


class Operator:
    """Changes the masters by chance, through the calls that the command line makes."""

    def __init__(
        self, world: World, cluster: SimCluster, names: list[str], clients: list[DdlClient]
    ) -> None:
        self.done = 0
        self._world = world
        self._cluster = cluster
        self._names = names
        self._clients = clients
        self._rng: random.Random = world.rng("operator")
        self._masters = MastersClient(world.client("operator"), list(cluster.addresses.values()))
        self._doubt_until_s = 0.0
        self._orders = 0
        self.lost: list[str] = []
        """UUIDs of masters whose disk is gone."""

    async def _call(self, method: Any, request: Any, timeout_s: float = 4.0) -> Any:
        try:
            return await self._masters.call(method, request, timeout_s=timeout_s)
        except (RetryLater, RetryElsewhere, InvalidArgument):
            return None  # not as things are: what comes next is decided anew
        except OutcomeUnknown:
            self._doubt_until_s = asyncio.get_running_loop().time() + SETTLED_S
            return None

    def _number(self) -> RequestId:
        """Of the next order; the answers of those before are not waited for any more."""
        self._orders += 1
        return RequestId(ClientId("operator"), self._orders, self._orders)

    async def members(self) -> MasterSet | None:
        found: MasterSet | None = await self._call(LIST_MASTERS, Empty())
        return found

    def _running(self, name: str) -> Any:
        """What runs on that node, once it listens; None if nothing does."""
        server = self._world.server(name)
        return server.info if server is not None and self._world.nodes[name].ready else None

    async def work(self, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            found = await self.members()
            if found is not None:
                await self._step(found)
            await asyncio.sleep(self._rng.expovariate(1 / 0.5))

    async def _step(self, found: MasterSet) -> None:
        known = {member.uuid for member in found.members}
        infos = {name: self._running(name) for name in self._names}
        outside = [n for n, info in infos.items() if info is not None and info.uuid not in known]
        lost = [m for m in found.members if m.uuid in self.lost]
        if lost:
            if outside and self._rng.random() < 0.5:
                await self._add(self._rng.choice(outside))
            else:
                await self._remove(lost[0].uuid)
        elif outside and self._rng.random() < 0.5:
            await self._add(self._rng.choice(outside))
        elif self._may_lose(found) and self._rng.random() < 0.4:
            victim = self._rng.choice(found.members)
            rest = [member.address for member in found.members if member != victim]
            if set(rest) & set(self._masters.addresses) and all(
                client.knows(rest) for client in self._clients
            ):
                self.lost.append(victim.uuid)
                self._world.crash(victim.name, lose_disk=True)
        elif len(found.members) > 3:
            await self._remove(self._rng.choice(found.members).uuid)

    def _may_lose(self, found: MasterSet) -> bool:
        """Only where nothing is on its way, and the majority does without it."""
        is_quiet = asyncio.get_running_loop().time() >= self._doubt_until_s
        voters = [member for member in found.members if member.voter]
        return is_quiet and len(voters) == len(found.members) >= 3

    async def _add(self, name: str) -> None:
        info = self._running(name)
        if info is not None:
            order = AddMaster(self._number(), info.uuid, name, info.address)
            self.done += await self._call(ADD_MASTER, order) is not None

    async def _remove(self, uuid: str) -> None:
        self.done += await self._call(REMOVE_MASTER, RemoveMaster(self._number(), uuid)) is not None

    async def settle(self) -> None:
        """Everything healed: nobody lost is left among them, and nobody waits for a vote."""
        while True:
            found = None
            while found is None:
                found = await self.members()
                await asyncio.sleep(0.1)
            lost = [m for m in found.members if m.uuid in self.lost]
            if lost:
                await self._remove(lost[0].uuid)
            elif all(member.voter for member in found.members):
                self._cluster.masters = sorted(member.name for member in found.members)
                return


async def run(world: World, bug: str = "") -> None:
    """Clients and an operator work under faults; then all is healed, and must be in order."""
    assert not bug, "bugs of membership are planted in the scenario ``members``"
    cluster = SimCluster(world)
    await cluster.start()
    founders = list(cluster.masters)
    spares = [f"master-{len(founders) + n}" for n in (1, 2)]
    for name in spares:
        cluster.start_master(name)
    await world.wait_ready(*spares)
    cluster_names = [*founders, *spares]
    cluster.masters = cluster_names  # for whoever looks for the leader
    history = CatalogHistory(world.loop.time)
    names = [f"c{n}" for n in range(world.options.workload.clients)]
    clients = [DdlClient(world, cluster, name, history) for name in names]
    operator = Operator(world, cluster, cluster_names, clients)
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    watcher = asyncio.get_running_loop().create_task(watch(world, cluster))
    until_s = world.loop.time() + WORK_S
    tasks = [world.spawn(client.name, client.work(until_s)) for client in clients]
    await operator.work(WORK_S)
    await nemesis.finish()
    await world.wait_until(
        lambda: all(task.done() for task in tasks), HEAL_TIMEOUT_S, "answers for all clients"
    )
    for task in tasks:
        task.result()
    await operator.settle()
    world.note("world", f"{operator.done} changes of masters")
    await finish(world, cluster, clients)
    if watcher.done():
        watcher.result()
    watcher.cancel()


def draw(seed: int) -> Options:
    """Swarm options; lost disks are the operator's, who knows what the promise covers."""
    return replace(Options.draw(seed), lost_disk_every_s=0.0)


SCENARIO = Scenario("reformed", run, draw, limit_s=400.0)
