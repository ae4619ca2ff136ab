"""The errors a caller can meet, in five families named after what the caller should do.

::

    StelaeError
    ├── Rejected         surely not done; do not repeat as it is
    ├── RetryElsewhere   surely not done here; ask the server named
    ├── RetryLater       surely not done; repeat after a wait
    ├── OutcomeUnknown   done or not; repeat only with the same request id
    └── DataLost         surely gone or damaged

Every class keeps its constructor's parameters as ``args``, so that it survives pickling (Ray) and
the wire (`encode_error`). A broken invariant of our own is an ``AssertionError`` and ends the
process; it is not in this tree.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class StelaeError(Exception):
    """Base of everything a caller of Stelae may handle; ``args`` are the constructor's."""

    template: ClassVar[str] = "{0}"
    by_name: ClassVar[dict[str, type[StelaeError]]] = {}  # subclasses, for `decode_error`

    def __init_subclass__(cls) -> None:
        StelaeError.by_name[cls.__name__] = cls

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    def __str__(self) -> str:
        return self.template.format(*self.args)


class Rejected(StelaeError):
    """Surely not done; repeating the same call gives the same answer."""


class RetryElsewhere(StelaeError):
    """Surely not done here; another server is the one to ask."""


class RetryLater(StelaeError):
    """Surely not done; the same call may succeed after a wait."""


class OutcomeUnknown(StelaeError):
    """Done or not done; only the same request id may be repeated safely."""

    template = "{0} did not answer {1} within {2:.4g} s; it may or may not have been carried out"

    def __init__(self, address: str, method: str, timeout_s: float) -> None:
        super().__init__(address, method, max(timeout_s, 0.0))


class ClosedMeanwhile(OutcomeUnknown):
    """What waited for the answer was closed."""

    template = (
        "{0} was closed while the call was under way; it may or may not have been carried out"
    )

    def __init__(self, what: str) -> None:
        StelaeError.__init__(self, what)


class DataLost(StelaeError):
    """Surely gone or damaged; the message names what."""


# ---- Rejected -------------------------------------------------------------------------------


class InvalidArgument(Rejected):
    """The call itself is wrong: types, sizes, names, settings. The text says what to change."""


class TableNotFound(Rejected):
    template = "there is no table {0!r}; tables() lists those that exist"

    def __init__(self, table: str) -> None:
        super().__init__(table)


class TableExists(Rejected):
    template = "a table named {0!r} exists already"

    def __init__(self, table: str) -> None:
        super().__init__(table)


class TableChanged(Rejected):
    template = "table {0!r} is of edition {2} by now, and was to be of {1}"

    def __init__(self, table: str, expected: str, found: str) -> None:
        super().__init__(table, expected, found)


class SpecChanged(Rejected):
    template = (
        "the spec of cluster {0!r} is of generation {2} by now, asked for by {3}, and was to be of "
        "{1}: see what differs (dry run), then apply with generation {2}"
    )

    def __init__(self, cluster: str, expected: int, found: int, by: str) -> None:
        super().__init__(cluster, expected, found, by)


class TokenExists(Rejected):
    template = "there is a token named {0!r} already"

    def __init__(self, name: str) -> None:
        super().__init__(name)


class TokenNotFound(Rejected):
    template = "there is no token named {0!r}"

    def __init__(self, name: str) -> None:
        super().__init__(name)


class TabletNotFound(Rejected):
    """Records of deleted tablets stay for ever: the cluster never had this one."""

    template = "there never was a tablet {0!r} here"

    def __init__(self, tablet_id: str) -> None:
        super().__init__(tablet_id)


class TabletDeleted(Rejected):
    """The tombstone stays: a tablet is never created twice, nor revived once its table is gone."""

    template = "tablet {0} was deleted from {1}, and cannot be made there again"

    def __init__(self, tablet_id: str, server: str) -> None:
        super().__init__(tablet_id, server)


