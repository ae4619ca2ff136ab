"""Successors of tablets that do not take the rows: the next one is made on another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.tserver.succession_orders import Successions
from stelae.coordinator.backoff import successions
from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.ddl import succession
from stelae.core.errors import NoSpace
from stelae.core.ids import ServerUuid
from stelae.core.records.records import TableState
from stelae.core.records.succession import ImportChanges
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.successions.durability_story import DurabilityFixture, tell
from tests.simulation.wal.wal_cluster import write

STUCK_S, FIRST_PAUSE_S = 5.0, 2.0
CHANGED_S = 60.0
"""Upper bound for the alter. Two successors that take no rows cost 5 s and 2 s, and 5 s and 4 s."""


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters give up what is stuck sooner than they do."""
    for module in (succession, successions):
        monkeypatch.setattr(module, "STUCK_S", STUCK_S)
    monkeypatch.setattr(successions, "FIRST_PAUSE_S", FIRST_PAUSE_S)


@contextmanager
def two_without_room() -> Iterator[list[Successions]]:
    """The first two servers that are to take rows of another tablet have no room for them."""
    imports = Successions._on_import
    sick: list[Successions] = []

    async def refuses(self: Successions, call: Call[ImportChanges]) -> Any:
        if self not in sick and len(sick) < 2:
            sick.append(self)
        if self in sick:
            raise NoSpace("a tserver", "disk", "planted")
        return await imports(self, call)

    with patch.object(Successions, "_on_import", refuses):
        yield sick


async def _changes(here: DurabilityFixture) -> None:
    table = await here.create(segments("disk", "disk"), buckets=1)
    await write(table, 0, 30)
    await table.alter(durability=segments("disk"), wait=False)
    await here.until(
        lambda: here.record.state is TableState.RUNNING, "the table has changed", CHANGED_S
    )
    assert await table.count() == 30


def test_a_third_server_is_tried_after_two_have_refused() -> None:
    """Each that refused comes last, and not only the last one that did."""
    with two_without_room() as sick:
        tell(_changes)
    assert len(sick) == 2


Failed = Mapping[ServerUuid, float]


def nothing(failed: Failed) -> Failed:
    return {}


def the_last_one(failed: Failed) -> Failed:
    last = max(failed, key=lambda uuid: failed[uuid])
    return {last: failed[last]}


@pytest.mark.parametrize("remembered", [nothing, the_last_one])
def test_masters_that_forget_who_refused_are_found(
    remembered: Callable[[Failed], Failed],
) -> None:
    """The planted bug: the same server, or two of them in turn, are to take the rows for ever."""
    avoid = FailedOwners.avoid

    def forgetful(self: Any, tablet_id: Any) -> Any:
        known = avoid(self, tablet_id)
        return remembered(known) if known else {}

    with (
        two_without_room(),
        patch.object(FailedOwners, "avoid", forgetful),
        pytest.raises(SimulationFailure, match="the table has changed"),
    ):
        tell(_changes)
