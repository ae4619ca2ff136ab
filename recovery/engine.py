"""Which engine merges the summaries of recovered logs, and the jobs that the Spark engine is given.

Native: each tserver merges its own tablets. Spark: one job of the whole cluster merges all of them
and hands the results to the tservers (`INSTALL_MERGE`), which load the rows meanwhile; it pays when
the cluster has more cores than the tservers that take over.

The policy ``auto`` predicts how long each would take, from rates measured on earlier recoveries and
from whether the Spark session is warm, takes the shorter, and learns from the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import RecoveryEngine, SegmentSource
from stelae.core.records.records import ServerInfo, TableRecord, TabletRecord
from stelae.core.schema.indexes import IndexletRecord

EnginePolicy: TypeAlias = Literal["auto", "native", "spark"]

SUMMARY_ROW_BYTES = 8
"""Of a row's summary, about, without its key."""
SUMMARY_SHARE = 0.1
"""Of a log's bytes, where nobody has said how many rows it has."""
NATIVE_FIXED_S = 0.1
NATIVE_BYTES_PER_S = 75e6
"""Summaries that one tserver fetches and merges in a second, until measured."""
NATIVE_LOG_BYTES_PER_S = 130e6
"""The same of logs, where all rows are awaited."""
READ_SHARE = 0.5
"""Of the native time, what a tserver spends with either engine: it reads what it will serve."""
SPARK_FIXED_S = 0.3
"""Spark's own time for a job of few tasks on a warm session."""
SPARK_BYTES_PER_S = 35e6
"""Summaries that one Spark core fetches, merges and hands over in a second, until measured."""
LEARNING_RATE = 0.5
SMALL_BYTES = 4 << 20
"""Recoveries with less work than this say nothing about rates."""
FACTOR_MAX = 16.0
"""A learnt rate stays within this factor of the one assumed at first: one odd outcome, or a busy
machine, must not turn an engine off for good."""


@dataclass(frozen=True, slots=True)
class IndexletTarget:
    """An indexlet that is being filled, and who holds it."""

    indexlet: IndexletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class RecoveryJob:
    """One tablet to recover: what its log consists of, and who takes it over."""

    table: TableRecord
    tablet: TabletRecord
    sources: tuple[SegmentSource, ...]
    owner: ServerInfo
    row_count: int = 0
    """Rows that its former owner has told of; 0: nobody knows."""
    indexlets: tuple[IndexletTarget, ...] = ()
    """Lost ones of its table, which are to have this tablet's entries from the same job."""

    @property
    def size_bytes(self) -> int:
        """Of its log."""
        return sum(source.length for source in self.sources)

    @property
    def summary_bytes(self) -> int:
        """Of the summaries of its log, about."""
        known = self.row_count * SUMMARY_ROW_BYTES
        return min(self.size_bytes, known or int(self.size_bytes * SUMMARY_SHARE))


@dataclass(frozen=True, slots=True)
class SparkState:
    """What is known of the Spark session at the moment."""

    cores: int
    start_s: float
    """Until it can take a job: 0 if it is warm."""


class SparkEngine(Protocol):
    """Merges jobs' summaries on Spark and installs the results at the owners."""

    @property
    def state(self) -> SparkState: ...

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        """Return the tablets that failed, each with the reason. Raises if the job failed."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine for some jobs, and what was expected of each (seconds; None: not to be had)."""

    engine: RecoveryEngine
    native_s: float
    spark_s: float | None

    def expected_by_engine(self) -> dict[str, float]:
        """For status: what was expected of each engine there is."""
        spark = {} if self.spark_s is None else {RecoveryEngine.SPARK.value: self.spark_s}
        return {RecoveryEngine.NATIVE.value: self.native_s, **spark}

    @property
    def expected_s(self) -> float:
        if self.engine is RecoveryEngine.SPARK and self.spark_s is not None:
            return self.spark_s
        return self.native_s


