"""What masters, operators and other safekeepers ask of a safekeeper.

What proposers say to it is in `stelae.consensus.wal.messages`. Every call names the receiver by its
server UUID (`Peers.call(destination=)`), and is idempotent.

How a safekeeper gets its id: it heartbeats with ``server.safekeeper_id`` None until it has one; the
leader draws one, commits it to the catalog under the server's UUID, and only then answers with
`HeartbeatReply.safekeeper_id`; the safekeeper makes it durable beside its instance before it uses
it, and names it in each heartbeat from then on. An id is drawn once and never reused. Until then
all calls but `PING` are refused with TabletNotReady or InvalidArgument, and lists are empty.

A heartbeat lists in ``logs`` the timelines that it has (tombstones are not among them); what the
reply says to ``drop`` is excluded for ever.

Implements seed 004 ("Safekeeper changes", "API"), where *tenant* is the table and *timeline* the
tablet; design §10.
"""

from __future__ import annotations

import enum

from stelae.core.ids import TabletId
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperPlace,
    SwitchReply,
    TimelineConfiguration,
    TimelineSnapshot,
    WalFile,
)
from stelae.core.rpc import Body, Empty, Method

LIST_MAX = 1000
"""Timelines in one page."""
NO_POSITION = LogPosition(0, 0)


class Ping(Body, frozen=True):
    """Is that safekeeper there? Raises InvalidArgument: this one has another id, or none yet."""

    safekeeper_id: SafekeeperId


class Pong(Body, frozen=True):
    """It answers, and takes timelines."""

    timelines: int
    failed: int
    """So many of them do nothing any more: damaged files, or a disk that failed below them."""
    evicted: int


class PutConfiguration(Body, frozen=True):
    """Switch to the configuration if it is higher; if it is that of the timeline then, raise the
    term to ``min_term``, in the same durable step. Whatever is known, the answer is where it stands
    after that.

    A timeline that is not there is begun with ``create``, empty, unless it was ever deleted here.
    Raises ConfigurationMismatch: that generation has other members here.
    """

    timeline: TimelineId
    configuration: TimelineConfiguration
    min_term: int = 0
    create: bool = False


class ConfigurationPut(Body, frozen=True):
    """None: the timeline is not there."""

    reply: SwitchReply | None


class PullTimelineFrom(Body, frozen=True):
    """Be in the configuration, with ``at_least`` so much of the log: by a copy of ``source``, if
    the timeline is not here, or is behind both. Done when it is answered.

    What came so far when it ends by its deadline stays, and the next call goes on with it. Raises
    InvalidArgument (no member), StaleTerm (a higher generation is known, here or at the source),
    TabletDeleted; and, to be repeated: CopyOver (the source's log was cut meanwhile),
    TabletNotReady (the source does not have so much yet), Overloaded.
    """

    timeline: TimelineId
    configuration: TimelineConfiguration
    source: SafekeeperPlace
    at_least: LogPosition = NO_POSITION


class ExcludeTimeline(Body, frozen=True):
    """Remove it, and remember durably, also if there is nothing, that up to that generation (with
    ``forever``: in any) nothing brings it back.

    Raises StaleTerm: a higher generation is known; InvalidArgument: this safekeeper is a member,
    which is not looked at with ``forever``.
    """

    timeline: TimelineId
    configuration: TimelineConfiguration
    forever: bool = False


class TimelinePresence(enum.StrEnum):
    RESIDENT = "resident"
    EVICTED = "evicted"
    """Its WAL is on backups; it is back as soon as it is needed."""
    FAILED = "failed"
    """It does nothing before the next start; ``problem`` says why."""


class HeldTimeline(Body, frozen=True):
    """What a safekeeper has of one timeline, all of it durable, read at one point.

    The numbers are 0, and there is no configuration, if its files could not be believed.
    """

    tablet_id: TabletId
    presence: TimelinePresence
    configuration: TimelineConfiguration | None = None
    term: int = 0
    last_log_term: int = 0
    flush_lsn: int = 0
    commit_lsn: int = 0
    horizon_lsn: int = 0
    """Up to here backups have all: the WAL is trimmed so far, by whole files."""
    base_lsn: int = 0
    """Up to here it was trimmed."""
    log_bytes: int = 0
    """Of its WAL, here or on backups."""
    problem: str = ""

    @property
    def generation(self) -> int:
        return self.configuration.generation if self.configuration is not None else 0


