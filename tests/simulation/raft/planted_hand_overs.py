"""Bugs planted into how indexlets take orders about hand-overs: stories find them
(`tests.simulation.indexes.test_late_hand_overs`), as chance would in too many seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.indexes import indexlets
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.indexlet_hand_over import take_copy
from stelae.actors.tserver.indexes.indexlets import Indexlets
from stelae.core.messages.indexes import (
    CloseIndexlet,
    CopyEntries,
    HandOverIndexlet,
    IndexletProgress,
)
from stelae.core.rpc import Call
from stelae.core.runtime import Runtime
from tests.simulation.world.planting import planting


def _names_are_ignored() -> Any:
    """An indexlet makes way for whomever the order says that came last, whenever it was given."""

    def nameless(indexlet: Indexlet, order: HandOverIndexlet) -> bool:
        current = indexlet.hand_over
        successors = tuple(each.indexlet.indexlet_id for each in order.successors)
        if current is not None and current.successors == successors:
            return False
        if current is not None:
            current.let_go()
        indexlet.hand_over = None
        return bool(successors)

    return patch.object(indexlets, "heed", nameless)


def _copies_seem_taken() -> Any:
    """Nor does a successor say so that it has all of another hand-over, and takes nothing."""

    async def silent(runtime: Runtime, indexlet: Indexlet, call: Call[CopyEntries]) -> None:
        if indexlet.progress is IndexletProgress.FILLING:
            await take_copy(runtime, indexlet, call)

    stack = contextlib.ExitStack()
    stack.enter_context(_names_are_ignored())
    stack.enter_context(patch.object(indexlets, "take_copy", silent))
    return stack


def _closed_for_anybody() -> Any:
    """An indexlet closes whenever it is told to make way."""

    def nameless(indexlet: Indexlet, order: CloseIndexlet) -> None:
        indexlet.close()

    return patch.object(indexlets, "make_way", nameless)


def _runs_are_one() -> Any:
    """A server opens what a former run of it was to open."""
    return patch.object(Indexlets, "_check_run", lambda self, server, incarnation: None)


BUGS: dict[str, Callable[[], Any]] = {
    "names_are_ignored": _names_are_ignored,
    "copies_seem_taken": _copies_seem_taken,
    "closed_for_anybody": _closed_for_anybody,
    "runs_are_one": _runs_are_one,
}


planted = planting(BUGS)
