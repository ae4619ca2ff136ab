"""Random lives of timelines keep their promises, and planted bugs are seen to break them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from stelae.consensus.wal_acceptor import WalAcceptor
from stelae.consensus.wal_leader import WalLeader
from stelae.core.timelines import (
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    has_majority,
    majority_lsn,
)
from tests.unit.consensus.wal_world import World

TICKS = 400
LIVES = 24
"""Each with all checks after every step; thousands of them were run, and may be."""


def live(seed: int, bug: str = "") -> World:
    """One life in chaos."""
    world = World(seed, bug)
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
    worlds = [live(seed) for seed in range(LIVES)]
    for world in worlds:
        recover(world)
    for seen in ("elections", "migrations", "reads", "recoveries", "restarts"):
        assert sum(getattr(world, seen) for world in worlds) > LIVES, f"the lives show no {seen}"
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

BUGS = [
    "no term bump",
    "finish without old majority",
    "finish without catching up",
    "vote before flush",
    *PATCHES,
]


def plant(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug in PATCHES:
        owner, name, broken = PATCHES[bug]
        monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks a promise within a few dozen lives, and a check sees it."""
    plant(bug, monkeypatch)
    for seed in range(300):
        try:
            live(seed, bug)
        except AssertionError:
            return
    pytest.fail(f"{bug}: not found")
