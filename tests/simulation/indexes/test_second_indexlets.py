"""Successors of indexlets that are not opened: the next one is made on another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.tserver.indexes.indexlets import Indexlets
from stelae.coordinator.backoff import owners
from stelae.coordinator.backoff.owners import FailedOwners
from stelae.core.errors import Overloaded
from stelae.core.ids import ServerUuid
from stelae.core.messages.indexes import OpenIndexlet
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.indexes.test_index_writes import IndexedTable, run
from tests.simulation.indexes.test_late_hand_overs import finds_what_a_scan_finds, leave

PATIENCE_S, PAUSE_S = 2.0, 4.0
MOVED_S = 30.0
"""Upper bound for the move. Two successors that are not opened cost 2 s and 4 s, and pauses."""


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters give up what is not opened sooner than they do."""
    monkeypatch.setattr(owners, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(owners, "SERVER_PAUSE_S", PAUSE_S)


@contextmanager
def two_that_open_nothing() -> Iterator[list[Indexlets]]:
    """The first two servers that are to open a successor refuse every one."""
    opens = Indexlets._on_open
    sick: list[Indexlets] = []

    async def refuses(self: Indexlets, call: Call[OpenIndexlet]) -> Any:
        if call.body.indexlet.succeeds:
            if self not in sick and len(sick) < 2:
                sick.append(self)
            if self in sick:
                raise Overloaded("planted", 0)
        return await opens(self, call)

    with patch.object(Indexlets, "_on_open", refuses):
        yield sick


async def _moves(here: IndexedTable) -> None:
    leaving = await leave(here)

    def is_elsewhere() -> bool:
        return [held.server for held in here.watch.indexlets()] not in ([], [leaving.server])

    await here.world.wait_until(is_elsewhere, MOVED_S, "the indexlet is elsewhere")
    await here.settled()
    await finds_what_a_scan_finds(here)


def test_a_third_server_is_tried_after_two_have_opened_nothing() -> None:
    """Each that failed comes last, and not only the last one that did."""
    with two_that_open_nothing() as sick:
        run(_moves, segments("disk", "disk"))
    assert len(sick) == 2


Failed = Mapping[ServerUuid, float]


def nothing(failed: Failed) -> Failed:
    return {}


def the_last_one(failed: Failed) -> Failed:
    last = max(failed, key=lambda uuid: failed[uuid])
    return {last: failed[last]}


@pytest.mark.parametrize("remembered", [nothing, the_last_one])
def test_masters_that_forget_who_opened_nothing_are_found(
    remembered: Callable[[Failed], Failed],
) -> None:
    """The planted bug: the same server, or two of them in turn, are to open it for ever."""
    avoid = FailedOwners.avoid

    def forgetful(self: Any, tablet_id: Any) -> Any:
        known = avoid(self, tablet_id)
        return remembered(known) if known else {}

    with (
        two_that_open_nothing(),
        patch.object(FailedOwners, "avoid", forgetful),
        pytest.raises(SimulationFailure, match="the indexlet is elsewhere"),
    ):
        run(_moves, segments("disk", "disk"))
