"""The log of a split tablet keeps its redundancy for as long as a part needs it."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest

from stelae.client.check.facts import TabletFacts
from stelae.client.check.tablets import judge_owned
from tests.simulation.splits.split_story import NEVER_S, Story


def replicas_of(story: Story, log: str) -> dict[int, int]:
    """Of each sealed segment of a log: on how many running backups it is."""
    found: dict[int, int] = {}
    for name in story.cluster.backups:
        server = story.world.server(name)
        for segment in [] if server is None else server._holdings.segments(log):
            replica = server._holdings.find(log, segment)
            if replica.facts is not None and replica.facts.state.value == "sealed":
                found[segment] = found.get(segment, 0) + 1
    return found


def are_on_two(story: Story, log: str, inherited: set[int]) -> bool:
    held = replicas_of(story, log)
    return all(held.get(segment, 0) >= 2 for segment in inherited)


def all_inherited(story: Story) -> set[int]:
    return set.union(*(story.inherited_by(record.tablet_id) for record in story.tablets))


@pytest.mark.parametrize("seed", range(3))
def test_lost_backups_are_made_up_for_while_parts_have_not_got_their_rows(seed: int) -> None:
    """However long that takes: one backup after the other is lost for good, and each time what
    parts inherit is on two again. Nothing is lost in the end."""
    story = Story(seed, load_bytes_per_s=NEVER_S)

    async def tell() -> None:
        table = await story.begin()
        (before,) = story.tablets
        story.kill_owner()
        await story.wait_split()
        inherited = all_inherited(story)
        assert len(inherited) >= 5
        whole = partial(are_on_two, story, before.tablet_id, inherited)
        for name in story.cluster.backups[:2]:
            story.world.crash(name, lose_disk=True, restart=False)
            assert not whole()
            await story.world.wait_until(whole, 60.0, "what is inherited is on two backups")
            story.world.restart(name)
            await story.world.wait_ready()
        story.kill_owner()
        await story.wait_split()
        assert all_inherited(story), "they are not whole yet"
        await story.check_all(table)

    story.run(tell())


def test_parts_that_lack_memory_say_so_and_make_up_for_lost_backups_all_the_same() -> None:
    """Once there is memory they are whole, and the log that they inherited is freed, with all that
    was made anew of it."""
    story = Story(load_bytes_per_s=2000.0)

    async def tell() -> None:
        table = await story.begin()
        (before,) = story.tablets
        story.kill_owner()
        await story.wait_split()
        servers = {name: story.world.server(name) for name in story.cluster.tservers}
        running = {name: server for name, server in servers.items() if server is not None}
        limits = {name: server.cleaner.limit_bytes for name, server in running.items()}
        for server in running.values():
            server.cleaner.limit_bytes = 1
        parts = [record.tablet_id for record in story.tablets]

        def say_so() -> bool:
            return all("no memory" in story.served()[part].report().problem for part in parts)

        await story.world.wait_until(say_so, 60.0, "they say so")
        await asyncio.sleep(1.0)  # until heartbeats have said so
        status = (await story.database.status())["tablets"]
        facts = [msgspec.convert(each, TabletFacts) for each in status]
        judged = [judge_owned(fact, is_owner_live=True) for fact in facts]
        found = [str(finding) for each in judged for finding in each.findings()]
        assert len([each for each in found if "no memory" in each]) == 2, found
        story.world.crash(story.cluster.backups[0], lose_disk=True, restart=False)
        whole = partial(are_on_two, story, before.tablet_id, all_inherited(story))
        assert not whole()
        await story.world.wait_until(whole, 60.0, "what is inherited is on two backups")
        for name, server in running.items():
            server.cleaner.limit_bytes = limits[name]
        await story.wait_whole()
        await story.world.wait_until(
            lambda: before.tablet_id not in story.logs_held(), 60.0, "the log is freed"
        )
        await story.check_all(table)

    story.run(tell())