class TooManyReplicas(Rejected):
    template = "{0} needs {1} backups with medium {2!r}; the cluster has {3}, live or not"

    def __init__(self, what: str, needed: int, medium: str, found: int) -> None:
        super().__init__(what, needed, medium, found)


class TooFewServers(Rejected):
    """More replicas were asked for than there are servers to hold one each."""

    template = (
        "{0} needs {1} {2}; the cluster has {3}, live or not: set {2}.count in cluster.yaml to {1} "
        "or more, and run `stelae apply`"
    )

    def __init__(self, what: str, needed: int, kind: str, found: int) -> None:
        super().__init__(what, needed, kind, found)


class ColumnNotFound(Rejected):
    template = "table {1!r} has no column {0!r}; it has {2}"

    def __init__(self, column: str, table: str, columns: str) -> None:
        super().__init__(column, table, columns)


class IndexNotFound(Rejected):
    template = "table {1!r} has no index of column {0!r}; create_index makes one"

    def __init__(self, column: str, table: str) -> None:
        super().__init__(column, table)


class IndexExists(Rejected):
    template = "table {1!r} has an index of column {0!r} already"

    def __init__(self, column: str, table: str) -> None:
        super().__init__(column, table)


class RowExists(Rejected):
    """An insert met a key that is there; nothing of the call was done in that tablet."""

    template = "insert into {0!r}: a row with key {1} exists already (version {2})"

    def __init__(self, table: str, key: str, version: int) -> None:
        super().__init__(table, key, version)


class RowNotFound(Rejected):
    """A row that is not there was to be read or updated; nothing of an update was done in that
    tablet."""

    template = "table {0!r} has no row with key {1}"

    def __init__(self, table: str, key: str) -> None:
        super().__init__(table, key)


class VersionMismatch(Rejected):
    """``if_version`` did not hold; version 0 means that the row is absent."""

    template = "{0!r}, key {1}: expected version {2}, found {3}"

    def __init__(self, table: str, key: str, expected: int, found: int) -> None:
        super().__init__(table, key, expected, found)


class TooLarge(Rejected):
    template = "{0} is {1} bytes; the limit is {2} bytes"

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)


class Unauthorized(Rejected):
    template = "not authorized: {0}"


class ProtocolMismatch(Rejected):
    template = (
        "{0} speaks protocol version {1}; this server speaks {2}: upgrade the older of the two"
    )

    def __init__(self, peer: str, found: int, expected: int) -> None:
        super().__init__(peer, found, expected)


class AlreadyRunning(Rejected):
    template = "{0}"


class MigrationUnderWay(Rejected):
    """Of a timeline one change of members is made at a time: this one was refused."""

    template = "the log of tablet {0} is {1}: wait until that has ended, or take it back"

    def __init__(self, tablet_id: str, what: str) -> None:
        super().__init__(tablet_id, what)


class StaleRequest(Rejected):
    """The client has already told that it has this request's answer; a late copy does nothing."""

    template = "request {1} of client {0} is older than its first incomplete request {2}"

    def __init__(self, client_id: str, sequence: int, first_incomplete: int) -> None:
        super().__init__(client_id, sequence, first_incomplete)


class KeyReused(Rejected):
    """A key stands for one request; this is another one than it stood for first."""

    template = "the Idempotency-Key was sent with another request before: take another key"


class ConfigurationMismatch(Rejected):
    """Compare-and-set on a group's members: they are no longer those that the caller saw."""

    template = "the members of {0} are those of entry {2} by now, and were expected to be of {1}"

    def __init__(self, group: str, expected: str, found: str) -> None:
        super().__init__(group, expected, found)


class CopyOver(Rejected):
    """What a copy session pinned is let go: a new session shows what there is to copy now."""

    template = "the copy session {0} is over"

    def __init__(self, session: str) -> None:
        super().__init__(session)


