"""Messages of clients to tservers: writes, reads by key, and scans of one tablet.

Of a table with ``segments(...)`` the tablet's owner answers all of them. Of one with
``replicas(n)`` the leader does, and any other replica answers `NotLeader`, which names the leader
if it is known; but a read with a ``max_staleness_s`` that is not negative any replica may answer,
whose state is provably no older than so many seconds, or it refuses with `TooStale`. All other
reads see everything acknowledged before them, as those of an owner always do.
"""

from __future__ import annotations

import enum
from typing import Any

from stelae.core.ids import RequestId, TabletId
from stelae.core.messages.catalog import LINEARIZABLE
from stelae.core.rpc import BY_TABLET, Body, Method

WRITES_MAX = 256
"""Of one `WriteMany`, and of one `WriteEach`."""
GETS_MAX = 64
"""Of one `GetEach`."""
SMALL_ROW_BYTES_MAX = 4 << 10
"""A row of no more, about, travels and is logged together with its like; a larger one alone."""


class WriteOp(enum.IntEnum):
    INSERT = 0
    UPSERT = 1
    UPDATE = 2
    DELETE = 3

    @property
    def is_unconditional(self) -> bool:
        """Whether it is carried out whatever the tablet holds, if no version is expected."""
        return self in (WriteOp.UPSERT, WriteOp.DELETE)


class Write(Body, frozen=True):
    """Write rows of one tablet, atomically, in order, exactly once per request id.

    Few rows: ``rows``, tuples of wire values of ``columns`` (for DELETE: of the key). Many: one
    blob, an Arrow IPC stream of one batch with those columns, and ``rows`` empty.
    """

    tablet_id: TabletId
    schema_version: int
    op: WriteOp
    request: RequestId
    rows: tuple[tuple[Any, ...], ...]
    columns: tuple[str, ...] = ()
    """Empty: all columns in schema order (DELETE: the key columns)."""
    if_versions: tuple[int, ...] = ()
    """One for each row, or none: the version that the row must have; 0: it must be absent."""


class WriteReply(Body, frozen=True):
    """Row i of the call has version ``first_version + i``."""

    first_version: int
    row_count: int


