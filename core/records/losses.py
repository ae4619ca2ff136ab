"""What of a tablet's log is on no backup, and what an operator has accepted to be lost.

A tablet whose log is not complete stays offline until the missing segments come back, or until an
operator says by name that they are lost for good. That word stays in the catalog for ever.
"""

from __future__ import annotations

import msgspec

from stelae.core.ids import RequestId, ServerUuid, TableId, TabletId
from stelae.core.rpc import ANY_MASTER, Body, Method

VERSIONS_SKIPPED = 1 << 40
"""More than any term of a tablet gives: it has no more rows than bytes written."""


def versions_from(term: int) -> int:
    """Where versions go on in a term whose owner cannot know all that were given before: the end of
    the log is lost, or may be, or nothing is ever kept. Above those of every former term, also if
    that happens again and again: whoever has seen a version never meets it with another row."""
    return term * VERSIONS_SKIPPED


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
    """Instead, ids of segments that are not read, also if they are there: of a ``wal`` tablet, as
    its timeline says what else there is, whose end may be sealed before the hand-over; and of one
    that was served without their rows, as its log went on until it was fenced."""

    @property
    def is_list(self) -> bool:
        """Whether ``segments`` are all that is read."""
        return not self.given_up


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
    is_served: bool = False
    """All else of it is: it was recovered, and these segments went before their rows were back."""


class LossRecord(msgspec.Struct, frozen=True):
    """One accepted loss, for ever."""

    number: int
    loss: TabletLoss
    accepted_at: float
    """Wall clock of the leader master."""
    accepted_by: str
    gone: tuple[str, ...] = ()
    """Backups that were said never to return: name and UUID."""


class SilentBackup(msgspec.Struct, frozen=True):
    """A backup that the cluster counts on, and that did not say what it holds."""

    uuid: ServerUuid
    name: str
    machine: str
    is_live: bool = False
    silent_s: float = -1.0
    """Since it was heard last; -1: it has not been since this leader master began to lead."""

    @property
    def words(self) -> str:
        """Who it is, and why it did not say."""
        name = f"{self.name} on machine {self.machine} ({self.uuid})"
        if self.is_live:
            return f"{name} is live, and did not answer"
        if self.silent_s < 0:
            return f"{name} has not reported since this leader master began"
        return f"{name} has been silent for {self.silent_s:.0f} s"


class GetLosses(Body, frozen=True):
    """What is missing now, as a new look at all live backups shows, and what was ever accepted."""


class LossReport(Body, frozen=True):
    """``fingerprint`` stands for exactly what ``waiting`` says: who accepts it repeats it."""

    waiting: tuple[TabletLoss, ...]
    fingerprint: str
    silent_backups: tuple[str, ...] = ()
    """Names of ``silent``."""
    accepted: tuple[LossRecord, ...] = ()
    silent: tuple[SilentBackup, ...] = ()
    """Known ones that are not live, or did not answer: what is missing may be on them."""


class AcceptLoss(Body, frozen=True):
    """Give up what ``waiting`` of a report said, of these tablets (none named: of all of them).

    Carried out once per request. Raises InvalidArgument: nothing is lost, or something else is
    than the report of that fingerprint said; or a known backup is away, and not among ``gone``.
    """

    request: RequestId
    fingerprint: str
    accepted_by: str
    tablets: tuple[TabletId, ...] = ()
    gone: tuple[str, ...] = ()
    """Backups that are away and never return, by name or UUID: they are counted on no more."""


class AcceptedLosses(Body, frozen=True):
    records: tuple[LossRecord, ...]


GET_LOSSES = Method("master.get_losses", GetLosses, LossReport, ANY_MASTER)
ACCEPT_LOSS = Method("master.accept_loss", AcceptLoss, AcceptedLosses, ANY_MASTER)


class Shortage(Body, frozen=True):
    """Replicas that are missing now, and at most since none was: the rest was made anew."""

    segments: int
    size_bytes: int
    """Of sealed segments, to be sent yet."""
    segments_at_most: int
    bytes_at_most: int
    segments_unheld: int = 0
    """Of those that are missing: segments of which no live backup holds a whole replica."""
