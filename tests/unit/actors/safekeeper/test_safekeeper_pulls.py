"""Pulls between real safekeepers, and timelines that go to real backups and come back."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.safekeeper.pulls import PullReceiver
from stelae.consensus.wal.messages import WalAppendResponse, WalVoteResponse
from stelae.core.errors import (
    InvalidArgument,
    Overloaded,
    StaleTerm,
    TabletDeleted,
    TabletNotFound,
    TabletNotReady,
    Unavailable,
)
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import HeldTimeline, TimelinePresence
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.simulation import Options
from tests.unit.actors.safekeeper.safekeeper_world import (
    EVICTING,
    OTHER,
    TIMELINE,
    SafekeepersWorld,
    entry,
    members,
    run,
)

NONE = LogPosition(0, 0)


async def pull(
    here: SafekeepersWorld,
    n: int,
    source: int,
    configuration: TimelineConfiguration,
    *,
    at_least: LogPosition = NONE,
    timeout_s: float = 5.0,
) -> SwitchReply:
    return await here.ports.pull_timeline(
        SafekeeperId(n),
        SafekeeperId(source),
        TIMELINE,
        configuration,
        at_least=at_least,
        timeout_s=timeout_s,
    )


async def fill(here: SafekeepersWorld, n: int, count: int, *, term: int = 1) -> None:
    """A timeline of generation 1 with so many entries on one safekeeper, most of them committed."""
    await here.put(n, members(1))
    session = here.voice.session(n, f"writer{n}", term)
    await session.lead([])
    for index in range(1, count + 1):
        answer = await session.append([entry(term, index)], max(0, index - 2))
        assert isinstance(answer, WalAppendResponse)


async def status(here: SafekeepersWorld, n: int) -> HeldTimeline:
    return await here.ports.timeline_status(SafekeeperId(n), TIMELINE.tablet_id, timeout_s=1.0)


async def entries_of(here: SafekeepersWorld, n: int, count: int) -> list[Any]:
    timeline = here.server(n).timelines.store(TIMELINE.tablet_id).timeline(TIMELINE.tablet_id)
    return await here.within(n, timeline.read(1, count, 1 << 20))


# ---- pulls --------------------------------------------------------------------------------------


def test_a_pull_makes_an_equal_copy_under_the_configuration() -> None:
    """All that the source has durably, in pieces; it is durable, repeated it does nothing, and the
    copy votes with it."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 20)
        joint = TimelineConfiguration(2, members(1).sk_set, members(1, 2, 3, 4).sk_set)
        reply = await pull(here, 4, 1, joint, at_least=LogPosition(1, 20))
        assert (reply.conf, reply.position, reply.term) == (joint, LogPosition(1, 20), 1)
        before = here.world.metrics["sk4"].counts["timelines_pulled"]
        assert await pull(here, 4, 1, joint, at_least=LogPosition(1, 20)) == reply
        assert here.world.metrics["sk4"].counts["timelines_pulled"] == before
        await here.restart(4)
        assert await entries_of(here, 4, 20) == [entry(1, n) for n in range(1, 21)]
        session = here.voice.session(4, "next", 2, 2)
        await session.greet()
        vote = await session.vote()
        assert isinstance(vote, WalVoteResponse)
        assert vote.position == LogPosition(1, 20)

    run(scenario, safekeepers=4)


def test_a_pull_is_refused_by_who_is_no_member_or_knows_better() -> None:
    """No member; a higher generation here or at the source; deleted here under that generation."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 5)
        with pytest.raises(InvalidArgument, match="no member"):
            await pull(here, 4, 1, members(2))
        with pytest.raises(TabletNotFound):
            await pull(here, 2, 3, members(2))
        await here.put(1, members(7))
        with pytest.raises(StaleTerm):
            await pull(here, 2, 1, members(6))
        await here.ports.exclude(
            SafekeeperId(3), TIMELINE, members(8, 1, 2), forever=False, timeout_s=1.0
        )
        with pytest.raises(TabletDeleted):
            await pull(here, 3, 1, members(8))
        assert (await pull(here, 3, 1, members(9))).position == LogPosition(1, 5)

    run(scenario, safekeepers=4)


def test_a_pull_replaces_what_is_behind_and_never_what_is_ahead() -> None:
    """What is here was acknowledged: only a log that has all of it takes its place."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        await fill(here, 2, 9)
        reply = await pull(here, 2, 1, members(2))
        assert reply.position == LogPosition(1, 9), "it was ahead"
        reply = await pull(here, 1, 2, members(2), at_least=LogPosition(1, 9))
        assert reply.position == LogPosition(1, 9)
        assert await entries_of(here, 1, 9) == [entry(1, n) for n in range(1, 10)]

    run(scenario)


