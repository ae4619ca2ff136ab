"""Messages between masters and the other servers: bodies, methods, and what each promises.

Rules that hold for all of them: a receiver refuses a lower term or epoch with `StaleTerm`; every
request may arrive twice or late, and is idempotent or carries a request id; bulk bytes travel as
blobs beside the body, named in each docstring.
"""

from __future__ import annotations

import enum

from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.messages.backup_loads import BackupsView, MediumLoad
from stelae.core.messages.indexes import IndexletReport
from stelae.core.records.losses import SegmentFacts, Shortage
from stelae.core.records.records import MasterMember, ServerInfo, TableRecord, TabletRecord
from stelae.core.records.replication import Configuration
from stelae.core.records.succession import SuccessionReport
from stelae.core.records.timelines import SafekeeperId, TimelineSource
from stelae.core.rpc import ANY_MASTER, Body, Empty, Method
from stelae.core.schema.indexes import IndexletId

# ---- servers to masters ---------------------------------------------------------------------


class TabletProgress(enum.StrEnum):
    """What a tserver does with a tablet it was told to open."""

    OPENING = "opening"
    PREPARED = "prepared"
    """Complete and durable, but not serving: the catalog does not say yet that it may."""
    SERVING = "serving"
    FAILED = "failed"
    """``problem`` says why; the leader decides what follows."""


class ReplicaRole(enum.StrEnum):
    """What a server's replica of a tablet is, as it says itself."""

    LEADER = "leader"
    """And has applied all that was committed before its term."""
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    COPYING = "copying"
    TOMBSTONE = "tombstone"
    """Its data are gone; term, vote and last OpId stay for ever, and vote."""
    FAILED = "failed"
    """Offline here; ``problem`` says why."""


class PeerHealth(Body, frozen=True):
    """One other member, as its leader sees it."""

    uuid: ServerUuid
    is_heard: bool
    """It answered within about two election timeouts."""
    match_index: int
    """Its log is durable, and equal to the leader's, up to here."""


class CopyWanted(Body, frozen=True):
    """A member that its leader has told to make a copy, and which has not begun, by its report."""

    uuid: ServerUuid
    is_throttled: bool = False
    """It takes as many copies as it may at a time: others have to end first."""
    problem: str = ""
    """Why it refused the last time, if it did."""


class GroupReport(Body, frozen=True):
    """One replica of a tablet with ``replicas(n)``."""

    role: ReplicaRole
    last: OpId
    """Of its log."""
    commit_index: int = 0
    leader: ServerUuid = ServerUuid("")
    """Whom it follows, or itself; empty: nobody is known."""
    configuration: Configuration | None = None
    """The newest committed one that it knows."""
    is_changing: bool = False
    """Of a leader: a newer configuration is appended and not committed yet."""
    peers: tuple[PeerHealth, ...] = ()
    """Of a leader: all others of the configuration in force."""
    copied_bytes: int = 0
    copy_bytes: int = 0
    """While COPYING: how far, and how much in all (0: not known yet)."""
    no_room: bool = False
    """While FAILED: only because the disk is full; it tries again by itself."""
    copy_source: ServerUuid = ServerUuid("")
    """While COPYING: from whom."""
    copies_wanted: tuple[CopyWanted, ...] = ()
    """Of a leader."""
    tries_again: bool = False
    """While FAILED: what failed may work in a moment; its server begins it again by itself."""
    live_bytes: int = 0
    """Of its memory: rows that live, and the index."""


LOAD_UNKNOWN = -1.0
"""``load_per_s`` of a tablet that is served, or led, for too short a time to say."""


class CleaningReport(Body, frozen=True):
    """How full a tablet's memory and log are, and what cleaning has done since it was opened."""

    live_bytes: int
    """Of its memory: rows that live, and the index."""
    log_bytes: int
    """On each backup, of what is in memory."""
    written_bytes: int
    """By clients."""
    copied_bytes: int
    """In memory alone."""
    survivor_bytes: int
    """In memory and to each backup."""
    segments_compacted: int
    segments_cleaned: int
    survivors: int


