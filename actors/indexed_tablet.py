"""The part of a tablet that is about its table's indexes, the same for every durability.

A table without indexes costs a tablet one look at its schema for each write, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from stelae.actors.index_routes import Locate, no_masters
from stelae.actors.index_writes import FillSource, IndexWrites
from stelae.core.errors import TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.indexes import IndexId
from stelae.core.messages import Write
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.storage.tablet import TabletMemory
from stelae.storage.tablet_schemas import TabletSchemas


class IndexedTablet(ABC):
    """What `stelae.actors.index_writes` needs of a tablet, and what the tablet needs of that."""

    tablet_id: TabletId
    tasks: Tasks
    locate: Locate = staticmethod(no_masters)
    """Where the masters say that indexlets are; given by the tablet's server."""
    _runtime: Runtime
    _settings: Settings
    _schemas: TabletSchemas
    _memory: TabletMemory
    _indexes: IndexWrites | None = None

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
