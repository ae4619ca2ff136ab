"""Lives of a ``wal`` tablet under faults: what was acknowledged is there, once, whatever happens.

Safekeepers and backups crash and come back, owners die or are replaced while they live, links are
cut, the network loses, doubles and delays, and the safekeepers are exchanged meanwhile. Planted
bugs show that the history would tell.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.tserver.tablet_log.wal_log import WalLog
from stelae.core.errors import StelaeError, TabletNotReady
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.records.timelines import TimelineConfiguration, majority_lsn
from stelae.simulation import Options
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.tserver.tablet_log.wal_tablet_world import WalWorld, run

Bug = Callable[[], Any]
ROWS = 60
READS_MAX = 5


class Life:
    """One client that inserts rows one after the other, and whoever disturbs it."""

    def __init__(self, here: WalWorld, seed: int) -> None:
        self.here = here
        self.rng = random.Random(f"wal life {seed}")
        self.acknowledged = 0
        self.migrations = self.owners = 0
        self.is_done = False

    async def write_all(self) -> None:
        """Insert each row once: a retry that was not recognised would be refused."""
        for n in range(ROWS):
            request = RequestId(ClientId("writer"), n + 1, n + 1)
            here = self.here
            await asyncio.sleep(self.rng.expovariate(1 / 0.05))
            while True:
                if here.is_serving:
                    try:
                        await here.write(
                            n, value(n), request=request, op=WriteOp.INSERT, timeout_s=2.0
                        )
                        break
                    except (TimeoutError, StelaeError):
                        here.world.note("writer", f"again: row {n}")
                await asyncio.sleep(0.02)
            self.acknowledged = n + 1
        self.is_done = True

    async def take_over(self) -> None:
        """Name owners until one serves."""
        while True:
            self.owners += 1
            try:
                await self.here.take_over(8.0)
            except (AssertionError, TimeoutError) as error:
                self.here.world.note("masters", f"another owner is named: {error}")
            else:
                return

    async def disturb(self) -> None:
        here, rng, world = self.here, self.rng, self.here.world
        while not self.is_done:
            await asyncio.sleep(rng.expovariate(1 / 0.4))
            match rng.choice(("safekeeper", "safekeeper", "backup", "cut", "owner", "zombie")):
                case "safekeeper":
                    crash(here, rng.choice(world.names("safekeeper")))
                case "backup":
                    crash(here, rng.choice(world.names("backup")))
                case "cut":
                    keeper = rng.choice(world.names("safekeeper"))
                    world.partition([here.owner], [keeper])
                    await asyncio.sleep(rng.expovariate(1.0))
                    world.heal()
                case "owner" if rng.random() < 0.5:
                    if here.is_up(here.owner):
                        world.crash(here.owner, restart=False)
                    await self.take_over()
                case "zombie" if rng.random() < 0.5:
                    await self.take_over()
            if not here.is_serving:
                await self.take_over()

    async def exchange(self) -> None:
        """Other safekeepers, now and then."""
        while not self.is_done:
            await asyncio.sleep(self.rng.expovariate(1 / 2.0))
            await self.here.migrate(self.rng.sample(range(1, 6), 3))
            self.migrations += 1

    async def live(self) -> None:
        here = self.here
        await self.take_over()
        exchanging = asyncio.create_task(self.exchange())
        await asyncio.gather(self.write_all(), self.disturb())
        here.world.heal()
        while not exchanging.done():  # which needs an owner
            if not here.is_serving:
                await self.take_over()
            await asyncio.sleep(0.2)
        await exchanging
        await self.take_over()
        await read_all(here, ROWS)
        await check_logs(here)


def crash(here: WalWorld, name: str) -> None:
    if here.is_up(name):
        here.world.crash(name)


def value(n: int) -> str:
    return f"{n}:" + "x" * 300


async def read_all(here: WalWorld, count: int) -> None:
    """Each acknowledged row is there, as it was written."""
    for n in range(count):
        assert await read(here, n) == value(n), f"row {n} was acknowledged"


async def read(here: WalWorld, n: int) -> Any:
    """A row, asked for again where its tablet says that it is not ready: in the time of one call
    the only backup that has it is asked three or four times, and each may be lost."""
    for _ in range(READS_MAX - 1):
        try:
            return await here.get(n)
        except TabletNotReady:
            here.world.note("reader", f"again: row {n}")
    return await here.get(n)


async def check_logs(here: WalWorld) -> None:
    """What is committed is the same on all safekeepers."""
    entries: dict[int, Any] = {}
    for n in range(1, 6):
        timeline = here.timeline(n)
        if timeline is None or timeline.failure is not None:
            continue
        first, last = timeline.base_lsn + 1, timeline.acceptor.commit_lsn
        if first <= last:
            for entry in await here._in(f"sk{n}", timeline.read(first, last, 1 << 30)):
                assert entries.setdefault(entry.index, entry) == entry, "two histories"
    assert entries, "no safekeeper has anything"


def live(seed: int) -> Life:
    """One life in a world of that seed's."""
    lives: list[Life] = []

    async def scenario(here: WalWorld) -> None:
        lives.append(Life(here, seed))
        await lives[0].live()

    options = Options.draw(seed)
    run(scenario, seed=seed, options=options.but(latency_mean_s=min(options.latency_mean_s, 0.005)))
    return lives[0]


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_and_nothing_is_written_twice(seed: int) -> None:
    """Invariants 1 and 3 of the design, for each seed."""
    found = live(seed)
    assert found.acknowledged == ROWS


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_nothing_acknowledged_is_lost_in_more_lives(seed: int) -> None:
    """The same, for longer."""
    assert live(seed).acknowledged == ROWS


