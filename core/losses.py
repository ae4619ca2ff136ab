"""What of a tablet's log is on no backup, and what an operator has accepted to be lost.

A tablet whose log is not complete stays offline until the missing segments come back, or until an
operator says by name that they are lost for good. That word stays in the catalog for ever.
"""

from __future__ import annotations

import msgspec

from stelae.core.ids import RequestId, TableId, TabletId
from stelae.core.rpc import Body, Method

VERSIONS_SKIPPED = 1 << 40
"""Where the end of a log is lost nobody knows which versions it had given: the next ones are so
far above all that are known. A segment has no more rows than bytes, 2 ** 28 at most."""


class SegmentFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a later head says of a segment of its log, so that it can be told if that is lost."""

    segment_id: int
    rows: int
    size_bytes: int
    next_version: int
    """All versions in it are below."""


class LostSegment(msgspec.Struct, frozen=True):
    """A segment without a whole replica. Figures that nobody knows are -1. What its rows and
    tombstones had replaced may be seen again."""

    segment_id: int
    rows: int = -1
    size_bytes: int = -1
    next_version: int = -1
    kept_bytes: int = 0
    """Of its beginning, from a replica that is stale: that much is brought back."""


class KeptSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment that an incomplete log is brought back from."""

    segment_id: int
    epoch: int = -1
    """Of a stale replica of an open head, of which the beginning is taken; -1: it is final."""


class KeptLog(msgspec.Struct, frozen=True):
    """What a tablet's recovery is to be content with. It stands in the tablet's record from the
    acceptance to the hand-over: nothing else of the former log is read, whatever comes back."""

    loss: int
    """Number of its `LossRecord`."""
    segments: tuple[KeptSegment, ...]
    skips_versions: bool = False
    """The end of the log is lost."""
    given_up: tuple[int, ...] = ()
    """Of a ``wal`` tablet, instead: ids of segments that are not read, also if they are there. What
    else there is says its timeline, whose end may be sealed before the hand-over."""


class Assessment(msgspec.Struct, frozen=True):
    """What of a log is missing, and what there is."""

    missing: tuple[LostSegment, ...]
    is_end_lost: bool
    is_digest_known: bool
    kept: tuple[KeptSegment, ...]
    kept_bytes: int


class TabletLoss(msgspec.Struct, frozen=True):
    """What one tablet lacks."""

    tablet_id: TabletId
    table_id: TableId
    table: str
    number: int
    """Place in its table."""
    term: int
    """In which it was looked for."""
    segments: tuple[LostSegment, ...]
    """Those that are known to be missing, by id."""
    is_end_lost: bool
    """No whole replica of the open head is there: what was written last is lost, however much."""
    is_digest_known: bool
    """Some head tells which segments make up the log. Otherwise all that are found are taken: what
    is missing cannot be named, and rows deleted long ago may be back."""
    kept_segments: int
    kept_bytes: int


class LossRecord(msgspec.Struct, frozen=True):
    """One accepted loss, for ever."""

    number: int
    loss: TabletLoss
    accepted_at: float
    """Wall clock of the leader master."""
    accepted_by: str


class GetLosses(Body, frozen=True):
    """What is missing now, as a new look at all live backups shows, and what was ever accepted."""


class LossReport(Body, frozen=True):
    """``fingerprint`` stands for exactly what ``waiting`` says: who accepts it repeats it."""

    waiting: tuple[TabletLoss, ...]
    fingerprint: str
    silent_backups: tuple[str, ...] = ()
    """Known ones that are not live, or did not answer: what is missing may be on them."""
    accepted: tuple[LossRecord, ...] = ()


class AcceptLoss(Body, frozen=True):
    """Give up what ``waiting`` of a report said, of these tablets (none named: of all of them).

    Carried out once per request. Raises InvalidArgument: nothing is lost, or something else is
    than the report of that fingerprint said.
    """

    request: RequestId
    fingerprint: str
    accepted_by: str
    tablets: tuple[TabletId, ...] = ()


class AcceptedLosses(Body, frozen=True):
    records: tuple[LossRecord, ...]


GET_LOSSES = Method("master.get_losses", GetLosses, LossReport)
ACCEPT_LOSS = Method("master.accept_loss", AcceptLoss, AcceptedLosses)
