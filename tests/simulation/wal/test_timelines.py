"""Members of timelines change under writers, faults and dying drivers, and nothing is lost.

Two worlds: whole processes with the real store, runner, network and disks (`timelines`), and a bag
of messages around the pure machine, where a life takes milliseconds (`bag_of_messages`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.actors.master.leader.migration_runner import MigrationRunner, RunnerSettings
from stelae.coordinator.timelines.migration_steps import (
    FinishPending,
    MigrationSettings,
    MoveTo,
    Passed,
    Request,
    Step,
    Verdict,
)
from stelae.core.errors import Overloaded
from stelae.core.ids import TabletId
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.runner import run_seed, run_seeds
from tests.simulation.wal.timelines import (
    BUGS,
    SCENARIO,
    TIMELINE,
    Life,
    Ports,
    begin,
    live,
    options,
    planted,
)
from tests.simulation.world import bag_of_messages

SEEDS = 8
BAG_SEEDS = 250
SLOW_BAG_SEEDS = 10_000
BUG_SEEDS = 3000


# ---- whole processes --------------------------------------------------------------------------


def test_migrations_end_and_lose_nothing_under_faults() -> None:
    """Store, safekeepers, drivers and network fail; every interrupted migration ends."""
    run_seeds(SCENARIO, SEEDS)


def test_a_seed_is_replayed_exactly() -> None:
    """Nothing hash-ordered or of the real clock gets into a run."""
    first, again = (run_seed(SCENARIO, 7) for _ in range(2))
    assert first.digest == again.digest


def test_the_lives_are_worth_their_name() -> None:
    """Over a few seeds all steps are passed, and changes are done, refused, and taken back."""
    steps: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    for seed in range(5):
        world = World(seed, options(seed))
        life = world.run(live(Life(world, "")))
        for name, count in life.steps.items():
            steps[name] = steps.get(name, 0) + count
        for name, count in life.verdicts.items():
            verdicts[name] = verdicts.get(name, 0) + count
        assert life.judge.committed
    assert {step.name for step in Step} - set(steps) == {"FETCH", "TIDY"}
    assert verdicts["done"] > 10


# ---- a bag of messages ------------------------------------------------------------------------


def test_no_order_of_messages_loses_anything() -> None:
    """Every message may come late, twice, after its sender's death, or not at all."""
    verdicts: dict[Verdict, int] = {}
    committed = 0
    for seed in range(BAG_SEEDS):
        life = bag_of_messages.live(seed)
        committed += len(life.judge.committed)
        for verdict, count in life.verdicts.items():
            verdicts[verdict] = verdicts.get(verdict, 0) + count
    expected = {Verdict.DONE, Verdict.REFUSED, Verdict.ABORTED, Verdict.UNREACHABLE}
    assert expected <= set(verdicts)
    assert committed > BAG_SEEDS


