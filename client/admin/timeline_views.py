"""What people and programs see of safekeepers and timelines: documents, and what members say.

The documents are one, on the command line and over HTTP. Their names are the seed's, where *tenant*
is the table and *timeline* the tablet.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from stelae.core.errors import StelaeError
from stelae.core.ids import Address
from stelae.core.messages.safekeepers import TIMELINE_STATUS, HeldTimeline, TimelineStatusOf
from stelae.core.messages.timelines import (
    MigrationList,
    MigrationProgress,
    MigrationResult,
    SafekeeperView,
    ScheduledMigration,
    ScrubReply,
    TimelineView,
)
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.runtime import Peers


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of a timeline, and what it has of it."""

    safekeeper_id: SafekeeperId
    name: str
    address: Address
    held: HeldTimeline | None
    """None: it did not say; ``problem`` tells why."""
    problem: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        held = self.held
        found: dict[str, Any] = {
            "id": self.safekeeper_id,
            "name": self.name,
            "address": self.address,
            "problem": self.problem,
        }
        if held is None:
            return found
        return found | held_document(held)


async def ask_members(
    peers: Peers,
    view: TimelineView,
    known: Mapping[SafekeeperId, SafekeeperView],
    *,
    timeout_s: float,
) -> list[MemberView]:
    """Ask all members at once, and put together what they say, in the order of their ids."""
    places = {place.safekeeper_id: place for place in view.places}

    async def ask(member: SafekeeperId) -> MemberView:
        record = known.get(member)
        name = record.record.name if record is not None else ""
        place = places.get(member)
        if place is None or not place.address:
            return MemberView(member, name, Address(""), None, "it has not been heard of")
        try:
            reply = await peers.call(
                place.address,
                TIMELINE_STATUS,
                TimelineStatusOf(view.tablet.tablet_id),
                timeout_s=timeout_s,
                destination=place.uuid,
            )
        except StelaeError as error:
            return MemberView(member, name, place.address, None, str(error))
        return MemberView(member, name, place.address, reply.body, reply.body.problem)

    return list(await asyncio.gather(*map(ask, newest(view).members)))


def newest(view: TimelineView) -> TimelineConfiguration:
    """The configuration of the store, or, if it does not answer, what the catalog was told."""
    if not view.history:
        return view.configuration
    return view.history[-1].record.configuration


# ---- documents ------------------------------------------------------------------------------


def held_document(held: HeldTimeline) -> dict[str, Any]:
    """What a safekeeper has of a log."""
    return {
        "presence": held.presence.value,
        "generation": held.generation,
        "term": held.term,
        "last_log_term": held.last_log_term,
        "flush_lsn": held.flush_lsn,
        "commit_lsn": held.commit_lsn,
        "horizon_lsn": held.horizon_lsn,
        "base_lsn": held.base_lsn,
        "log_bytes": held.log_bytes,
    }


def safekeeper_document(view: SafekeeperView) -> dict[str, Any]:
    """One safekeeper; ``silent_s`` is null if this leader never heard it."""
    record = view.record
    return {
        "id": record.safekeeper_id,
        "name": record.name,
        "uuid": record.uuid,
        "node": record.node,
        "address": view.address,
        "status": record.status.value,
        "live": view.is_live,
        "silent_s": view.silent_s if math.isfinite(view.silent_s) else None,
        "timelines": view.timelines,
        "broken": view.broken,
    }


def timeline_document(view: TimelineView) -> dict[str, Any]:
    """Where a timeline is, and the migration under way, if any."""
    tablet, stored = view.tablet, view.history[-1].record if view.history else None
    return {
        "tenant_id": tablet.table_id,
        "timeline_id": tablet.tablet_id,
        "configuration": msgspec.to_builtins(newest(view)),
        "catalog_generation": view.configuration.generation,
        "unfinished": list(stored.unfinished) if stored is not None else [],
        "store_problem": view.store_problem,
        "migration": None if view.running is None else progress_document(view.running),
        "last_result": None if view.ended is None else result_document(view.ended),
    }


def progress_document(progress: MigrationProgress) -> dict[str, Any]:
    """A migration under way."""
    sync = progress.sync_position
    return {
        **_named(progress.timeline),
        "step": progress.step,
        "step_name": progress.step_name,
        "generation": progress.generation,
        "sk_set": list(progress.members),
        "desired_set": None if progress.desired is None else list(progress.desired),
        "waits_for": list(progress.waits_for),
        "problems": dict(progress.problems),
        "sync_position": None
        if sync is None
        else {"last_log_term": sync.last_log_term, "flush_lsn": sync.flush_lsn},
        "verdict": progress.verdict,
    }


def result_document(result: MigrationResult) -> dict[str, Any]:
    """How a request ended."""
    return {
        **_named(result.timeline),
        "request": result.request,
        "verdict": result.verdict,
        "reason": result.reason,
        "generation": result.generation,
        "finished": result.is_finished,
        "at": result.at,
    }


def scheduled_document(scheduled: ScheduledMigration) -> dict[str, Any]:
    """A request that was taken."""
    desired = list(scheduled.desired_set)
    return {**_named(scheduled.timeline), "desired_set": desired, "reason": scheduled.reason}


def migrations_document(migrations: MigrationList) -> dict[str, Any]:
    """What is under way, and how the last ones ended, the newest last."""
    return {
        "running": [progress_document(each) for each in migrations.running],
        "ended": [result_document(each) for each in migrations.ended],
    }


def scrub_document(found: ScrubReply) -> dict[str, Any]:
    """What a scrub has removed and left."""
    return {
        "held": found.held,
        "removed": [_named(timeline) for timeline in found.removed],
        "unknown": list(found.unknown),
        "problems": dict(found.problems),
    }


def _named(timeline: TimelineId) -> dict[str, Any]:
    return {"tenant_id": timeline.table_id, "timeline_id": timeline.tablet_id}
