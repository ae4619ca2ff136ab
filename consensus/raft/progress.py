"""What a leader knows of one other replica, and how much it may send to it now.

Invariants: ``0 <= match < next``; at most ``inflight_max`` unanswered batches, and no further one
while they hold ``inflight_bytes_max``. States (after etcd/raft ``tracker``): PROBE finds where logs
part, one batch per answer; REPLICATE streams ahead of the answers. Where the entries needed are
compacted away, SNAPSHOT sends chunks; or, if the hosts copy state between themselves, COPY sends
heartbeats only, until one is accepted.

What is large takes long to arrive, and heartbeats overtake it: they then find that it is missing.
While it is known to be on its way (``in_transit``), that is no reason to send it again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from stelae.core.records.replication import Snapshot


class ProgressState(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What a leader knows of one other member."""

    match_index: int
    state: ProgressState
    is_heard: bool
    """It answered as a member within the last two election timeouts."""
    has_caught_up: bool


class Progress:
    """One follower, as its leader sees it."""

    def __init__(
        self,
        *,
        next_index: int,
        inflight_max: int,
        inflight_bytes_max: int = 1 << 62,
        large_bytes: int = 1 << 62,
    ) -> None:
        """Of ``large_bytes`` on, a batch is taken to be on its way until a tick says otherwise."""
        self.state = ProgressState.PROBE
        self.match_index = 0  # durable there, and equal to our log up to here
        self.next_index = next_index
        self.matched_round = 0  # when match_index last rose
        self.acked_round = 0  # the newest heartbeat round it has answered
        self.heard_recently = False  # since the last check for a quorum
        self.heard_before = False  # between that and the check before
        self.snapshot: Snapshot | None = None  # the one being sent
        self.snapshot_offset = 0
        self.memory_over: tuple[int, int] | None = None  # as it last answered
        self.in_transit = False  # something large is on its way
        self._inflight_max = inflight_max
        self._inflight_bytes_max = inflight_bytes_max
        self._large_bytes = large_bytes
        self._inflight: deque[tuple[int, int]] = deque()  # of unanswered batches: last index, bytes
        self._inflight_bytes = 0
        self._waiting = False  # PROBE, SNAPSHOT: one message is out
        self._probed: tuple[int, int] | None = None  # PROBE: that batch
        self._refused_at = -1  # REPLICATE: what follows this entry was refused, and is lost

    @property
    def is_heard(self) -> bool:
        """True if it answered this leader within the last two election timeouts."""
        return self.heard_recently or self.heard_before

    @property
    def paused(self) -> bool:
        """True while nothing but heartbeats may be sent."""
        if self.state is ProgressState.REPLICATE:
            is_full = self._inflight_bytes >= self._inflight_bytes_max
            return is_full or len(self._inflight) >= self._inflight_max
        return self._waiting or self.state is ProgressState.COPY

    @property
    def is_ahead(self) -> bool:
        """True while a heartbeat overtakes what was sent, and can only speak of what is matched."""
        return self.in_transit and self.state is ProgressState.REPLICATE and bool(self._inflight)

    def sent(self, last_index: int, size_bytes: int = 0) -> None:
        """Note a batch that ends at ``last_index``."""
        self.in_transit = self.in_transit or size_bytes >= self._large_bytes
        if self.state is ProgressState.REPLICATE:
            self._trust(last_index, size_bytes)
        else:
            self._waiting = True
            self._probed = (last_index, size_bytes)

    def _trust(self, last_index: int, size_bytes: int) -> None:
        self.next_index = last_index + 1
        self._inflight.append((last_index, size_bytes))
        self._inflight_bytes += size_bytes

    def _forget_sent(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0
        self._waiting = False
        self._probed = None
        self._refused_at = -1

    def probe(self, next_index: int) -> None:
        """Forget what was sent on trust, and look again for where the logs part."""
        self.state = ProgressState.PROBE
        self.next_index = max(self.match_index + 1, next_index)
        self.snapshot = None
        self._forget_sent()

    def unreachable(self) -> None:
        """What was sent on trust is lost. Wait for a heartbeat's answer before sending more."""
        if self.state is ProgressState.REPLICATE:
            self.probe(self.match_index + 1)
        self._waiting = True
        self._probed = None

    def start_snapshot(self, snapshot: Snapshot) -> None:
        """Send ``snapshot`` from its beginning."""
        self.state = ProgressState.SNAPSHOT
        self.snapshot = snapshot
        self.snapshot_offset = 0
        self._forget_sent()

    def start_copy(self) -> None:
        """What comes next is compacted away, and the hosts will see to it."""
        self.state = ProgressState.COPY
        self.snapshot = None
        self._forget_sent()

    def snapshot_at(self, offset: int) -> None:
        """The follower has this much of the snapshot; the next chunk may go."""
        if offset == self.snapshot_offset and self.in_transit:
            return  # the chunk is on its way
        self.snapshot_offset = offset
        self._waiting = False

    def accepted(self, index: int, base_index: int, round_number: int) -> None:
        """The follower has all up to ``index``; the leader holds what comes after its base.

        ``round_number`` is that of now.
        """
        if index > self.match_index:
            self.match_index, self.matched_round = index, round_number
        self.next_index = max(self.next_index, self.match_index + 1)
        if self.snapshot is not None:
            needed = min(base_index, self.snapshot.last.index)
            if self.match_index < needed:
                return  # an answer to something older than the snapshot
        if self.state is ProgressState.COPY and self.match_index < base_index:
            return  # an answer to something older than the need for a copy
        if self.state is ProgressState.PROBE and index < self.next_index - 1:
            return  # an answer to something older than what was asked for
        if self.state is not ProgressState.REPLICATE:
            probed = self._probed if self.state is ProgressState.PROBE else None
            self.state = ProgressState.REPLICATE
            self.snapshot = None
            self.next_index = self.match_index + 1
            self._forget_sent()
            if probed is not None and self.in_transit and probed[0] > self.match_index:
                self._trust(*probed)  # this answers a heartbeat, which was faster
        while self._inflight and self._inflight[0][0] <= self.match_index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        if 0 <= self._refused_at <= self.match_index < self.next_index - 1:
            self.probe(self.match_index + 1)

    def refused(self, previous_index: int, next_index: int, round_number: int) -> bool:
        """Go back to ``next_index``; False if the refusal is of something older.

        One of a request that was sent in a later round than the match was learned in is not: the
        follower has lost what it held, and its host has put a copy in its place that holds less.
        """
        if previous_index <= self.match_index and round_number > self.matched_round:
            self.match_index = 0
        sends_state = self.state in (ProgressState.SNAPSHOT, ProgressState.COPY)
        if sends_state or previous_index <= self.match_index:
            return False
        if self.state is ProgressState.PROBE and previous_index != self.next_index - 1:
            return False
        if self.state is ProgressState.REPLICATE and self.in_transit:
            least = self._refused_at if self._refused_at >= 0 else previous_index
            self._refused_at = min(least, previous_index)
            return False  # what it misses is on its way
        self.probe(min(next_index, previous_index))
        return True

    def check_invariants(self, last_index: int) -> None:
        """Assert what the module docstring promises."""
        assert 0 <= self.match_index < self.next_index <= last_index + 1
        assert len(self._inflight) <= self._inflight_max
        assert self._inflight_bytes == sum(size_bytes for _, size_bytes in self._inflight)
        assert (self.snapshot is not None) == (self.state is ProgressState.SNAPSHOT)
