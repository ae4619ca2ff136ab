"""Bugs planted into what keeps indexes: proof that the simulator would see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.actors.tserver.indexes import writes as index_writes
from stelae.actors.tserver.indexes.indexlet_hand_over import HandOver
from stelae.actors.tserver.indexes.removals import Removal
from stelae.actors.tserver.indexes.writes import IndexWrites, Ticket
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl import alter, succession
from stelae.core.messages.indexes import TabletStamp
from stelae.core.messages.reports import Picture
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.storage.indexes.indexlet import IndexletEntries
from stelae.storage.indexes.runs import REMOVED
from stelae.storage.rows.row_entries import (
    FewSeen,
    entries_of_few,
    lacking,
    new_entries_of_batch,
    seen_before,
)
from tests.simulation.world.planting import planting


def _removed_before_the_row() -> Any:
    """Take the old entries out before the row is written."""
    prepare = IndexWrites.prepare

    async def hasty(self: IndexWrites, op: Any, rows: Any, columns: Any, timeout_s: float) -> Any:
        ticket = await prepare(self, op, rows, columns, timeout_s)
        seen = seen_before(self._tablet.index_memory, self.codecs, op, rows, columns)
        if isinstance(seen, FewSeen) and self._removals is not None:
            for index_id, codec in seen.codecs.items():
                for entry in entries_of_few(codec, seen.keys, seen.rows):
                    if not self._is_pending(index_id, entry):
                        self._removals.put(Removal(index_id, self._next(), 0, (entry,)))
        return ticket

    return patch.object(IndexWrites, "prepare", hasty)


def _removed_without_stamp() -> Any:
    """An indexlet takes out whatever it is told to, even if it was put in anew since."""
    put = IndexletEntries.put

    def stampless(
        self: IndexletEntries,
        writer: int,
        sequences: Iterable[int],
        entries: Iterable[bytes],
        *,
        is_removal: bool,
    ) -> None:
        pairs = list(zip(sequences, entries, strict=True))
        if is_removal:
            known = {e: self._tail.get(e, (writer, 0)) for _, e in pairs}
            pairs = [(max(s, known[e][1] >> REMOVED), e) for s, e in pairs]
        put(self, writer, [s for s, _ in pairs], [e for _, e in pairs], is_removal=is_removal)

    return patch.object(IndexletEntries, "put", stampless)


def _fill_without_pending() -> Any:
    """A tablet tells an indexlet of its rows, and not of what is about to be one."""
    fill_source = IndexWrites.fill_source

    def forgetful(self: IndexWrites, index_id: Any) -> Any:
        return fill_source(self, index_id)._replace(pending=[])

    return patch.object(IndexWrites, "fill_source", forgetful)


def _pending_is_removed() -> Any:
    """What another call has put in, and is about to need, is taken out."""
    return patch.object(IndexWrites, "_is_pending", lambda self, index_id, entry: False)


def _held_is_not_pending() -> Any:
    """What a row has is not put in anew, and not kept for the call that is about to need it."""
    register = IndexWrites._register

    def hasty(self: IndexWrites, ticket: Ticket) -> None:
        if isinstance(ticket.keys, list):
            memory = self._tablet.index_memory
            since = self._first_version
            ticket.few = lacking(memory, self.codecs, ticket.keys, ticket.few, since)
        register(self, ticket)

    return patch.object(IndexWrites, "_register", hasty)


def _repeated_keys_are_missed() -> Any:
    """Each batch is taken to have each key once: then its rows need all that it has put in."""

    def hasty(*what: Any) -> Any:
        return new_entries_of_batch(*what)[0], True

    return patch.object(index_writes, "new_entries_of_batch", hasty)


def _nothing_is_forwarded() -> Any:
    """What an indexlet takes in while it is copied does not come to its successors."""

    async def nothing(self: HandOver, body: Any, blobs: Any, timeout_s: float) -> None:
        return None

    return patch.object(HandOver, "forward", nothing)


def _an_alter_back_is_an_epoch() -> Any:
    """Tablets that stay as they are count an alter that is taken back: in the midst of a term what
    they have still to take out gets a higher stamp than what they have put in since."""
    with_durability = succession.with_durability

    def counting(catalog: Catalog, table: TableRecord, wanted: Durability) -> CatalogBatch:
        batch = with_durability(catalog, table, wanted)
        change = batch.tables[0].change
        tablets = tuple(
            each if each.state.is_gone else msgspec.structs.replace(each, change=change)
            for each in batch.tablets
        )
        return msgspec.structs.replace(batch, tablets=tablets)

    return patch.object(alter, "with_durability", counting)


def _removals_of_every_term() -> Any:
    """A leader that leads anew takes out what it has counted when it led before."""
    stamp_of = IndexWrites._stamp_of

    def present(self: IndexWrites, term: int) -> TabletStamp:
        return stamp_of(self, self._term)

    return patch.object(IndexWrites, "_stamp_of", present)


def _entries_of_every_term() -> Any:
    """A leader that leads anew writes rows whose entries it has put in when it led before."""
    check = IndexWrites.check

    def lenient(self: IndexWrites, ticket: Ticket) -> None:
        ticket.term = self._tablet.index_term
        check(self, ticket)

    return patch.object(IndexWrites, "check", lenient)


def _overtaken_reports_count() -> Any:
    """A report that lacks an indexlet says that it is closed, even if it was sent before the hint
    that told of the indexlet."""
    take = Picture._take_indexlets

    def forgetful(self: Picture, beat: Heartbeat) -> None:
        self._hinted = {}
        take(self, beat)

    return patch.object(Picture, "_take_indexlets", forgetful)


BUGS: dict[str, Callable[[], Any]] = {
    "removed_before_the_row": _removed_before_the_row,
    "removed_without_stamp": _removed_without_stamp,
    "fill_without_pending": _fill_without_pending,
    "pending_is_removed": _pending_is_removed,
    "held_is_not_pending": _held_is_not_pending,
    "repeated_keys_are_missed": _repeated_keys_are_missed,
    "nothing_is_forwarded": _nothing_is_forwarded,
    "an_alter_back_is_an_epoch": _an_alter_back_is_an_epoch,
    "removals_of_every_term": _removals_of_every_term,
    "entries_of_every_term": _entries_of_every_term,
    "overtaken_reports_count": _overtaken_reports_count,
}
EPOCHS = ("an_alter_back_is_an_epoch", "entries_of_every_term", "removals_of_every_term")
"""Found by the scenarios of `tests.simulation.indexes.test_index_epochs`."""
STORIES = (*EPOCHS, "overtaken_reports_count")
"""Found by scenarios of their own (the last one: `tests.simulation.masters.test_late_reports`): by
chance they take too many seeds."""


planted = planting(BUGS)
