"""What can be seen of a replica's core from outside, and what must always hold of it."""

from __future__ import annotations

from typing import Protocol

from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.log_view import LogView
from stelae.consensus.raft.ready import Role, Status
from stelae.core.ids import ServerUuid
from stelae.core.records.replication import Configuration, TermAndVote


class ObservedCore(Protocol):
    """The state of a replica's core that a status shows."""

    uuid: ServerUuid
    role: Role
    term: int
    voted_for: ServerUuid | None
    leader_uuid: ServerUuid | None
    leader: Leader | None
    """The state that only a leader has; None on every other replica."""
    log: LogView

    @property
    def configuration(self) -> Configuration: ...


def status_of(core: ObservedCore) -> Status:
    """A copy of it."""
    peers = core.leader.peers() if core.leader is not None else {}
    return Status(
        uuid=core.uuid,
        role=core.role,
        term=core.term,
        voted_for=core.voted_for,
        leader=core.leader_uuid,
        last=core.log.last,
        stable_index=core.log.stable_index,
        commit_index=core.log.commit_index,
        applied_index=core.log.applied_index,
        base=core.log.base,
        configuration=core.configuration,
        match_index={uuid: peer.match_index for uuid, peer in peers.items()},
        peers=peers,
    )


def check_invariants(core: ObservedCore, durable: TermAndVote) -> None:
    """Assert the invariants of one replica; ``durable`` is what its disk has."""
    core.log.check_invariants()
    assert core.term >= durable.term
    assert core.term >= core.log.last.term
    if core.term == durable.term and durable.voted_for is not None:
        assert core.voted_for == durable.voted_for, "second vote in one term"
    assert (core.leader is not None) == (core.role is Role.LEADER)
    if core.leader is not None:
        assert core.leader_uuid == core.uuid
        assert core.leader.term == core.term
        core.leader.check_invariants()
