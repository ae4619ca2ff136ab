"""Owners of ``wal`` tablets that the masters hear, and that do not reach what a log needs."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from stelae.client.table.table import AsyncTable
from stelae.coordinator.backoff.owners import FailedOwners
from stelae.core.ids import ServerUuid
from stelae.simulation import Options, SimulationFailure, World
from stelae.simulation.world.options import Servers
from tests.simulation.wal.wal_cluster import WalFixture, read_all, write

HEALED_S = 60.0
"""Upper bound until another owner serves; its patience is a sixth of that."""


def cut(world: World, one: str, others: Sequence[str], *, whole: bool = False) -> None:
    """End, or mend, all that passes between a server and others."""
    change = world.network.unblock if whole else world.network.block
    for other in others:
        change(one, other)
        change(other, one)


def owner(here: WalFixture, names: dict[ServerUuid, str]) -> str:
    """The name of the server to which the only tablet was given, whether it lives or not."""
    (tablet,) = here.leader.catalog.live_tablets()
    return names[tablet.owner]


def names_of(here: WalFixture) -> dict[ServerUuid, str]:
    """All tservers, which run."""
    return {here.world.server(name).info.uuid: name for name in here.cluster.tservers}


async def taken_over(here: WalFixture, cut_off_from: str) -> None:
    """The owner dies, and the next one does not reach the log; a third one would."""
    world, cluster, names = here.world, here.cluster, names_of(here)
    table = await here.create(buckets=1)
    await write(table, 0, 60)  # some of it is trimmed, and on backups only
    (first,) = here.owners()
    others = cluster.safekeepers if cut_off_from == "safekeepers" else cluster.backups
    spares = [name for name in cluster.tservers if name != first]
    for name in spares:
        cut(world, name, others)
    world.crash(first, restart=False)
    await here.until(lambda: owner(here, names) != first, "the next owner")
    second = owner(here, names)
    for name in spares:
        cut(world, name, others, whole=name != second)
    await healed(here, table, second, names)


async def served(here: WalFixture, cut_off_from: str) -> None:
    """The owner is cut off while it serves: its writes would wait as long as it lives."""
    world = here.world
    table = await here.create(buckets=1)
    await write(table, 0, 60)
    (first,) = here.owners()
    others = here.cluster.safekeepers
    assert cut_off_from == "safekeepers", "writes do not wait for backups"
    cut(world, first, others)
    await healed(here, table, first, names_of(here))


async def healed(
    here: WalFixture, table: AsyncTable, cut_off: str, names: dict[ServerUuid, str]
) -> None:
    """Somebody else serves the table, though the owner that was cut off lives."""

    def is_served() -> bool:
        if here.cluster.leader() is None or owner(here, names) == cut_off:
            return False
        return all(t.state.value == "running" for t in here.leader.catalog.live_tablets())

    await here.until(is_served, "another owner serves it", HEALED_S)
    await write(table, 60, 5)
    await read_all(table, 65)
    await here.until(is_served, "it stays there", 5.0)


def tell(seed: int, what: str, cut_off_from: str) -> None:
    options = Options(servers=Servers(masters=3, tservers=3, backups=3, safekeepers=3))
    world = World(seed, options)
    here = WalFixture(world)
    story = served if what == "serving" else taken_over

    async def run() -> None:
        await here.start()
        await story(here, cut_off_from)

    world.run(run(), limit_s=600.0)


CASES = [("recovering", "safekeepers"), ("recovering", "backups"), ("serving", "safekeepers")]


@pytest.mark.parametrize(("what", "cut_off_from"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_owner_that_waits_in_vain_is_replaced(seed: int, what: str, cut_off_from: str) -> None:
    """It reports whom it waits for; the masters hear them, and give the tablet to another."""
    tell(seed, what, cut_off_from)


@pytest.mark.parametrize(("what", "cut_off_from"), CASES)
def test_masters_that_give_nobody_up_leave_the_tablet_there(what: str, cut_off_from: str) -> None:
    """The planted bug: an owner keeps its tablet for as long as it lives."""
    with (
        patch.object(FailedOwners, "_is_over", lambda *given: False),
        pytest.raises(SimulationFailure, match="another owner serves it"),
    ):
        tell(1, what, cut_off_from)
