"""How a tablet with one owner makes way for its successor, or takes over from another tablet.

What the owner has promised it keeps in memory alone: it lasts for as long as the owner's term, and
the masters take its word for no longer. What it takes in stands in its log, as entries of their own
kind. `docs/decisions.md`, §34.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.owned_tablet.inheriting import Inheriting
from stelae.actors.tserver.row_loading.loader import RemoteRows
from stelae.actors.tserver.tablet.transfer import TabletTransfer, checked_import
from stelae.core.errors import TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.messages.servers import TabletProgress
from stelae.core.records.succession import NO_SUCCESSION, ImportChanges, Succession, SuccessionStage
from stelae.core.rpc import Call
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.storage.entries.entry import Entry, EntryKind, Result
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.transfer import Changes


class OwnedSuccession(ABC):
    """The part of `Tablet` that is about other tablets of its key range."""

    tablet_id: TabletId
    term: int
    progress: TabletProgress
    is_volatile: bool
    transfer: TabletTransfer | None = None
    began: dict[TabletId, int]
    _succession: Succession = NO_SUCCESSION
    _runtime: Runtime
    _memory: TabletMemory
    _remote: RemoteRows
    _inheriting: Inheriting

    @abstractmethod
    async def _committed(self, index: int, timeout_s: float) -> None: ...

    @abstractmethod
    def _check_room(self) -> None: ...

    @abstractmethod
    def _append(self, entry: Entry, shared_bytes: int = 0) -> None: ...

    @property
    def succession(self) -> Succession:
        """This owner's word, for as long as its term lasts: the masters take it for no longer."""
        return self._succession

    @property
    def next_version(self) -> int:
        return self._memory.next_version

    @property
    def giving_term(self) -> int:
        return self.term if self.progress is TabletProgress.SERVING else 0

    async def give_way(
        self,
        successor: TabletId,
        stage: SuccessionStage,
        timeout_s: float,
        *,
        by_masters: bool = False,
    ) -> SuccessionStage:
        """Make way for the successor as far as that; once it is FENCED all that was written before
        counts. Returns how far it now does."""
        now = self._succession.after(successor, stage, by_masters=by_masters)
        self._succession = now
        if stage is SuccessionStage.FENCED:
            await self._committed(self._memory.last_index, timeout_s)
        return now.stage if now.successor == successor else SuccessionStage.OPEN

    async def changes_since(
        self, version: int, limit_bytes: int, began_at: int | None, timeout_s: float
    ) -> Changes | None:
        """As `TabletMemory.changes_since`, of what counts. Raises TabletNotReady: rows are still
        being loaded since it was recovered."""
        if self._remote.is_loading or self._inheriting.is_busy:
            raise TabletNotReady(self.tablet_id, "still loading rows, since it was recovered")
        changes = self._memory.changes_since(version, limit_bytes, began_at)
        await self._committed(self._memory.last_index, timeout_s)
        return changes

    @property
    def forgettings(self) -> int:
        return self._memory.forgettings

    def results(self) -> tuple[Result, ...]:
        """What requests came to, as far as their clients may ask."""
        return self._memory.results.snapshot()

    async def import_changes(self, call: Call[ImportChanges]) -> int:
        """Take in what another tablet has; the version up to which it is here, durably.

        Raises InvalidArgument, Overloaded; OutcomeUnknown; what ended the log.
        """
        order, memory = call.body, self._memory
        blob = call.blobs[0] if call.blobs else None
        batch = checked_import(memory, order, blob)
        if order.from_version == memory.next_version:
            self._check_room()
            self._import(order, batch, blob)
        position = memory.next_version
        await self._committed(memory.last_index, call.timeout_s)
        return position

    def _import(self, order: ImportChanges, batch: pa.RecordBatch | None, blob: Any) -> None:
        memory, index = self._memory, self._memory.last_index + 1
        results = tuple([Result(*each) for each in order.results])
        first_version, count = order.next_version, 0
        if batch is not None and batch.num_rows:
            first_version, count = batch.column(VERSION_COLUMN)[0].as_py(), batch.num_rows
        memory.import_changes(batch, order.next_version, index)
        memory.results.restore(results, self._runtime.clock.monotonic())
        kind = EntryKind.IMPORT if count else EntryKind.ROWS
        payload = blob if count else b""
        entry = Entry(self.term, index, kind, first_version, count, results, payload)
        self._append(entry, len(payload))

    def _check_open(self) -> None:
        if self._succession.stage is not SuccessionStage.OPEN:
            raise TabletNotReady(self.tablet_id, f"served as {self._succession.successor}")
