"""Faults around ``wal`` tables in a whole cluster, each as a story of its own: votes and
configurations of the past, crashes in a migration, two owners. (Disks: `test_wal_disks`.)

In each of them all steps of all timelines are those of the model in `spec/`, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.cas_store.server import _stored
from stelae.actors.master.leader.migration_runner import MigrationRunner
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.client.table.table import AsyncTable
from stelae.coordinator.timelines.migration_steps import Passed, Step
from stelae.core.errors import InvalidArgument, StaleTerm, StelaeError
from stelae.core.messages.safekeepers import (
    EXCLUDE_TIMELINE,
    PUT_CONFIGURATION,
    ExcludeTimeline,
    PutConfiguration,
)
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import ProposerId, SafekeeperId, TimelineConfiguration
from stelae.core.rpc import Method
from stelae.simulation import Options, World
from stelae.simulation.timelines import events as trace
from stelae.simulation.timelines.recorder import TimelineRecorder
from stelae.simulation.world.options import Servers
from stelae.storage.files.timeline_control import TimelineControl
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    move,
    placed,
    read_all,
    tell,
    text,
    timelines,
    until_at_rest,
    write,
)


def test_configurations_from_the_past_change_nothing() -> None:
    """A driver that slept through a migration comes with each older configuration, for each kind
    of call: members, who left and who never were one answer by what they know, and stay so."""

    async def story(here: WalFixture) -> None:
        world, table = here.world, await here.create(buckets=1)
        await here.until_registered(4)
        await write(table, 0, 10)
        ((tablet_id, first),) = timelines(here).items()
        (spare,) = [SafekeeperId(n) for n in range(1, 5) if n not in first.sk_set]
        desired = (*first.sk_set[:2], spare)
        joint = TimelineConfiguration(first.generation + 1, first.sk_set, desired)
        await move(here, tablet_id, desired)
        await here.until(lambda: timelines(here)[tablet_id].sk_set == desired, "the change")
        await until_at_rest(here)
        now, held = timelines(here)[tablet_id], here.held()
        timeline = TimelineId(here.leader.catalog.tablets[tablet_id].table_id, tablet_id)
        peers = here.database.runtime.peers
        for number in (*first.sk_set, spare):
            server = world.server(here.keeper(number))
            for old in (first, joint):
                put = PutConfiguration(timeline, old, create=True)
                calls: list[tuple[Method[Any, Any], Any]] = [
                    (PUT_CONFIGURATION, put),
                    (EXCLUDE_TIMELINE, ExcludeTimeline(timeline, old)),
                ]
                for method, body in calls:
                    with contextlib.suppress(StaleTerm, InvalidArgument):
                        reply = await peers.call(server.info.address, method, body, timeout_s=5.0)
                        known = getattr(reply.body, "reply", None)
                        assert known is None or known.conf == now
        assert here.held() == held
        assert timelines(here)[tablet_id] == now
        await write(table, 10, 10)
        await read_all(table, 20)

    tell(story, safekeepers=4, safekeeper_dead_after_s=300.0)


def test_a_vote_that_a_crash_kept_from_being_told_is_given_again() -> None:
    """All members lose power when their vote is durable and its answer is not out: each start shows
    the vote, and the same proposer gets it again in that term, which is one more step of the
    model's; no other vote is given in it."""

    commit = Timeline.commit
    struck: dict[SafekeeperId, ProposerId] = {}

    async def story(here: WalFixture) -> None:
        async def strike(timeline: Timeline, control: TimelineControl) -> None:
            before = timeline.acceptor.voted_for
            await commit(timeline, control)
            now = timeline.acceptor.voted_for
            member = SafekeeperId(int(timeline._files._server.removeprefix("safekeeper ")))
            if now != before and member not in struck:
                struck[member] = now
                here.world.crash(here.keeper(member))
                await asyncio.sleep(0.01)

        table = await here.create(buckets=1)
        await here.until_registered(3)
        await write(table, 0, 10)
        (owner,) = here.owners()
        with patch.object(Timeline, "commit", strike):
            here.world.crash(owner)
            await here.until(lambda: len(struck) == 3, "three votes")
            await read_all(table, 10)
        await write(table, 10, 5)
        await read_all(table, 15)

    recorder = TimelineRecorder()
    with recorder.installed():
        tell(story, safekeeper_dead_after_s=300.0)
    recorder.check()
    assert len(struck) == 3
    assert len({*struck.values()}) == 1, "three votes for one proposer"
    shown: dict[SafekeeperId, int] = {}
    for event in recorder.events:
        match event:
            case trace.RestartSafekeeper() if event.voted_for == struck[event.server]:
                shown[event.server] = event.term
            case trace.Vote() if event.proposer == struck[event.server]:
                assert shown[event.server] == event.term, "told before the start, or of another"
    assert shown.keys() == struck.keys()
    votes = [event for event in recorder.events if isinstance(event, trace.Vote)]
    again = {(vote.server, vote.proposer) for vote in votes if vote.term in shown.values()}
    assert len(again) >= 2, "nobody was elected by them"
    assert again <= set(struck.items())


