"""The segments of a ``wal`` tablet's log that its timeline was trimmed of: they are on backups.

Which they are only the timeline says, which nobody but the tablet's owner reads: so it is the owner
that finds one missing. It waits then, names what it lacks in its reports, and asks the backups
again: the tablet comes back by itself with whoever holds that, in the same term. Only what an
operator has given up (`stelae.coordinator.ddl.losses`) is done without, and is not read even if
it is there.

Source: design §9, §10, §13 (never silently short; what is missing is said).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.tablet_log.recovery import FetchedSegment, Intake, fetch_segments
from stelae.core.config.settings import Settings
from stelae.core.errors import SegmentsMissing, StelaeError
from stelae.core.ids import ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import FENCE_LOGS, FenceLogs, LogInventory
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import SegmentFacts
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime
from stelae.recovery.plan import plan_sealed
from stelae.storage.entries.timeline_tail import Tail

LOOK_AGAIN_S = 1.0
"""Before backups are asked again for what is missing."""


class OpeningLog(Protocol):
    """What is asked of the log."""

    runtime: Runtime
    settings: Settings
    members: Membership
    tablet_id: TabletId
    term: int

    def check_alive(self) -> None:
        """Raise what has ended the log."""


class TrimmedSegments:
    """Fetches them for one log, in one term."""

    def __init__(self, log: OpeningLog, intake: Intake, given_up: Sequence[int]) -> None:
        self.waits_for = ""
        """In words; empty: nothing."""
        self.lacks: tuple[SegmentFacts, ...] = ()
        """Segments that no live backup holds."""
        self.unreached: tuple[ServerUuid, ...] = ()
        """Backups that did not answer the last look, while segments are missing."""
        self._log = log
        self._intake = intake
        self._given_up = frozenset(given_up)

    async def fetch(self, tail: Tail, sources: Sequence[SegmentSource]) -> list[FetchedSegment]:
        """All that ``tail`` is the end of, in order; waits as long as it takes.

        ``sources``: where segments were when the masters asked. Raises what has ended the log.
        """
        wanted = [segment for segment in tail.on_backups if segment not in self._given_up]
        while True:
            self._log.check_alive()
            by_id = {source.segment_id: source for source in sources}
            missing = [segment for segment in wanted if segment not in by_id]
            self.lacks = tail.facts_of(missing)
            if missing:
                self._wait(SegmentsMissing(self._log.tablet_id, _names(missing)))
            else:
                silent, self.unreached = self.unreached, ()  # a long fetch needs none of them
                try:
                    found = await self._fetch([by_id[segment] for segment in wanted])
                except SegmentsMissing as error:  # what a backup finds damaged it offers no more
                    self.unreached = silent
                    self._wait(error)
                else:
                    self.waits_for = ""
                    return found
            with self._intake.waiting():
                await self._log.runtime.clock.sleep(LOOK_AGAIN_S)
                sources = plan_sealed(await self._look())

    async def _fetch(self, sources: Sequence[SegmentSource]) -> list[FetchedSegment]:
        log = self._log
        return await fetch_segments(log.runtime, log.settings, log.tablet_id, sources, self._intake)

    def _wait(self, error: SegmentsMissing) -> None:
        self.waits_for = f"{error}; see `stelae recover`"
        self._log.runtime.metrics.count("logs_incomplete")

    async def _look(self) -> dict[ServerInfo, LogInventory]:
        """What all live backups hold now, fenced in this term: one that comes back has not been."""
        backups = self._log.members.all_backups()
        silent: dict[ServerUuid, None] = {}
        asked = await asyncio.gather(*(self._ask(backup, silent) for backup in backups))
        self.unreached = tuple(silent)
        pairs = zip(backups, asked, strict=True)
        return {backup: inventory for backup, inventory in pairs if inventory is not None}

    async def _ask(self, backup: ServerInfo, silent: dict[ServerUuid, None]) -> LogInventory | None:
        """What it has of the log. ``silent``: those that do not answer."""
        log = self._log
        try:
            reply = await log.runtime.peers.call(
                backup.address,
                FENCE_LOGS,
                FenceLogs(((log.tablet_id, log.term),)),
                timeout_s=log.settings.call_timeout_s,
                destination=backup.uuid,
            )
        except StelaeError:
            log.runtime.metrics.count("inventories_failed")
            silent[backup.uuid] = None
            return None
        return next((each for each in reply.body.logs if each.tablet_id == log.tablet_id), None)


def _names(segments: Sequence[int]) -> str:
    return f"segments {', '.join(map(segment_name, segments))}"
