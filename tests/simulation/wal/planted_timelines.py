"""Bugs planted into how a timeline is kept and moves, by name: each leaves one safeguard out.

Those of the model in `spec/` that code could get wrong: what is told too early, quorums, the term
bump, positions, generations. Scenarios of whole safekeepers run with them (`safekeepers`, `wal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from stelae.actors.safekeeper.acceptor import ActiveTimeline
from stelae.actors.safekeeper.pulls import PullReceiver
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.consensus.wal.acceptor import AcceptorReady, WalAcceptor
from stelae.consensus.wal.leader import WalLeader
from stelae.consensus.wal.messages import ToProposer, WalAppendResponse, WalVoteResponse
from stelae.coordinator.timelines.migration_knowledge import Knowledge, SyncPoint
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import PullTimelineFrom
from stelae.core.records.timelines import NOBODY, SwitchReply, majority_lsn
from stelae.storage.files.timeline_control import TimelineControl, decode_control
from tests.simulation.world.planting import planting

LAZY_S = 0.3

_make_durable = ActiveTimeline._make_durable
_take_sync_point = Knowledge.take_sync_point
_exclude = TimelineStore.exclude


def _told_first(kind: type[ToProposer]) -> Any:
    """Messages of that kind are sent a while before what they say is durable."""

    async def told_first(
        self: ActiveTimeline, timeline: Timeline, acceptor: WalAcceptor, ready: AcceptorReady
    ) -> None:
        early = [message for message in ready.messages if isinstance(message, kind)]
        if early:
            self._send(early)
            await self._runtime.clock.sleep(LAZY_S)
        await _make_durable(self, timeline, acceptor, ready)

    return patch.object(ActiveTimeline, "_make_durable", told_first)


def _no_term(self: Knowledge) -> SyncPoint:
    point = _take_sync_point(self)
    self.sync = SyncPoint(point.position, 0, point.collected)
    return self.sync


def _term_for_last_log_term(self: WalAcceptor) -> SwitchReply:
    return SwitchReply(self.configuration, self.term, self.term, self.last_lsn)


def _one_quorum(self: WalLeader) -> None:
    """What the old members have is committed, whatever the new ones have."""
    lsn = majority_lsn(self.configuration.sk_set, self.acked)
    if self.may_commit(lsn):
        self._log.commit_lsn = lsn


def _any_old_member(self: Knowledge) -> bool:
    return any(member in self.replies for member in self.record.configuration.sk_set)


async def _always_copied(self: PullReceiver, order: PullTimelineFrom, timeout_s: float) -> Any:
    await self._copy(order)
    return await self._timelines.switch(order.timeline.tablet_id, order.configuration, 0, timeout_s)


def _not_cut(self: WalAcceptor, last_lsn: int) -> None:
    """What the leader's log does not have stays, below what it appends."""


async def _any_generation(self: TimelineStore, tablet_id: TabletId, generation: int) -> bool:
    known = self.control(tablet_id).generation
    return await _exclude(self, tablet_id, max(generation, known))


def _without_vote(where: str, tablet_id: TabletId, data: bytes) -> TimelineControl:
    control = decode_control(where, tablet_id, data)
    if control.acceptor is None:
        return control
    return replace(control, acceptor=replace(control.acceptor, voted_for=NOBODY))


@contextmanager
def _both(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "ack before sync": lambda: _told_first(WalAppendResponse),
    "vote before flush": lambda: _told_first(WalVoteResponse),
    "a start forgets the vote": lambda: patch(
        "stelae.actors.safekeeper.timeline_store.files.decode_control", _without_vote
    ),
    "no cut": lambda: patch.object(WalAcceptor, "_cut", _not_cut),
    "no term bump": lambda: patch.object(Knowledge, "take_sync_point", _no_term),
    "a reply has the term for that of the last entry": lambda: patch.object(
        WalAcceptor, "_position", _term_for_last_log_term
    ),
    "joint commit with one quorum": lambda: patch.object(WalLeader, "_advance_commit", _one_quorum),
    "finish without an old majority": lambda: patch.object(
        Knowledge, "has_old_majority", _any_old_member
    ),
    "pull overwrites a newer copy": lambda: _both(
        patch.object(PullReceiver, "_pull", _always_copied),
        patch("stelae.actors.safekeeper.timeline_store.pull.is_newer", lambda *given: True),
    ),
    "exclude ignores the generation": lambda: patch.object(
        TimelineStore, "exclude", _any_generation
    ),
}


planted = planting(BUGS)
