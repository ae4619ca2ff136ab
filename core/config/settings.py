"""Sizes and times that servers run with, as one frozen value; the simulator draws tiny ones."""

from __future__ import annotations

import msgspec

MIB = 1 << 20
GATHER_BYTES = 16 << 10
"""So much waits for the entries of a log that are under way: by then there is more, and fewer
appends and syncs carry it."""
STUCK_FACTOR = 10
"""A replica that is there, but not well, gets so many times as long as one that is not there."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Relations checked at construction: an expiry is only meaningful against its period."""

    heartbeat_s: float = 0.2
    """Between heartbeats of tservers and backups to every master."""
    lease_s: float = 1.5
    """How long a tserver may serve after the sending of a heartbeat that the leader answered."""
    dead_after_s: float = 2.0
    """Silence after which the leader takes a server for dead (a hung one; a crash shows sooner)."""
    replica_dead_after_s: float = 30.0
    """Silence of a server after which its replicas are made anew elsewhere: it may come back."""
    safekeeper_dead_after_s: float = 30.0
    """Silence of a safekeeper after which others take its place in its timelines."""
    timeline_scan_s: float = 5.0
    """Between looks of the leader at what is left to be done for timelines."""
    rebalance_after_s: float = 0.0
    """After so long without anything to heal, replicas and leaders are spread more evenly, one at a
    time with as long between two; 0: never."""
    call_timeout_s: float = 5.0
    """Deadline of one control call between servers."""
    append_timeout_s: float = 2.0
    """Deadline of one append to a backup, after which the replica is replaced."""
    rereplication_bytes_per_s: int = 256 * MIB
    """At which a tserver sends what makes lost replicas of sealed segments anew; 0: no bound."""
    copyset_size: int = 0
    """Backups in a group, in which a segment's replicas lie together; 0: no groups."""
    coordinator_period_s: float = 0.1
    """Between looks of the leader at what should be and what is; events wake it sooner."""
    creation_timeout_s: float = 30.0
    """A tablet not created by then is replaced by a new one, which has twice the time."""
    tablets_per_table_max: int = 1024
    tablets_max: int = 50_000
    """Live tablets of all tables together."""
    raft_tick_s: float = 0.05
    raft_heartbeat_ticks: int = 2
    raft_election_ticks: int = 10
    tablet_tick_s: float = 0.0
    """Of the groups of tablets, of which there are many; 0: 2.5 times the masters'."""
    tablet_election_ticks: int = 7
    wal_tick_s: float = 0.1
    """Of the proposers of timelines: ten to a heartbeat, twenty to silence."""
    safekeeper_sweep_s: float = 10.0
    """Between looks of a safekeeper at what its timelines leave to be done."""
    evict_after_s: float = 0.0
    """A timeline whose log nobody has used for so long goes to backups, and comes back when it is
    needed; 0: never. It saves a safekeeper a file or two, and costs backups as much for each copy:
    it is for many timelines at rest on small disks."""
    evict_copies: int = 2
    """Backups that have to take each file of an evicted timeline."""
    raft_snapshot_entries: int = 2000
    raft_keep_bytes: int = 16 * MIB
    """Of a tablet's log, kept for replicas that lag; one that lacks more gets a copy."""
    segment_bytes: int = 8 * MIB
    """Log bytes in a head before it is sealed; also the size of a frame on backups."""
    group_commit_bytes: int = MIB
    """Small writes gathered into one entry, at most."""
    queue_bytes: int = 64 * MIB
    """Writes waiting in one tablet; beyond it, `Overloaded`."""
    arrow_rows: int = 100
    """From this many rows on, a call carries Arrow instead of msgpack rows."""
    indexlet_entries_max: int = 4_000_000
    """An indexlet with more entries is split in two, each on its own server."""
    scan_batch_bytes: int = 16 * MIB
    scan_idle_s: float = 60.0
    copies_max: int = 2
    """Tablet copies that a server receives at a time; others are told to wait."""
    copy_sessions_max: int = 4
    """Tablet copies that a server is the source of at a time."""
    copy_piece_bytes: int = 8 * MIB
    """Of an image, or of log entries, in one reply."""
    copy_idle_s: float = 30.0
    """A source lets go of a copy that nobody has asked about for so long."""
    copy_log_bytes: int = 256 * MIB
    """A source keeps so much of its log, at most, for one who is still copying what was before."""
    copy_pause_s: float = 1.0
    """Between a leader's orders of a copy, and before a broken connection is tried again."""
    quarantine_keep_s: float = 7 * 24 * 3600.0
    """Files of deleted replicas are removed for good after so long; 0: only by operators."""
    clean_memory_share: float = 0.9
    """Of a tablet server's memory: from there on dead rows are dropped from it; 0: at once."""
    clean_log_factor: float = 2.0
    """A log on backups may take so many times what its rows take in memory before it is cleaned."""
    clean_period_s: float = 1.0
    """Between looks at logs of which none had to be cleaned."""
    clean_roll_after_s: float = 5.0
    """What was cleaned is freed once a later head is open: after so long one is opened for that."""
    metadata_first: bool = True
    """Whether a recovered tablet is served once it has the summaries of its sealed segments, whose
    rows come then. Otherwise it waits for all rows."""
    load_bytes_per_s: float = 1024.0 * MIB
    """How fast a server loads such rows in the background, at most; 0: as fast as it goes."""
    split_above_bytes: int = 12 << 30
    """A tablet whose log is longer is split when it is recovered, as is one that fits in no
    server's memory; 0: none is ever split. So much one server loads in 30 s, at 400 MB/s."""
    split_above_rows: int = 100_000_000
    """The same, of rows; 0: however many. Summaries of so many one server fetches and merges in
    about 10 s, at 75 MB/s; the tablet is served then."""
    inherit_pause_s: float = 0.1
    """Before a part of a split tablet tries again to write what it inherits, after it failed, and
    between looks at what else its log needs meanwhile."""
    row_piece_bytes: int = 16 << 10
    """Of rows that are fetched together, because one of them is needed before they were loaded."""
    client_expiry_s: float = 3600.0
    """Results of a client that has been silent for so long are forgotten."""

    @property
    def abandon_member_s(self) -> float:
        """After so long without progress a tablet's leader gives a new member up by itself: masters
        would have done so after half of it."""
        return 2 * STUCK_FACTOR * self.replica_dead_after_s

    @property
    def group_tick_s(self) -> float:
        """Of the groups of tablets."""
        return self.tablet_tick_s or 2.5 * self.raft_tick_s

    def __post_init__(self) -> None:
        assert self.lease_s >= 3 * self.heartbeat_s, "a lease must outlast lost heartbeats"
        assert self.dead_after_s >= self.lease_s, "a server is not given up before its lease ends"
        assert self.replica_dead_after_s >= self.dead_after_s, "a replica outlives its server"
        assert self.clean_log_factor >= 1.0, "a log has at least what memory has"
        assert self.evict_copies >= 1, "an evicted timeline is on a backup"
        assert self.raft_election_ticks >= 3 * self.raft_heartbeat_ticks
        assert self.tablet_election_ticks >= 3 * self.raft_heartbeat_ticks
