"""Tables with ``wal(n)`` whose sealed segments are gone from all backups: they wait in one term."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from stelae.simulation.world.node import SimulationFailure
from tests.simulation.recovery.loss_cluster import ROWS, WithTimeline, tell


async def tell_of_timelines(here: WithTimeline) -> list[str]:
    """Some backups alone hold part of the log by now; those that hold its oldest segment."""
    await here.until(lambda: len(here.trimmed()) > 3, "the timeline is trimmed")
    oldest = here.trimmed()[0]
    return [name for name in here.cluster.backups if oldest in here.held(name)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tablet_with_a_timeline_waits_for_its_segments_and_comes_back(seed: int) -> None:
    """In one term: its owner asks again; one of the backups is enough, and nothing is lost."""

    async def story(here: WithTimeline) -> None:
        before = await here.rows()
        pair = await tell_of_timelines(here)
        lost = set(here.trimmed()) & set(here.held(pair[0])) & set(here.held(pair[1]))
        await here.lose(pair)
        term = here.tablet.term
        report = await here.database.losses()
        (loss,) = report.waiting
        assert {each.segment_id for each in loss.segments} == lost
        assert all(each.rows > 0 and each.size_bytes > 0 for each in loss.segments)
        assert not loss.is_end_lost
        assert set(pair) <= set(report.silent_backups)
        problem = (await here.database.status())["tablets"][0]["problem"]
        assert "see `stelae recover`" in problem
        await here.bring_back(pair[1])
        await here.until_served()
        assert here.tablet.term == term
        assert await here.rows() == before
        assert not (await here.database.losses()).waiting

    tell(story, seed, kind=WithTimeline)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_segments_of_a_timelines_tablet_are_given_up_by_name(seed: int) -> None:
    """Just their rows are gone; what returns later is freed; further recoveries find the same."""

    async def story(here: WithTimeline) -> None:
        before = await here.rows()
        pair = await tell_of_timelines(here)
        await here.lose(pair)
        report = await here.accept()
        (loss,) = report.waiting
        lost = {each.segment_id for each in loss.segments}
        await here.until_served()
        rows = await here.rows()
        assert len(before) - len(rows) == sum(each.rows for each in loss.segments)
        assert all(before[key] == version for key, version in rows.items())
        (record,) = (await here.database.losses()).accepted
        assert (record.accepted_by, record.loss) == ("Ada", loss)
        assert here.tablet.kept is None, "the recovery is over"

        gone = await here.is_written_anew(pair, lost, before, rows)
        assert set(await here.rows()) == {*rows, gone}

    tell(story, seed, kind=WithTimeline)


def test_what_was_given_up_of_a_timelines_tablet_is_not_read_again() -> None:
    """Also if it comes back before the tablet, whose owner and leader master die meanwhile."""

    async def story(here: WithTimeline) -> None:
        before = len(here.versions)
        pair = await tell_of_timelines(here)
        await here.lose(pair)
        report = await here.database.losses()
        lost = sum(each.rows for each in report.waiting[0].segments)
        here.world.partition(here.cluster.tservers, here.cluster.safekeepers)
        await here.accept(report)
        await here.bring_back(*pair)
        leader = here.cluster.leader()
        assert leader is not None
        here.world.crash(leader)
        await here.until(here.cluster.leader, "a leader")
        here.world.crash(here.owner)
        await asyncio.sleep(2.0)
        here.world.network.unblock_all()
        await here.until_served()
        assert len(await here.rows()) == before - lost, "what was given up was read"

    tell(story, kind=WithTimeline)
    forgetful = patch(
        "stelae.actors.tserver.tablet_log.trimmed_segments.frozenset", lambda _: (), create=True
    )
    with forgetful, pytest.raises(SimulationFailure, match="given up was read"):
        tell(story, kind=WithTimeline)


def test_a_second_loss_of_a_timelines_tablet_is_given_up_beside_the_first() -> None:
    """What was to be kept is gone as well, before the tablet was handed over."""

    async def story(here: WithTimeline) -> None:
        pair = await tell_of_timelines(here)
        await here.lose(pair)
        for name in here.cluster.tservers:
            here.world.partition([name], here.cluster.backups)  # nobody can read them now
        first = await here.accept()
        rest = [name for name in here.cluster.backups if name not in pair]
        for name in rest:
            here.world.crash(name, lose_disk=True, restart=False)
        here.world.network.unblock_all()
        await here.bring_back(*rest)
        await here.until(
            lambda: here.cluster.leader() and here.tablet.kept is not None, "it is recovered"
        )
        await asyncio.sleep(5.0)
        second = await here.accept()
        assert not {s.segment_id for s in first.waiting[0].segments} & {
            s.segment_id for s in second.waiting[0].segments
        }
        await here.until_served()
        rows = await here.rows()
        assert 0 < len(rows) < ROWS, "what its timeline has is left"
        assert len((await here.database.losses()).accepted) == 2

    tell(story, kind=WithTimeline)
