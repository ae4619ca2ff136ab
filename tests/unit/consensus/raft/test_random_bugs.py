"""Planted bugs prove that the checks of random lives see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stelae.consensus.raft import raft as raft_module
from stelae.consensus.raft.follower import answer_append, answer_while_busy
from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.log_view import LogView
from stelae.consensus.raft.membership import MemberChange, changed_peers
from stelae.consensus.raft.messages import AppendRequest, AppendResponse, VoteRequest
from stelae.consensus.raft.raft import Raft
from stelae.core.errors import TabletNotReady
from stelae.core.ids import OpId
from tests.unit.consensus.raft.copying_cluster import Copying
from tests.unit.consensus.raft.random_cluster import TICK_US, Cluster, chaos

AIMED_TICKS = 320


def answer_append_unchecked(
    log: LogView, request: AppendRequest, memory_over: tuple[int, int] | None = None
) -> AppendResponse:
    """The planted bug: entries are taken without a look at what comes before them."""
    if request.previous.index <= log.last.index:
        known = max(0, log.commit_index - request.previous.index)
        index = log.merge(request.previous, request.entries[known:]) + known
        log.commit_to(min(request.commit_index, index, log.last.index))
        return AppendResponse(
            request.group_id,
            request.destination,
            request.source,
            request.term,
            True,
            min(index, log.last.index),
            log.last,
            request.round,
        )
    return answer_append(log, request, memory_over)


def answer_too_much(
    log: LogView, request: AppendRequest, memory_over: tuple[int, int] | None
) -> AppendResponse:
    """The planted bug: what is only being written is vouched for."""
    answer = answer_while_busy(log, request, memory_over)
    return msgspec.structs.replace(answer, index=log.last.index)


_become_leader, _become_follower = Raft._become_leader, Raft._become_follower


def lease_before_a_commit(leader: Leader, now_us: int) -> bool:
    """The planted bug: a majority that follows is enough, though the leader may not know yet what
    the leader before it has committed."""
    return now_us < leader.lease_until_us()


class LeaseOfAFormerTerm:
    """The planted bug: who leads once more goes on with the lease of its former term."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._confirmed: dict[int, int | None] = {}
        monkeypatch.setattr(Leader, "has_lease", lease_before_a_commit)
        monkeypatch.setattr(Raft, "_become_follower", lambda *a: self._become_follower(*a))
        monkeypatch.setattr(Raft, "_become_leader", lambda core: self._become_leader(core))

    def _become_follower(self, core: Raft, term: int, leader_uuid: Any) -> None:
        if core.leader is not None:
            self._confirmed[id(core)] = core.leader._confirmed_began_us
        _become_follower(core, term, leader_uuid)

    def _become_leader(self, core: Raft) -> None:
        _become_leader(core)
        assert core.leader is not None
        core.leader._confirmed_began_us = self._confirmed.get(id(core))


AIMED: dict[str, dict[str, float]] = {
    "vote not persisted": {
        "strike_rate": 0.9,
        "voter_crash_rate": 0.9,
        "crash_rate": 0.0,
        "loss": 0.2,
        "delay_us": 300,
    },
    "ack before sync": {"strike_rate": 0.5, "crash_rate": 0.05, "loss": 0.05, "delay_us": 1500},
    "a tombstone forgets its vote": {
        "copy_strike_rate": 0.8,
        "crash_rate": 0.0,
        "loss": 0.2,
        "delay_us": 300,
    },
    "a tombstone votes for any log": {
        "copy_strike_rate": 0.3,
        "crash_rate": 0.0,
        "loss": 0.2,
        "delay_us": 300,
        "copy_us": 30_000,
        "snapshot_every": 3,
    },
    "busy answer of too much": {"crash_rate": 0.03},
}
"""What chance alone hardly makes: who is struck, and when. All else is drawn."""


def aimed_life(cluster: Cluster, aim: dict[str, float]) -> None:
    """One life in which chance is helped, and nothing but it where that is enough."""
    for name, value in aim.items():
        assert hasattr(cluster, name)
        setattr(cluster, name, value)
    if "crash_rate" in aim and not isinstance(cluster, Copying):
        cluster.snapshot_every = 10_000  # no snapshot repairs what was lost
    if "loss" in aim:
        cluster.run(AIMED_TICKS * TICK_US)
    else:
        chaos(cluster, turns=8 if cluster.changing else 6)