class TabletReport(Body, frozen=True):
    tablet_id: TabletId
    term: int
    progress: TabletProgress
    problem: str = ""
    row_count: int = 0
    memory_bytes: int = 0
    segment_count: int = 0
    under_replicated: int = 0
    """Segments with fewer live replicas than the durability names."""
    phases: tuple[tuple[str, float], ...] = ()
    """Seconds spent in each phase of its recovery (read, merge, install), for status."""
    head_segment: int = 0
    """Of a PREPARED tablet: its new head. From the hand-over on, open replicas below are stale."""
    schema_version: int = 0
    """Of its table, as far as the tablet has heard."""
    renames: int = 0
    """The same, of changes of the table's name."""
    group: GroupReport | None = None
    """Of a tablet with ``replicas(n)``; ``term`` is its Raft term then."""
    load_per_s: float = 0.0
    """Calls a second of late (`stelae.actors.tserver.tablet.load_rate`), by its owner or leader; or
    `LOAD_UNKNOWN`."""
    timeline_generation: int = 0
    """Of a ``wal`` tablet: of the newest configuration of its timeline that its owner knows."""
    succession: SuccessionReport | None = None
    """Of a tablet that makes way for another one."""
    cleaning: CleaningReport | None = None
    remote_bytes: int = 0
    """Of sealed segments whose rows are not in memory yet, since it was recovered."""
    remote_bytes_at_first: int = 0
    loaded_s: float = 0.0
    """From the hand-over until all rows were there; 0: they are not yet, or always were."""
    shortage: Shortage | None = None
    """While segments lack replicas."""
    lacks: tuple[SegmentFacts, ...] = ()
    """Segments of its log that are nowhere to be had: of a ``wal`` tablet that cannot be opened, or
    of one that is served while rows of it are elsewhere yet."""
    in_memory_only: int = 0
    """While such a tablet is served: segments that no live backup holds either, but its memory."""
    is_whole: bool = False
    """Backups have all of its rows in its own log, on as many of them as the durability names."""
    unreached: tuple[ServerUuid, ...] = ()
    """Safekeepers or backups without which its log cannot be opened, or written, and which do not
    answer its owner; masters may hear them."""


FULL = 0
"""``since`` of a report that lists everything."""
NO_REPORT = -1
"""``since`` of a heartbeat that is for liveness and load only."""


class Heartbeat(Body, frozen=True):
    """From every tserver, backup and safekeeper to every master, each ``heartbeat_s``; followers
    take liveness and load only.

    ``tablets`` (of a tserver) and ``logs`` (of a backup: what it holds replicas of; of a
    safekeeper: its timelines) are everything, or what has changed ``since``
    (`stelae.core.messages.reports`).
    """

    server: ServerInfo
    sent: float
    """The sender's monotonic clock, returned in the reply: leases count from it."""
    tablets: tuple[TabletReport, ...] = ()
    logs: tuple[TabletId, ...] = ()
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    free_bytes: int = 0
    """Of a backup's disks, for further segments; its memory media count as memory."""
    number: int = 0
    """Grows with each heartbeat of one run to one master; 0: not counted, ordered by ``sent``."""
    since: int = FULL
    """Number of the report that this one says the changes to, or `FULL`, or `NO_REPORT`."""
    removed: tuple[TabletId, ...] = ()
    """Tablets, or logs, no longer held."""
    digest: int = 0
    """Sum of the fingerprints of all that is held; 0: not given."""
    servers_version: int = 0
    """Of the list of live servers that the sender has; 0: none."""
    indexlets: tuple[IndexletReport, ...] = ()
    """Of a tserver: all that it has, in every report; they are few."""
    media: tuple[MediumLoad, ...] = ()
    """Of a backup."""
    backups_version: int = 0
    """Of a tserver or safekeeper: of what it was told of backups."""
    replicas: int = 0
    """Of a backup: of segments, and blobs of safekeepers, that it has."""
    closed_for: int = 0
    """Of a backup that is to be retired: generation of the mark (`HeartbeatReply.mark`) under which
    it has nothing, and takes nothing any more."""
    live_bytes: int = 0
    """Of a tserver: of its memory at most so much is taken by what lives, all else cleaning frees;
    0: not said."""
    lacks_memory: bool = False
    """Of a tserver: rows of recovered tablets cannot come into its memory, as they do not fit."""
    media_used_bytes: tuple[int, ...] = ()
    """Of each of ``media``: what is taken by replicas."""
    media_free_bytes: tuple[int, ...] = ()
    """Of each of ``media``: what replicas may still take. Media on one disk each count all of it;
    empty: not said."""
    avoids: tuple[ServerUuid, ...] = ()
    """Of a tserver: backups that did not take its replicas, more than once."""
    ends_by_order: bool = False
    """Of a tserver: somebody ends its process soon, so that it dies of none of its tablets."""


class HeartbeatReply(Body, frozen=True):
    """``is_leader``: only then do the other fields bind the receiver."""

    is_leader: bool
    term: int
    """The masters' Raft term: a tserver heeds no leader of a lower term than it has heeded."""
    sent: float
    lease_s: float = 0.0
    """The sender may serve until ``sent + lease_s`` of its own clock; 0: it must not."""
    fenced: bool = False
    """This incarnation has been given up: its tablets have gone elsewhere. It must restart."""
    servers: tuple[ServerInfo, ...] = ()
    """All live tservers and backups; nothing if the sender's list is of ``servers_version``."""
    serve: tuple[tuple[TabletId, int], ...] = ()
    """(tablet, term) pairs reported PREPARED that this server owns and may serve."""
    drop: tuple[TabletId, ...] = ()
    """Tablets that the catalog says are deleted or replaced: free what you hold of them; of
    replicas, leave a tombstone for ever, which is reported no more."""
    processed: bool = False
    """The report was taken in. If not, the leader needs a full one."""
    servers_version: int = 0
    masters: tuple[MasterMember, ...] = ()
    """All masters, to which to heartbeat from now on; of a follower: those it knows of."""
    safekeeper_id: SafekeeperId | None = None
    """Of a safekeeper: its id in the catalog (see `stelae.core.messages.safekeepers`)."""
    serve_indexlets: tuple[tuple[IndexletId, int], ...] = ()
    """(indexlet, term) pairs reported COMPLETE that this server owns and may serve."""
    backups: BackupsView | None = None
    """To a tserver or safekeeper, if it has another one."""
    retiring: int = 0
    """To a backup that knows no ``may_close``: that generation, while the mark allows it, or 0."""
    mark: int = 0
    """To a backup: generation of its mark (`ServerMark`); 0: it never had one."""
    may_close: bool = False
    """That mark says that it is to be retired, and that nobody needs it any more."""
    replaced: bool = False
    """Another server has the sender's name on another machine (`ServerMark`). Permanent: the
    sender's process must end, of whatever kind it is."""


