"""Messages about replicas of tablets with ``replicas(n)``: their life, their members, their copies.

All carry the UUID of the receiver (``destination`` of the call), and what the sender believes, so
that a receiver can refuse what is old. Design §8; seed Kudu tablet copy.
"""

from __future__ import annotations

import enum

from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration
from stelae.core.rpc import Body, Empty, Method


class DataState(enum.StrEnum):
    """What a server's disk holds of a tablet."""

    ABSENT = "absent"
    """Never here (the seed's DOES_NOT_EXIST)."""
    COPYING = "copying"
    """Files are being written by a copy: after a restart they count for nothing."""
    READY = "ready"
    DELETED = "deleted"
    """A tombstone: term, vote and last OpId stay for ever, and vote."""


# ---- masters to tservers --------------------------------------------------------------------


class CreateReplica(Body, frozen=True):
    """Create an empty replica of a new tablet; idempotent. Only ever sent to the first members; to
    one that was not there then, with the members of now, if nobody leads who could have it copied.

    Raises TabletDeleted: it was here, and was deleted. A replica that is here already, whatever
    has become of it since, is left as it is.
    """

    tablet_id: TabletId
    table: TableRecord
    configuration: Configuration


class DeleteReplica(Body, frozen=True):
    """Leave a tombstone; idempotent.

    ``forever``: the catalog says that the tablet is deleted, and no copy may revive it. Otherwise
    the server is no member any more by the committed configuration ``configuration_id``; a replica
    that knows a newer one refuses (`ConfigurationMismatch`), be it only in its log and not known to
    be committed: it may have been added again since. A tombstone for ever is reported no more.

    ``term``: the leader of this term has no newer configuration; so one that was appended in an
    earlier term, and is not in its log, will never be committed, and is no reason to refuse.
    """

    tablet_id: TabletId
    forever: bool
    configuration_id: OpId
    term: int = 0


class ChangeKind(enum.StrEnum):
    ADD = "add"
    """As a non-voter; the leader promotes it by itself once it has caught up."""
    REMOVE = "remove"


class ChangeReplicas(Body, frozen=True):
    """To a leader: change the members by one, if the committed configuration is ``expected``.

    Idempotent: what is so already is answered with the members as they are. Raises NotLeader,
    ConfigurationMismatch, TabletNotReady (a change is under way), InvalidArgument.
    """

    tablet_id: TabletId
    kind: ChangeKind
    uuid: ServerUuid
    address: Address
    name: str
    expected: OpId


class Members(Body, frozen=True):
    configuration: Configuration


class TransferLeadership(Body, frozen=True):
    """To a leader: hand over to ``target``, or to whoever has most. Answered once it leads no more.

    Raises NotLeader, InvalidArgument, TabletNotReady, DeadlineExpired: if that names
    `TRANSFER_ATTEMPT`, the leader has tried, and leads on.
    """

    tablet_id: TabletId
    target: ServerUuid = ServerUuid("")


TRANSFER_ATTEMPT = "transfer_leadership"
"""Name of a leader's own attempt in `DeadlineExpired`. A call that expires on its way has the
method's name."""

CREATE_REPLICA = Method("tserver.create_replica", CreateReplica, Empty)
DELETE_REPLICA = Method("tserver.delete_replica", DeleteReplica, Empty)
CHANGE_REPLICAS = Method("tserver.change_replicas", ChangeReplicas, Members)
TRANSFER_LEADERSHIP = Method("tserver.transfer_leadership", TransferLeadership, Empty)


# ---- operators to tservers ------------------------------------------------------------------


class MarkReplica(Body, frozen=True):
    """To a leader: mark a point of the tablet's log, at which each replica keeps its rows aside.

    Changes nothing that anybody reads. Answered once the mark is committed; each replica lets go of
    those rows with the next mark, or some time after. Raises NotLeader, TabletNotReady,
    TabletNotHere.
    """

    tablet_id: TabletId


class ReplicaMark(Body, frozen=True):
    index: int


class ChecksumReplica(Body, frozen=True):
    """To any replica: a digest over its state at a mark's ``index``.

    Waits until that is applied, within the call's deadline. Equal on all replicas, whatever they
    have flushed and when. Raises TabletNotReady: it has let go of that mark; TabletNotHere,
    TabletTombstoned, DeadlineExpired.
    """

    tablet_id: TabletId
    index: int


class ReplicaDigest(Body, frozen=True):
    """``rows`` is over all rows and versions, ``rest`` over everything else that must agree."""

    index: int
    row_count: int
    rows: str
    rest: int


MARK_REPLICA = Method("tserver.mark_replica", MarkReplica, ReplicaMark)
CHECKSUM_REPLICA = Method("tserver.checksum_replica", ChecksumReplica, ReplicaDigest)


