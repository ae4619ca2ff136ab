"""What can be seen of a replica's core from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.consensus.ready import Status

if TYPE_CHECKING:
    from stelae.consensus.raft import Raft


def status_of(core: Raft) -> Status:
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