class TimelineStatusOf(Body, frozen=True):
    """Raises TabletNotFound, TabletTombstoned."""

    tablet_id: TabletId


class ListTimelines(Body, frozen=True):
    """Those after ``after``, in the order of their ids, at most ``limit``."""

    after: TabletId = TabletId("")
    limit: int = LIST_MAX


class TimelineList(Body, frozen=True):
    """``more``: others follow the last one."""

    safekeeper_id: SafekeeperId | None
    timelines: tuple[HeldTimeline, ...]
    more: bool = False


PING = Method("safekeeper.ping", Ping, Pong)
PUT_CONFIGURATION = Method("safekeeper.put_configuration", PutConfiguration, ConfigurationPut)
PULL_TIMELINE: Method[PullTimelineFrom, SwitchReply] = Method(
    "safekeeper.pull_timeline", PullTimelineFrom, SwitchReply
)
EXCLUDE_TIMELINE: Method[ExcludeTimeline, Empty] = Method(
    "safekeeper.exclude_timeline", ExcludeTimeline, Empty
)
TIMELINE_STATUS = Method("safekeeper.timeline_status", TimelineStatusOf, HeldTimeline)
LIST_TIMELINES = Method("safekeeper.list_timelines", ListTimelines, TimelineList)


# ---- among safekeepers --------------------------------------------------------------------------


class BeginPull(Body, frozen=True):
    """From the receiver of a pull to its source: open a session, which pins what it names.

    Raises TabletNotFound, TabletTombstoned, Overloaded (too many sessions).
    """

    tablet_id: TabletId
    receiver: SafekeeperId


class PullPlan(Body, frozen=True):
    """What there is to fetch."""

    session: str
    snapshot: TimelineSnapshot


class ReadPull(Body, frozen=True):
    """A piece of a file; the blob of the reply. Raises CopyOver: the session is over."""

    session: str
    file: WalFile
    offset: int
    size_bytes: int


class EndPull(Body, frozen=True):
    """Let go of what the session pins; idempotent."""

    session: str


BEGIN_PULL = Method("safekeeper.begin_pull", BeginPull, PullPlan)
READ_PULL: Method[ReadPull, Empty] = Method("safekeeper.read_pull", ReadPull, Empty)
END_PULL: Method[EndPull, Empty] = Method("safekeeper.end_pull", EndPull, Empty)


# ---- offloaded files on backups -----------------------------------------------------------------


class PutBlob(Body, frozen=True):
    """Keep the blob that comes with it, durably, under a name that is used once.

    Again with the same content is fine. Raises InvalidArgument (no name, or not that checksum),
    NoSpace.
    """

    name: str
    crc: int
    """CRC-32C of the blob."""


class GetBlob(Body, frozen=True):
    """All of it is the blob of the reply. Raises CorruptData: what is here is damaged."""

    name: str


class BlobFound(Body, frozen=True):
    is_here: bool


class DeleteBlobs(Body, frozen=True):
    """Absent is fine."""

    names: tuple[str, ...]


class ListBlobs(Body, frozen=True):
    """Those of one safekeeper after ``after``, in order, at most ``limit``."""

    safekeeper_id: SafekeeperId
    after: str = ""
    limit: int = LIST_MAX


class BlobNames(Body, frozen=True):
    """``more``: others follow the last one."""

    names: tuple[str, ...]
    more: bool = False


PUT_BLOB: Method[PutBlob, Empty] = Method("backup.put_blob", PutBlob, Empty)
GET_BLOB = Method("backup.get_blob", GetBlob, BlobFound)
DELETE_BLOBS: Method[DeleteBlobs, Empty] = Method("backup.delete_blobs", DeleteBlobs, Empty)
LIST_BLOBS = Method("backup.list_blobs", ListBlobs, BlobNames)
