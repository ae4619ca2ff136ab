"""Which engine merges the summaries of recovered logs, and the jobs that the Spark engine is given.

Native: each tserver merges its own tablets. Spark: one job of the whole cluster merges all of them
and hands the results to the tservers (`INSTALL_MERGE`); it pays when there are many tablets at
once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stelae.core.messages import RecoveryEngine, SegmentSource
from stelae.core.records import ServerInfo, TableRecord, TabletRecord

SPARK_TABLETS = 64
SPARK_BYTES = 4 << 30
"""``auto`` chooses Spark from so many tablets and log bytes on: measured, it takes 1.5 to 2 times
as long as native where both have the same cores, so it needs those of the whole cluster."""

EnginePolicy: TypeAlias = Literal["auto", "native", "spark"]


@dataclass(frozen=True, slots=True)
class RecoveryJob:
    """One tablet to recover: what its log consists of, and who takes it over."""

    table: TableRecord
    tablet: TabletRecord
    sources: tuple[SegmentSource, ...]
    owner: ServerInfo

    @property
    def size_bytes(self) -> int:
        return sum(source.length for source in self.sources)


SparkEngine: TypeAlias = Callable[[Sequence[RecoveryJob]], Awaitable[None]]
"""Merges the jobs' summaries and installs the results at the owners; raises if it cannot."""


def choose_engine(
    policy: EnginePolicy, jobs: Sequence[RecoveryJob], *, spark_available: bool
) -> RecoveryEngine:
    """The engine for recovering ``jobs`` together; without Spark it is native in any case."""
    if not spark_available or policy == "native":
        return RecoveryEngine.NATIVE
    if policy == "spark":
        return RecoveryEngine.SPARK
    large = sum(job.size_bytes for job in jobs) >= SPARK_BYTES
    return RecoveryEngine.SPARK if len(jobs) >= SPARK_TABLETS and large else RecoveryEngine.NATIVE
