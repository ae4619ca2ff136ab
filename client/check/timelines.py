"""`stelae check` of tables with ``wal(n)``: where each log should be, and what its members have.

Where it should be the masters say; what is there each safekeeper says itself. The numbers of one
log are read one after the other while it grows: so a member is behind only if it lacks what was
committed a while before it was asked.

Invariants: judging is pure; asking changes nothing.

Implements design §10, §12 (``stelae check``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from stelae.client.check import hints as check_hints
from stelae.client.check.facts import (
    Finding,
    LogFacts,
    LogsAnswer,
    ServerFacts,
    Severity,
    StatusFacts,
    TabletFacts,
    Verdict,
)
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import (
    LIST_TIMELINES,
    HeldTimeline,
    ListTimelines,
    TimelinePresence,
)
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.records.records import ServerKind
from stelae.core.records.timelines import (
    SafekeeperId,
    SafekeeperStatus,
    TimelineConfiguration,
    has_majority,
)
from stelae.core.runtime import Runtime

BEHIND_S = 1.0
"""What was committed so long ago every member should have."""
NO_SPARE = "no other lives that could take over: start it again, or raise safekeepers.count"
PAGES_MAX = 1000
"""Of one safekeeper: a million logs."""

Reason = tuple[Verdict, str]


# ---- judging ------------------------------------------------------------------------------------


class TimelineJudge:
    """Judges each tablet's log; of tablets without one there is nothing to say."""

    def __init__(self, status: StatusFacts, logs: LogFacts | None) -> None:
        states = {
            server.safekeeper_id: server.status
            for server in status.servers
            if server.is_live and server.safekeeper_id is not None
        }
        self._live = set(states)
        self._active = {n for n, state in states.items() if state == SafekeeperStatus.ACTIVE}
        self._moves = {each.timeline.tablet_id: each for each in status.migrations}
        self._reached: Mapping[TabletId, int] = logs.reached if logs is not None else {}
        self._held = {
            answer.safekeeper_id: answer.held
            for answer in (logs.answers if logs is not None else ())
            if not answer.error
        }

    def judge(self, tablet: TabletFacts) -> tuple[Reason, ...]:
        """Its members live, and hold its log, in its configuration; no move is under way."""
        timeline = tablet.timeline
        if timeline is None:
            return ()
        return (
            *self._judge_absent(timeline),
            *_judge_move(timeline, self._moves.get(tablet.id)),
            *self._judge_held(tablet, timeline),
        )

    def _judge_absent(self, timeline: TimelineConfiguration) -> Iterable[Reason]:
        """Of each member set all live, or at least a majority."""
        spare = self._active - set(timeline.members)
        for members in timeline.member_sets:
            dead = [member for member in members if member not in self._live]
            named = ", ".join(map(str, dead))
            if not has_majority(members, self._live):
                text = f"its log has no majority of safekeepers {list(members)}: not live are"
                yield Verdict.UNAVAILABLE, f"{text} {named}"
            elif dead:
                hint = "" if len(spare) >= len(dead) else f"; {NO_SPARE}"
                text = f"of safekeepers {list(members)} of its log {named} are not live{hint}"
                yield Verdict.UNDER_REPLICATED, text

    def _judge_held(self, tablet: TabletFacts, timeline: TimelineConfiguration) -> Iterable[Reason]:
        """What the members of the (old) set say that they hold; new ones are brought up yet."""
        told = {
            member: self._held[member].get(tablet.id)
            for member in timeline.members
            if member in self._held
        }
        newest = max(
            (held.generation for held in told.values() if held is not None),
            default=timeline.generation,
        )
        if newest > timeline.generation:
            text = f"its members change: safekeepers know generation {newest} of its log, and the"
            yield Verdict.RECOVERING, f"{text} masters {timeline.generation} yet"
            return
        told_of = [member for member in timeline.sk_set if member in told]
        for member in told_of:
            yield from self._judge_member(tablet, timeline, member, told[member])
        there = [member for member in told_of if _is_there(told[member])]
        if has_majority(timeline.sk_set, told_of) and not has_majority(timeline.sk_set, there):
            yield Verdict.UNAVAILABLE, f"safekeepers {there} alone have its log: no majority"

    def _judge_member(
        self,
        tablet: TabletFacts,
        timeline: TimelineConfiguration,
        member: SafekeeperId,
        held: HeldTimeline | None,
    ) -> Iterable[Reason]:
        who = f"safekeeper {member}"
        if held is None:
            yield Verdict.UNDER_REPLICATED, f"{who} does not have its log"
            return
        if held.presence is TimelinePresence.FAILED:
            why = f": {held.problem}" if held.problem else ""
            hint = f"; to move it: stelae safekeeper migrate --tablet {tablet.id} --to …"
            yield Verdict.UNDER_REPLICATED, f"{who} has given its log up{why}{hint}"
            return
        known = held.configuration
        if held.generation < timeline.generation:
            text = f"{who} knows its members of generation {held.generation}, and not those of"
            yield Verdict.RECOVERING, f"{text} {timeline.generation} yet"
        elif known is not None and not _is_same(known, timeline):
            text = (
                f"generation {timeline.generation} of its log has the members "
                f"{_sets(timeline)} by the masters, and {_sets(known)} by {who}"
            )
            yield Verdict.MISMATCH, text
        lacks = self._reached.get(tablet.id, 0) - held.flush_lsn
        if lacks > 0:
            text = f"{who} is {lacks:,} entries of its log behind"
            yield Verdict.UNDER_REPLICATED, text


