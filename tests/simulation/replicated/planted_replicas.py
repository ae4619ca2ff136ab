"""Eight bugs of replicated tablets, each one broken rule of the real code.

What finds each is in `tests.simulation.replicated.test_planted_replicas`. Some need a history that
chance hardly makes: those are told as stories.
"""

from __future__ import annotations

from typing import Any

from stelae.actors.raft.replica import Replica
from stelae.actors.raft.storage import MetadataFile
from stelae.actors.tserver.tablet_copy import receiver_files as tablet_copies
from stelae.actors.tserver.tablet_copy.receiver import CopyJob, CopyJobs
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.membership import MemberChange
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready
from stelae.coordinator.groups import healing
from stelae.core.ids import OpId, ServerUuid
from stelae.core.records.replication import Configuration, Peer, TermAndVote
from stelae.storage.files.consensus_metadata import ConsensusMetadata
from stelae.storage.files.superblock import Superblock
from tests.simulation.world.planting import replacing

_replace = MetadataFile.replace
_bury_ready = TabletStore._bury_ready
_evict_voter = healing._Group.evict_voter
_execute = Replica._execute
_may_change = Leader.may_change
_begin = CopyJobs._begin


async def _without_vote(self: MetadataFile, vote: TermAndVote, known: Configuration) -> None:
    await _replace(self, TermAndVote(vote.term, None), known)


async def _bury_with_vote(self: TabletStore, before: Superblock, *rest: Any, **more: Any) -> Any:
    after = await _bury_ready(self, before, *rest, **more)
    found = await self.files.read_consensus(before.tablet_id)
    kept = TermAndVote(found.term_and_vote.term, None)
    found = ConsensusMetadata(before.tablet_id, kept, found.configuration)
    await self.files.replace_consensus(found)
    return after


def _overwritten(local: ConsensusMetadata, remote: ConsensusMetadata) -> ConsensusMetadata:
    return remote


def _at_once(self: Leader, uuid: ServerUuid) -> bool:
    return True


def _evict_first(self: Any, has_spare: bool) -> Any:
    """3-2-3: whoever is lost goes, and is replaced later."""
    for voter in self.voters:
        if voter.is_lost and voter.uuid != self.leader and self.healthy >= len(self.voters) // 2:
            return healing.Evict(voter.uuid, "it is lost")
    return _evict_voter(self, has_spare)


async def _send_first(self: Replica, core: Raft, ready: Ready, *, is_sent: bool = False) -> None:
    """What is sent twice does no harm; what is sent before it is durable does."""
    self._links.send(ready.messages)
    await _execute(self, core, ready, is_sent=is_sent)


def _blindly(self: Leader, change: MemberChange, expected: OpId | None) -> tuple[Peer, ...]:
    return _may_change(self, change, None)


async def _go_on(self: CopyJobs, job: CopyJob, session: Any) -> Any:
    """What was copied in an earlier session is taken for a part of this one."""
    return job.attempt if job.attempt is not None else await _begin(self, job, session)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "vote not persisted": (MetadataFile, "replace", _without_vote),
    "tombstone forgets its vote": (TabletStore, "_bury_ready", _bury_with_vote),
    "copy overwrites term": (tablet_copies, "merge_consensus_metadata", _overwritten),
    "promoted too early": (Leader, "has_caught_up", _at_once),
    "evicted before promoted": (healing._Group, "evict_voter", _evict_first),
    "acknowledged before synced": (Replica, "_execute", _send_first),
    "changed without compare-and-set": (Leader, "may_change", _blindly),
    "resume uses a stale session": (CopyJobs, "_begin", _go_on),
}


planted = replacing(BUGS)
