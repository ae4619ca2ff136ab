"""Bugs of the change of durability, planted on purpose: each must be found by the scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.actors.master.leader import coordinator
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.replicated_tablet.succession import ReplicatedSuccession
from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.actors.tserver.tablet.transfer import TabletTransfer
from stelae.client.routing.part import Part
from stelae.client.table.writer import TableWriter
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.succession import Swap, draft_swap
from stelae.core.errors import TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.records.records import TableRecord, TabletRecord
from stelae.core.records.succession import ImportChanges, SuccessionStage
from stelae.storage.replicated.state_machine import TabletStateMachine
from stelae.storage.rows.transfer import Changes
from tests.simulation.successions import planted_successions
from tests.simulation.world.planting import planting


def _last_changes_left_out() -> Any:
    """Close as soon as writes are refused: what came since the last piece is lost."""

    async def finish(self: TabletTransfer) -> None:
        await self._push(ImportChanges(self.successor, 0, 0), None)

    return patch.object(TabletTransfer, "_finish", finish)


def _no_fence() -> Any:
    """Go on writing while the last changes are brought over."""
    stack = contextlib.ExitStack()
    for kind in (Tablet, ReplicatedSuccession):
        stack.enter_context(patch.object(kind, "_check_open", lambda self: None))

    def founded(self: TabletStateMachine) -> None:
        if not self.is_founded:
            raise TabletNotReady(self.tablet_id, "to hear what table it is of")

    stack.enter_context(patch.object(TabletStateMachine, "_require_founded", founded))
    return stack


def _fence_not_in_the_log() -> Any:
    """Let the leader of a group keep it in mind only: the next leader does not know."""

    async def give_way(
        self: ReplicatedSuccession,
        successor: TabletId,
        stage: SuccessionStage,
        timeout_s: float,
        *,
        by_masters: bool = False,
    ) -> SuccessionStage:
        self._check_leading()
        now = self._machine.succession.after(successor, stage, by_masters=by_masters)
        self._machine.succession = now
        return now.stage if now.successor == successor else SuccessionStage.OPEN

    return patch.object(ReplicatedSuccession, "give_way", give_way)


def _results_left_out() -> Any:
    """Forget what requests came to: one that is sent again is carried out again."""
    stack = contextlib.ExitStack()
    for kind in (Tablet, ReplicatedSuccession):
        stack.enter_context(patch.object(kind, "results", lambda self: ()))
    return stack


def _reads_go_on() -> Any:
    """Answer reads after the successor may have been written."""
    return patch.object(TabletReads, "_check_readable", lambda self: None)


def _uncommitted() -> Any:
    """Bring over what may yet be taken back, and leave out what that has overwritten."""

    async def changes(
        self: Tablet, version: int, limit_bytes: int, began_at: int | None, timeout_s: float
    ) -> Changes | None:
        return self._memory.changes_since(version, limit_bytes, began_at)

    async def give_way(
        self: Tablet,
        successor: TabletId,
        stage: SuccessionStage,
        timeout_s: float,
        *,
        by_masters: bool = False,
    ) -> SuccessionStage:
        self._succession = self._succession.after(successor, stage, by_masters=by_masters)
        return self._succession.stage

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Tablet, "changes_since", changes))
    stack.enter_context(patch.object(Tablet, "give_way", give_way))
    return stack


def _old_word_counts() -> Any:
    """Take an owner's word that the successor has everything for that of the next owner."""

    def draft(catalog: Catalog, action: Swap) -> CatalogBatch | None:
        tablets = catalog.tablets
        now = Swap(tablets[action.tablet.tablet_id], tablets[action.successor.tablet_id])
        gone = now.tablet.state.is_gone or now.successor.state.is_gone
        return None if gone else draft_swap(catalog, now)

    return patch.object(coordinator, "draft_swap", draft)


def _old_records_mislead() -> Any:
    """Take whoever counts less than the table for one that is still to change, also by a record
    from before an alter back: a recovery that has it looks for the log of another durability."""

    def has_changed(self: TableRecord, tablet: TabletRecord) -> bool:
        return self.becoming is None or tablet.change >= self.change

    return patch.object(TableRecord, "has_changed", has_changed)


def _numbers_of_tablets() -> Any:
    """Number requests anew for each tablet: the successor takes new ones for old ones."""

    def receiver(self: TableWriter, part: Part) -> str:
        return str(self._cache.tablet(part.number).tablet.tablet_id)

    return patch.object(TableWriter, "receiver", receiver)


BUGS: dict[str, Callable[[], Any]] = {
    "fence_not_in_the_log": _fence_not_in_the_log,
    "last_changes_left_out": _last_changes_left_out,
    "no_fence": _no_fence,
    "numbers_of_tablets": _numbers_of_tablets,
    "old_records_mislead": _old_records_mislead,
    "old_word_counts": _old_word_counts,
    "reads_go_on": _reads_go_on,
    "results_left_out": _results_left_out,
    "uncommitted": _uncommitted,
}


planted = planting(BUGS, planted_successions.BUGS)
