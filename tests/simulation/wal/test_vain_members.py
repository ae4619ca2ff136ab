"""Safekeepers that the masters hear, and that never get the log of a timeline given to them."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from stelae.coordinator.timelines.vain_members import VainMembers
from stelae.simulation import SimulationFailure
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    read_all,
    tell,
    timelines,
    until_at_rest,
    write,
)

FAULTS = ["full disk", "cut off from all but masters", "masters do not reach it"]
HEALED_S = 120.0
"""Upper bound until the other spare has the log; the grace time is 5 s."""


def spoil(here: WalFixture, name: str, fault: str, *, whole: bool = False) -> None:
    """Begin, or end, a fault of one safekeeper that leaves its heartbeats alone."""
    network, cluster = here.world.network, here.cluster
    change = network.unblock if whole else network.block
    match fault:
        case "full disk":
            here.world.nodes[name].disk.full = not whole
        case "masters do not reach it":
            for master in cluster.masters:
                change(master, name)
        case _:
            for other in (*cluster.tservers, *cluster.backups, *cluster.safekeepers):
                if other != name:
                    change(name, other)
                    change(other, name)


async def replaced(here: WalFixture, fault: str) -> None:
    """A member dies, and the spare that is chosen first gets nothing; the other one would."""
    table = await here.create(buckets=1)
    await here.until_registered(5)
    await write(table, 0, 10)
    ((tablet_id, first),) = timelines(here).items()
    spares = [here.keeper(number) for number in range(1, 6) if number not in first.sk_set]
    vain = min(spares)  # the choice is deterministic: the lowest id of those that have nothing
    spoil(here, vain, fault)
    victim = here.keeper(first.sk_set[0])
    here.world.crash(victim, restart=False)
    (other,) = (name for name in spares if name != vain)

    def is_healed() -> bool:
        if here.cluster.leader() is None:
            return False
        now = timelines(here)[tablet_id]
        names = [here.keeper(member) for member in now.members]
        held = here.held()
        return other in names and all(tablet_id in held.get(name, []) for name in names)

    await here.until(is_healed, "three copies", HEALED_S)
    await write(table, 10, 10)
    spoil(here, vain, fault, whole=True)
    here.world.restart(victim)
    await until_at_rest(here)
    await read_all(table, 20)


def run(fault: str, seed: int = 1) -> None:
    tell(lambda here: replaced(here, fault), seed, safekeepers=5, safekeeper_dead_after_s=5.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spare_that_never_gets_the_log_is_given_up_for_another(fault: str) -> None:
    """Three copies in the end, whatever is the matter with the spare that comes first."""
    run(fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_memory_two_copies_stay(fault: str) -> None:
    """The planted bug: nothing is remembered of those who were chosen in vain."""
    with (
        patch.object(VainMembers, "look", lambda *given: None),
        patch.object(VainMembers, "failed", lambda *given: None),
        pytest.raises(SimulationFailure, match="three copies"),
    ):
        run(fault)