class RaiseEpoch(Body, frozen=True):
    """From the owner of a tablet that lost a replica of its open head, before it acknowledges on.

    Open replicas below (segment_id, epoch) are stale from now on. Refused (`StaleTerm`) unless
    ``term`` is the tablet's current one and ``owner`` its owner.
    """

    tablet_id: TabletId
    term: int
    owner: ServerUuid
    segment_id: int
    epoch: int


class TabletOpened(Body, frozen=True):
    """A tablet is PREPARED at its owner: the hint that saves waiting for the next heartbeat."""

    server: ServerUuid
    incarnation: int
    report: TabletReport


HEARTBEAT = Method("master.heartbeat", Heartbeat, HeartbeatReply, ANY_MASTER)
RAISE_EPOCH = Method("master.raise_epoch", RaiseEpoch, Empty, ANY_MASTER)
TABLET_OPENED = Method("master.tablet_opened", TabletOpened, Empty, ANY_MASTER)


# ---- masters to tservers --------------------------------------------------------------------


class RecoveryEngine(enum.StrEnum):
    NATIVE = "native"
    SPARK = "spark"


class SegmentSource(Body, frozen=True):
    """Where a segment of a log to be recovered lies: any of ``replicas`` will do."""

    segment_id: int
    sealed: bool
    """In columnar form. Otherwise rows of the log, valid up to each replica's certificate."""
    length: int
    replicas: tuple[tuple[ServerUuid, Address, str], ...]
    """(backup, its address, medium)"""
    is_head: bool = False
    """The open segment that ends the log (its newest digest)."""
    epoch: int = 0
    log: TabletId = TabletId("")
    """Whose log the replicas are of, if not the tablet's own: that of one that was split."""
    crc: int | None = None
    """Of such a log's end: over the headers of the ``length`` bytes that count."""
    may_be_short: bool = False
    """Of the head: power was lost, and more may have been acknowledged (``sync: on_seal``)."""


class OpenTablet(Body, frozen=True):
    """Open a tablet in ``tablet.term``: anew (no sources), or by recovery of its log.

    Answered at once; progress comes by heartbeat and `TABLET_OPENED`. A repeated call with the
    same term changes nothing; a lower term than one seen is refused. With ``engine`` SPARK
    the merge of the summaries comes by `INSTALL_MERGE`; everything else is the tserver's.
    """

    table: TableRecord
    tablet: TabletRecord
    sources: tuple[SegmentSource, ...] = ()
    engine: RecoveryEngine = RecoveryEngine.NATIVE
    timeline: TimelineSource | None = None
    """Of a table with ``wal(n, …)``: its log's tail, without which it cannot be opened."""
    merge_patience_s: float = 0.0
    """How long to wait for a merge that is made elsewhere; then the tserver makes it."""
    load_bytes_per_s: float = 0.0
    """At most so fast rows are brought back that nobody has asked for; 0: as this server is set."""


class ServeTablet(Body, frozen=True):
    """The catalog says RUNNING: begin to serve. The same fact comes with each heartbeat reply."""

    tablet_id: TabletId
    term: int


class LearnTimeline(Body, frozen=True):
    """The catalog knows of this configuration of a ``wal`` tablet's timeline: its owner may not
    hear of it otherwise, once all members of the older one are gone."""

    tablet_id: TabletId
    term: int
    timeline: TimelineSource


class CloseTablet(Body, frozen=True):
    """Forget a tablet of this or a lower term (deleted, or given to another server)."""

    tablet_id: TabletId
    term: int


class InstallMerge(Body, frozen=True):
    """The merge of a log's summaries, made elsewhere (Spark): the blob has a bit for each row of
    all sources one after the other, first ones lowest, set if the row is the newest of its key and
    no tombstone. Whoever loads the log has all else."""

    tablet_id: TabletId
    term: int
    row_counts: tuple[int, ...]
    """Of each source."""


OPEN_TABLET = Method("tserver.open_tablet", OpenTablet, Empty)
SERVE_TABLET = Method("tserver.serve_tablet", ServeTablet, Empty)
LEARN_TIMELINE = Method("tserver.learn_timeline", LearnTimeline, Empty)
CLOSE_TABLET = Method("tserver.close_tablet", CloseTablet, Empty)
INSTALL_MERGE = Method("tserver.install_merge", InstallMerge, Empty)