# ---- planted bugs -------------------------------------------------------------------------------


async def split_in_joint(here: WalWorld) -> None:
    """While 1, 2, 3 become 3, 4, 5 the owner loses 3, 4, 5: it may acknowledge nothing."""
    await here.take_over()
    for n in range(4):
        await here.write(n, value(n))
    acknowledged = 4

    async def split() -> None:
        nonlocal acknowledged
        await here.until(lambda: not here.log._proposed, "all is committed in the joint one")
        here.world.partition([here.owner], ["sk3", "sk4", "sk5"])
        try:
            await here.write(4, value(4), timeout_s=2.0)
        except StelaeError:
            return
        acknowledged = 5

    await here.migrate([3, 4, 5], before_final=split)
    here.world.crash(here.owner, restart=False)
    await here.take_over()
    await read_all(here, acknowledged)


async def away_from_backups(here: WalWorld) -> None:
    """The owner writes several segments, cannot seal any of them, and dies."""
    await here.take_over()
    here.world.partition([here.owner], here.world.names("backup"))
    for n in range(30):
        await here.write(n, value(n))
    await asyncio.sleep(1.0)
    here.world.crash(here.owner, restart=False)
    await here.take_over()
    await read_all(here, 30)


def _one_quorum_in_joint() -> Any:
    """Commit what the old set has, whatever the new one has."""
    return patch.object(
        TimelineConfiguration, "agreed_lsn", lambda self, lsns: majority_lsn(self.sk_set, lsns)
    )


def _horizon_before_backups() -> Any:
    """Let the timeline be trimmed of what is closed, sealed on backups or not."""

    def hasty(self: WalLog) -> None:
        while len(self._live) > 1 and self._is_committed(self._live[1]):
            self._live.popleft()
            self._proposer.trim(self._live[0].first_lsn - 1)

    return patch.object(WalLog, "_advance_horizon", hasty)


STORIES: dict[str, tuple[Callable[[WalWorld], Coroutine[Any, Any, None]], Bug, str]] = {
    "joint": (split_in_joint, _one_quorum_in_joint, "row 4 was acknowledged"),
    "horizon": (away_from_backups, _horizon_before_backups, "no live backup holds"),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_story_ends_well(name: str) -> None:
    """Nothing acknowledged is lost in it."""
    run(STORIES[name][0])


@pytest.mark.parametrize("name", STORIES)
def test_a_planted_bug_is_seen(name: str) -> None:
    """The same story, with the rule left out that it is about."""
    story, bug, loss = STORIES[name]
    with bug(), pytest.raises(SimulationFailure, match=loss):
        run(story)
