"""`stelae.actors.tserver.tablet_log.wal_log`: a tablet over a timeline and backups; each test
states its rule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.tserver.tablet_log import wal_log
from stelae.actors.tserver.tablet_log.proposer import TimelineProposer
from stelae.actors.tserver.tablet_log.trimmed_segments import TrimmedSegments
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import Fetch
from stelae.core.errors import OutcomeUnknown, Overloaded, SegmentsMissing
from stelae.core.messages.servers import SegmentSource, TabletProgress
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.tserver.tablet_log.wal_tablet_world import TABLET, WalWorld, run

BIG = "x" * 700


async def fill(here: WalWorld, count: int, start: int = 0) -> None:
    """Write so many rows of 700 bytes: three of them fill a head."""
    for n in range(start, start + count):
        await here.write(n, BIG + str(n))


def base_lsn(here: WalWorld, safekeeper: int) -> int:
    """Up to here the timeline was trimmed there."""
    timeline = here.timeline(safekeeper)
    return timeline.base_lsn if timeline is not None else 0


async def check(here: WalWorld, count: int) -> None:
    for n in range(count):
        assert await here.get(n) == BIG + str(n), f"row {n}"


def test_a_write_counts_with_a_majority_and_waits_for_no_third() -> None:
    """Two of three safekeepers are enough, for opening and for writing."""

    async def scenario(here: WalWorld) -> None:
        here.world.crash("sk3", restart=False)
        await here.take_over()
        await fill(here, 2)
        await check(here, 2)
        assert here.tablet.report().problem == ""

    run(scenario)


def test_a_few_writes_wait_for_the_one_under_way_and_share_an_entry() -> None:
    """One write goes at once; those that come one by one before it counts are the next entry."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await here.write(0, "the log is open")
        before = here.log._proposer.committed_lsn
        writes = []
        for n in range(1, 7):
            writes.append(asyncio.create_task(here.write(n, f"row {n}")))
            for _ in range(3):  # each in a turn of its own
                await asyncio.sleep(0)
        await asyncio.gather(*writes)
        assert here.log._proposer.committed_lsn == before + 2
        for n in range(1, 7):
            assert await here.get(n) == f"row {n}"

    run(scenario)


def test_many_writes_wait_for_two_entries_under_way_and_share_the_next() -> None:
    """Also large ones: two travel by themselves, what comes before one of them counts is the
    third."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await here.write(0, "the log is open")
        before = here.log._proposer.committed_lsn
        writes = []
        with patch.object(wal_log, "GATHER_BYTES", 1):  # a head holds no more than a few KiB here
            for n in range(1, 4):
                writes.append(asyncio.create_task(here.write(n, BIG[:400] + str(n))))
                for _ in range(10):  # each in a turn of its own
                    await asyncio.sleep(0)
            assert len(here.log._proposed) == 2
            assert len(here.log._batches) == 1
            await asyncio.gather(*writes)
        assert here.log._proposer.committed_lsn == before + 3

    run(scenario)


def test_another_owner_finds_everything_in_the_timeline_and_on_backups() -> None:
    """The timeline is trimmed to what backups hold, and both together are the log."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await fill(here, 10)
        await here.until(lambda: len(here.log._live) == 1, "all but the head are on backups")
        await here.until(lambda: base_lsn(here, 1) > 0, "the timeline is trimmed")
        here.world.crash(here.owner, restart=False)
        await here.take_over()
        await check(here, 10)
        await fill(here, 10, 10)
        await here.take_over()
        await check(here, 20)

    run(scenario)


def test_a_replaced_owner_neither_commits_nor_goes_on() -> None:
    """It lives, and reaches all safekeepers: it is outvoted, and gives the tablet up."""

    async def scenario(here: WalWorld) -> None:
        old = await here.take_over()
        await fill(here, 2)
        owner = here.owner
        await here.take_over()
        with pytest.raises(OutcomeUnknown):
            await here.write(0, "late", tablet=old, owner=owner, timeout_s=3.0)
        assert old.progress is TabletProgress.FAILED
        await check(here, 2)

    run(scenario)