class CancelCopy(Body, frozen=True):
    """To a tserver: end the copy of a tablet that it receives, and begin none for ``hold_s``.

    Idempotent. What it replaced goes on voting; a replica that it had not replaced yet stays.
    """

    tablet_id: TabletId
    hold_s: float


class CopyCancelled(Body, frozen=True):
    was_running: bool


CANCEL_COPY = Method("tserver.cancel_copy", CancelCopy, CopyCancelled)


class ListQuarantine(Body, frozen=True):
    """To a tserver: what lies in its quarantine, of all tablets or of one."""

    tablet_id: TabletId = TabletId("")


class PurgeQuarantine(Body, frozen=True):
    """To a tserver: remove for good what lies in its quarantine for at least so long.

    Idempotent; answered with what was removed. Raises NoSpace, TabletNotReady: repeat it.
    """

    tablet_id: TabletId = TabletId("")
    """Empty: of all tablets."""
    older_than_s: float = 0.0


class QuarantineEntry(Body, frozen=True):
    """Log, images and superblock of a replica that was deleted, as they were."""

    tablet_id: TabletId
    number: int
    """Of one server, which deletion of the tablet it was."""
    table: str
    """Empty where it is not known."""
    folder: str
    """Below the server's data directory."""
    size_bytes: int
    age_s: float
    """Seconds that it has been there, at least."""


class QuarantineList(Body, frozen=True):
    """By tablet and number."""

    entries: tuple[QuarantineEntry, ...]


LIST_QUARANTINE = Method("tserver.list_quarantine", ListQuarantine, QuarantineList)
PURGE_QUARANTINE = Method("tserver.purge_quarantine", PurgeQuarantine, QuarantineList)


# ---- among tservers -------------------------------------------------------------------------


class StartTabletCopy(Body, frozen=True):
    """From a leader to a member that lacks what its log no longer has, or lacks the tablet.

    ``state`` and ``last`` are what the leader believes of the receiver. Answered at once. Raises
    TabletNotReady (it is copying already, or things are not as believed: look again), StaleTerm (it
    knows a newer term), TabletDeleted (for ever), Overloaded (no room in its pool of copies).
    """

    tablet_id: TabletId
    source: ServerUuid
    source_address: Address
    term: int
    state: DataState
    last: OpId | None = None


class CopyStarted(Body, frozen=True):
    """The copy has begun. ``last_problem``: why the one before it, of the same tablet in this run
    of the server, was given up; empty: there was none, or it came. For people."""

    last_problem: str = ""


class CopyFile(Body, frozen=True):
    """One file of a copy. ``path`` is that of the source's store."""

    path: str
    size_bytes: int
    crc: int


class BeginCopy(Body, frozen=True):
    """From the receiver to the source: open a session, which pins all that it names."""

    tablet_id: TabletId
    receiver: ServerUuid


class CopyPlan(Body, frozen=True):
    """What there is to fetch. The blob is the source's superblock, with its snapshot."""

    session: str
    term: int
    configuration: Configuration
    """The members in force at the source."""
    files: tuple[CopyFile, ...]
    """Images of sealed segments."""
    log_first: int
    """The log entries that follow the snapshot, by `FetchEntries`."""
    log_last: OpId
    began_with: Configuration
    """The members before the first entry: what counts where there is no snapshot."""


class FetchFile(Body, frozen=True):
    """A piece of a file; the blob of the reply. Raises CopyOver: the session is over."""

    session: str
    path: str
    offset: int
    size_bytes: int


class ShareFile(Body, frozen=True):
    """Put a whole file into the object store, to be fetched from there. Raises CopyOver."""

    session: str
    path: str
    done: tuple[str, ...] = ()
    """Files shared before that the receiver has: they need not be there any more."""


class SharedFile(Body, frozen=True):
    """Where it is (see `stelae.core.runtime.Objects`); empty: it has to be fetched in pieces."""

    token: bytes


class FetchEntries(Body, frozen=True):
    """Log entries from ``first`` on, as many as fit; the blob of the reply is msgpack of them.

    Raises CopyOver.
    """

    session: str
    first: int


class EndCopy(Body, frozen=True):
    """Let go of what the session pins; idempotent."""

    session: str


START_TABLET_COPY = Method("tserver.start_tablet_copy", StartTabletCopy, CopyStarted)
BEGIN_COPY = Method("tserver.begin_copy", BeginCopy, CopyPlan)
FETCH_FILE = Method("tserver.fetch_file", FetchFile, Empty)
SHARE_FILE = Method("tserver.share_file", ShareFile, SharedFile)
FETCH_ENTRIES = Method("tserver.fetch_entries", FetchEntries, Empty)
END_COPY = Method("tserver.end_copy", EndCopy, Empty)
