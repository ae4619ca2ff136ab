"""Bugs that look-ups show, planted into clients and servers: the scenario `indexes` finds them.

More of them, of which only entries tell, are in `tests.simulation.indexes.planted_indexes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.indexes import lineage
from stelae.client.finds import few as find_few
from stelae.client.finds import shared_finds
from stelae.client.finds.few import rows_found
from stelae.client.finds.query import FindQuery
from stelae.core.schema.shares import place_of, share_of
from tests.simulation.indexes import planted_indexes
from tests.simulation.world.planting import planting


def _trusting_few(query: FindQuery, entries: Any, parts: Any, replies: Any) -> Any:
    """`find_few.rows_found` that takes the entry of each row for wanted."""
    at = (query.read_columns or query.known.names).index(query.codec.column)
    own = [
        query.codec.encode_one(row[0][at], key)
        for number, part in parts.items()
        for key, row in zip(part, replies[number].rows, strict=True)
        if row is not None
    ]
    return rows_found(query, own, parts, replies)


def _not_compared() -> Any:
    """Hand out what entries name, whatever value the rows have by now."""
    ordered = FindQuery.ordered

    def trusting(self: FindQuery, rows: Any, entries: Any = None) -> Any:
        return ordered(self, rows, None if entries is None else self.entries_of(rows))

    return _both(
        patch.object(FindQuery, "ordered", trusting),
        patch.object(find_few, "rows_found", _trusting_few),
        _not_compared_together(),
    )


def _one_part_speaks_for_a_split_tablet() -> Any:
    """Let go of a split tablet's entries once one of its parts has told what it has."""

    def hasty(number: int, parts: Any, count: int) -> bool:
        whole = share_of(number, count)
        mine = [each for each in parts if place_of(each, count) == place_of(number, count)]
        return any(whole.contains(share_of(each, count)) and each != number for each in mine)

    return patch.object(lineage, "is_made_up", hasty)


def _not_compared_together() -> Any:
    """The same of look-ups that are carried out together only."""
    return patch.object(shared_finds, "rows_found", _trusting_few)


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()
    for each in patches:
        stack.enter_context(each)
    return stack


BUGS: dict[str, Callable[[], Any]] = {
    "not_compared": _not_compared,
    "one_part_speaks_for_a_split_tablet": _one_part_speaks_for_a_split_tablet,
    "not_compared_together": _not_compared_together,
    "removed_before_the_row": planted_indexes.BUGS["removed_before_the_row"],
}


planted = planting(BUGS)
