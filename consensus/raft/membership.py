"""Changes of a group's members, one server at a time: what each does, and when it may begin.

A configuration takes effect in each server as soon as its entry is in that server's log, and goes
with the entry if that is cut (`stelae.consensus.raft.log_view`). Configurations that differ by one
voter share a server in any two majorities, so that no two leaders are elected in one term; that is
lost if a second change begins before the first is committed, or before the leader has committed an
entry of its own term (thesis §4.1; Ongaro, "bug in single-server membership changes", raft-dev
2015).

A change that its leader cannot commit is taken back by it (`Raft._give_up`), as the seed "Tablet
copy" asks for under future work.

New members come in as non-voters, which count nowhere and elect nobody, and are promoted once they
have caught up: a group is never made to wait for a server that is still empty. Design §8.
"""

from __future__ import annotations

import enum

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, ServerUuid
from stelae.core.records.replication import Configuration, Peer


class ChangeKind(enum.StrEnum):
    ADD = "add"
    """As a non-voter."""
    PROMOTE = "promote"
    REMOVE = "remove"


class MemberChange(msgspec.Struct, frozen=True):
    """One change; ``address`` and ``name`` are an added member's."""

    kind: ChangeKind
    uuid: ServerUuid
    address: Address = Address("")
    name: str = ""


def changed_peers(configuration: Configuration, change: MemberChange) -> tuple[Peer, ...]:
    """The members after ``change``.

    Raises:
        InvalidArgument: it makes no sense here: the text says why.
    """
    peers = configuration.peers
    known = configuration.peer(change.uuid)
    if change.kind is ChangeKind.ADD:
        if known is not None:
            raise InvalidArgument(f"{change.uuid} is a member already")
        if not change.address:
            raise InvalidArgument(f"a member is added by its address; {change.uuid} has none")
        return (*peers, Peer(change.uuid, change.address, False, change.name))
    if known is None:
        raise InvalidArgument(f"{change.uuid} is not a member")
    if change.kind is ChangeKind.REMOVE:
        if configuration.voters == (change.uuid,):
            raise InvalidArgument(f"{change.uuid} is the last voter, and holds all there is")
        return tuple(peer for peer in peers if peer.uuid != change.uuid)
    if known.voter:
        raise InvalidArgument(f"{change.uuid} is a voter already")
    promoted = msgspec.structs.replace(known, voter=True)
    return tuple(promoted if peer.uuid == change.uuid else peer for peer in peers)