def test_a_pull_says_so_if_the_source_has_not_enough() -> None:
    """What it had is here; the caller asks again, or elsewhere."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        with pytest.raises(TabletNotReady, match="has no more"):
            await pull(here, 2, 1, members(2), at_least=LogPosition(1, 7))
        assert (await status(here, 2)).flush_lsn == 6

    run(scenario)


def test_an_acceptor_whose_timeline_was_replaced_tells_nothing_of_the_old_one() -> None:
    """A session that began before the pull appends to the copy, or is told to greet again."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 9, term=3)
        await here.put(2, members(1))
        old = here.voice.session(2, "old", 2)
        await old.lead([])
        await old.append([entry(2, 1), entry(2, 2)])
        await pull(here, 2, 1, members(1), at_least=LogPosition(3, 9))
        answer = await old.append([entry(2, 3)])
        assert not isinstance(answer, WalAppendResponse)
        assert await entries_of(here, 2, 9) == [entry(3, n) for n in range(1, 10)]

    run(scenario)


def test_a_pull_goes_on_after_source_and_receiver_have_died() -> None:
    """Whatever a crash leaves, the next call ends with the whole copy."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 30)
        for n in (1, 2, 1, 2):
            task = asyncio.ensure_future(pull(here, 2, 1, members(2)))
            await asyncio.sleep(0.03)
            await here.restart(n)
            await asyncio.gather(task, return_exceptions=True)
        await here.insist(lambda: pull(here, 2, 1, members(2), at_least=LogPosition(1, 30)))
        assert await entries_of(here, 2, 30) == [entry(1, n) for n in range(1, 31)]

    run(scenario, options=Options(latency_mean_s=0.004))


def test_pulls_are_bounded_and_one_for_each_timeline() -> None:
    """Beyond that the answer is to come again."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 10)
        held = asyncio.Event()

        async def stuck(self: PullReceiver, order: Any, timeout_s: float) -> SwitchReply:
            await held.wait()
            raise TabletNotReady(TIMELINE.tablet_id, "released")

        with patch.object(PullReceiver, "_pull", stuck):
            first = asyncio.ensure_future(pull(here, 2, 1, members(2)))
            await asyncio.sleep(0.1)
            with pytest.raises(TabletNotReady, match="an earlier call"):
                await pull(here, 2, 1, members(2))
            with (
                patch("stelae.actors.safekeeper.pulls.PULLS_MAX", 1),
                pytest.raises(Overloaded),
            ):
                await here.ports.pull_timeline(
                    SafekeeperId(2),
                    SafekeeperId(1),
                    OTHER,
                    members(2),
                    at_least=NONE,
                    timeout_s=1.0,
                )
            held.set()
            with pytest.raises(TabletNotReady, match="released"):
                await first

    run(scenario)


def test_a_source_lets_go_of_what_nobody_asks_for() -> None:
    """A session ends with its receiver; then the WAL may be trimmed and evicted again."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 30)
        task = asyncio.ensure_future(pull(here, 2, 1, members(2)))
        await here.world.wait_until(
            lambda: here.server(1).sources.session_count == 1, 2.0, "a session", poll_s=0.001
        )
        here.world.crash("sk2", restart=False)
        await asyncio.gather(task, return_exceptions=True)
        await here.world.wait_until(
            lambda: here.server(1).sources.session_count == 0, 5.0, "it expires"
        )
        timeline = here.server(1).timelines.store(TIMELINE.tablet_id).timeline(TIMELINE.tablet_id)
        assert not timeline.holds

    run(scenario, options=Options(latency_mean_s=0.01))


# ---- eviction -----------------------------------------------------------------------------------


async def evicted(here: SafekeepersWorld, n: int) -> None:
    """Wait until the idle timeline went to the backups."""

    def is_away() -> bool:
        here.see()
        held = here.server(n).timelines.describe(TIMELINE.tablet_id)
        return held.presence is TimelinePresence.EVICTED

    await here.world.wait_until(is_away, 20.0, "it is evicted")


def blobs(here: SafekeepersWorld, n: int) -> list[str]:
    return list(here.world.server(f"b{n}")._blobs._names)


def test_an_idle_timeline_goes_to_backups_and_comes_back_when_it_is_used() -> None:
    """It votes from away; an append brings it back; nothing stays on the backups then."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 12)
        await evicted(here, 1)
        disk = here.server(1)._runtime.disk
        assert await here.within(1, disk.folders("timeline-wals")) == []
        assert sum(len(blobs(here, n)) for n in (1, 2, 3)) == 2 * len(
            set(blobs(here, 1) + blobs(here, 2))
        )
        await here.restart(1)
        here.see()
        session = here.voice.session(1, "next", 2)
        await session.greet()
        vote = await session.vote()
        assert isinstance(vote, WalVoteResponse)
        assert (await status(here, 1)).presence is TimelinePresence.EVICTED
        await session.elected([entry(1, n) for n in range(1, 13)])
        answer = await session.append([entry(2, 13)], 12)
        assert isinstance(answer, WalAppendResponse)
        assert answer.flush_lsn == 13
        found = await entries_of(here, 1, 13)
        assert found == [*(entry(1, n) for n in range(1, 13)), entry(2, 13)]

    run(scenario, backups=3, settings=EVICTING)