class SnapshotLost(Rejected):
    """What a reader had pinned is let go. The same rows cannot be had again; the table can be read
    anew, at a later point."""

    template = "the snapshot of tablet {0} is not kept by {1} any more ({2}): read the table anew"

    def __init__(self, tablet_id: str, server: str, reason: str) -> None:
        super().__init__(tablet_id, server, reason)


class BackupNotFound(Rejected):
    template = "there is no backup {0!r} in {1}; it has {2}"

    def __init__(self, backup: str, url: str, found: str) -> None:
        super().__init__(backup, url, found)


# ---- RetryElsewhere -------------------------------------------------------------------------


class NotLeader(RetryElsewhere):
    """The server asked does not lead; ``leader`` is the ``host:port`` to try, or empty."""

    template = "{0} is not the leader in term {1}; try {2!r}"

    def __init__(self, server: str, term: int, leader: str) -> None:
        super().__init__(server, term, leader)

    @property
    def leader(self) -> str:
        return str(self.args[2])


class TabletNotHere(RetryElsewhere):
    """The tablet is not (or no longer) served here: look its location up again."""

    template = "tablet {0} is not served by {1}"

    def __init__(self, tablet_id: str, server: str) -> None:
        super().__init__(tablet_id, server)


class TabletTombstoned(RetryElsewhere):
    """The tablet's data was deleted on that server, which keeps but the memory of its votes."""

    template = "tablet {0} was deleted on {1}, or is being copied there"

    def __init__(self, tablet_id: str, server: str) -> None:
        super().__init__(tablet_id, server)


class IndexletNotHere(RetryElsewhere):
    """Not (or no longer) held there, or not with that range: ask the masters where it is."""

    template = "indexlet {0} is not held by {1}"

    def __init__(self, indexlet_id: str, server: str) -> None:
        super().__init__(indexlet_id, server)


class SchemaChanged(RetryElsewhere):
    """The table was altered, and a call made with so old a schema is not understood any more:
    surely not done; load the schema anew, and make the call with that."""

    template = (
        "table {0!r} was altered: the call was made with version {1} of its schema, which is at "
        "version {2} by now"
    )

    def __init__(self, table: str, version: int, current: int) -> None:
        super().__init__(table, version, current)


class WrongServer(RetryElsewhere):
    """The address now belongs to another server than the one the call was meant for."""

    template = "call was for server {0}; this is {1}"

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)


class StaleTerm(RetryElsewhere):
    """The caller's term, epoch or generation is older than what the receiver has promised."""

    template = "{0}: term or epoch {1} is stale; {2} is current"

    def __init__(self, what: str, found: int, current: int) -> None:
        super().__init__(what, found, current)


class LogFenced(StaleTerm):
    """A server of a later term owns the tablet: this log must not grow any more."""


class TooStale(RetryElsewhere):
    """The state held there may be older than the caller allows; another's may not be."""

    template = "the state of {0} may be {1} old; at most {2} s was asked for"

    def __init__(self, server: str, age: str, max_staleness_s: float) -> None:
        super().__init__(server, age, max_staleness_s)


# ---- RetryLater -----------------------------------------------------------------------------


class Overloaded(RetryLater):
    """``retry_after_s``: when there will be room, where that is known; else it is not kept."""

    template = "{0} is at its limit of {1}; try again shortly"

    def __init__(self, what: str, limit: int, retry_after_s: float = 0.0) -> None:
        super().__init__(what, limit, *([retry_after_s] if retry_after_s else []))


class OutOfMemory(RetryLater):
    """Writes are refused; reads and deletes go on."""

    template = (
        "{0} holds {1} bytes of its {2}; delete rows or raise tservers.memory in cluster.yaml"
    )

    def __init__(self, server: str, used_bytes: int, limit_bytes: int) -> None:
        super().__init__(server, used_bytes, limit_bytes)


class NoSpace(RetryLater):
    """``what_helps`` is the way out: it differs for backups and for tservers."""

    template = "{0} has no space left on {1!r}: {2}"

    def __init__(
        self, server: str, medium: str, what_helps: str = "free some or add backups"
    ) -> None:
        super().__init__(server, medium, what_helps)


