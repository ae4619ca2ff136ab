"""What the engines were expected to take for recoveries, and what came of it.

An **attempt** is one engine at work on the tablets that one round has opened with it. Each is told
in the log twice and stands in its recoveries' record: who was chosen, what was expected of either
engine, how it ended, and how long it took. The chooser learns from those that nothing disturbed.

Pure, but for the log: the caller says what time it is. Source: design §9, ``auto``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stelae.coordinator.status.recoveries import EngineUse, Recoveries
from stelae.core.ids import TabletId
from stelae.core.runtime import Metrics
from stelae.recovery.engine import Choice, EngineChooser, RecoveryJob, SparkState

logger = logging.getLogger(__name__)

ATTEMPTS_KEPT = 64
"""Attempts whose outcome is awaited."""


@dataclass(slots=True)
class Attempt:
    """Tablets opened together with one engine: what was expected, and who is not back yet."""

    choice: Choice
    spark: SparkState | None
    jobs: tuple[RecoveryJob, ...]
    began: float
    left: dict[TabletId, None]
    use: EngineUse
    teaches: bool
    """Whether its time is the engine's own: nothing of it was done before, or again."""


class RecoveryAttempts:
    """The attempts of one leadership, and the chooser that learns from them."""

    def __init__(self, recoveries: Recoveries, metrics: Metrics, chooser: EngineChooser) -> None:
        self.chooser = chooser
        self._recoveries = recoveries
        self._metrics = metrics
        self._open: list[Attempt] = []

    def begin(
        self,
        choice: Choice,
        spark: SparkState | None,
        jobs: Sequence[RecoveryJob],
        now: float,
        *,
        takes_over: bool = False,
    ) -> Attempt:
        """Say what is expected, and remember it until the tablets run.

        ``takes_over``: another engine has begun with them.
        """
        size_bytes = sum(job.size_bytes for job in jobs)
        logger.info(
            "recovery of %d tablets, %.1f MB, by the %s engine: expected %.2f s native, %s Spark",
            len(jobs),
            size_bytes / 1e6,
            choice.engine.value,
            choice.native_s,
            "no" if choice.spark_s is None else f"{choice.spark_s:.2f} s",
        )
        left = {job.tablet.tablet_id: None for job in jobs}
        for attempt in self._open:
            taken = [tablet for tablet in attempt.left if tablet in left]
            if taken:
                attempt.left = {tablet: None for tablet in attempt.left if tablet not in left}
                attempt.use.failed += len(taken)
                attempt.teaches = False
        self._drop(now)
        use = EngineUse(choice.engine.value, len(jobs), size_bytes, choice.expected_by_engine())
        self._recoveries.note_engine(left, use)
        # Where a timeline is read its owner may wait: for safekeepers, or for what it lacks.
        teaches = not takes_over and all(job.tablet.timeline is None for job in jobs)
        started = Attempt(choice, spark, tuple(jobs), now, left, use, teaches)
        self._open = [*self._open, started][-ATTEMPTS_KEPT:]
        return started

    def retried(self, attempt: Attempt, tablets: int, reason: str) -> None:
        """The engine has failed with some tablets, and is asked once more."""
        attempt.use.retries += 1
        attempt.use.problem = reason
        attempt.teaches = False
        logger.warning(
            "the %s engine is asked again for %d tablets: %s", attempt.use.engine, tablets, reason
        )

    def gave_up(self, attempt: Attempt, tablets: int, reason: str) -> None:
        """Another engine takes over what this one could not do."""
        attempt.use.problem = reason
        attempt.teaches = False
        logger.warning(
            "%d tablets go on without the %s engine: %s", tablets, attempt.use.engine, reason
        )

    def recovered(self, tablet_ids: Iterable[TabletId], now: float) -> None:
        """These tablets run: if they are the last of an attempt, learn from how long it took."""
        for tablet_id in tablet_ids:
            for attempt in self._open:
                attempt.left.pop(tablet_id, None)
        self._drop(now)

    def _drop(self, now: float) -> None:
        """Attempts of which nothing is left have ended."""
        for attempt in self._open:
            if not attempt.left:
                self._end(attempt, now - attempt.began)
        self._open = [attempt for attempt in self._open if attempt.left]

    def _end(self, attempt: Attempt, seconds: float) -> None:
        choice, use = attempt.choice, attempt.use
        use.took_s = seconds
        done = use.tablets - use.failed
        if not done:
            return
        if attempt.teaches:
            self.chooser.learn(choice, attempt.jobs, attempt.spark, seconds)
        self._metrics.observe("recovery_s", seconds, engine=use.engine)
        logger.info(
            "recovery of %d tablets by the %s engine took %.2f s; expected were %.2f s",
            done,
            use.engine,
            seconds,
            choice.expected_s,
        )