def _is_there(held: HeldTimeline | None) -> bool:
    return held is not None and held.presence is not TimelinePresence.FAILED


def _judge_move(
    timeline: TimelineConfiguration, progress: MigrationProgress | None
) -> Iterable[Reason]:
    if timeline.new_sk_set is None:
        return
    text = f"its log moves to safekeepers {list(timeline.new_sk_set)}"
    problems = [] if progress is None else sorted(progress.problems.items())
    failed = "".join(f"; {what}: {why}" for what, why in problems)
    yield Verdict.RECOVERING, text + failed


def _is_same(one: TimelineConfiguration, other: TimelineConfiguration) -> bool:
    return [sorted(each) for each in one.member_sets] == [
        sorted(each) for each in other.member_sets
    ]


def _sets(timeline: TimelineConfiguration) -> str:
    return " and ".join(str(list(each)) for each in timeline.member_sets)


def judge_logs(status: StatusFacts, logs: LogFacts) -> list[Finding]:
    """Every safekeeper says what it has, and has nothing that it should not have."""
    found: list[Finding] = []
    for answer in logs.answers:
        if answer.error:
            text = f"does not say which logs it has: {answer.error}"
            hint = check_hints.SETTLES
            found.append(Finding("logs", answer.server, text, Severity.WARNING, hint))
        foreign = sum(
            tablet.id in answer.held
            and tablet.timeline is not None
            and not tablet.timeline.is_joint
            and answer.held[tablet.id].generation < tablet.timeline.generation
            and answer.safekeeper_id not in tablet.timeline.members
            for tablet in status.tablets
        )
        if foreign:
            text = f"has {foreign} logs of which it is no member any more"
            hint = f"to remove what stays: stelae safekeeper scrub {answer.safekeeper_id}"
            found.append(Finding("logs", answer.server, text, Severity.NOTE, hint))
    return found


# ---- asking -------------------------------------------------------------------------------------


async def ask_logs(runtime: Runtime, status: StatusFacts, timeout_s: float) -> LogFacts | None:
    """Ask all safekeepers that live what they have; again, if somebody seems to be behind."""
    if not any(tablet.timeline is not None for tablet in status.tablets):
        return None
    keepers = [
        server
        for server in status.servers
        if server.is_live
        and server.kind == ServerKind.SAFEKEEPER
        and server.safekeeper_id is not None
    ]
    answers = await _ask_all(runtime, keepers, timeout_s)
    logs = LogFacts(answers, _committed(answers))
    if _is_behind(status, logs):
        await runtime.clock.sleep(BEHIND_S)
        logs = LogFacts(await _ask_all(runtime, keepers, timeout_s), logs.reached)
    return logs


async def _ask_all(
    runtime: Runtime, keepers: Sequence[ServerFacts], timeout_s: float
) -> tuple[LogsAnswer, ...]:
    return tuple(await asyncio.gather(*(_ask(runtime, keeper, timeout_s) for keeper in keepers)))


async def _ask(runtime: Runtime, keeper: ServerFacts, timeout_s: float) -> LogsAnswer:
    """All pages of one; ``timeout_s`` is for each."""
    number = keeper.safekeeper_id
    assert number is not None, "the others are not asked"
    held: dict[TabletId, HeldTimeline] = {}
    order = ListTimelines()
    try:
        for _ in range(PAGES_MAX):
            reply = await runtime.peers.call(
                keeper.address,
                LIST_TIMELINES,
                order,
                timeout_s=timeout_s,
                destination=keeper.uuid,
            )
            page = reply.body
            held |= {each.tablet_id: each for each in page.timelines}
            if not page.more or not page.timelines:
                break
            order = ListTimelines(page.timelines[-1].tablet_id)
    except StelaeError as error:
        return LogsAnswer(number, keeper.id, MappingProxyType({}), str(error))
    return LogsAnswer(number, keeper.id, held)


def _committed(answers: Sequence[LogsAnswer]) -> dict[TabletId, int]:
    """Up to where each log is committed, as far as any member knows."""
    reached: dict[TabletId, int] = {}
    for answer in answers:
        for tablet_id, held in answer.held.items():
            reached[tablet_id] = max(reached.get(tablet_id, 0), held.commit_lsn)
    return reached


def _is_behind(status: StatusFacts, logs: LogFacts) -> bool:
    """Whether any member lacks anything that another knows to be committed."""
    held = {answer.safekeeper_id: answer.held for answer in logs.answers}
    return any(
        tablet.id in held.get(member, {})
        and held[member][tablet.id].flush_lsn < logs.reached.get(tablet.id, 0)
        for tablet in status.tablets
        if tablet.timeline is not None
        for member in tablet.timeline.members
    )
