"""Waiting for a migration, and asking the members of a timeline, against scripted answers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stelae.client.admin.safekeepers import WATCH_S, SafekeeperCalls
from stelae.client.admin.timeline_views import newest, safekeeper_document, timeline_document
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument, RetryLater, TabletTombstoned
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.safekeepers import TIMELINE_STATUS, HeldTimeline, TimelinePresence
from stelae.core.messages.timelines import (
    LIST_SAFEKEEPERS,
    LOCATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    MigrationProgress,
    MigrationResult,
    SafekeeperList,
    SafekeeperView,
    ScrubReply,
    TimelineView,
)
from stelae.core.records.configurations import StoredRecord, TimelineId, TimelineRecord
from stelae.core.records.records import SafekeeperRecord, TabletRecord, TabletState
from stelae.core.records.timelines import SafekeeperId, SafekeeperPlace, TimelineConfiguration
from tests.unit.client.routing.scripted import MASTER, Scripted

TIMELINE = TimelineId(TableId("a" * 32), TabletId("b" * 32))
RUNNING = MigrationProgress(TIMELINE, 5, "pull", 2, (), None, (), {}, 0.0, 0.0)


class Calls(SafekeeperCalls):
    """The calls alone, over a script."""

    def __init__(self) -> None:
        self.scripted = Scripted()
        self.runtime = self.scripted  # type: ignore[assignment]
        self._masters = MastersClient(self.runtime, [MASTER])


def ids(numbers: Sequence[int]) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(number) for number in numbers)


def at(
    generation: int, members: Sequence[int], new: Sequence[int] | None = None
) -> TimelineConfiguration:
    return TimelineConfiguration(generation, ids(members), None if new is None else ids(new))


def view(
    told: TimelineConfiguration, stored: TimelineConfiguration | None = None, **more: Any
) -> TimelineView:
    """``stored``: of the store, if it answers."""
    tablet = TabletRecord(
        TIMELINE.tablet_id, TIMELINE.table_id, 0, TabletState.RUNNING, 1, ServerUuid(""), 0
    )
    record = None if stored is None else TimelineRecord(TIMELINE, stored)
    history = () if record is None else (StoredRecord(1, record, 0.0, "w", "n"),)
    return TimelineView(tablet, told, (), history, **more)


def ended(request: str, verdict: str, reason: str = "") -> MigrationResult:
    return MigrationResult(TIMELINE, request, verdict, reason, 1, True, 0.0)


OLD, JOINT, NEW = at(1, (1, 2, 3)), at(2, (1, 2, 3), (2, 3, 4)), at(3, (4, 3, 2))


def wait(*looks: TimelineView, timeout: float = 60.0) -> tuple[TimelineView, Calls]:
    calls = Calls()
    calls.scripted.peers.script(LOCATE_TIMELINE.name, *looks)
    work = calls.wait_migrated(TIMELINE.tablet_id, [2, 3, 4], timeout=timeout)
    return asyncio.run(work), calls


def test_it_waits_until_the_catalog_knows_the_new_members() -> None:
    """Not while it is joint, nor while only the store has them; in whatever order they are."""
    looks = [
        view(OLD, OLD, running=RUNNING),
        view(JOINT, JOINT, running=RUNNING),
        view(JOINT, NEW),
        view(JOINT, NEW),
        view(JOINT, NEW),
        view(NEW, NEW),
    ]
    found, calls = wait(*looks)
    assert found.configuration == NEW
    assert calls.scripted.clock.sleeps == [WATCH_S] * 5


def test_a_request_that_ended_otherwise_is_told_with_its_reason() -> None:
    """As soon as two looks agree: the parts of one look are not of one moment."""
    refused = view(OLD, OLD, ended=ended("move to [2, 3, 4]", "unreachable", "4 is silent"))
    with pytest.raises(RetryLater, match=r"stays on .*\[1, 2, 3\].* unreachable: 4 is silent"):
        wait(refused, refused)
    found, _ = wait(refused, view(NEW, NEW))
    assert found.configuration == NEW


def test_an_order_that_ended_under_an_earlier_leader_is_told() -> None:
    """Nobody works on it and it is not under way: to wait on would be to wait for ever."""
    lost = view(OLD, OLD)
    with pytest.raises(RetryLater, match="saw how the order ended leads no more"):
        wait(lost, lost)


def test_one_that_is_joint_or_unknown_is_waited_for() -> None:
    """A new leader finishes what is joint; a store that does not answer says nothing."""
    joint, silent = view(OLD, JOINT), view(OLD, store_problem="silent")
    found, _ = wait(joint, joint, joint, silent, silent, silent, view(NEW, NEW))
    assert found.configuration == NEW


def test_waiting_ends_by_its_deadline() -> None:
    """With an error that is no promise: the migration goes on."""
    with pytest.raises(RetryLater, match="has not moved within 1 s"):
        wait(*[view(OLD, OLD, running=RUNNING)] * 9, timeout=1.0)


def test_members_are_asked_themselves_and_one_that_is_silent_keeps_up_nobody() -> None:
    """In the order of their ids, of both sets while it is joint; each at its address."""
    calls = Calls()
    names = [
        SafekeeperView(
            SafekeeperRecord(SafekeeperId(n), ServerUuid(str(n)), f"s{n}", "node"),
            True, 0.0, Address(f"s:{n}"), 1,
        )
        for n in (1, 2, 3, 4)
    ]  # fmt: skip
    calls.scripted.peers.script(LIST_SAFEKEEPERS.name, SafekeeperList(tuple(names)))
    held = HeldTimeline(TIMELINE.tablet_id, TimelinePresence.RESIDENT, JOINT, 7, 7, 30, 20)
    gone = TabletTombstoned(TIMELINE.tablet_id, "s2")
    calls.scripted.peers.script(TIMELINE_STATUS.name, held, gone, held)
    places = tuple(
        SafekeeperPlace(SafekeeperId(n), ServerUuid(str(n)), Address(f"s:{n}" if n < 4 else ""))
        for n in (1, 2, 3, 4)
    )
    seen = msgspec.structs.replace(view(OLD, JOINT), places=places)
    found = asyncio.run(calls.timeline_members(seen))
    assert [(each.safekeeper_id, each.name) for each in found] == [
        (1, "s1"), (2, "s2"), (3, "s3"), (4, "s4"),
    ]  # fmt: skip
    first, second, third, fourth = (each.document() for each in found)
    assert (first["term"], first["flush_lsn"], first["commit_lsn"]) == (7, 30, 20)
    assert first["generation"] == third["generation"] == 2
    assert second["problem"] == str(gone)
    assert "flush_lsn" not in second
    assert fourth["problem"] == "it has not been heard of"
    asked = [a for a, name, _, _ in calls.scripted.peers.calls if name == TIMELINE_STATUS.name]
    assert asked == ["s:1", "s:2", "s:3"]


def test_the_store_has_the_say_in_what_is_shown() -> None:
    """What the catalog was told is named beside it; without the store it stands for it."""
    assert newest(view(OLD, JOINT)) == JOINT
    assert newest(view(OLD, store_problem="silent")) == OLD
    shown = timeline_document(view(OLD, JOINT))
    assert shown["configuration"]["new_sk_set"] == (2, 3, 4)
    assert (shown["catalog_generation"], shown["unfinished"]) == (1, ["joint", "not notified"])


def test_documents_are_json_whatever_was_heard() -> None:
    """A safekeeper that this leader never heard has been silent for ever, which JSON cannot say."""
    record = SafekeeperRecord(SafekeeperId(1), ServerUuid("u"), "s", "n")
    never = safekeeper_document(SafekeeperView(record, False, math.inf, Address(""), 0))
    assert json.loads(json.dumps(never, allow_nan=False))["silent_s"] is None


def test_a_scrub_without_an_answer_is_an_error() -> None:
    """That may be repeated; and a status that there is not is refused before anybody is asked."""
    calls = Calls()
    reply = ScrubReply(0, (), (), {}, silence="s2 is away")
    calls.scripted.peers.script(SCRUB_SAFEKEEPER.name, reply)
    with pytest.raises(RetryLater, match="safekeeper 2 cannot be scrubbed: s2 is away"):
        asyncio.run(calls.scrub_safekeeper(2))
    asked = len(calls.scripted.peers.calls)
    with pytest.raises(InvalidArgument, match="active, offline, decommissioned"):
        asyncio.run(calls.set_safekeeper_status(2, "gone"))
    assert len(calls.scripted.peers.calls) == asked
