"""Bugs of the masters' part of indexes, planted on purpose; those of servers are in
`tests.simulation.planted_indexes`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from stelae.client import find_few
from stelae.client.find_query import FindQuery
from stelae.coordinator.index_decisions import IndexRound
from tests.simulation import planted_indexes


def _lease_is_not_waited_for() -> Any:
    """Give an indexlet to another server as soon as its owner is not heard, which may still take
    entries and answer."""
    not_heard = IndexRound._owner_not_heard

    def hasty(self: IndexRound, indexlet: Any, successors: Any, run: Any) -> Iterator[Any]:
        known = self._liveness.find(run)
        if known is not None and self._now > known.heard_at + 0.9:
            yield from self._move(indexlet, successors, "in haste")
        else:
            yield from not_heard(self, indexlet, successors, run)

    look_at = IndexRound._look_at

    def impatient(self: IndexRound, indexlet: Any, has_room: bool) -> Iterator[Any]:
        run = (indexlet.owner, indexlet.owner_incarnation)
        seen = next((s for r, s in self._live.items() if tuple(r) == run), None)
        if seen is not None and self._now > seen.heard_at + 0.9:
            yield from self._move(indexlet, (), "in haste")
            return
        yield from look_at(self, indexlet, has_room)

    return _both(
        patch.object(IndexRound, "_owner_not_heard", hasty),
        patch.object(IndexRound, "_look_at", impatient),
    )


def _not_compared() -> Any:
    """Hand out what entries name, whatever value the rows have by now."""
    ordered, rows_found = FindQuery.ordered, find_few.rows_found

    def trusting(self: FindQuery, rows: Any, entries: Any = None) -> Any:
        return ordered(self, rows, None if entries is None else self.entries_of(rows))

    def trusting_few(query: FindQuery, entries: Any, parts: Any, replies: Any) -> Any:
        names = query.read_columns or tuple(query.known.schema.arrow.names)
        at = names.index(query.codec.column)
        own = [
            query.codec.encode_one(row[0][at], key)
            for part, reply in zip(parts.values(), replies, strict=True)
            for key, row in zip(part, reply.rows, strict=True)
            if row is not None
        ]
        return rows_found(query, own, parts, replies)

    return _both(
        patch.object(FindQuery, "ordered", trusting),
        patch.object(find_few, "rows_found", trusting_few),
    )


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()
    for each in patches:
        stack.enter_context(each)
    return stack


BUGS: dict[str, Callable[[], Any]] = {
    "lease_is_not_waited_for": _lease_is_not_waited_for,
    "not_compared": _not_compared,
    "removed_before_the_row": planted_indexes.BUGS["removed_before_the_row"],
}


def planted(bug: str) -> Any:
    """A context in which clients and servers have this bug; "" for none."""
    return BUGS[bug]() if bug else contextlib.nullcontext()
