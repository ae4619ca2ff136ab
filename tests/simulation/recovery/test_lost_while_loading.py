"""Segments of which every replica goes while their rows are not back yet: the tablet is served,
says which rows it lacks, and gets them as soon as a backup has them, or goes on without once an
operator has said so. Stories on whole clusters."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.records.losses import LossReport
from stelae.core.records.records import TabletState
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.recovery.loss_cluster import CALL_S, ROWS, LossFixture, WithTimeline, tell
from tests.simulation.tables.planted_moves import planted

SLOWLY: dict[str, Any] = {"metadata_first": True, "load_bytes_per_s": 800.0}
"""Rows follow a recovery at about a segment in three seconds."""


class Loading(LossFixture):
    """Its rows come back slowly after a recovery."""

    changes: ClassVar[dict[str, Any]] = SLOWLY


class LoadingWithTimeline(WithTimeline):
    """The same of one whose log ends on safekeepers."""

    changes: ClassVar[dict[str, Any]] = SLOWLY


KINDS = pytest.mark.parametrize("kind", [Loading, LoadingWithTimeline])


def remote_of(here: LossFixture) -> dict[int, list[str]]:
    """Segments whose rows are not back, oldest first, and the names of the backups with them."""
    tablet = here.world.server(here.owner)._tablets.get(here.tablet.tablet_id)
    ids = [] if tablet is None else sorted(run.segment_id for run in tablet._remote._remote)
    return {each: [n for n in here.cluster.backups if each in here.held(n)] for each in ids}


async def served_without_rows(here: LossFixture) -> int:
    """Another server serves the tablet, and its rows are elsewhere; the term."""
    if isinstance(here, WithTimeline):
        await here.until(lambda: len(here.trimmed()) > 3, "the timeline is trimmed")
    term = here.tablet.term
    here.world.crash(here.owner)
    await here.until(
        lambda: (
            here.cluster.leader()
            and here.tablet.term > term
            and here.tablet.state is TabletState.RUNNING
            and here.world.server(here.owner)
            and len(remote_of(here)) > 3
        ),
        "it is served, and its rows are not back",
    )
    return here.tablet.term


async def lose_newest(here: LossFixture) -> tuple[int, list[str]]:
    """The backups with the segment that is loaded last die; the segment, and their names."""
    *_, (segment, pair) = remote_of(here).items()
    for name in pair:
        here.world.crash(name, restart=False)
    return segment, pair


async def told(here: LossFixture, segment: int) -> LossReport:
    """Once operators are told that the segment is missing."""
    for _ in range(60):
        report = await here.database.losses()
        if any(segment == lost.segment_id for loss in report.waiting for lost in loss.segments):
            return report
        await asyncio.sleep(1.0)
    raise AssertionError("nobody is told that rows are missing")


async def unread(here: LossFixture) -> list[int]:
    """Keys of rows that cannot be read just now."""
    found = []
    for key in range(ROWS):
        try:
            await here.table.get(key, timeout=2.0)
        except RetryLater:
            found.append(key)
    return found


@KINDS
def test_it_is_told_and_goes_on_when_a_backup_comes_back(kind: type[LossFixture]) -> None:
    """In the same term: one of the backups is enough, and all else is served meanwhile."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        term = await served_without_rows(here)
        segment, pair = await lose_newest(here)
        report = await told(here, segment)
        (loss,) = report.waiting
        assert loss.is_served
        assert not loss.is_end_lost
        assert all(each.rows > 0 and each.size_bytes > 0 for each in loss.segments)
        assert set(pair) <= set(report.silent_backups)
        missing = await unread(here)
        assert 0 < len(missing) < ROWS
        status = (await here.database.status())["tablets"][0]
        assert "see `stelae recover`" in status["problem"]
        assert status["segments_lacking"] == len(loss.segments)
        here.world.restart(pair[1])
        await here.until_served()
        assert here.tablet.term == term
        assert await here.rows() == before
        assert not (await here.database.losses()).waiting

    tell(story, kind=kind)


