"""Sizes and times that servers run with, as one frozen value; the simulator draws tiny ones."""

from __future__ import annotations

import msgspec

MIB = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Relations checked at construction: an expiry is only meaningful against its period."""

    heartbeat_s: float = 0.2
    """Between heartbeats of tservers and backups to every master."""
    lease_s: float = 1.5
    """How long a tserver may serve after the sending of a heartbeat that the leader answered."""
    dead_after_s: float = 2.0
    """Silence after which the leader takes a server for dead (a hung one; a crash shows sooner)."""
    call_timeout_s: float = 5.0
    """Deadline of one control call between servers."""
    append_timeout_s: float = 2.0
    """Deadline of one append to a backup, after which the replica is replaced."""
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
    raft_snapshot_entries: int = 2000
    segment_bytes: int = 8 * MIB
    """Log bytes in a head before it is sealed; also the size of a frame on backups."""
    group_commit_bytes: int = MIB
    """Small writes gathered into one entry, at most."""
    queue_bytes: int = 64 * MIB
    """Writes waiting in one tablet; beyond it, `Overloaded`."""
    arrow_rows: int = 100
    """From this many rows on, a call carries Arrow instead of msgpack rows."""
    scan_batch_bytes: int = 16 * MIB
    scan_idle_s: float = 60.0
    client_expiry_s: float = 3600.0
    """Results of a client that has been silent for so long are forgotten."""

    def __post_init__(self) -> None:
        assert self.lease_s >= 3 * self.heartbeat_s, "a lease must outlast lost heartbeats"
        assert self.dead_after_s >= self.lease_s, "a server is not given up before its lease ends"
        assert self.raft_election_ticks >= 3 * self.raft_heartbeat_ticks
