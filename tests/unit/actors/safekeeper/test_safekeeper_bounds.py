"""What a safekeeper bounds, and what it refuses of other safekeepers and of masters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.safekeeper import acceptor as safekeeper_timeline
from stelae.actors.safekeeper import pull_sources, pulls, timelines
from stelae.actors.safekeeper.pull_sources import PullSources
from stelae.actors.safekeeper.timeline_store.pull import PullAttempt, TimelinePulls
from stelae.actors.safekeeper.timeline_store.snapshot import HeldSnapshot
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.consensus.wal.acceptor import AcceptorReady
from stelae.consensus.wal.messages import WAL_FETCH, FetchEntries
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    Overloaded,
    StelaeError,
    TabletNotReady,
)
from stelae.core.messages.safekeepers import (
    BEGIN_PULL,
    LIST_TIMELINES,
    READ_PULL,
    BeginPull,
    ListTimelines,
    PullPlan,
    ReadPull,
)
from stelae.core.records.timelines import SafekeeperId, SwitchReply
from stelae.core.rpc import Call, Reply
from tests.unit.actors.safekeeper.safekeeper_checks import ME, NONE
from tests.unit.actors.safekeeper.safekeeper_world import (
    OTHER,
    SETTINGS,
    TIMELINE,
    SafekeepersWorld,
    entry,
    members,
    run,
)

TABLET = TIMELINE.tablet_id
COUNT = 12
"""Entries in the log of the first safekeeper."""


async def call(here: SafekeepersWorld, method: Any, body: msgspec.Struct) -> Reply[Any]:
    """Ask the first safekeeper."""
    info = here.server(1).info
    return await here.client.peers.call(
        info.address, method, body, timeout_s=2.0, destination=info.uuid
    )


async def fill(here: SafekeepersWorld) -> None:
    """A timeline on the first safekeeper, in several files."""
    await here.put(1, members(1))
    session = here.voice.session(1, "a", 1)
    await session.lead([])
    for index in range(1, COUNT + 1):
        await session.append([entry(1, index)], index - 1)


async def pull(here: SafekeepersWorld) -> SwitchReply:
    """Let the second safekeeper copy it from the first."""
    return await here.ports.pull_timeline(
        SafekeeperId(2), ME, TIMELINE, members(2), at_least=NONE, timeout_s=3.0
    )


def error_names(found: list[Any]) -> list[str]:
    return [type(each).__name__ for each in found if isinstance(each, StelaeError)]


class Gate:
    """Holds up what makes a timeline durable."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()
        self._carry_out = Timeline.carry_out

    def patched(self) -> Any:
        async def held(timeline: Timeline, ready: AcceptorReady) -> None:
            self.reached.set()
            await self.opened.wait()
            await self._carry_out(timeline, ready)

        return patch.object(Timeline, "carry_out", held)


# ---- a timeline at work -------------------------------------------------------------------------


def test_calls_that_wait_for_one_timeline_are_bounded() -> None:
    """The others are told so, and those that were taken are answered."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        gate = Gate()
        with patch.object(safekeeper_timeline, "ASKS_MAX", 2), gate.patched():
            puts = [asyncio.ensure_future(here.put(1, members(2 + n))) for n in range(5)]
            await gate.reached.wait()
            await asyncio.sleep(0.1)
            gate.opened.set()
            found = await asyncio.gather(*puts, return_exceptions=True)
        assert Counter(error_names(found)) == {"Overloaded": 3}
        assert sum(isinstance(each, SwitchReply) for each in found) == 2

    run(scenario)


def test_addresses_of_proposers_are_bounded_and_the_newest_are_kept() -> None:
    """Proposers come and go, and a safekeeper that forgets none of them grows without end."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        with patch.object(safekeeper_timeline, "PROPOSERS_MAX", 3):
            for name in ("p1", "p2", "p3", "p1", "p4"):
                await here.voice.session(1, name, 1).greet()
        assert list(here.server(1).timelines.active(TABLET)._addresses) == ["p3", "p1", "p4"]

    run(scenario)


