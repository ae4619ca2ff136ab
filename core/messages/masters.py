"""Messages about the masters themselves: who they are, and how their set is changed.

The set is the replicated configuration of the catalog's group; every master answers what it knows
of it, and only the leader changes it, one master at a time. Design §7, §8.
"""

from __future__ import annotations

import enum

from stelae.core.ids import Address, OpId, RequestId, ServerUuid
from stelae.core.records.records import MasterMember, ServerInfo
from stelae.core.rpc import ANY_MASTER, Body, Empty, Method


class MasterState(enum.StrEnum):
    """What a master is to the group, as far as it knows."""

    STARTING = "starting"
    """It looks for the others of a group that is new."""
    LOADING = "loading"
    """It knows on its own disk whose group it is of, and has not read that group's log yet."""
    JOINING = "joining"
    """It waits to be added, under its UUID."""
    NON_VOTER = "non-voter"
    """It was added, and is being brought up."""
    VOTER = "voter"
    REMOVED = "removed"
    """It was a master, and serves no more."""


class AskMaster(Body, frozen=True):
    """The master that asks; empty if it is somebody else. Who waits hears of the others by this."""

    uuid: ServerUuid = ServerUuid("")
    address: Address = Address("")


class MasterInfo(Body, frozen=True):
    """Who the master at an address is; answered as soon as it listens, leader or not.

    ``members`` are those of the last committed configuration that it knows or has been told of,
    which the entry ``op_id`` carried; none while it knows of none.
    """

    server: ServerInfo
    state: MasterState
    op_id: OpId = OpId(0, 0)
    members: tuple[MasterMember, ...] = ()
    term: int = 0
    """The masters' Raft term, as far as it knows."""
    leader: ServerUuid = ServerUuid("")
    """Who leads in that term, as far as it knows; empty: nobody."""


class MasterSet(Body, frozen=True):
    """The masters by the leader's committed configuration, linearizably."""

    op_id: OpId
    members: tuple[MasterMember, ...]


class AddMaster(Body, frozen=True):
    """Add a master that is JOINING; idempotent, and carried out once per request: a copy that comes
    late does not add again who was removed since. The reply may still show it as a non-voter.

    Whichever master leads goes on to bring it up by snapshot, and makes it a voter once it has
    caught up. Followers answer `NotLeader`; `TabletNotReady` while another change is under way.
    """

    request: RequestId
    uuid: ServerUuid
    name: str
    address: Address


class RemoveMaster(Body, frozen=True):
    """Remove a master, by UUID or name; idempotent by UUID, and carried out once per request.

    A leader hands its leadership over first, and then answers `NotLeader`.
    """

    request: RequestId
    master: str


MASTER_INFO = Method("master.info", AskMaster, MasterInfo, ANY_MASTER)
LIST_MASTERS = Method("master.list_masters", Empty, MasterSet, ANY_MASTER)
ADD_MASTER = Method("master.add_master", AddMaster, MasterSet, ANY_MASTER)
REMOVE_MASTER = Method("master.remove_master", RemoveMaster, MasterSet, ANY_MASTER)
