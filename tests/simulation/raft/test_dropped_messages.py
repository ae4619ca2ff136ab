"""A follower that hangs while much is written: what its leader had to drop is sent again."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.raft import links as replica_links
from stelae.actors.raft.links import _Link
from stelae.consensus.raft.messages import AppendRequest, Message
from stelae.simulation import Options, World
from tests.simulation.replicated.tablet_group import Caller, Group

SEEDS = 8
TURNS = 30
DROPPED_MIN = 10
"""Entries, in each world: of the 16 that may be unanswered, links have room for three."""
HANGS_S = 0.8
"""Less than a call has: nothing that was sent has failed by then, and much was never sent."""


class Dropped:
    """Entries that links dropped for lack of room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = 0
        self.longest = 0
        """Outbox."""
        put = _Link.put

        def noted(link: _Link, message: Message) -> None:
            before = list(link.outbox)
            put(link, message)
            kept = [each for each in link.outbox if any(each is old for old in before)]
            gone = [each for each in before if not any(each is old for old in kept)]
            self.entries += sum(len(m.entries) for m in gone if isinstance(m, AppendRequest))
            self.longest = max(self.longest, len(link.outbox))

        monkeypatch.setattr(_Link, "put", noted)


def hang(seed: int, hangs_s: float) -> None:
    """A follower hangs while eight clients write; soon after it goes on it has all of it."""
    world = World(seed, Options())
    group = Group(world)

    async def write(number: int, leader: str) -> None:
        client = Caller(group, f"client {number}")
        for turn in range(TURNS):
            client.turn = group.names.index(leader)  # or it would wait for the one that hangs
            await client.upsert(number, f"{number}.{turn}")

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        await Caller(group, "first").upsert(1, "one")
        await group.wait_agreement(group.names)
        victim = next(name for name in group.names if name != leader)
        world.pause(victim)
        writing = [asyncio.create_task(write(number, leader)) for number in range(8)]
        await asyncio.sleep(hangs_s)
        world.resume(victim)
        await asyncio.gather(*writing)
        assert await group.wait_leader() == leader
        await group.wait_agreement(group.names, timeout_s=5.0)
        reader = Caller(group, "reader")
        for number in range(8):
            found = await reader.get(number)
            assert found is not None
            assert found[0] == f"{number}.{TURNS - 1}"

    world.run(story(), limit_s=120.0)


@pytest.mark.parametrize("hangs_s", [HANGS_S, 8.0], ids=["shortly", "for long"])
def test_what_was_dropped_is_sent_again(monkeypatch: pytest.MonkeyPatch, hangs_s: float) -> None:
    """Links that hold next to nothing: others are served meanwhile, and nothing is missed by the
    one that hung."""
    for name in ("POSTS_MAX", "CALLS_MAX", "OUTBOX_MAX"):
        monkeypatch.setattr(replica_links, name, 1)
    dropped = Dropped(monkeypatch)
    for seed in range(1, SEEDS + 1):
        before = dropped.entries
        hang(seed, hangs_s)
        assert dropped.entries - before >= DROPPED_MIN, f"seed {seed} dropped hardly anything: idle"
    assert dropped.longest == 1
