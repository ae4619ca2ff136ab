"""A process dies between a rename and the sync of its folder; it restarts; then power fails.

The next process reads what the first one wrote, from the cache: it must make that durable before it
repeats it to anybody. Each promise is made on the simulated disk, by servers' own code, once with
the step by which every server starts and once without it (the planted bug).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from stelae.actors.backup.fences import Fences
from stelae.actors.raft.storage import ReplicaStorage
from stelae.actors.server.instance import load_or_create_instance
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Configuration, Peer, TermAndVote
from stelae.core.runtime import Disk
from stelae.runtime.real import RealClock
from stelae.simulation import Options, ProcessEnded, SimLoop
from stelae.simulation.world.disk import SimDisk, SimDiskView
from tests.simulation.world.loops import make_loop

LOG = TabletId("t" * 32)
ME, OTHER = ServerUuid("a" * 32), ServerUuid("b" * 32)
MEMBERS = Configuration(OpId(0, 0), tuple([Peer(u, Address("h:1")) for u in (ME, OTHER)]))
OPTIONS = Options()
SEEDS = 40
Promise = Callable[[Disk], Awaitable[int]]


async def fenced(disk: Disk) -> int:
    """Promise to refuse terms below 7; the term that is kept."""
    fences = Fences(disk)
    await fences.load()
    await fences.promise([(LOG, 7)])
    return fences.term(LOG)


async def voted(disk: Disk) -> int:
    """Vote in term 7, or say again that one has; the term that is kept."""
    storage = ReplicaStorage(disk, "", LOG, log_file_bytes=1 << 20)
    loaded = await storage.load(MEMBERS)
    if loaded.term_and_vote.term < 7:
        await storage.save(TermAndVote(7, OTHER), None, ())
    return 7


async def counted(disk: Disk) -> int:
    """Start as a server does; the number of the start."""
    rng = random.Random(1)
    made = await load_or_create_instance(disk, rng, RealClock(), "demo", "backup", "backup-1")
    return made.incarnation


async def fence_on_disk(disk: Disk) -> int:
    fences = Fences(disk)
    await fences.load()
    return fences.term(LOG)


async def vote_on_disk(disk: Disk) -> int:
    storage = ReplicaStorage(disk, "", LOG, log_file_bytes=1 << 20)
    return (await storage.load(MEMBERS)).term_and_vote.term


def left_of(promise: Promise, look: Promise, seed: int, *, settles: bool) -> tuple[int, int]:
    """What the second process has answered, and what is left of it after the loss of power."""
    rng = random.Random(f"{seed}/story")
    loop = make_loop(random.Random(seed))
    disk = SimDisk(random.Random(f"{seed}/disk"), OPTIONS, lambda text: None)

    async def main() -> tuple[int, int]:
        first = loop.new_process("n", 1)
        view = SimDiskView(disk, first, OPTIONS)

        async def begun() -> None:
            with suppress(ProcessEnded):
                await promise(view)

        task = asyncio.ensure_future(begun())
        await asyncio.sleep(rng.random() * 0.02)
        loop.kill(first)
        await asyncio.wait([task])
        second = SimDiskView(disk, loop.new_process("n", 2), OPTIONS)
        if settles:
            await second.settle()
        answered = await promise(second)
        disk.lose_power(drop_all=True)
        return answered, await look(SimDiskView(disk, loop.new_process("n", 3), OPTIONS))

    return loop.run(main(), 1e6)


@pytest.mark.parametrize(
    ("promise", "look"), [(fenced, fence_on_disk), (voted, vote_on_disk)], ids=["fence", "vote"]
)
def test_what_is_answered_after_a_restart_outlives_a_loss_of_power(
    promise: Promise, look: Promise
) -> None:
    """A second answer is as good as the first: the fence and the vote are there for good."""
    for seed in range(SEEDS):
        answered, left = left_of(promise, look, seed, settles=True)
        assert left == answered == 7, f"seed {seed}"


@pytest.mark.parametrize(
    ("promise", "look"), [(fenced, fence_on_disk), (voted, vote_on_disk)], ids=["fence", "vote"]
)
def test_without_the_step_at_the_start_a_promise_is_lost(promise: Promise, look: Promise) -> None:
    """The planted bug: some seed finds it."""
    found = [left_of(promise, look, seed, settles=False) for seed in range(SEEDS)]
    assert any(left < answered for answered, left in found)


def test_every_server_settles_its_disk_before_it_reads() -> None:
    """The number of a start is what every server reads first: it never comes twice."""
    for seed in range(SEEDS):
        answered, left = left_of(counted, counted, seed, settles=False)
        assert left == answered + 1, f"seed {seed}"


def test_the_cache_outlives_a_process_and_not_a_loss_of_power() -> None:
    """What was written and not synced is read by the next process, and may be gone later."""
    loop: SimLoop = make_loop(random.Random(1))
    disk = SimDisk(random.Random(2), Options(keep_unsynced_rate=1.0), lambda text: None)

    async def main() -> None:
        file = await SimDiskView(disk, loop.new_process("n", 1), OPTIONS).open("f")
        file.write_at(0, b"synced")
        await file.sync()
        file.write_at(0, b"cached")
        disk.crash()
        view = SimDiskView(disk, loop.new_process("n", 2), OPTIONS)
        assert await view.read("f") == b"cached"
        assert disk.durable("f") == b"synced"
        disk.lose_power(drop_all=True)
        view = SimDiskView(disk, loop.new_process("n", 3), OPTIONS)
        assert await view.read("f") == b"synced"

    loop.run(main(), 1e6)