def find(bug: str, seeds: int, make: Callable[[int], Cluster]) -> None:
    """One of so many lives breaks a promise. Of a hundred lives two do at least, for each bug, so
    that a miss is no chance: less than one in 100 000."""
    for seed in range(seeds):
        try:
            aimed_life(make(seed), AIMED.get(bug, {}))
        except AssertionError:
            return
    pytest.fail(f"{bug}: not found")


@pytest.mark.parametrize("bug", AIMED)
def test_aimed_lives_without_a_bug_keep_every_promise(bug: str) -> None:
    """What finds a bug is the bug."""
    kind = Copying if "tombstone" in bug else Cluster
    for seed in range(12):
        aimed_life(kind(seed), AIMED[bug])


def plant(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the core; the bugs not named here are in the harness."""
    if bug == "no check of previous":
        monkeypatch.setattr(raft_module, "answer_append", answer_append_unchecked)
    elif bug == "busy answer of too much":
        monkeypatch.setattr(raft_module, "answer_while_busy", answer_too_much)
    elif bug == "commit of an old term":
        monkeypatch.setattr(Leader, "may_commit", lambda self, index: True)
    elif bug == "shorter logs win votes":
        monkeypatch.setattr(VoteRequest, "last", property(lambda self: OpId(1 << 40, 0)))
    elif bug == "lease before a commit":
        monkeypatch.setattr(Leader, "has_lease", lease_before_a_commit)
    elif bug == "lease of a former term":
        LeaseOfAFormerTerm(monkeypatch)


@pytest.mark.parametrize(
    "bug",
    [
        "vote not persisted",
        "ack before sync",
        "no check of previous",
        "busy answer of too much",
        "commit of an old term",
        "shorter logs win votes",
        "lease before a commit",
        "lease of a former term",
    ],
)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes breaks a promise within a few hundred lives."""
    plant(bug, monkeypatch)
    find(bug, 600, lambda seed: Cluster(seed, bug=bug))


@pytest.mark.parametrize(
    "bug",
    [
        "a tombstone forgets its vote",
        "a tombstone votes for any log",
    ],
)
def test_a_planted_bug_of_copying_is_found(bug: str) -> None:
    """Each of these breaks a promise within a few hundred lives; others have golden histories."""
    find(bug, 800, lambda seed: Copying(seed, bug=bug, changing=seed % 2 == 1))


def change_at_any_time(leader: Leader, change: MemberChange, expected: Any) -> Any:
    """The planted bug: a change may begin while another is not committed."""
    if not leader.settled or leader.transfer_target is not None:
        raise TabletNotReady(leader.group_id, "not settled")
    return changed_peers(leader.configuration, change)


def commit_with_non_voters(leader: Leader) -> bool:
    """The planted bug: copies count towards a majority although their holders have no vote."""
    reached = {uuid: progress.match_index for uuid, progress in leader.progress.items()}
    reached[leader.uuid] = leader._log.stable_index
    counting = [peer.uuid for peer in leader.configuration.peers]
    positions = sorted((reached[uuid] for uuid in counting), reverse=True)
    index = positions[len(leader.configuration.voters) // 2]
    return leader.may_commit(index) and leader._log.commit_to(index)


_campaign = Raft._campaign


def take_back_of_others(core: Raft, *, pre: bool, transfer: bool) -> None:
    """The planted bug: whoever wants to lead takes a change back, though another has begun it."""
    change = core.log.unfinished_change
    if change is not None:
        core.log.cut(change.index)
        core._election.taken_back = change
    _campaign(core, pre=pre, transfer=transfer)


def plant_in_membership(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "two changes at once":
        monkeypatch.setattr(Leader, "may_change", change_at_any_time)
    elif bug == "non-voters count":
        monkeypatch.setattr(Leader, "advance_commit", commit_with_non_voters)
    elif bug == "taken back by anybody":
        monkeypatch.setattr(Raft, "_campaign", take_back_of_others)


@pytest.mark.parametrize(
    "bug",
    [
        "two changes at once",
        "non-voters count",
        "taken back by anybody",
    ],
)
def test_a_planted_bug_of_membership_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks a promise within a few hundred lives; others have golden histories."""
    plant_in_membership(bug, monkeypatch)
    find(bug, 600, lambda seed: Cluster(seed, bug=bug, changing=True))
