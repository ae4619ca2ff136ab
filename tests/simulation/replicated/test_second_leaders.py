"""Leaderships that do not get to the follower that they are handed to: they go to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.raft import Raft
from stelae.coordinator.backoff.transfers import Transfers
from stelae.core.ids import ServerUuid
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.recovery.healed_cluster import Healed, play

ELSEWHERE_S = 60.0
"""Upper bound until another server leads; the transfer that fails takes a sixth of that."""


@contextmanager
def never_campaigns(sick: ServerUuid) -> Iterator[None]:
    """A follower that answers its leader, and does nothing when it is told to take over."""
    campaign = Raft._campaign

    def idle(self: Raft, *, pre: bool, transfer: bool) -> Any:
        if self.uuid != sick or not transfer:
            campaign(self, pre=pre, transfer=transfer)

    with patch.object(Raft, "_campaign", idle):
        yield


@contextmanager
def never_catches_up(sick: ServerUuid) -> Iterator[None]:
    """A follower that always lacks the leader's last entries, so it is never told to take over."""
    due = Leader.transfer_due

    def never(self: Leader) -> ServerUuid | None:
        target = due(self)
        return None if target == sick else target

    with patch.object(Leader, "transfer_due", never):
        yield


FAULTS = {"campaigns": never_campaigns, "catches up": never_catches_up}


async def _handed_on(healed: Healed, fault: str) -> None:
    """The leader's server goes into maintenance; the first follower cannot take over."""
    world, cluster = healed.world, healed.cluster
    await asyncio.sleep(5.0)  # all followers are heard
    before = healed.leader
    first = next(uuid for uuid in healed.members() if uuid != healed.uuid(before))
    with FAULTS[fault](first):
        await cluster.database("operator").maintain_server(before, True, timeout=20.0)

        def is_elsewhere() -> bool:
            leaders = [name for name in cluster.tservers if str(healed.role(name)) == "leader"]
            return bool(leaders) and before not in leaders

        await world.wait_until(is_elsewhere, ELSEWHERE_S, "another server leads")
    await healed.write(5)
    await healed.check()


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("seed", [1, 2])
def test_a_leadership_goes_to_another_follower_if_the_first_does_not_take_it(
    seed: int, fault: str
) -> None:
    """The choice is the same each time, so it has to be remembered that it failed."""
    play(partial(_handed_on, fault=fault), seed=seed)


def test_masters_that_forget_who_did_not_take_over_are_found() -> None:
    """The planted bug: the same follower is chosen for ever."""
    with (
        patch.object(Transfers, "avoid", lambda self, tablet_id: {}),
        pytest.raises(SimulationFailure, match="another server leads"),
    ):
        play(partial(_handed_on, fault="catches up"))