async def late_owner(here: WalWorld) -> None:
    """The first owner reaches nobody until the second one serves."""
    here.world.partition(["t1"], ["sk1", "sk2", "sk3"])
    here.world.partition(["sk1", "sk2", "sk3"], ["t1"])
    first = await here.begin()
    await asyncio.sleep(1.0)
    second = await here.take_over()
    await fill(here, 2)
    here.world.heal()
    await here.until(lambda: first.progress is not TabletProgress.OPENING, "it hears of that")
    await asyncio.sleep(1.0)
    assert first.progress is TabletProgress.FAILED
    assert second.progress is TabletProgress.SERVING, "the late one was elected after it"
    await fill(here, 2, 2)


def test_an_owner_that_comes_late_does_not_depose_its_successor() -> None:
    """The tablet's term goes before the campaign's number."""
    run(late_owner)


def test_without_the_masters_term_a_late_owner_would() -> None:
    """The same story, with that left out."""
    with (
        patch.object(TimelineProposer, "_is_another", lambda self, term: False),
        pytest.raises(SimulationFailure),
    ):
        run(late_owner)


def test_without_a_quorum_it_says_whom_it_waits_for_and_opens_later() -> None:
    """OPENING, with the safekeepers named; not failed, and not silent."""

    async def scenario(here: WalWorld) -> None:
        here.world.crash("sk2", restart=False)
        here.world.crash("sk3", restart=False)
        tablet = await here.begin()
        await asyncio.sleep(3.0)
        assert tablet.progress is TabletProgress.OPENING
        assert "majority of safekeepers [1, 2, 3]" in tablet.report().problem
        here.world.restart("sk2")
        await here.until(lambda: tablet.progress is TabletProgress.PREPARED, "it opens")
        assert tablet.report().problem == ""

    run(scenario)


def test_an_opening_that_has_a_majority_names_nobody() -> None:
    """It gets on without the third one, and must not be given up because it takes long."""
    fetched = TimelineProposer._fetched

    async def slowly(self: TimelineProposer, core: WalProposer, fetch: Fetch) -> Any:
        await self._runtime.clock.sleep(2.0)
        return await fetched(self, core, fetch)

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await fill(here, 2)
        here.world.crash(here.owner, restart=False)
        here.world.partition(["t2"], ["sk3"])
        with patch.object(TimelineProposer, "_fetched", slowly):
            tablet = await here.begin()
            await here.until(lambda: bool(here.log._proposer._core), "it campaigns")
            core = here.log._proposer._core
            assert core is not None
            await here.until(lambda: sum(k.is_heard for k in core.links.values()) > 1, "two answer")
            steps = 0
            while tablet.progress is TabletProgress.OPENING:
                assert tablet.report().unreached == ()
                await asyncio.sleep(0.1)
                steps += 1
        assert steps > 10
        assert tablet.progress is TabletProgress.PREPARED

    run(scenario)


def test_backups_are_named_while_segments_are_missing_and_not_while_they_are_fetched() -> None:
    """A backup that is silent does no harm once others are found to have everything."""
    fetch = TrimmedSegments._fetch
    named: list[int] = []

    async def slowly(self: TrimmedSegments, sources: Sequence[SegmentSource]) -> Any:
        await self._log.runtime.clock.sleep(1.0)
        named.append(len(self.unreached))
        if len(named) == 1:  # as if a replica had been found damaged
            raise SegmentsMissing(TABLET, "one")
        return await fetch(self, sources)

    async def nothing(self: WalWorld) -> tuple[SegmentSource, ...]:
        return ()

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await fill(here, 10)
        await here.until(lambda: base_lsn(here, 1) > 0, "the timeline is trimmed")
        here.world.crash(here.owner, restart=False)
        here.world.start("b3", here._backup("b3"), kind="backup")  # it holds nothing
        await here.world.wait_ready("b3")
        here.world.partition(["t2"], ["b3"])
        with (
            patch.object(WalWorld, "sources", nothing),  # what masters knew is of no use
            patch.object(TrimmedSegments, "_fetch", slowly),
        ):
            tablet = await here.begin()
            silent = (here.world.server("b3").info.uuid,)
            await here.until(lambda: tablet.report().unreached == silent, "it names it")
            await here.until(lambda: tablet.report().unreached == (), "it fetches again")
            assert tablet.progress is TabletProgress.OPENING
            await here.until(lambda: tablet.progress is TabletProgress.PREPARED, "it opens")
        assert named == [0, 0]

    run(scenario)


