"""Tablets that are copied while clients write, members come and go, and everything fails.

Four servers, three of them the first members. What clients saw must be linearizable; at the end,
all members hold the same rows, no source pins anything, and nothing else is left on the disks.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import msgspec

from stelae.core.errors import StelaeError
from stelae.core.messages.replicas import DataState
from stelae.simulation import Options, World
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from tests.simulation.copies.copy_host import (
    CHANGE,
    COPY_SETTINGS,
    DROP,
    EVERYONE,
    TABLET,
    Change,
    CopyHostServer,
    Drop,
    checksums,
    leading,
    uuid_of,
)
from tests.simulation.replicated.planted_replicas import planted
from tests.simulation.world.registers import GET, Get, call_leader, work

WORK_S = 8.0
HEALING_S = 120.0


def start(world: World) -> None:
    settings = msgspec.structs.replace(
        COPY_SETTINGS,
        copies_max=world.rng("copies").choice([1, 2]),
        copy_piece_bytes=world.rng("pieces").choice([500, 5000]),
        copy_idle_s=world.rng("idle").choice([0.8, 2.0]),
    )
    flush_every_s = world.rng("flush").choice([0.2, 0.5])
    keep_bytes = world.rng("keep").choice([0, 0, 400])
    for name in EVERYONE:
        world.start(
            name,
            partial(
                CopyHostServer,
                world=world,
                name=name,
                settings=settings,
                flush_every_s=flush_every_s,
                keep_bytes=keep_bytes,
            ),
            kind="tserver",
        )


def members(world: World) -> list[str]:
    """Names of the members, as the present leader has them."""
    name = leading(world)
    if name is None:
        return []
    replica = world.server(name).tablets[TABLET].replica
    return [each for each in EVERYONE if replica.members.peer(uuid_of(each)) is not None]


async def change_members(world: World, until_s: float) -> None:
    """Remove and add members at random, and have removed ones deleted, as a master does."""
    client, rng = world.client("admin"), world.rng("admin")
    while world.loop.time() < until_s:
        await asyncio.sleep(rng.expovariate(2.0))
        leader = leading(world)
        now = members(world)
        if leader is None or not now:
            continue
        others = [name for name in EVERYONE if name not in now]
        kind = "add" if others and (len(now) <= 3 or rng.random() < 0.3) else "remove"
        name = rng.choice(others if kind == "add" else now)
        change = Change(kind, name, world.address(name))
        for other in others:
            drop = Drop(TABLET, False)
            with contextlib.suppress(StelaeError):
                await client.peers.call(world.address(other), DROP, drop, timeout_s=0.3)
        try:
            await client.peers.call(world.address(leader), CHANGE, change, timeout_s=0.5)
        except StelaeError as error:
            world.note("admin", f"{kind} {name}: {error}")


async def bring_all_back(world: World) -> None:
    """Make everybody a member, until all agree; what was under way may still remove somebody."""
    client = world.client("restorer")
    deadline_s = world.loop.time() + HEALING_S
    while not agree(world):
        assert world.loop.time() < deadline_s, f"not in order after {HEALING_S} s: {look(world)}"
        await asyncio.sleep(0.5)
        leader, now = leading(world), members(world)
        missing = [name for name in EVERYONE if name not in now]
        if leader is None or not now or not missing:
            continue
        change = Change("add", missing[0], world.address(missing[0]))
        try:
            await client.peers.call(world.address(leader), CHANGE, change, timeout_s=0.5)
        except StelaeError as error:
            world.note("restorer", f"add {missing[0]}: {error}")


def look(world: World) -> str:
    """What there is, for people."""
    found = [f"led by {leading(world)}", f"members {members(world)}", str(checksums(world))]
    for name in EVERYONE:
        server = world.server(name)
        if server is not None:
            copies = {job.progress for job in server.jobs._jobs.values()}
            state = server.data_state(TABLET)
            found.append(f"{name} {state} copies {copies}, problems {server.jobs.problems}")
    return "; ".join(found)


def agree(world: World) -> bool:
    """True once all servers hold a replica, as voters, with the same rows at one index."""
    found = checksums(world)
    if len(found) < len(EVERYONE) or len(set(map(repr, found.values()))) > 1:
        return False
    replica = world.server(leading(world) or EVERYONE[0]).tablets[TABLET].replica
    return len(replica.members.voters) == len(EVERYONE)


def at_rest(world: World) -> bool:
    """True once nobody copies, and no source keeps anything for a copy."""
    for name in EVERYONE:
        server = world.server(name)
        if server.sources.sessions or server.jobs._jobs or server.runtime.objects.shared():
            return False
    return True


def check_disks(world: World) -> None:
    """Only what superblocks name lies there."""
    for name in EVERYONE:
        server = world.server(name)
        superblock = server.store.superblock(TABLET)
        assert superblock.state is DataState.READY
        needed = [file.name for file in server.store.files_of(superblock.snapshot)]
        folder = f"data/{TABLET}/"
        paths = [path for path in world.nodes[name].disk.paths() if path.startswith(folder)]
        lying = [path.removeprefix(folder) for path in paths]
        assert set(needed) <= set(lying), f"{name} lacks images"


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.replicated.planted_replicas`."""
    with planted(bug):
        await run_copies(world)


async def run_copies(world: World) -> None:
    """Clients work and members change under faults; then all is healed, and must be in order."""
    history = History(world.loop.time)
    start(world)
    world.leader_hint = lambda: leading(world)
    await world.wait_until(lambda: leading(world) is not None, 60.0, "a first leader")
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    clients = [work(world, history, f"c{i}", 40, EVERYONE) for i in range(3)]
    await asyncio.gather(change_members(world, WORK_S), *clients)
    await nemesis.finish()
    await world.wait_until(lambda: leading(world) is not None, 60.0, "a leader after healing")
    await bring_all_back(world)
    reader = world.client("reader")
    for key in ("k0", "k1", "k2", "k3"):
        operation = history.begin("reader", "read", key)
        row = await call_leader(world, reader, GET, Get(key), 0, EVERYONE)
        assert row is not None, "no answer after all faults ended"
        version = row.version if row.value is not None else None
        history.ok(operation, version=version, value=row.value)
    require_rows(history)
    await world.wait_until(lambda: at_rest(world), 60.0, "nobody copies any more")
    check_disks(world)


def draw(seed: int) -> Options:
    """No disk lost: that makes another server. Few messages are: a copy has hundreds."""
    options = Options.draw(seed)
    return options.but(
        lost_disk_every_s=0.0,
        drop_request_rate=min(0.03, options.drop_request_rate),
        drop_reply_rate=min(0.03, options.drop_reply_rate),
    )


SCENARIO = Scenario("tests/simulation/copies/tablet_copies.py:SCENARIO", run, draw, limit_s=300.0)
