"""How old one replica's state may be at most: what lets followers answer reads (KUDU-500).

A replica asks its leader for an index up to which everything acknowledged before the question lies,
by the very barrier that linearizable reads wait for. Once it has applied that index its state holds
everything that was acknowledged *when it asked*, so its state is at most as old as the question.
Masters ask all the time (`run`); tablets are many, and each asks when it is read (`prove`).

Why this is sound: the age is the time since this replica sent the question, on its own server's
clock; how long question and answer were under way only makes it look older. No clock is compared
with another. The leader answers after proof that nobody else can have committed anything by then (a
majority answered it after the question came, or its lease, which allows for clocks that run at
rates as different as `stelae.coordinator.liveness.liveness.CLOCK_DRIFT` says; a max_staleness is
stretched by no more than that). An answer of a deposed leader fails at its barrier; a leader that
does not answer, or is not known, leaves the age to grow.

A leader asks itself in the same way, so that it too can answer such reads when its followers fall
silent, for as long as the caller allows.

Source: seed Kudu multi-master, KUDU-500; read index: Raft thesis §6.4.
"""

from __future__ import annotations

import asyncio
from collections import deque

from stelae.actors.raft.replica import Replica
from stelae.consensus.raft.messages import READ_INDEX, ReadIndexOf
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError, TooStale
from stelae.core.runtime import Runtime

ANSWERS_MAX = 64
"""Answers kept until their index is applied; beyond it the oldest is forgotten."""
NEVER = float("-inf")


class Freshness:
    """The age of one replica's state."""

    def __init__(self, runtime: Runtime, settings: Settings, replica: Replica) -> None:
        self._runtime = runtime
        self._settings = settings
        self._replica = replica
        self._answers: deque[tuple[int, float]] = deque(maxlen=ANSWERS_MAX)
        """(index, when it was asked for), in the order of asking."""
        self._as_of = NEVER
        self._asking = asyncio.Lock()

    async def prove(self, max_staleness_s: float, timeout_s: float) -> None:
        """Return once the state is at most so old; asks the leader if it is not known to be.

        Those who come while the leader is asked share the answer, if that is new enough for them.
        Raises TooStale: that could not be proved in time.
        """
        if self.staleness_s() <= max_staleness_s:
            return
        try:
            async with asyncio.timeout(timeout_s), self._asking:
                if self.staleness_s() > max_staleness_s:
                    asked_at = self._runtime.clock.monotonic()
                    index = await self._ask()
                    if index is not None:
                        await self._replica.wait_applied(index, timeout_s)
                        self._as_of = max(self._as_of, asked_at)
        except (TimeoutError, StelaeError):
            self._runtime.metrics.count("read_indexes_failed")
        age_s = self.staleness_s()
        if age_s > max_staleness_s:
            what = f"tablet {self._replica.group_id} on this server"
            raise TooStale(what, f"{age_s:.3f} s", max_staleness_s)

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            asked_at = self._runtime.clock.monotonic()
            try:
                index = await self._ask()
            except StelaeError:
                self._runtime.metrics.count("read_indexes_failed")
            else:
                if index is not None:
                    self._answers.append((index, asked_at))
            await self._runtime.clock.sleep(self._settings.heartbeat_s)

    async def _ask(self) -> int | None:
        timeout_s = self._settings.dead_after_s
        if self._replica.is_leader:
            return await self._replica.read_barrier(timeout_s)
        address, leader = self._replica.leader_address, self._replica.core.leader_uuid
        if not address:
            return None
        question = ReadIndexOf(self._replica.group_id)
        reply = await self._runtime.peers.call(
            address, READ_INDEX, question, timeout_s=timeout_s, destination=leader
        )
        return reply.body.index

    def staleness_s(self) -> float:
        """The state applied here holds everything that was acknowledged so many seconds ago."""
        applied = self._replica.core.log.applied_index
        while self._answers and self._answers[0][0] <= applied:
            self._as_of = max(self._as_of, self._answers.popleft()[1])
        return self._runtime.clock.monotonic() - self._as_of
