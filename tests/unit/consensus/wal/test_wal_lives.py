"""Random lives of timelines keep their promises, and planted bugs are seen to break them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from stelae.consensus.wal.acceptor import WalAcceptor
from stelae.consensus.wal.leader import WalLeader
from stelae.core.records.timelines import (
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    has_majority,
    majority_lsn,
)
from tests.unit.consensus.wal.wal_world import World

TICKS = 400
CLIMATES = ("mixed", "mixed", "moving", "crashing")
LIVES = 40
"""Each with all checks after every step; thousands of them were run, and may be."""


def live(seed: int, bug: str = "", climate: str = "mixed") -> World:
    """One life in chaos."""
    world = World(seed, bug, climate)
    world.run(TICKS)
    return world


def recover(world: World) -> None:
    """All is well again: what was begun is finished, and writes are committed."""
    world.heal()
    for _ in range(8):
        current = world.store.current
        world.migrate(current.new_sk_set or current.sk_set, may_abort=False)
        world.run(100)
        if not world.store.current.is_joint:
            break
    assert not world.store.current.is_joint, "the change of members does not end"
    before = len(world.history)
    world.write_rate = 0.5
    world.run(200)
    assert len(world.history) > before, "nothing is committed"


def test_lives_keep_their_promises() -> None:
    """No committed entry is lost or changed, of a term there is one leader, and after chaos a
    change of members ends and writes are committed."""
    worlds = [live(seed, climate=CLIMATES[seed % 4]) for seed in range(LIVES)]
    for world in worlds:
        recover(world)
    for seen in ("elections", "migrations", "reads", "recoveries"):
        assert sum(getattr(world, seen) for world in worlds) > LIVES, f"the lives show no {seen}"
    assert sum(world.restarts for world in worlds) > 0
    assert sum(len(world.history) for world in worlds) > 100 * LIVES


def term_for_last_log_term(acceptor: WalAcceptor) -> SwitchReply:
    return SwitchReply(acceptor.configuration, acceptor.term, acceptor.term, acceptor.last_lsn)


def newest_set_agrees(
    configuration: TimelineConfiguration, agreeing: Collection[SafekeeperId]
) -> bool:
    return has_majority(configuration.member_sets[-1], agreeing)


def newest_set_has(configuration: TimelineConfiguration, lsns: Mapping[SafekeeperId, int]) -> int:
    return majority_lsn(configuration.member_sets[-1], lsns)


def commits_earlier_terms(leader: WalLeader, lsn: int) -> bool:
    return lsn > leader._log.commit_lsn


PATCHES = {
    "reply carries term instead of last log term": (
        WalAcceptor,
        "_position",
        term_for_last_log_term,
    ),
    "joint commit with one quorum": (TimelineConfiguration, "agreed_lsn", newest_set_has),
    "joint election with one quorum": (TimelineConfiguration, "agreed", newest_set_agrees),
    "commit of earlier terms": (WalLeader, "may_commit", commits_earlier_terms),
}

BUGS = {
    "no term bump": ("moving", 200),
    "finish without old majority": ("mixed", 30),
    "finish without catching up": ("moving", 60),
    "vote before flush": ("crashing", 0),
    "reply carries term instead of last log term": ("moving", 65),
    "joint commit with one quorum": ("moving", 95),
    "joint election with one quorum": ("mixed", 5),
    "commit of earlier terms": ("mixed", 5),
}
"""Where each is met soon: the climate, and the first seed to try."""


def plant(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug in PATCHES:
        owner, name, broken = PATCHES[bug]
        monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks a promise within some dozens of lives, and a check sees it."""
    plant(bug, monkeypatch)
    climate, first = BUGS[bug]
    for seed in range(first, first + 400):
        try:
            live(seed, bug, climate)
        except AssertionError:
            return
    pytest.fail(f"{bug}: not found")