def test_a_fetch_is_answered_with_no_more_than_a_message_takes() -> None:
    """However much the caller asks for."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        fetch = FetchEntries(TABLET, 1, 1, 1, COUNT, 1 << 30)
        assert len((await call(here, WAL_FETCH, fetch)).body.entries) == COUNT
        with patch.object(safekeeper_timeline, "FETCH_BYTES_MAX", 150):
            found = (await call(here, WAL_FETCH, fetch)).body.entries
        assert [each.index for each in found] == [1]

    run(scenario)


def test_what_is_committed_and_not_durable_here_is_not_said_to_be() -> None:
    """The proposer has a majority without this safekeeper: its disk may still lose the entries."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session, active = here.voice.session(1, "a", 1), here.server(1).timelines.active(TABLET)
        await session.lead([])
        gate = Gate()
        with gate.patched():
            await here.voice.tell(1, session.request([entry(1, n) for n in range(1, 4)], 3))
            await gate.reached.wait()
            assert active.commit_lsn == 0
            gate.opened.set()
            await here.world.wait_until(lambda: active.commit_lsn == 3, 2.0, "it is durable")

    run(scenario)


def test_a_timeline_that_was_replaced_waits_for_the_write_of_its_former_acceptor() -> None:
    """Two acceptors at work over one queue would answer for each other."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session, server = here.voice.session(1, "a", 1), here.server(1)
        await session.lead([])
        gate, store = Gate(), server.timelines.store(TABLET)
        with gate.patched():
            await here.voice.tell(1, session.request([entry(1, 1)]))
            await gate.reached.wait()
            await here.within(1, store.delete(TABLET, members(2, 2, 3)))
            await here.within(1, store.create(TABLET, members(3)))
            with pytest.raises(TabletNotReady, match="being replaced"):
                await here.voice.tell(1, session.request([entry(1, 2)]))
            gate.opened.set()
            await here.world.wait_until(
                lambda: server.timelines.active(TABLET).is_resting, 2.0, "it ends"
            )
        await here.voice.session(1, "b", 5, 3).greet()
        assert store.timeline(TABLET).flush_lsn == 0, "nothing of the former one is here"

    run(scenario)


def test_an_acceptor_goes_with_its_timeline() -> None:
    """Whoever deleted it: what is asked for next finds nothing of it in memory."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        server = here.server(1)
        assert TABLET in server.timelines._active
        store = server.timelines.store(TABLET)
        await here.within(1, store.delete(TABLET, members(2, 2, 3)))
        assert server.timelines.find(TABLET) is None
        assert TABLET not in server.timelines._active

    run(scenario)


def test_lists_come_in_pages_of_a_bounded_size() -> None:
    """Also for whoever asks for none, or for more than there may be in one."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        await here.put(1, members(1), timeline=OTHER)
        with patch.object(timelines, "LIST_MAX", 1):
            for limit in (-5, 0, 1, 1000):
                page = (await call(here, LIST_TIMELINES, ListTimelines(limit=limit))).body
                assert [each.tablet_id for each in page.timelines] == [TABLET]
                assert page.more

    run(scenario)


def test_what_can_be_no_configuration_is_adopted_by_no_timeline() -> None:
    """Whether it exists already or not."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        twice, unborn = members(2, 1, 1), members(0)
        for wrong in (twice, unborn):
            for timeline in (TIMELINE, OTHER):
                with pytest.raises(InvalidArgument):
                    await here.put(1, wrong, timeline=timeline)
        found = await here.put(1, members(1))
        assert found is not None
        assert found.conf == members(1)

    run(scenario)


# ---- the giving end of pulls --------------------------------------------------------------------


def test_sessions_are_one_for_each_receiver_and_bounded() -> None:
    """A receiver that begins again has lost the answer. Sessions that are being opened count."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        sources = here.server(1).sources
        for _ in range(3):
            await call(here, BEGIN_PULL, BeginPull(TABLET, SafekeeperId(2)))
        assert sources.session_count == 1
        take = HeldSnapshot.take

        async def slow(self: HeldSnapshot) -> None:
            await asyncio.sleep(0.2)
            await take(self)

        with (
            patch.object(pull_sources, "SESSIONS_MAX", 3),
            patch.object(HeldSnapshot, "take", slow),
        ):
            begun = [
                call(here, BEGIN_PULL, BeginPull(TABLET, SafekeeperId(3 + n))) for n in range(5)
            ]
            found = await asyncio.gather(*begun, return_exceptions=True)
            assert Counter(error_names(found)) == {"Overloaded": 3}
            assert sources.session_count == 3
            with pytest.raises(Overloaded):
                await call(here, BEGIN_PULL, BeginPull(TABLET, SafekeeperId(9)))
            await call(here, BEGIN_PULL, BeginPull(TABLET, SafekeeperId(2)))

    run(scenario)


def test_pieces_have_at_least_a_byte_and_at_most_what_a_message_takes() -> None:
    """A receiver is not believed to know how large a piece may be."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        plan = (await call(here, BEGIN_PULL, BeginPull(TABLET, SafekeeperId(2)))).body
        file = plan.snapshot.files[0]
        for size_bytes in (0, -1):
            with pytest.raises(InvalidArgument, match="a piece of"):
                await call(here, READ_PULL, ReadPull(plan.session, file, 0, size_bytes))
        here.server(1).sources._settings = msgspec.structs.replace(SETTINGS, copy_piece_bytes=64)
        reply = await call(here, READ_PULL, ReadPull(plan.session, file, 0, file.size_bytes))
        assert file.size_bytes > 64
        assert memoryview(reply.blobs[0]).nbytes == 64

    run(scenario)