class DiskFailed(RetryLater):
    """A disk failed a write; nothing that was acknowledged is affected."""

    template = "{0}: the disk of medium {1!r} failed a write: {2}; see the machine's kernel log"

    def __init__(self, server: str, medium: str, reason: str) -> None:
        super().__init__(server, medium, reason)


class TabletNotReady(RetryLater):
    template = "tablet {0} is {1}"

    def __init__(self, tablet_id: str, state: str) -> None:
        super().__init__(tablet_id, state)


class IndexletNotReady(RetryLater):
    template = "indexlet {0} is {1}"

    def __init__(self, indexlet_id: str, state: str) -> None:
        super().__init__(indexlet_id, state)


class NoQuorum(RetryLater):
    """No leader was found in time. ``reason``: why one of the masters could not be reached."""

    template = "no leader among the masters {0} yet"

    def __init__(self, masters: str, reason: str = "") -> None:
        super().__init__(masters, reason)

    def __str__(self) -> str:
        _masters, reason = self.args
        return f"{super().__str__()}: {reason}" if reason else super().__str__()


class NotEnoughServers(RetryLater):
    template = "{0} needs {1} live {2}, there are {3}"

    def __init__(self, what: str, needed: int, kind: str, found: int) -> None:
        super().__init__(what, needed, kind, found)


class ArchiveBusy(RetryLater):
    """Files of an archive are not deleted while a backup is being made that may need them."""

    template = "{0}: {1}"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)


class NameReserved(RetryLater):
    template = "a table named {0!r} is being created right now; try again shortly"


class Unavailable(RetryLater):
    """The peer could not be reached, and the call was certainly not sent."""

    template = "{0} cannot be reached: {1}"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)


class DeadlineExpired(RetryLater):
    """The deadline had passed before the call was begun; nothing was done."""

    template = "{0}: the deadline passed before it was begun (waited for {1})"

    def __init__(
        self, method: str, waited_for: str = "no server: it had passed when the call began"
    ) -> None:
        super().__init__(method, waited_for)


class NotDoneYet(DeadlineExpired):
    """What was asked for is decided, and goes on by itself; it was not waited for any longer."""

    template = "{0} is not done yet, and goes on by itself (it waits for {1})"


# ---- DataLost -------------------------------------------------------------------------------


class CorruptData(DataLost):
    template = "{0}, offset {1}: {2}"

    def __init__(self, where: str, offset: int, reason: str) -> None:
        super().__init__(where, offset, reason)


class UnknownFormat(CorruptData):
    """A newer version of Stelae wrote this. It is not damaged, and nobody may repair or free it."""

    template = (
        "{0} has format {1}, and this version of Stelae reads {2}. Nothing was changed: start the "
        "version that wrote it, or a later one"
    )

    def __init__(self, where: str, found: str, known: str) -> None:
        StelaeError.__init__(self, where, found, known)


class SegmentsMissing(DataLost):
    """The log of a tablet is not complete; it stays offline until its segments come back."""

    template = "tablet {0} stays offline: no live backup holds {1}"

    def __init__(self, tablet_id: str, missing: str) -> None:
        super().__init__(tablet_id, missing)


# ---- wire -----------------------------------------------------------------------------------


def encode_error(error: StelaeError) -> bytes:
    """Encode for the wire: class name and constructor parameters, as msgpack."""
    return msgspec.msgpack.encode((type(error).__name__, error.args))


def decode_error(data: bytes) -> StelaeError:
    """Rebuild an error; a class this version does not know comes back as `StelaeError`."""
    name, args = msgspec.msgpack.decode(data, type=tuple[str, tuple[Any, ...]])
    known = StelaeError if name == StelaeError.__name__ else StelaeError.by_name.get(name)
    if known is None:
        return StelaeError(f"{name}: {args}")
    return known(*args)
