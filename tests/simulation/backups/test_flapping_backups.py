"""Backups that come and go, each time for longer than it takes to count as lost."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from stelae.coordinator.placement.returning_backups import ReturningBackups
from stelae.simulation import Options, Servers, SimulationFailure, World
from tests.simulation.world.cluster_fixture import SimClusterFixture

DEAD_AFTER_S = 5.0
AWAY_S = 8.0
"""Long enough to count as lost."""
BACK_S = 7.0
"""Long enough to be taken in after the first loss, and after no other."""
FLAPS = 4
JOINS_S = DEAD_AFTER_S * 2 ** (FLAPS - 1) + 5.0
"""Upper bound until a backup that stays is taken in again."""


async def _flaps(here: SimClusterFixture) -> None:
    """One of four backups is cut off again and again; then it stays."""

    def groups() -> tuple[tuple[str, ...], ...]:
        found: tuple[tuple[str, ...], ...] = here.leader.catalog.backups.copysets.groups
        return found

    def members() -> set[str]:
        return {uuid for group in groups() for uuid in group}

    await here.start()
    await here.until(lambda: len(groups()) == 2, "two groups")
    name = here.cluster.backups[1]
    flapping = here.world.server(name).info.uuid
    seen = [groups()]
    for _ in range(FLAPS):
        for is_away, time_s in ((True, AWAY_S), (False, BACK_S)):
            (here.cut_off if is_away else here.join_again)(name)
            for _ in range(round(2 * time_s)):
                await asyncio.sleep(0.5)
                seen += [groups()] if groups() != seen[-1] else []
    assert len(seen) <= 4, f"groups changed {len(seen) - 1} times"
    assert len(groups()) == 1
    assert flapping not in members()
    await here.until(lambda: flapping in members(), "it is taken in", JOINS_S)
    assert len(groups()) == 2


async def _needed(here: SimClusterFixture) -> None:
    """One of two backups is lost and back: no group is possible without it."""

    def groups() -> int:
        return len(here.leader.catalog.backups.copysets.groups)

    await here.start()
    await here.until(lambda: groups() == 1, "one group")
    for _ in range(3):
        here.cut_off(here.cluster.backups[1])
        await here.until(lambda: groups() == 0, "it is dissolved")
        here.join_again(here.cluster.backups[1])
        await here.until(lambda: groups() == 1, "it is made again at once", 4.0)


def tell(seed: int, backups: int) -> None:
    world = World(seed, Options(servers=Servers(backups=backups)))
    here = SimClusterFixture(world, copyset_size=2, replica_dead_after_s=DEAD_AFTER_S)
    world.run(_flaps(here) if backups > 2 else _needed(here), limit_s=600.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_backup_that_comes_and_goes_is_taken_in_ever_later(seed: int) -> None:
    """It dissolves a group twice at most, and joins one again once it stays."""
    tell(seed, 4)


def test_masters_that_take_it_in_at_once_are_found() -> None:
    """The planted bug: each return makes a group, and each loss dissolves it."""
    with (
        patch.object(ReturningBackups, "look", lambda *given: ()),
        pytest.raises(SimulationFailure, match="groups changed"),
    ):
        tell(1, 4)


def test_a_backup_without_which_there_is_no_group_is_taken_in_at_once() -> None:
    """Rows are to be written in groups, however often it was lost."""
    tell(1, 2)