# ---- the receiving end --------------------------------------------------------------------------


def test_the_log_of_another_timeline_is_not_taken_for_the_one_that_was_asked_for() -> None:
    """The source answers for the wrong one: nothing of that is here afterwards."""
    begin = PullSources._on_begin

    async def wrong(self: PullSources, call: Call[BeginPull]) -> Reply[PullPlan]:
        reply = await begin(self, call)
        snapshot = msgspec.structs.replace(reply.body.snapshot, tablet_id=OTHER.tablet_id)
        return Reply(PullPlan(reply.body.session, snapshot))

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        with patch.object(PullSources, "_on_begin", wrong):
            await here.restart(1)  # its handlers are bound when it starts
            await _with_id(here)
            with pytest.raises(InvalidArgument, match=f"gives {OTHER.tablet_id} for {TABLET}"):
                await pull(here)
        assert here.server(2).timelines.held == []

    run(scenario)


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_piece_of_another_size_than_was_asked_for_is_refused(extra: int) -> None:
    """Its place in the file would be another one."""
    read = HeldSnapshot.read

    async def other(self: HeldSnapshot, *args: Any) -> bytes:
        piece = bytes(await read(self, *args))
        return piece[:extra] if extra < 0 else piece + b"x"

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        with (
            patch.object(HeldSnapshot, "read", other),
            pytest.raises(CorruptData, match="is cut"),
        ):
            await pull(here)

    run(scenario)


def test_a_copy_that_is_deleted_at_once_is_no_success() -> None:
    """The caller asks again, and is not told that the timeline is gone for good."""
    finish = TimelinePulls.finish

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)

        async def deleted(self: TimelinePulls, attempt: PullAttempt) -> Any:
            found = await finish(self, attempt)
            await here.server(2).timelines.exclude(TABLET, members(3, 1, 3))
            return found

        with (
            patch.object(TimelinePulls, "finish", deleted),
            pytest.raises(TabletNotReady, match="deleted at once"),
        ):
            await pull(here)

    run(scenario)


def test_what_came_of_a_pull_stays_while_a_call_works_on_it() -> None:
    """However long ago its last piece came; without a call it is removed after a while."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        receiver = here.server(2).pulls
        with patch.object(PullSources, "_on_read", _hang):
            await here.restart(1)
            await _with_id(here)
            pulling = asyncio.ensure_future(_long_pull(here))
            await here.world.wait_until(lambda: bool(receiver._attempts), 3.0, "it has begun")
            with patch.object(pulls, "ABANDONED_FACTOR", 0):
                await here.within(2, receiver.abandon_old())
                assert list(receiver._attempts) == [TABLET]
            with pytest.raises(StelaeError):
                await pulling
            await here.world.wait_until(lambda: not receiver._active, 2.0, "the call has ended")
        assert list(receiver._attempts) == [TABLET]
        await here.within(2, receiver.abandon_old())
        assert list(receiver._attempts) == [TABLET], "somebody may go on with it"
        with patch.object(pulls, "ABANDONED_FACTOR", 0):
            await here.within(2, receiver.abandon_old())
        assert not receiver._attempts

    run(scenario)


async def _hang(self: PullSources, call: Call[ReadPull]) -> Reply[Any]:
    await asyncio.Event().wait()
    raise AssertionError("never")


async def _with_id(here: SafekeepersWorld) -> None:
    await here.world.wait_until(
        lambda: here.is_up(1) and here.server(1).safekeeper_id == ME, 5.0, "it has its id"
    )


async def _long_pull(here: SafekeepersWorld) -> SwitchReply:
    return await here.ports.pull_timeline(
        SafekeeperId(2), ME, TIMELINE, members(2), at_least=NONE, timeout_s=2.0
    )
