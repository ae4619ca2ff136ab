"""A safekeeper whose process ends at each step of its disk: what it had answered holds.

One story goes through all that changes a timeline; the caller repeats what was cut short, as
proposers and drivers do. Bugs planted into the answers show that the story would tell.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.safekeeper.acceptor import ActiveTimeline
from stelae.consensus.wal.messages import (
    Refusal,
    RefusalReason,
    ToProposer,
    WalAppendResponse,
    WalVoteResponse,
)
from stelae.core.errors import StelaeError, TabletTombstoned
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.simulation import Options
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.safekeeper.safekeeper_world import (
    EVICTING,
    TIMELINE,
    SafekeepersWorld,
    Session,
    entry,
    members,
    run,
)

OPTIONS = Options(keep_unsynced_rate=0.3, flip_rate=0.2, restart_min_s=0.01, restart_mean_s=0.05)
TRIES_MAX = 60


class Story:
    """What the first safekeeper lives through, and what it has answered so far."""

    def __init__(self, here: SafekeepersWorld) -> None:
        self.here = here
        self.acknowledged: dict[int, int] = {}
        """By term, up to where the log was said to be durable."""

    async def put(self, configuration: TimelineConfiguration, min_term: int = 0) -> SwitchReply:
        reply = await self.here.insist(lambda: self.here.put(1, configuration, min_term=min_term))
        assert reply is not None
        assert reply.conf == configuration
        assert reply.term >= min_term
        return reply

    async def write(
        self, term: int, generation: int, log: list[Entry], own: list[Entry], horizon_lsn: int = 0
    ) -> None:
        """A proposer is voted for, elected over ``log``, and appends what is its own, in two."""
        for _ in range(TRIES_MAX):
            session = self.here.voice.session(1, f"p{term}", term, generation)
            try:
                if await self._write(session, log, own, horizon_lsn):
                    return
            except (StelaeError, TimeoutError):
                await asyncio.sleep(0.05)
        raise AssertionError(f"term {term} never came to an end")

    async def _write(
        self, session: Session, log: list[Entry], own: list[Entry], horizon_lsn: int
    ) -> bool:
        await session.greet()
        vote = await session.vote()
        assert not _is_refused(vote, RefusalReason.TERM), f"the vote is another's: {vote}"
        if not isinstance(vote, WalVoteResponse):
            return False
        await self.check_vote(session)
        answer = await session.elected(log, own=own)
        whole = [*log, *own]
        for end in (len(log) + 1, len(whole)):
            if not isinstance(answer, WalAppendResponse):
                return False
            known = self.acknowledged.get(session.term, 0)
            assert answer.flush_lsn >= known, f"{known} was acknowledged: {answer}"
            self.acknowledged[session.term] = answer.flush_lsn
            rest = whole[answer.flush_lsn : end]
            answer = await session.append(rest, len(log), horizon_lsn)
        if isinstance(answer, WalAppendResponse):
            self.acknowledged[session.term] = answer.flush_lsn
            answer = await session.append([], len(log), horizon_lsn)
        return isinstance(answer, WalAppendResponse) and answer.flush_lsn == len(whole)

    async def check_vote(self, voted: Session) -> None:
        """Nobody else gets the vote of that term any more, also not after a crash."""

        async def ask() -> ToProposer:
            rival = self.here.voice.session(1, "rival", voted.term, voted.generation)
            try:
                await rival.greet()
                return await rival.vote()
            except TimeoutError as error:
                raise StelaeError("no answer") from error

        answer = await self.here.insist(ask)
        assert not isinstance(answer, WalVoteResponse), f"a second vote in term {voted.term}"

    async def check_log(self, log: list[Entry]) -> None:
        """All that was acknowledged is there, and nothing else."""

        async def look() -> list[Entry]:
            store = self.here.server(1).timelines.store(TIMELINE.tablet_id)
            timeline = store.timeline(TIMELINE.tablet_id)
            first = timeline.base_lsn + 1
            found = await self.here.ports.timeline_status(
                SafekeeperId(1), TIMELINE.tablet_id, timeout_s=1.0
            )
            assert found.flush_lsn == len(log), found
            read = timeline.read(first, len(log), 1 << 20)
            task = self.here.world.spawn("sk1", read)
            done, _ = await asyncio.wait([task], timeout=1.0)
            if not done:
                raise StelaeError("it died")
            if not task.result():
                raise StelaeError("it was trimmed meanwhile")
            return [*log[: first - 1], *task.result()]

        async def up() -> list[Entry]:
            if not self.here.is_up(1):
                raise StelaeError("it is down")
            return await look()

        assert await self.here.insist(up) == log

    async def exclude(self, configuration: TimelineConfiguration) -> None:
        here, me = self.here, SafekeeperId(1)
        await here.insist(
            lambda: here.ports.exclude(me, TIMELINE, configuration, forever=False, timeout_s=1.0)
        )

        async def status() -> bool:
            try:
                await here.ports.timeline_status(me, TIMELINE.tablet_id, timeout_s=1.0)
            except TabletTombstoned:
                return True
            return False

        assert await here.insist(status), "it is back"

    async def pull(self, configuration: TimelineConfiguration, position: LogPosition) -> None:
        here = self.here
        reply = await here.insist(
            lambda: here.ports.pull_timeline(
                SafekeeperId(1),
                SafekeeperId(2),
                TIMELINE,
                configuration,
                at_least=position,
                timeout_s=2.0,
            )
        )
        assert reply.position >= position
        assert reply.conf == configuration

    async def tell(self) -> None:
        """All of it: creation, terms, a cut, a trim, a deletion, a pull, and an eviction."""
        await self.put(members(1))
        first = [entry(1, n) for n in range(1, 5)]
        await self.write(1, 1, [], first)
        await self.check_log(first)
        await self.put(members(2, 1, 2, 4), 5)
        log = first[:2]
        second = [entry(6, n) for n in range(3, 15)]
        await self.write(6, 2, log, second)
        await self.check_log([*log, *second])
        whole = [*log, *second]
        third = [entry(7, n) for n in range(15, 17)]
        await self.write(7, 2, whole, third, horizon_lsn=9)
        whole += third
        await self.check_log(whole)
        await self.here.put(2, members(3, 1, 2))
        session = self.here.voice.session(2, "p8", 8, 3)
        await session.lead([])
        copied = [entry(8, n) for n in range(1, 15)]
        answer = await session.append(copied, 14)
        assert isinstance(answer, WalAppendResponse)
        await self.exclude(members(3, 2, 3))
        await self.pull(members(4, 1, 2), LogPosition(8, 14))
        await self.check_log(copied)
        await asyncio.sleep(1.5)  # it is evicted meanwhile, if that is to be
        last = [entry(9, n) for n in range(15, 18)]
        await self.write(9, 4, copied, last)
        await self.check_log([*copied, *last])


def _is_refused(answer: ToProposer, reason: RefusalReason) -> bool:
    return isinstance(answer, Refusal) and answer.reason is reason


def crash_at(step: int, *, is_after: bool, evicting: bool = False) -> bool:
    """Tell the story with a crash; false if there is no such step."""
    plans = []

    async def scenario(here: SafekeepersWorld) -> None:
        plan = here.steps["sk1"]
        plans.append(plan)
        plan.arm(step, is_after=is_after)
        seeing = asyncio.ensure_future(keep_seeing(here))
        await Story(here).tell()
        seeing.cancel()

    settings = {"settings": EVICTING, "backups": 2} if evicting else {}
    run(scenario, safekeepers=2, seed=f"{step}/{is_after}", options=OPTIONS, **settings)  # type: ignore[arg-type]
    return plans[0].crashed


async def keep_seeing(here: SafekeepersWorld) -> None:
    while True:
        here.see()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("evicting", [False, True], ids=["at home", "evicted"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_what_was_answered_holds_after_a_crash_at_any_step(is_after: bool, evicting: bool) -> None:
    """Votes, acknowledgements, configurations, tombstones and copies: durable, then answered."""
    step = 0
    while crash_at(step, is_after=is_after, evicting=evicting):
        step += 1
    assert step > 40, "the story has many steps"


_make_durable = ActiveTimeline._make_durable


def _told_first(kind: type[ToProposer]) -> Any:
    async def told_first(self: ActiveTimeline, timeline: Any, acceptor: Any, ready: Any) -> None:
        self._send([message for message in ready.messages if isinstance(message, kind)])
        await self._runtime.clock.sleep(0.02)
        await _make_durable(self, timeline, acceptor, ready)

    return told_first


@pytest.mark.parametrize(
    "kind", [WalAppendResponse, WalVoteResponse], ids=["ack before sync", "vote before flush"]
)
def test_a_safekeeper_that_answers_too_early_is_found_out(kind: type[ToProposer]) -> None:
    """Some crash between the answer and the sync makes the story fail."""
    found = []
    with patch.object(ActiveTimeline, "_make_durable", _told_first(kind)):
        for step in range(60):
            try:
                if not crash_at(step, is_after=False):
                    break
            except SimulationFailure as failure:
                found.append(failure)
    assert found