# ---- crashes after each step of a migration -----------------------------------------------------

STEPS = [step for step in Step if step not in (Step.FETCH, Step.TIDY)]
VICTIMS = ("driver", "old member", "new member", "proposer", "store")


class Strike:
    """Crashes somebody when a migration has passed a step, once."""

    def __init__(self, here: WalFixture, step: Step, victim: str) -> None:
        self._here = here
        self._step = step
        self._victim = victim
        self.name = ""

    def _choose(self, timeline: TimelineId) -> str:
        here = self._here
        (record,) = [r for r in stored(here) if r.timeline == timeline]
        configuration = record.configuration
        new = configuration.new_sk_set or configuration.sk_set
        match self._victim:
            case "driver":
                name = here.cluster.leader()
                assert name is not None
                return name
            case "old member":
                return here.keeper(configuration.sk_set[0])
            case "new member":
                return here.keeper(new[-1])
            case "proposer":
                return here.owners()[0]
            case _:
                assert here.cluster.cas_store is not None
                return here.cluster.cas_store

    async def passed(self, runner: MigrationRunner, timeline: TimelineId, passed: Passed) -> None:
        """Instead of the runner's own, which has no failpoint in a cluster."""
        is_change = passed.generation > 1 or passed.step in (Step.CHECK, Step.JOIN)
        if not self.name and passed.step is self._step and is_change and self._is_ordered:
            self.name = self._choose(timeline)
            self._here.world.crash(self.name)
            await asyncio.sleep(0.01)  # the driver may be the one who dies here

    _is_ordered = False

    @contextmanager
    def armed(self) -> Iterator[None]:
        self._is_ordered = True
        with patch.object(MigrationRunner, "passed", lambda *given: self.passed(*given)):
            yield


def stored(here: WalFixture) -> list[TimelineRecord]:
    """What the server of the configuration store has."""
    server = here.world.server("cas-store")
    return [_stored(rows[-1]).record for rows in server._backend._rows_by_key.values()]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name.lower())