class WriteMany(Body, frozen=True):
    """Calls of one row each that one client made at about the same time; each is a `Write`.

    They are carried out in order, each by itself, whatever becomes of the others.
    """

    tablet_id: TabletId
    schema_version: int
    op: WriteOp
    columns: tuple[str, ...]
    requests: tuple[RequestId, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Of each request its row."""


class WriteManyReply(Body, frozen=True):
    """What each came to, as `stelae.storage.entries.outcomes` writes it. If all of them have failed
    for the same reason, that is the answer to the call instead."""

    outcomes: tuple[bytes, ...]


class WriteEach(Body, frozen=True):
    """Calls of one row each on several tablets of one server, by a client that makes many at the
    same time; each is a `Write`. At most `WRITES_MAX` in all. What can be carried out without
    waiting for anything but the log is; the answer comes once all of that counts."""

    parts: tuple[WriteMany, ...]


class WriteEachReply(Body, frozen=True):
    """Of each part what each of its calls came to, as in `WriteManyReply`; empty: nothing was done
    for it, and it is to be sent with `WRITE`, which waits, or says why."""

    outcomes: tuple[tuple[bytes, ...], ...]


class Get(Body, frozen=True):
    """Read rows by key. ``columns`` empty: all. No keys at all: to see whether it answers."""

    tablet_id: TabletId
    keys: tuple[tuple[Any, ...], ...]
    columns: tuple[str, ...] = ()
    schema_version: int = 0
    """The version that the columns are of; 0: whatever the tablet has."""
    max_staleness_s: float = LINEARIZABLE


class GetReply(Body, frozen=True):
    """For each key the row's wire values and version, or None. For tables that are not plain,
    ``rows`` is empty and the blobs are those of `GetManyReply`."""

    rows: tuple[tuple[tuple[Any, ...], int] | None, ...]


class GetEach(Body, frozen=True):
    """Reads of several tablets of one server, by clients that make many at the same time. At most
    `GETS_MAX`; each is answered by itself, and at once or not at all."""

    gets: tuple[Get, ...]


class GetEachReply(Body, frozen=True):
    """Of each read the answer; None: it would have to wait, or is refused. To be asked again with
    `GET`, which waits, or says why."""

    answers: tuple[GetReply | None, ...]


class GetMany(Body, frozen=True):
    """Read many rows by key; the blob is an Arrow IPC stream of one batch of key columns."""

    tablet_id: TabletId
    columns: tuple[str, ...] = ()
    schema_version: int = 0
    """As in `Get`."""
    max_staleness_s: float = LINEARIZABLE
    bytes_max: int = 0
    """Maximum bytes of rows in the answer, which has one row at least; 0: no maximum."""


class GetManyReply(Body, frozen=True):
    """Blobs: an Arrow IPC stream of the rows found (with ``_version``), and the int32 places of
    their keys in the request, ascending."""

    row_count: int
    keys_read: int = 0
    """Number of keys, from the first, that were looked for before ``bytes_max`` was reached; 0:
    all. The caller asks for the others with another call."""


class Scan(Body, frozen=True):
    """Open a scan (``cursor`` empty) or go on with one. A scan sees one point of the tablet's log,
    and goes on where it was opened.

    ``where`` is in disjunctive form: any of the lists, all of the (column, op, value) in one, with
    wire values.
    """

    tablet_id: TabletId
    cursor: str = ""
    columns: tuple[str, ...] = ()
    where: tuple[tuple[tuple[str, str, Any], ...], ...] = ()
    limit: int = 0
    """0: no limit."""
    with_versions: bool = False
    piece: int = 0
    """Which piece of the scan is asked for, from 0: a repeated or late call gets no other one."""
    schema_version: int = 0
    """As in `Get`."""
    max_staleness_s: float = LINEARIZABLE
    pin: str = ""
    """Scan what was kept under this name (see `Pin`), whoever owns the tablet by now."""
    skip: int = 0
    """So many matching rows are left out at the beginning: of a pin they were read before."""
    share: int = 0
    """Of a pin: only this one, from 0, of ``shares`` about equal shares of its rows."""
    shares: int = 1


class ScanReply(Body, frozen=True):
    """The blob is an Arrow IPC stream of the next batches. ``cursor`` empty: that was all."""

    cursor: str
    row_count: int


class Pin(Body, frozen=True):
    """Keep the tablet's rows as they are now, to be scanned as often as the caller likes, all by
    the columns of ``schema_version``. The same ``pin`` again is the same rows, while they are kept:
    for ``keep_s`` after the last call that names it."""

    tablet_id: TabletId
    pin: str
    schema_version: int
    keep_s: float
    yields: bool = False
    """Its reader may begin anew, and may never come back: where too many such pins are kept, the
    one that was not used for longest goes. Others are refused then."""


class PinReply(Body, frozen=True):
    row_count: int
    size_bytes: int
    """About so much do all columns of them take."""
    next_version: int
    """Of the tablet's log at that point: every row has a lower one."""


class KeepPins(Body, frozen=True):
    """Keep these for ``keep_s`` from now on; 0: let them go. None is ever made anew."""

    pins: tuple[str, ...]
    keep_s: float


class KeepPinsReply(Body, frozen=True):
    lost: tuple[str, ...]
    """Those that are not kept any more."""


WRITE = Method("tserver.write", Write, WriteReply, BY_TABLET)
WRITE_MANY = Method("tserver.write_many", WriteMany, WriteManyReply, BY_TABLET)
WRITE_EACH = Method("tserver.write_each", WriteEach, WriteEachReply, BY_TABLET)
GET = Method("tserver.get", Get, GetReply, BY_TABLET)
GET_EACH = Method("tserver.get_each", GetEach, GetEachReply, BY_TABLET)
GET_MANY = Method("tserver.get_many", GetMany, GetManyReply, BY_TABLET)
SCAN = Method("tserver.scan", Scan, ScanReply, BY_TABLET)
PIN = Method("tserver.pin", Pin, PinReply, BY_TABLET)
KEEP_PINS = Method("tserver.keep_pins", KeepPins, KeepPinsReply, BY_TABLET)
