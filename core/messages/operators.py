"""Messages of operators to masters about tservers and replicas: retire, maintain, move, spread.

Each order records what is wanted in the catalog; whoever leads then works towards it, step by step.
All are idempotent: what is wanted already is answered with how far it is. And as what is wanted
stands until other is, each is carried out once per request: a copy that comes late does not undo
what was ordered after it.
"""

from __future__ import annotations

from stelae.core.ids import RequestId, ServerUuid, TabletId
from stelae.core.records.records import ServerMark, TabletRecord
from stelae.core.rpc import ANY_MASTER, Body, Empty, Method


class MarkServer(Body, frozen=True):
    """Say what is wanted of a tserver or a backup; what is None stays as it is.

    Raises InvalidArgument: there is none, or there are several, of that name; or a backup that
    others cannot stand in for is to be retired, or one is to be in maintenance.
    """

    request: RequestId
    server: str
    """Its name, or its UUID."""
    retiring: bool | None = None
    maintenance: bool | None = None


class ReplaceServer(Body, frozen=True):
    """Fence a server that is away, by its UUID, so that another may have its name.

    Permanent: masters refuse every run of this UUID from then on. Any kind but a master. Of a
    server that is fenced it only notes whether its replacement goes on.
    Raises InvalidArgument: it lives, or is in maintenance, or nobody knows it; RetryLater: the
    leader may not have heard it yet.
    """

    request: RequestId
    uuid: ServerUuid
    goes_on: bool = False
    """An operator's replacement, which is under way until the same order without it."""


class GetServer(Body, frozen=True):
    """Ask how far a tserver or a backup is. Raises InvalidArgument as `MarkServer` does."""

    server: str


class ServerProgress(Body, frozen=True):
    """A server that is to be retired may be stopped for good once it has nothing left."""

    mark: ServerMark
    is_live: bool
    replicas: int
    """Tablets that it is a member of, by the catalog."""
    tablets: int
    """Tablets that it owns."""
    bound: int = 0
    """Of these, so many cannot leave it: their rows are nowhere else."""
    problem: str = ""
    """What keeps the tablets that it owns from leaving just now."""
    indexlets: int = 0
    """That it has, and that are brought to others while they serve."""
    segments: int = 0
    """Of a backup: replicas and blobs that are there yet; 0: it has none, and takes none. Of one
    that is away, or of a server that was never heard: at least 1, as that is not known."""
    logs: int = 0
    """Of a safekeeper: logs of which it is a member, by the catalog."""


class MoveReplica(Body, frozen=True):
    """Move one replica to another server; with an empty ``target``: give a move up.

    Answered once it is in the catalog. The target gets a copy and becomes a voter before the source
    is let go. Raises InvalidArgument, TabletNotFound.
    """

    request: RequestId
    tablet_id: TabletId
    source: str
    """Name or UUID of the server that has it."""
    target: str


class MoveProgress(Body, frozen=True):
    """``tablet.move`` is None once it is done."""

    tablet: TabletRecord
    is_given_up: bool = False
    """The order was carried out before, and its target is to have no replica any more."""


class SetRebalancing(Body, frozen=True):
    """Say how replicas and leaders are to be spread over servers.

    Raises InvalidArgument: it is no time.
    """

    request: RequestId
    after_s: float
    """Seconds without anything to heal before each step; 0: never."""


class RebalancingState(Body, frozen=True):
    after_s: float
    """By the operators' word, else by the masters' settings."""
    moving: int
    """Replicas that are being moved now, whoever wanted it."""


MARK_SERVER = Method("master.mark_server", MarkServer, ServerProgress, ANY_MASTER)
REPLACE_SERVER = Method("master.replace_server", ReplaceServer, Empty, ANY_MASTER)
GET_SERVER = Method("master.get_server", GetServer, ServerProgress, ANY_MASTER)
MOVE_REPLICA = Method("master.move_replica", MoveReplica, MoveProgress, ANY_MASTER)
SET_REBALANCING = Method("master.set_rebalancing", SetRebalancing, RebalancingState, ANY_MASTER)
GET_REBALANCING = Method("master.get_rebalancing", Empty, RebalancingState, ANY_MASTER)
