"""A safekeeper's timelines after crashes at every step: before or after, nothing acked is lost."""

from __future__ import annotations

import random

import pytest

from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    OPERATIONS,
    Crash,
    When,
    World,
    run,
    settle,
    tell,
)

WHOLE_LIFE = (
    "create vote append append switch append commit trim append cut append vote append append cut "
    "append commit trim evict vote switch back append evict append evict_used append pull append "
    "pull_older pull_raced evict pull exclude create vote append exclude pull vote append commit "
    "trim cut restart append evict restart append drop"
)
"""Every change of a timeline, and each of them over what an earlier one left."""
PULLED_FIRST = "pull vote append commit exclude pull evict pull drop"
STORIES = {"whole life": WHOLE_LIFE, "pulled first": PULLED_FIRST}
SEEDS = 200
"""Stores in the suite, with six lives each."""
SEEDS_AT_LENGTH = 3000


def crashing_at(step: int, when: When, story: str, seed: int) -> bool:
    """Tell a story that a crash ends; false if it was at its end before."""

    async def body(world: World) -> bool:
        world.stepped.crash_at = (world.stepped.steps + step, when)
        cut_short = await tell(world, story)
        again = [(seed % 7, list(When)[step % 3])] if seed else []
        await settle(world, cut_short=cut_short, crashes_at=again)
        # What is there can be worked with.
        await world.act("append", "t1")
        await settle(world, cut_short=False)
        return cut_short

    return run(body, seed=(step, seed))


@pytest.mark.parametrize("when", [When.DURING, When.AFTER], ids=lambda when: when.name.lower())
@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_a_crash_at_any_step_leaves_the_state_before_or_after(story: str, when: When) -> None:
    """Creation, cut, trim, pull, eviction and deletion are one commit point each."""
    step = 0
    while crashing_at(step, when, story, step % 5):
        step += 1
    assert step >= len(story.split())


async def live(world: World, rng: random.Random) -> None:
    """One life: some operations, a crash in one of them or after all, and a start."""
    crash_at = rng.randrange(80)
    world.stepped.crash_at = (world.stepped.steps + crash_at, rng.choice(list(When)))
    cut_short = False
    try:
        for _ in range(rng.randrange(1, 20)):
            await world.act(rng.choice(OPERATIONS), rng.choice(["t1", "t2"]))
    except Crash:
        cut_short = True
    in_start = [(rng.randrange(7), rng.choice(list(When))) for _ in range(rng.randrange(3))]
    await settle(world, cut_short=cut_short, crashes_at=in_start)


def lives_of(seed: int, lives: int = 6) -> None:
    """A store through several lives, all of it drawn from the seed."""

    async def body(world: World) -> None:
        rng = random.Random(f"{seed}/lives")
        for _ in range(lives):
            await live(world, rng)

    run(body, seed)


@pytest.mark.parametrize("part", range(4))
def test_random_lives_of_a_store_leave_legal_states(part: int) -> None:
    """Over many lives with crashes everywhere: terms, votes, tombstones and acked entries stay."""
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        lives_of(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_random_lives_leave_legal_states(part: int) -> None:
    """The same at length."""
    for seed in range(part * SEEDS_AT_LENGTH // 10, (part + 1) * SEEDS_AT_LENGTH // 10):
        lives_of(SEEDS + seed)
