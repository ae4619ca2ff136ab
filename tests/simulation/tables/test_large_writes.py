"""Writes of megabytes, over links that take seconds for one, onto disks that do.

Large entries travel beside heartbeats, and slower. They get through all the same; nobody takes them
for lost while they are on their way, nobody is deposed, and what is sent is not a multiple of what
was written. What could never pass is refused before anything is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from stelae.actors.raft.links import PATIENCE_MAX, ReplicaLinks, _Link
from stelae.core.errors import TooLarge
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.rows import WriteOp
from stelae.simulation import Options, World
from tests.simulation.replicated import tablet_group
from tests.simulation.replicated.tablet_group import SETTINGS, Caller, Group

ROW_BYTES = 500_000
ROWS = 4
WRITE_BYTES = ROWS * ROW_BYTES
MEGABYTE = 1e6
SENT_MAX = 8.0
"""Times what was written: until it is known how slow a link is, some is sent again."""
LARGE = msgspec.structs.replace(SETTINGS, segment_bytes=64 << 20)


@dataclass
class Seen:
    """What came of a run."""

    terms: list[int] = field(default_factory=list)
    answered_after_s: list[float] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)
    """To each follower, in multiples of what was written."""
    agreed_after_s: float = 0.0


def slow_down(group: Group, names: Sequence[str], bytes_per_s: float, slowness: float) -> None:
    """Links from and to these are slow, and the disks of all."""
    world = group.world
    for name in names:
        for other in group.names:
            world.network.bandwidths[name, other] = bytes_per_s
            world.network.bandwidths[other, name] = bytes_per_s
    for name in group.names:
        world.nodes[name].disk.slowness = slowness


def play(
    *,
    slow: int,
    bytes_per_s: float,
    slowness: float = 1.0,
    clients: int = 2,
    writes: int = 2,
    seed: int = 1,
) -> Seen:
    """So many clients write so often; ``slow`` followers have a slow link from and to everybody,
    and all disks are slower by ``slowness``. Everything written must be everywhere at the end."""
    world = World(seed, Options())
    group = Group(world, settings=LARGE)
    seen = Seen()

    async def write(number: int) -> None:
        client = Caller(group, f"client {number}", attempt_s=60.0)
        for turn in range(writes):
            value = f"{number}.{turn}." + "x" * ROW_BYTES
            rows = [(100 * number + 10 * turn + n, value) for n in range(ROWS)]
            began_s = world.loop.time()
            await client.write(WriteOp.UPSERT, rows)
            seen.answered_after_s.append(world.loop.time() - began_s)

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        await Caller(group, "first").upsert(0, "before")
        followers = [name for name in group.names if name != leader]
        slow_down(group, followers[:slow], bytes_per_s, slowness)
        began_s = world.loop.time()
        tasks = [asyncio.create_task(write(n)) for n in range(1, clients + 1)]

        def agree() -> bool:
            tablet = group.tablet(leader)
            assert tablet is not None
            seen.terms.append(tablet.replica.term if tablet.replica.leader_ready else 0)
            states = [group.state(name) for name in group.names]
            done = all(task.done() for task in tasks)
            return done and None not in states and len(dict.fromkeys(states)) == 1

        await world.wait_until(agree, 400.0, "all have everything", poll_s=0.1)
        for task in tasks:
            task.result()
        seen.agreed_after_s = world.loop.time() - began_s
        for name in followers:
            sent = world.network.sent_bytes[leader, name]
            seen.sent[name] = sent / (clients * writes * WRITE_BYTES)
        reader = Caller(group, "reader", attempt_s=60.0)
        for number in range(1, clients + 1):
            found = await reader.get(100 * number + 10 * (writes - 1) + ROWS - 1)
            assert found is not None
            assert found[0].startswith(f"{number}.{writes - 1}.")

    world.run(story(), limit_s=1000.0)
    return seen


@pytest.fixture(autouse=True)
def much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablet_group, "MEMORY_LIMIT_BYTES", 1 << 32)


@pytest.mark.parametrize(
    ("slow", "bytes_per_s", "slowness"),
    [(2, 0.4 * MEGABYTE, 1.0), (1, 0.12 * MEGABYTE, 1.0), (0, 0.0, 1500.0)],
    ids=["slow links", "one slow follower", "slow disks"],
)
def test_large_writes_pass_and_depose_nobody(
    slow: int, bytes_per_s: float, slowness: float
) -> None:
    """Each takes seconds; one leader of one term all the time; nothing is sent over and over. One
    slow follower is not waited for by writers, and has everything in the end."""
    seen = play(slow=slow, bytes_per_s=bytes_per_s, slowness=slowness)
    assert len(dict.fromkeys(seen.terms)) == 1
    assert max(seen.sent.values()) < SENT_MAX
    if slow == 1:
        assert max(seen.answered_after_s) < 1.0
        assert seen.agreed_after_s > 5.0


def test_this_would_see_a_leader_that_takes_for_lost_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sends every large entry again with each heartbeat that overtakes it."""

    def nobody(links: ReplicaLinks) -> tuple[ServerUuid, ...]:
        return ()

    monkeypatch.setattr(ReplicaLinks, "sending", nobody)
    assert max(play(slow=2, bytes_per_s=0.4 * MEGABYTE).sent.values()) > SENT_MAX


def test_a_link_gives_large_calls_the_time_that_they_were_seen_to_take() -> None:
    """More after each one that timed out, within bounds; less once they are fast again."""
    link = _Link(Address("a:1"))
    size_bytes = 1 << 20
    assert link.timeout_s(size_bytes) == 2.0
    for _ in range(3):
        link.timed_out()
    assert link.timeout_s(size_bytes) == 9.0
    for _ in range(20):
        link.timed_out()
    assert link.timeout_s(size_bytes) == 1.0 + PATIENCE_MAX
    link.took(size_bytes, 5.0)
    assert link.timeout_s(size_bytes) == 9.0
    link.took(size_bytes, 0.1)
    assert link.timeout_s(size_bytes) == 2.0
    assert link.timeout_s(100) == pytest.approx(1.0, abs=0.001)


def test_a_write_that_no_replica_would_take_is_refused_before_anything_is_done() -> None:
    """With both sizes, by its leader; the log is as it was, and other writes go on."""
    world = World(1, Options())
    settings = msgspec.structs.replace(LARGE, queue_bytes=1 << 20)
    group = Group(world, settings=settings)

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        client = Caller(group, "client")
        await client.upsert(0, "before")
        tablet = group.tablet(leader)
        assert tablet is not None
        last = tablet.replica.core.log.last
        with pytest.raises(TooLarge):
            await client.write(WriteOp.UPSERT, [(n, "x" * ROW_BYTES) for n in range(ROWS)])
        with pytest.raises(TooLarge):
            await tablet.replica.propose(b"x" * ((1 << 20) + 1), 1.0)
        assert tablet.replica.core.log.last == last
        await client.upsert(1, "after")

    world.run(story(), limit_s=60.0)