def test_an_evicted_timeline_is_pulled_from_where_it_is() -> None:
    """The source stays evicted; the copy is whole."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 12)
        await evicted(here, 1)
        await pull(here, 2, 1, members(2), at_least=LogPosition(1, 12))
        assert (await status(here, 1)).presence is TimelinePresence.EVICTED
        assert await entries_of(here, 2, 12) == [entry(1, n) for n in range(1, 13)]

    run(scenario, backups=2, settings=EVICTING)


def test_without_enough_backups_nothing_is_evicted_and_nothing_is_lost() -> None:
    """A copy less than wanted is no eviction; away, it waits for a backup to come back."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        here.world.crash("b2", restart=False)
        here.see()
        await asyncio.sleep(3.0)
        assert (await status(here, 1)).presence is TimelinePresence.RESIDENT
        here.world.restart("b2")
        await here.world.wait_ready("b2")
        await evicted(here, 1)
        for name in ("b1", "b2"):
            here.world.crash(name, restart=False)
        here.see()
        with pytest.raises(Unavailable):
            await entries_of(here, 1, 6)
        here.world.restart("b1")
        await here.world.wait_ready("b1")
        here.see()
        assert await entries_of(here, 1, 6) == [entry(1, n) for n in range(1, 7)]

    run(scenario, backups=2, settings=EVICTING)


def test_a_timeline_whose_copies_have_become_too_few_is_evicted_anew() -> None:
    """A backup lost its disk: the others have the blobs, and soon enough of them do again."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        await evicted(here, 1)
        held = [n for n in (1, 2, 3) if blobs(here, n)]
        here.world.crash(f"b{held[0]}", lose_disk=True)
        await here.world.wait_ready()

        def is_whole() -> bool:
            here.see()
            control = (
                here.server(1).timelines.store(TabletId("")).timelines[TIMELINE.tablet_id].control
            )
            if control.evicted is None or control.stale_blobs:
                return False
            names = [each.blob for each in control.evicted.files]
            counts = [sum(name in blobs(here, n) for n in (1, 2, 3)) for name in names]
            return all(count == 2 for count in counts) and not others(names)

        def others(names: list[str]) -> list[str]:
            """Blobs that nobody names."""
            return [each for n in (1, 2, 3) for each in blobs(here, n) if each not in names]

        await here.world.wait_until(is_whole, 30.0, "two copies of each, and nothing else")
        assert await entries_of(here, 1, 6) == [entry(1, n) for n in range(1, 7)]

    run(scenario, backups=3, settings=EVICTING)


def test_blobs_that_nobody_names_are_deleted_in_the_end() -> None:
    """Those of an excluded timeline, also on a backup that was away then."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        await evicted(here, 1)
        here.world.crash("b1", restart=False)
        await here.ports.exclude(
            SafekeeperId(1), TIMELINE, members(3, 2), forever=False, timeout_s=1.0
        )
        await asyncio.sleep(1.0)
        here.world.restart("b1")
        await here.world.wait_ready("b1")
        here.see()
        await here.world.wait_until(
            lambda: not [name for n in (1, 2) for name in blobs(here, n)], 20.0, "no blob is left"
        )

    run(scenario, backups=2, settings=EVICTING)


def test_a_damaged_blob_is_found_out_and_another_copy_is_taken() -> None:
    """Checksums are looked at before anything of it is believed."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here, 1, 6)
        await evicted(here, 1)
        for path in here.world.nodes["b1"].disk.paths():
            if path.startswith("blobs/"):
                work = here.world.server("b1")._runtime.disk.replace(path, b"x" * 100)
                await here.world.spawn("b1", work)
        assert await entries_of(here, 1, 6) == [entry(1, n) for n in range(1, 7)]

    run(scenario, backups=2, settings=EVICTING)
