"""What consensus decides and storage keeps: log entries, configurations, term and vote, snapshots.

These are the records that `stelae.consensus` hands out and `stelae.storage` encodes; neither room
imports the other. Implements design §2 and §8: a tablet is a log of entries named by OpId.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from stelae.core.ids import Address, OpId, ServerUuid


class EntryKind(enum.IntEnum):
    """What a log entry means; only commands reach the state machine."""

    NO_OP = 0
    COMMAND = 1
    CONFIGURATION = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a Raft log."""

    term: int
    index: int
    kind: EntryKind
    body: bytes

    @property
    def op_id(self) -> OpId:
        return OpId(self.term, self.index)


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One member of a configuration. ``address`` is its last known one."""

    uuid: ServerUuid
    address: Address
    voter: bool = True
    name: str = ""
    """How people call it; empty where nobody said."""


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """The members of a group. ``op_id`` names the entry that carried it; (0, 0): the first."""

    op_id: OpId
    peers: tuple[Peer, ...]

    @property
    def voters(self) -> tuple[ServerUuid, ...]:
        return tuple(peer.uuid for peer in self.peers if peer.voter)

    @property
    def non_voters(self) -> tuple[Peer, ...]:
        """Members that are being brought up: each is to become a voter once it has caught up."""
        return tuple(peer for peer in self.peers if not peer.voter)

    def peer(self, uuid: ServerUuid) -> Peer | None:
        """The member with that UUID, or None."""
        for peer in self.peers:
            if peer.uuid == uuid:
                return peer
        return None


def first_configuration(
    addresses: Mapping[ServerUuid, Address], names: Mapping[ServerUuid, str] | None = None
) -> Configuration:
    """The configuration a group starts with: all voters, ordered by UUID.

    Without members it is that of a server which waits for a group to add it.
    """
    called = names or {}
    peers = [Peer(uuid, addresses[uuid], True, called.get(uuid, "")) for uuid in sorted(addresses)]
    return Configuration(OpId(0, 0), tuple(peers))


_PEERS = msgspec.msgpack.Decoder(tuple[Peer, ...])


def encode_peers(peers: tuple[Peer, ...]) -> bytes:
    """The body of an entry that changes the configuration to ``peers``."""
    return msgspec.msgpack.encode(peers)


def configuration_of(entry: Entry) -> Configuration:
    """The configuration that an entry of that kind carries.

    Raises:
        msgspec.MsgspecError: the body is none; whoever takes entries in has checked that.
    """
    assert entry.kind is EntryKind.CONFIGURATION
    return Configuration(entry.op_id, _PEERS.decode(entry.body))


class TermAndVote(msgspec.Struct, frozen=True, array_like=True):
    """The highest term seen, and who got this server's vote in it. Durable before any answer."""

    term: int
    voted_for: ServerUuid | None


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after ``last`` was applied, and the configuration in force there."""

    last: OpId
    configuration: Configuration
    data: bytes