def test_a_crash_after_each_step_of_a_migration_loses_nothing(step: Step, victim: str) -> None:
    """ABC becomes ABD while a client writes: it ends, by itself, in what was asked for; who left
    holds nothing, and each acknowledged row is there when the owner dies after it."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        (spare,) = [n for n in range(1, 5) if n not in first.sk_set]
        desired = (*first.sk_set[:2], SafekeeperId(spare))
        await until_finished(here)
        strike = Strike(here, step, victim)
        writing = asyncio.create_task(write(table, 0, 40))
        with strike.armed():
            await here.database.migrate_timeline(tablet_id, desired)
            await here.until(lambda: strike.name, f"{step.name} is passed", 60.0)
        await here.until(
            lambda: here.cluster.leader() and timelines(here)[tablet_id].sk_set == desired,
            "the migration",
            120.0,
        )
        await writing
        await until_finished(here)
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 40)

    recorder = TimelineRecorder()
    with recorder.installed():
        tell(story, safekeepers=4, cas_store=True, safekeeper_dead_after_s=300.0)
    assert recorder.check() > 100


async def until_finished(here: WalFixture) -> None:
    """Nothing is left to be done, and safekeepers have what they should."""

    def is_finished() -> bool:
        if here.cluster.leader() is None or here.world.server("cas-store") is None:
            return False
        if here.leader.catalog.timelines.orders:
            return False
        return all(r.is_finished for r in stored(here)) and placed(here) == here.held()

    await here.until(is_finished, "all timelines at rest", 90.0)


# ---- two owners at a time ------------------------------------------------------------------------


class TwoOwners:
    """Of the only tablet, on A, B and C: the old one and its successor, with a client near each."""

    def __init__(self, here: WalFixture) -> None:
        self._here = here
        ((self._tablet_id, first),) = timelines(here).items()
        (spare,) = [SafekeeperId(n) for n in range(1, 5) if n not in first.sk_set]
        self._keepers = [here.keeper(n) for n in (*first.sk_set, spare)]
        self._desired = (*first.sk_set[:2], spare)
        (self.old,) = here.owners()
        (self.new,) = [name for name in here.cluster.tservers if name != self.old]
        self.acknowledged: dict[str, list[int]] = {self.old: [], self.new: []}

    async def write_near(self, owner: str, client: str, first_key: int) -> None:
        """By a client that does not reach the other one; it is ended by the story."""
        table = await self._here.cluster.database(client).table("t")
        await table.get(0, timeout=20.0)
        self._here.world.partition([client], [self.new if owner == self.old else self.old])
        for key in range(first_key, first_key + 1000):
            with contextlib.suppress(StelaeError):
                await table.upsert({"id": key, "text": text(key)}, timeout=1.0)
                self.acknowledged[owner].append(key)
            await asyncio.sleep(0.05)

    def divide(self) -> None:
        """The old one reaches A and C only, and no master; the other one B and D only."""
        world, (a, b, c, d) = self._here.world, self._keepers
        for owner, others in ((self.old, [b, d]), (self.new, [a, c])):
            world.partition([owner], others)
            world.partition(others, [owner])
        for name in self._here.cluster.masters:
            world.partition([self.old], [name])
            world.partition([name], [self.old])

    async def change_members(self) -> None:
        """ABC becomes ABD."""
        here = self._here
        await here.database.migrate_timeline(self._tablet_id, self._desired)
        await here.until(
            lambda: timelines(here)[self._tablet_id].sk_set == self._desired, "the change", 60.0
        )

    async def require_successor(self) -> None:
        """It goes on, and the old owner, which did acknowledge something, does not."""
        old, new = self.acknowledged[self.old], self.acknowledged[self.new]
        before = len(new)
        await self._here.until(lambda: len(new) > before + 5, "the successor", 60.0)
        stood = len(old)
        await asyncio.sleep(3.0)
        assert len(old) == stood > 0, "the old owner goes on"


async def require_acknowledged(table: AsyncTable, keys: list[int]) -> None:
    found = await table.scan(timeout=20.0)
    there = dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))
    for key in keys:
        assert there.get(key) == text(key), f"row {key} was acknowledged"


def test_two_owners_with_a_majority_each_while_the_members_change() -> None:
    """ABC becomes ABD. The old owner reaches A and C only, its successor B and D only: never do
    both commit; once the change is through, the successor goes on with B and D; whatever either
    of them acknowledged is there in the end."""

    async def story(here: WalFixture) -> None:
        world, table = here.world, await here.create(buckets=1)
        await here.until_registered(4)
        owners = TwoOwners(here)
        await write(table, 0, 5)
        writers = [
            world.spawn("client", owners.write_near(owners.old, "near-old", 1000)),
            world.spawn("client", owners.write_near(owners.new, "near-new", 3000)),
        ]
        await asyncio.sleep(1.0)
        owners.divide()
        await owners.change_members()
        await owners.require_successor()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        world.heal()
        await until_at_rest(here)
        written = [*owners.acknowledged[owners.old], *owners.acknowledged[owners.new]]
        await require_acknowledged(table, [*range(5), *written])

    recorder = TimelineRecorder()
    with recorder.installed():
        world = World(1, Options(servers=Servers(masters=1, tservers=2, safekeepers=4)))
        here = WalFixture(world, safekeeper_dead_after_s=300.0)

        async def run() -> None:
            await here.start()
            await story(here)

        world.run(run(), limit_s=600.0)
    recorder.check()
