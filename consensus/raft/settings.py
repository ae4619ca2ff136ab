"""Settings of a Raft group. Times are in ticks, so that the core needs no clock."""

from __future__ import annotations

from dataclasses import dataclass

from stelae.core.errors import InvalidArgument

LARGE_BYTES = 1 << 16
"""Of entries in one message, from which on it may be overtaken by heartbeats."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """How one group behaves; the same for all its members.

    ``lease_duration_us`` must be shorter than the time for which followers refuse votes after a
    leader's message, ``election_ticks - 2`` full ticks, less the drift between two clocks;
    0 turns the lease off.
    """

    election_ticks: int = 10  # least wait before an election; the wait is drawn up to twice this
    heartbeat_ticks: int = 2
    batch_entries_max: int = 1024
    batch_bytes_max: int = 1 << 20
    inflight_max: int = 16  # unanswered batches per follower
    inflight_bytes_max: int = 16 << 20  # in them, before another one is sent
    large_bytes: int = LARGE_BYTES
    snapshot_chunk_bytes: int = 1 << 20
    snapshot_bytes_max: int = 1 << 30  # a follower refuses to assemble more
    pending_reads_max: int = 10_000
    apply_entries_max: int = 4096  # handed out in one Ready
    apply_bytes_max: int = 1 << 20  # the same, but at least one: others wait meanwhile
    change_ticks: int = 60  # with a change of members in the log, and nothing committed: give up
    lease_duration_us: int = 0
    copies_by_host: bool = False
    """A member that needs compacted entries is named in ``Ready.copies``, and sent no snapshot."""

    @property
    def apply_limits(self) -> tuple[int, int]:
        """Entries and bytes that are executed in one go."""
        return self.apply_entries_max, self.apply_bytes_max

    def __post_init__(self) -> None:
        """Raises InvalidArgument for values that cannot work together."""
        if self.election_ticks < 3 * self.heartbeat_ticks or self.heartbeat_ticks < 1:
            raise InvalidArgument("election_ticks must be at least 3 times heartbeat_ticks")
        limits = (
            self.batch_entries_max,
            self.batch_bytes_max,
            self.inflight_max,
            self.inflight_bytes_max,
            self.large_bytes,
            self.snapshot_chunk_bytes,
            self.snapshot_bytes_max,
            self.pending_reads_max,
            self.apply_entries_max,
            self.apply_bytes_max,
            self.change_ticks,
        )
        if min(limits) < 1 or self.lease_duration_us < 0:
            raise InvalidArgument("limits must be positive")
