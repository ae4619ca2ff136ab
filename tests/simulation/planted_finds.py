"""Bugs that look-ups show, planted into clients and servers: the scenario `indexes` finds them.

More of them, of which only entries tell, are in `tests.simulation.planted_indexes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.client import find_few
from stelae.client.find_query import FindQuery
from tests.simulation import planted_indexes


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
    "not_compared": _not_compared,
    "removed_before_the_row": planted_indexes.BUGS["removed_before_the_row"],
}


def planted(bug: str) -> Any:
    """A context in which clients and servers have this bug; "" for none."""
    return BUGS[bug]() if bug else contextlib.nullcontext()