class EngineChooser:
    """Chooses by the policy, and learns how fast the engines are here. Pure."""

    def __init__(self, policy: EnginePolicy, *, metadata_first: bool) -> None:
        """``metadata_first``: tablets serve once their summaries are merged; else with all rows."""
        self.policy = policy
        self._metadata_first = metadata_first
        self._slowness = {RecoveryEngine.NATIVE: 1.0, RecoveryEngine.SPARK: 1.0}
        """Measured time over the time that the assumed rates give."""

    def choose(self, jobs: Sequence[RecoveryJob], spark: SparkState | None) -> Choice:
        """The engine for recovering ``jobs`` together; without Spark it is native in any case."""
        native_s = self._slowness[RecoveryEngine.NATIVE] * self._native_seconds(jobs)
        if spark is None:
            return Choice(RecoveryEngine.NATIVE, native_s, None)
        spark_s = spark.start_s + self._slowness[RecoveryEngine.SPARK] * self._spark_seconds(
            jobs, spark.cores
        )
        take_spark = self.policy == "spark" or (self.policy == "auto" and spark_s < native_s)
        engine = RecoveryEngine.SPARK if take_spark else RecoveryEngine.NATIVE
        return Choice(engine, native_s, spark_s)

    def learn(
        self, choice: Choice, jobs: Sequence[RecoveryJob], spark: SparkState | None, seconds: float
    ) -> None:
        """Take note that ``jobs`` took ``seconds`` with the engine chosen (``spark`` as then)."""
        if sum(self._work_bytes(job) for job in jobs) < SMALL_BYTES:
            return
        if choice.engine is RecoveryEngine.NATIVE:
            assumed_s = self._native_seconds(jobs)
        else:
            assert spark is not None, "Spark was chosen"
            if spark.start_s > 0:
                return  # how long it started, or whether it was warm by then, is not known
            assumed_s = self._spark_seconds(jobs, spark.cores)
        measured = min(max(seconds / assumed_s, 1 / FACTOR_MAX), FACTOR_MAX)
        old = self._slowness[choice.engine]
        self._slowness[choice.engine] = old + LEARNING_RATE * (measured - old)

    def _work_bytes(self, job: RecoveryJob) -> int:
        """What has to be read of a tablet before it is served."""
        return job.summary_bytes if self._metadata_first else job.size_bytes

    def _native_seconds(self, jobs: Sequence[RecoveryJob]) -> float:
        """At the assumed rate: that of the tserver that takes most."""
        return NATIVE_FIXED_S + self._read_seconds(jobs)

    def _spark_seconds(self, jobs: Sequence[RecoveryJob], cores: int) -> float:
        """On a warm session, at the assumed rates: tservers read while tasks fetch and merge."""
        read_s = READ_SHARE * self._read_seconds(jobs)
        total_bytes = sum(job.summary_bytes for job in jobs)
        merge_s = total_bytes / (max(1, min(cores, len(jobs))) * SPARK_BYTES_PER_S)
        return SPARK_FIXED_S + max(read_s, merge_s)

    def _read_seconds(self, jobs: Sequence[RecoveryJob]) -> float:
        """At the assumed rates: what is read before tablets serve, of the tserver that takes most;
        never more than all of its logs."""
        logs_s = _busiest_bytes(jobs, lambda job: job.size_bytes) / NATIVE_LOG_BYTES_PER_S
        if not self._metadata_first:
            return logs_s
        return min(logs_s, _busiest_bytes(jobs, lambda job: job.summary_bytes) / NATIVE_BYTES_PER_S)


def _busiest_bytes(jobs: Sequence[RecoveryJob], size: Callable[[RecoveryJob], int]) -> int:
    by_owner: dict[ServerUuid, int] = {}
    for job in jobs:
        by_owner[job.owner.uuid] = by_owner.get(job.owner.uuid, 0) + size(job)
    return max(by_owner.values(), default=0)
