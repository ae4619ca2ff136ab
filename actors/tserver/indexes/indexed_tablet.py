"""The part of a tablet that is about its table's indexes, the same for every durability.

A table without indexes costs a tablet one look at its schema for each write, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.indexes.routes import Locate, no_masters
from stelae.actors.tserver.indexes.writes import FillSource, IndexWrites
from stelae.core.config.settings import Settings
from stelae.core.errors import OutcomeUnknown, StelaeError, TabletNotReady
from stelae.core.ids import RequestId, TabletId
from stelae.core.messages.rows import Write
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexId
from stelae.core.tasks import Tasks
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.segments.remote import RemoteRun


class IndexedTablet(ABC):
    """What `stelae.actors.tserver.indexes.writes` needs of a tablet, and what it gives."""

    tablet_id: TabletId
    tasks: Tasks
    locate: Locate = staticmethod(no_masters)
    """Where the masters say that indexlets are; given by the tablet's server."""
    _runtime: Runtime
    _settings: Settings
    _schemas: TabletSchemas
    _memory: TabletMemory
    _indexes: IndexWrites | None = None
    _copies: Counter[RequestId] | None = None
    """Of requests whose entries are put in: how often each is here."""

    @contextmanager
    def _as_a_copy(self, requests: Sequence[RequestId], timeout_s: float) -> Iterator[None]:
        """A copy that fails while it waits for indexlets says so of itself alone: another one may
        have been carried out, or be about to be. Raises OutcomeUnknown then."""
        copies = self._copies = self._copies or Counter()
        copies.update(requests)
        try:
            yield
        except OutcomeUnknown:
            raise
        except StelaeError as error:
            known = self._memory.results.find
            if any(copies[each] > 1 or known(each) is not None for each in requests):
                raise OutcomeUnknown(f"tablet {self.tablet_id}", "a write", timeout_s) from error
            raise
        finally:
            for each in requests:
                copies[each] -= 1
                if not copies[each]:
                    del copies[each]

    @property
    def index_memory(self) -> TabletMemory:
        return self._memory

    @property
    @abstractmethod
    def index_term(self) -> int:
        """The term in which it may write now; 0: it may not."""

    @abstractmethod
    def index_committed(self) -> int:
        """Up to which entry of the log everything is committed."""

    @abstractmethod
    async def _reach_fill_point(self, timeout_s: float) -> None:
        """Return when every write that was begun before is in the rows, or never will be; provably
        as owner or leader. Raises RetryElsewhere, RetryLater, OutcomeUnknown."""

    @abstractmethod
    async def _committed(self, index: int, timeout_s: float) -> None: ...

    @abstractmethod
    def _check_readable(self) -> None: ...

    async def remote_columns(
        self, run: RemoteRun, column_ids: tuple[int, ...], timeout_s: float
    ) -> pa.RecordBatch:
        """Columns of all rows of a segment that is not here. Raises TabletNotReady."""
        raise AssertionError("all rows of this tablet are here")

    def holding_loads(self) -> AbstractContextManager[None]:
        """Meanwhile rows that nobody has asked for wait, unless it takes long."""
        return nullcontext()

    def begin_indexing(self) -> None:
        """It may write from now on: if its table has indexes, their indexlets hear of it."""
        if self._schemas.present.indexes:
            self._index_writes()

    def _index_writes(self) -> IndexWrites:
        """To be used while it may write."""
        if self._indexes is None:
            table = self._schemas.table
            self._indexes = IndexWrites(
                self._runtime,
                self._settings,
                self.tasks,
                self,
                table.table_id,
                self._memory.schema,
                self.locate,
            )
            self._memory.watcher = self._indexes
        self._indexes.begin()
        return self._indexes

    def entries_under_way(self) -> str:
        """Which entries are pending, or to be taken out; empty: none."""
        return "" if self._indexes is None else self._indexes.under_way()

    def _close_indexes(self) -> None:
        if self._indexes is not None:
            self._indexes.close()
            self._memory.watcher = None

    def _shown(self, request: Write, rows: Any) -> tuple[Any, tuple[str, ...]]:
        """Rows of a call in the columns that the table has now."""
        view = self._schemas.view(request.schema_version)
        return (
            (rows, request.columns)
            if view is None
            else view.write(request.op, rows, request.columns)
        )

    def check_may_fill(self) -> None:
        """Raises RetryElsewhere, RetryLater: another one answers now."""
        self._check_readable()

    async def fill_source(
        self, index_id: IndexId, schema_version: int, timeout_s: float
    ) -> FillSource:
        """Its entries at one moment, all of them durable. Raises RetryElsewhere, RetryLater,
        OutcomeUnknown."""
        self._check_readable()
        if self._schemas.present.version < schema_version:
            state = f"to hear of version {schema_version} of its table's schema"
            raise TabletNotReady(self.tablet_id, state)
        indexes = self._index_writes()
        await indexes.ready_to_fill(timeout_s)
        await self._reach_fill_point(timeout_s)
        self._check_readable()
        source = indexes.fill_source(index_id)
        await self._committed(source.snapshot.index, timeout_s)
        return source
