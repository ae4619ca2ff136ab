"""One operator at a time has the turn to change the cluster, whatever happens to the masters."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.master.turn_requests import TurnRequests
from stelae.client.admin.turns import OperatorTurn
from stelae.core.errors import AlreadyRunning, RetryLater, StelaeError
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Servers
from stelae.simulation.world.world import SimulationFailure

OPERATORS = 3
STORY_S = 300.0
STEP_S = 1.0


class Judge:
    """Of all operators at most one is sure at any time."""

    def __init__(self) -> None:
        self.turns: list[OperatorTurn] = []
        self.taken = 0

    def look(self) -> None:
        sure = [turn._who for turn in self.turns if turn.is_sure]
        assert len(sure) <= 1, f"{' and '.join(sure)} are sure that it is their turn"


async def operate(world: World, cluster: SimCluster, judge: Judge, name: str, until: float) -> None:
    """Take turns; end some in order, and vanish from others, or sleep through them."""
    database, rng = cluster.database(name), world.rng(name)
    clock = database.runtime.clock
    while clock.monotonic() < until:
        turn = database.turn(name, "apply")
        judge.turns.append(turn)
        try:
            await turn.begin()
        except (AlreadyRunning, StelaeError):
            await clock.sleep(rng.uniform(0.1, 8.0))
            continue
        judge.taken += 1
        await work(turn, clock, rng)
        if rng.random() < 0.5:
            await turn.end()
        else:
            await turn._tasks.close()  # its process is gone; what it was sure of, it may still do


async def work(turn: OperatorTurn, clock: Any, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 30)):
        with contextlib.suppress(RetryLater):
            try:
                await turn.sure(60.0)
            except AlreadyRunning:
                return
        await clock.sleep(STEP_S)


async def strike(world: World, cluster: SimCluster, until: float) -> None:
    """Leaders are killed, and cut off from all others."""
    rng, clock = world.rng("strikes"), cluster.database("striker").runtime.clock
    while clock.monotonic() < until:
        await clock.sleep(rng.uniform(2.0, 25.0))
        leader = cluster.leader()
        if leader is None:
            continue
        match rng.randrange(3):
            case 0:
                world.crash(leader)
            case 1:
                world.pause(leader)
                await clock.sleep(rng.uniform(1.0, 40.0))
                world.resume(leader)
            case _:
                others = [each for each in cluster.masters if each != leader]
                world.partition([leader], others)
                world.partition(others, [leader])
                await clock.sleep(rng.uniform(1.0, 40.0))
                world.heal()


def play(seed: int) -> int:
    """How many turns there were."""
    world = World(seed, Options(servers=Servers(masters=3, tservers=1, backups=1)))
    judge = Judge()

    async def story() -> None:
        cluster = SimCluster(world)
        await cluster.start()
        clock = cluster.database("judge").runtime.clock
        until = clock.monotonic() + STORY_S
        tasks = [
            asyncio.create_task(operate(world, cluster, judge, f"operator-{n}", until))
            for n in range(OPERATORS)
        ]
        tasks.append(asyncio.create_task(strike(world, cluster, until)))
        while not all(task.done() for task in tasks):
            judge.look()
            await clock.sleep(0.05)
        for task in tasks:
            task.result()

    world.run(story())
    return judge.taken


def of_itself_alone(requests: TurnRequests, now: float) -> float:
    """Planted: what a former leader has answered is not thought of."""
    return now - requests._heard_at


def test_a_leader_that_does_not_think_of_its_predecessor_is_found() -> None:
    """The judge is not blind."""
    with (
        patch.object(TurnRequests, "silent_s", of_itself_alone),
        pytest.raises(SimulationFailure, match="are sure that it is their turn"),
    ):
        play(0)


@pytest.mark.parametrize("seed", range(2))
def test_no_two_are_sure_of_it_while_leaders_die_and_are_cut_off(seed: int) -> None:
    """And it goes on: whoever vanishes has it for no longer than the masters' patience."""
    assert play(seed) >= 5