def test_writes_without_a_quorum_end_by_their_deadline_and_are_bounded() -> None:
    """Outcome unknown first; once the queue is full, surely not done. Later all goes on."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        others = ["sk1", "sk2", "sk3"]
        here.world.partition([here.owner], others)
        with pytest.raises(OutcomeUnknown):
            await here.write(0, BIG, timeout_s=1.0)
        writes = [asyncio.create_task(here.write(n, BIG, timeout_s=5.0)) for n in range(1, 200)]
        found = await asyncio.gather(*writes, return_exceptions=True)
        assert any(isinstance(each, Overloaded) for each in found)
        assert all(isinstance(each, Overloaded | OutcomeUnknown) for each in found)
        here.world.unpartition([here.owner], others)
        await here.until(lambda: here.log.pending_bytes == 0, "what waited counts")
        assert (await here.write(500, "late")).first_version > 0

    run(scenario)


def test_backups_that_are_away_keep_the_timeline_whole_and_bound_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is trimmed that backups do not hold; beyond the bound, writes are refused."""
    monkeypatch.setattr("stelae.actors.tserver.tablet_log.wal_log.TAIL_SEGMENTS_MAX", 3)

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        for name in ("b1", "b2"):
            here.world.crash(name, restart=False)
        with pytest.raises(Overloaded, match="backups do not hold"):
            await fill(here, 40)
        assert here.log._proposer._core is not None
        assert here.log._proposer._core.horizon_lsn == 0
        for name in ("b1", "b2"):
            here.world.restart(name)
        await here.until(lambda: len(here.log._live) == 1, "backups take it")
        await here.write(100, "again")

    run(scenario)


def test_all_entries_of_a_turn_travel_as_one() -> None:
    """Group commit: a hundred writers make a handful of entries in the timeline."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        timeline = here.timeline(1)
        assert timeline is not None
        start = timeline.flush_lsn
        await asyncio.gather(*(here.write(n, "small") for n in range(100)))
        await here.until(lambda: timeline.flush_lsn > start, "the first safekeeper has them")
        assert timeline.flush_lsn - start < 50

    run(scenario)


def test_the_safekeepers_are_exchanged_while_it_serves() -> None:
    """1, 2, 3 become 3, 4, 5; the owner follows, and another one finds everything at those."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await fill(here, 8)
        await here.migrate([3, 4, 5])
        await fill(here, 8, 8)
        assert here.tablet.progress is TabletProgress.SERVING, here.tablet.report().problem
        for name in ("sk1", "sk2"):
            here.world.crash(name, restart=False)
        await fill(here, 2, 16)
        here.world.crash(here.owner, restart=False)
        await here.take_over()
        await check(here, 18)

    run(scenario)


def test_an_order_with_an_outdated_configuration_is_good_enough() -> None:
    """Its members are none any more, and the timeline was trimmed since: those who know are
    asked."""

    async def scenario(here: WalWorld) -> None:
        await here.take_over()
        await fill(here, 4)
        outdated = here.configuration
        await here.migrate([3, 4, 5])
        await fill(here, 8, 4)
        await here.until(lambda: base_lsn(here, 4) > 8, "the timeline is trimmed")
        here.world.crash(here.owner, restart=False)
        here.configuration = outdated
        await here.take_over()
        await check(here, 12)

    run(scenario)