@KINDS
@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_given_up_by_name_and_all_else_is_there(kind: type[LossFixture], seed: int) -> None:
    """Also what was written since; the former term is over; what returns later is freed."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        term = await served_without_rows(here)
        segment, pair = await lose_newest(here)
        await told(here, segment)
        await here.write([ROWS])
        report = await here.accept()
        (loss,) = report.waiting
        lost = {each.segment_id for each in loss.segments}
        assert segment in lost
        await here.until_served()
        assert here.tablet.term > term
        rows = await here.rows()
        assert len(before) + 1 - len(rows) == sum(each.rows for each in loss.segments)
        assert rows.pop(ROWS) == here.versions[ROWS]
        assert all(before[key] == version for key, version in rows.items())
        (record,) = (await here.database.losses()).accepted
        assert (record.accepted_by, record.loss) == ("Ada", loss)
        assert here.tablet.kept is None, "the recovery is over"

        gone = await here.is_written_anew(pair, lost, before, rows)
        assert set(await here.rows()) == {*rows, ROWS, gone}

    tell(story, seed, kind=kind)


@KINDS
def test_what_was_given_up_is_not_read_again(kind: type[LossFixture]) -> None:
    """Though backups have it again before the tablet, whose owner and leader master die."""

    async def story(here: LossFixture) -> None:
        before = len(await here.rows())
        await served_without_rows(here)
        segment, pair = await lose_newest(here)
        report = await told(here, segment)
        lost = sum(each.rows for each in report.waiting[0].segments)
        owner = here.owner
        await here.accept(report)
        here.world.crash(owner, restart=False)
        await here.bring_back(*pair)
        leader = here.cluster.leader()
        assert leader is not None
        here.world.crash(leader)
        await here.until(here.cluster.leader, "a leader")
        await here.until_served()
        assert len(await here.rows()) == before - lost
        here.world.restart(owner)

    tell(story, kind=kind)


def test_of_what_is_there_again_nothing_is_given_up() -> None:
    """The operator's word is for what was shown; and all backups have to be asked."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        await served_without_rows(here)
        segment, pair = await lose_newest(here)
        report = await told(here, segment)
        await here.bring_back(*pair)
        await here.until(lambda: here.held(pair[0]), "it is back")
        await asyncio.sleep(2.0)
        with pytest.raises(InvalidArgument):
            await here.accept(report)
        await here.until_served()
        assert await here.rows() == before

    tell(story, kind=Loading)


async def dead_by_hearsay(here: LossFixture) -> None:
    """Its loss is accepted while its owner does not hear the masters; the owner's host says that it
    has died, and clients reach it all the same: two servers must not answer for the tablet."""
    await here.rows()
    await served_without_rows(here)
    segment, _ = await lose_newest(here)
    await told(here, segment)
    missing = await unread(here)
    key = next(key for key in range(ROWS) if key not in missing)
    reader = await here.cluster.database("reader").table("t")
    assert await reader.get(key, timeout=CALL_S) is not None
    former, tablet = here.owner, here.tablet
    here.world.partition([former], here.cluster.masters)
    here.world.partition(here.cluster.masters, [former])
    await here.accept()
    here.leader.server_died(tablet.owner, tablet.owner_incarnation)
    await here.until(
        lambda: here.tablet.owner != tablet.owner and here.tablet.state is TabletState.RUNNING,
        "another server serves it",
    )
    here.table = await here.cluster.database("writer").table("t")
    await here.write([key])
    row = await reader.get(key, with_version=True, timeout=CALL_S)
    assert row is not None
    assert row["_version"] == here.versions[key], "the former owner answers"


@KINDS
def test_nobody_else_gets_it_before_its_owners_lease_is_over(kind: type[LossFixture]) -> None:
    """Whatever is said of the owner. With the bug there are two for a while."""
    tell(dead_by_hearsay, kind=kind)
    bug = "next_owner_does_not_wait"
    with planted(bug), pytest.raises(SimulationFailure, match="the former owner answers"):
        tell(dead_by_hearsay, kind=kind)
