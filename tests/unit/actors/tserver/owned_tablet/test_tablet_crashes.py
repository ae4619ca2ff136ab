"""A server's tablets after crashes at every step: nothing is half done, no vote is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    OPERATIONS,
    Crash,
    When,
    World,
    run,
)

WHOLE_LIFE = (
    "create append flush append flush flush delete vote delete begin vote image_comes "
    "log_comes image_comes begin image_comes log_comes log_comes image_comes finish append flush "
    "delete_unknown begin image_comes abort begin image_comes image_comes log_comes log_comes "
    "finish append delete purge begin delete drop drop purge"
)
"""Every transition of a tablet, and each of them over what an earlier one left."""
NEW_COPY = "begin image_comes vote abort begin image_comes drop vote"
GONE_UNSEEN = "drop drop vote"
STORIES = {"whole life": WHOLE_LIFE, "new copy": NEW_COPY, "gone unseen": GONE_UNSEEN}


async def tell(world: World, story: str) -> bool:
    """Act the story out; true if it was cut short by a crash."""
    try:
        for name in story.split():
            assert await world.act(name, "t1"), f"{name} was not possible"
    except Crash:
        return True
    return False


async def settle(world: World, *, cut_short: bool, crashes_at: list[tuple[int, When]]) -> None:
    """Start, and crash in starting as often as asked; then check what is there."""
    for crash_at in crashes_at:
        try:
            await world.start(crash_at)
        except Crash:
            continue
    await world.check(await world.start(), cut_short)


def crashing_at(step: int, when: When, story: str, seed: int) -> bool:
    """Tell a story that a crash ends; false if it was at its end before."""

    async def body(world: World) -> bool:
        world.stepped.crash_at = (world.stepped.steps + step, when)
        cut_short = await tell(world, story)
        again = [(seed % 7, list(When)[step % 3])] if seed else []
        await settle(world, cut_short=cut_short, crashes_at=again)
        # What is there can be worked with: it can be deleted for good, and stays so.
        await world.act("drop", "t1")
        await settle(world, cut_short=False, crashes_at=[])
        return cut_short

    return run(body, seed=(step, seed))


@pytest.mark.parametrize("when", list(When), ids=lambda when: when.name.lower())
@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_a_crash_at_any_step_leaves_the_state_before_or_after(story: str, when: When) -> None:
    """Create, flush, delete, copy and purge are one commit point each, rolled forward or back."""
    seeds = range(4 if when is When.DURING else 2)
    step = 0
    while any([crashing_at(step, when, story, seed) for seed in seeds]):
        step += 1
    assert step >= len(story.split())


@settings(max_examples=60)
@given(
    lives=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(["t1", "t2"])), max_size=25
            ),
            st.integers(0, 60),
            st.sampled_from(When),
            st.lists(st.tuples(st.integers(0, 6), st.sampled_from(When)), max_size=2),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_and_crashes_leaves_legal_states(lives, seed) -> None:  # type: ignore[no-untyped-def]
    """Over several lives of a server: term, vote, last OpId and every acknowledged change stay."""

    async def body(world: World) -> None:
        for operations, step, when, crashes_in_start in lives:
            world.stepped.crash_at = (world.stepped.steps + step, when)
            cut_short = False
            try:
                for name, tablet in operations:
                    await world.act(name, tablet)
            except Crash:
                cut_short = True
            await settle(world, cut_short=cut_short, crashes_at=crashes_in_start)

    run(body, seed)
