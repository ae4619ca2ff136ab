"""The configuration store in the masters' own catalog: the default, without a server of its own.

Each write is one entry of the masters' log, and compares the record's revision where it is applied:
two drivers under two leaders cannot both be told that they were first. What a deposed leader reads
may be old; what it writes then changes nothing.

Implements seed 004 ("configuration storage"); design §10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.core.ids import TableId
from stelae.core.records.configurations import (
    CasReply,
    StoredRecord,
    TimelineId,
    TimelineRecord,
    check_record,
    check_succession,
)
from stelae.core.runtime import Clock

Barrier = Callable[[float], Awaitable[object]]
"""Returns, within so many seconds, when all that was committed before is applied here."""


class CatalogConfigurations:
    """See `ConfigurationStore`; works while this master leads, and raises NotLeader after that."""

    def __init__(
        self, catalog: Catalog, operations: Operations, clock: Clock, barrier: Barrier
    ) -> None:
        self._catalog = catalog
        self._operations = operations
        self._clock = clock
        self._barrier = barrier

    async def get(self, timeline: TimelineId, *, timeout_s: float) -> StoredRecord | None:
        await self._barrier(timeout_s)
        return self._catalog.timelines.current(timeline)

    async def cas(
        self,
        record: TimelineRecord,
        expected_revision: int,
        *,
        writer: str,
        nonce: str,
        timeout_s: float,
    ) -> CasReply:
        """The call that replicates it has its own deadline."""
        del timeout_s
        check_record(record)
        timeline = record.timeline

        def draft() -> CatalogBatch | None:
            current = self._catalog.timelines.current(timeline)
            if (current.revision if current else 0) != expected_revision:
                return None
            check_succession(current.record if current else None, record)
            row = StoredRecord(expected_revision + 1, record, self._clock.now(), writer, nonce)
            return CatalogBatch(timelines=(row,))

        await self._operations.change(draft)
        timelines = self._catalog.timelines
        row = timelines.at(timeline, expected_revision + 1)
        done = row is not None and (row.record, row.writer, row.nonce) == (record, writer, nonce)
        return CasReply(done, timelines.current(timeline))

    async def list(
        self, table_id: TableId | None, after: TimelineId | None, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        await self._barrier(timeout_s)
        return tuple(self._catalog.timelines.page(table_id, after, limit))

    async def history(
        self, timeline: TimelineId, after_revision: int, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        await self._barrier(timeout_s)
        return tuple(self._catalog.timelines.history(timeline, after_revision)[:limit])
