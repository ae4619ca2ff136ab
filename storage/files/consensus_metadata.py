"""Small whole files of a replica: consensus metadata and the state machine's snapshot. Pure codecs.

Both are replaced atomically, and sealed (`stelae.storage.files.sealed`). Design §8
(``consensus-meta/``); Kudu's cmeta.
"""

from __future__ import annotations

import msgspec

from stelae.core.errors import CorruptData
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Configuration, Snapshot, TermAndVote
from stelae.storage.files.sealed import HEADER_BYTES, seal, unseal

METADATA_MAGIC = b"STELCMET"
SNAPSHOT_MAGIC = b"STELSNAP"
NO_MEMBERS = Configuration(OpId(0, 0), ())


class ConsensusMetadata(msgspec.Struct, frozen=True, array_like=True):
    """Term, vote and committed configuration of one replica."""

    group_id: TabletId
    term_and_vote: TermAndVote
    configuration: Configuration

    @property
    def is_pristine(self) -> bool:
        """No term was ever seen and no vote given: nothing is lost if this is."""
        return self.term_and_vote == TermAndVote(0, None)


def pristine(group_id: TabletId, configuration: Configuration = NO_MEMBERS) -> ConsensusMetadata:
    """Those of a replica that has not taken part yet."""
    return ConsensusMetadata(group_id, TermAndVote(0, None), configuration)


def merge_consensus_metadata(
    local: ConsensusMetadata, remote: ConsensusMetadata
) -> ConsensusMetadata:
    """What a replica keeps that is copied from ``remote``: the seed's three rules.

    The higher term is adopted. The own vote stays, unless the remote's term is higher: in that
    one nobody got this server's vote yet (the remote's vote is not ours). The configuration is the
    remote's. So terms never fall and no vote is forgotten. Source: Kudu, "Consensus metadata
    merge"; of a server without metadata the local side is `pristine`.
    """
    assert local.group_id == remote.group_id
    own, theirs = local.term_and_vote, remote.term_and_vote
    vote = own if theirs.term <= own.term else TermAndVote(theirs.term, None)
    return ConsensusMetadata(local.group_id, vote, remote.configuration)


class StoredSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot with the group it belongs to."""

    group_id: TabletId
    snapshot: Snapshot


def encode_consensus_metadata(metadata: ConsensusMetadata) -> bytes:
    """Encode for an atomic replace."""
    return seal(METADATA_MAGIC, msgspec.msgpack.encode(metadata))


def decode_consensus_metadata(where: str, group_id: TabletId, data: bytes) -> ConsensusMetadata:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    metadata = unseal(where, METADATA_MAGIC, data, ConsensusMetadata)
    if metadata.group_id != group_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {metadata.group_id}")
    return metadata


def encode_snapshot(group_id: TabletId, snapshot: Snapshot) -> bytes:
    """Encode for an atomic replace."""
    return seal(SNAPSHOT_MAGIC, msgspec.msgpack.encode(StoredSnapshot(group_id, snapshot)))


def decode_snapshot(where: str, group_id: TabletId, data: bytes) -> Snapshot:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    stored = unseal(where, SNAPSHOT_MAGIC, data, StoredSnapshot)
    if stored.group_id != group_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {stored.group_id}")
    return stored.snapshot
