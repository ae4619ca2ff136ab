"""A tablet with replicas under load and faults: linearizable, and in the end the same everywhere.

Clients write, delete and read through whichever replica leads; others read what may be a little
old at any of them. Servers crash, hang, are cut off, and flush all the time. What was acknowledged
must be there, once and in order; no old read may be older than it was allowed to be.
"""

from __future__ import annotations

import asyncio

from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.simulation import Options, World
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from tests.simulation.replicated.planted_group import planted
from tests.simulation.replicated.replica_clients import OldRead, OldReads
from tests.simulation.replicated.tablet_group import SETTINGS, Caller, Group, work

KEYS = 5
WORK_S = 8.0


async def read_old(group: Group, old: OldReads, until_s: float) -> None:
    """Reads of bounded age at any replica: they see what was acknowledged before that."""
    world, rng = group.world, group.world.rng("old")
    client = Caller(group, "old", attempt_s=0.5)
    while world.loop.time() < until_s:
        key, allowed_s = rng.randrange(KEYS), rng.choice([0.05, 0.5, 2.0])
        began_s = world.loop.time()
        client.turn = rng.randrange(len(group.names))
        try:
            found = await client.get(key, max_staleness_s=allowed_s, attempts=1)
        except (OutcomeUnknown, RetryLater):
            old.refused += 1
            await asyncio.sleep(0.05)
            continue
        value, version = found if found is not None else (None, None)
        ended_s = world.loop.time()
        read = OldRead(client.name, str(key), allowed_s, began_s, ended_s, value, version)
        old.reads.append(read)
        await asyncio.sleep(rng.expovariate(20.0))


async def run(world: World, bug: str = "") -> None:
    """Work under faults; then all is healed, and must be in order."""
    with planted(bug):
        await run_group(world)


async def run_group(world: World) -> OldReads:
    """What was read of bounded age, all of it judged."""
    history, old = History(world.loop.time), OldReads()
    group = Group(world, settings=SETTINGS)
    await group.start()
    await group.wait_leader()
    nemesis = Nemesis.begin(world, WORK_S)
    clients = [Caller(group, f"c{n}") for n in range(3)]
    await asyncio.gather(
        read_old(group, old, world.loop.time() + WORK_S),
        *[
            work(client, history, world.rng(f"work/{client.name}"), keys=KEYS, operations=50)
            for client in clients
        ],
    )
    await nemesis.finish()
    await world.wait_ready()
    await group.wait_leader()
    reader = Caller(group, "reader")
    for key in range(KEYS):
        operation = history.begin("reader", "read", str(key))
        value, version = await reader.get(key) or (None, None)
        history.ok(operation, version=version, value=value)
    require_rows(history)
    old.judge(history)
    await group.wait_agreement(group.names)
    return old


def draw(seed: int) -> Options:
    """No disk lost (that makes another server), no failing syncs (they end a replica for good)."""
    return Options.draw(seed).but(lost_disk_every_s=0.0, sync_error_every_s=0.0, restart_mean_s=0.5)


SCENARIO = Scenario(
    "tests/simulation/replicated/group_faults.py:SCENARIO", run, draw, limit_s=400.0
)