@pytest.mark.soak
def test_no_order_of_messages_loses_anything_at_length() -> None:
    """The same, for many seeds."""
    for seed in range(BAG_SEEDS, BAG_SEEDS + SLOW_BAG_SEEDS):
        bag_of_messages.live(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """Each safeguard that is left out costs a committed entry, a term, or the end of a change."""
    with planted(bug):
        for seed in range(BUG_SEEDS):
            try:
                bag_of_messages.live(seed, bug)
            except AssertionError:
                return
    raise AssertionError(f"{bug!r} was not found in {BUG_SEEDS} lives")


# ---- the runner -------------------------------------------------------------------------------


class Stage:
    """A calm world with a store, safekeepers and a catalog, and one runner to look at."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.life = Life(world, "")
        self.life.ids = [SafekeeperId(n) for n in range(1, 6)]
        self.life.faulty = False
        self.passed: list[Step] = []
        self.settings = RunnerSettings(
            migration=MigrationSettings(
                call_timeout_s=0.5,
                longest_pause_s=0.5,
                settle_s=0.1,
                stall_s=1.0,
                patience_s=5.0,
                members_min=1,
            ),
            **settings,
        )

    async def start(self) -> MigrationRunner:
        life = self.life
        life.statuses = dict.fromkeys(life.ids, life.statuses[SafekeeperId(1)])
        await begin(life, drivers=0)
        runtime = life.world.client("controller")
        self.tasks = Tasks()
        ports = Ports(runtime, life.world)
        return MigrationRunner(
            runtime, self.tasks, ports, lambda: life.statuses, self.settings, self._note
        )

    async def _note(self, timeline: TimelineId, passed: Passed) -> None:
        self.passed.append(passed.step)


def to(*members: int) -> Request:
    return MoveTo(tuple(map(SafekeeperId, members)))


def test_requests_for_one_timeline_are_carried_out_one_after_the_other() -> None:
    """Two callers of one controller never race: the second one's change begins after the first."""

    async def story(world: World) -> None:
        stage = Stage(world)
        runner = await stage.start()
        outcomes = await asyncio.gather(
            runner.run(TIMELINE, to(3, 4, 5)), runner.run(TIMELINE, to(2, 3, 4))
        )
        assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE, Verdict.DONE]
        assert stage.passed.count(Step.JOIN) == 2
        second = len(stage.passed) - 1 - stage.passed[::-1].index(Step.JOIN)
        assert stage.passed.index(Step.DELIVER) < second
        generations = [o.stored.record.generation for o in outcomes if o.stored is not None]
        assert sorted(generations) == [3, 5]
        assert runner.progress() == []

    _run(story)


def test_progress_is_seen_while_it_runs_and_too_many_are_refused() -> None:
    """Status pages see step and what is waited for; the line of those who wait is bounded."""

    async def story(world: World) -> None:
        stage = Stage(world, waiting_max=1)
        runner = await stage.start()
        world.partition(["controller"], ["sk1", "sk2"])
        task = asyncio.ensure_future(runner.run(TIMELINE, to(3, 4, 5)))
        await asyncio.sleep(1.5)
        (progress,) = runner.progress()
        assert progress.step_name in ("check", "sync", "deliver")
        assert progress.waits_for
        other = TimelineId(TIMELINE.table_id, TabletId("other"))
        with pytest.raises(Overloaded):
            await runner.run(other, FinishPending())
        world.unpartition(["controller"], ["sk1", "sk2"])
        assert (await task).verdict is Verdict.DONE

    _run(story)


def test_a_scan_finishes_what_nobody_asks_about() -> None:
    """A joint configuration left by a driver that is gone is finished by the next scan."""

    async def story(world: World) -> None:
        stage = Stage(world)
        runner = await stage.start()
        ports = Ports(world.client("gone"), world)
        stored = await ports.store.get(TIMELINE, timeout_s=1)
        assert stored is not None
        joint = stored.record.joint_with((SafekeeperId(4), SafekeeperId(5)))
        await ports.store.cas(joint, stored.revision, writer="gone", nonce="1", timeout_s=1)
        assert await runner.scan() == 1
        assert await runner.scan() == 0
        stored = await ports.store.get(TIMELINE, timeout_s=1)
        assert stored is not None
        assert stored.record.is_finished
        assert stored.record.configuration.sk_set == (4, 5)

    _run(story)


def test_a_store_that_is_away_ends_a_run_and_not_the_scan() -> None:
    """Without the store a run ends as WAITING after its patience; the scan tries again."""

    async def story(world: World) -> None:
        stage = Stage(world, scan_period_s=1.0)
        runner = await stage.start()
        world.crash("cas", restart=False)
        outcome = await runner.run(TIMELINE, to(3, 4, 5))
        assert outcome.verdict is Verdict.WAITING
        assert "read the record" in outcome.reason
        runner.begin()
        await asyncio.sleep(3.0)
        world.restart("cas")
        await world.wait_until(stage.life.is_over, 30, "the scan finishes the first record")
        await stage.tasks.close()

    _run(story)


def _run(story: Any) -> None:
    world = World(1, Options())
    world.run(story(world))
