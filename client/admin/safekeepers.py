"""What operators ask of a cluster about safekeepers and timelines: list, set, migrate, scrub.

All of it is asked of the leader master. Migrations are scheduled there and go on by themselves,
whoever leads; `SafekeeperCalls.wait_migrated` watches one until it has ended. Once an order is
acknowledged it is carried out or given up with a reason, and none of the same client's that came
before it changes anything any more, however late a copy arrives.

Implements seed 004 ("API"); design §10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.client.admin.timeline_views import MemberView, ask_members, newest
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import (
    ABORT_MIGRATION,
    LIST_MIGRATIONS,
    LIST_SAFEKEEPERS,
    LIST_TIMELINES,
    LOCATE_TIMELINE,
    MIGRATE_SAFEKEEPER,
    MIGRATE_TABLE,
    MIGRATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    SET_SAFEKEEPER_STATUS,
    AbortMigration,
    ListMigrations,
    ListSafekeepers,
    LocateTimeline,
    MigrateSafekeeper,
    MigrateTable,
    MigrateTimeline,
    MigrationList,
    MigrationResult,
    SafekeeperView,
    ScheduledMigration,
    ScrubReply,
    ScrubSafekeeper,
    SetSafekeeperStatus,
    TablesTimelines,
    TimelineList,
    TimelineView,
)
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.runtime import Runtime

CALL_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 24 * 3600.0
"""Of waiting for a timeline to be copied elsewhere."""
WATCH_S = 0.5
LOOKS_TO_BELIEVE = 2
"""Of one look the parts are not of one moment: what it says ended may have ended well."""


class SafekeeperCalls:
    """The part of `AsyncDatabase` that is for operators of safekeepers."""

    runtime: Runtime
    _masters: MastersClient
    _session: Session

    async def safekeepers(self, *, timeout: float = CALL_TIMEOUT_S) -> list[SafekeeperView]:
        """All that ever registered, in the order of their ids."""
        reply = await self._masters.call(LIST_SAFEKEEPERS, ListSafekeepers(), timeout_s=timeout)
        return list(reply.safekeepers)

    async def set_safekeeper_status(
        self, safekeeper: int, status: str, *, timeout: float = CALL_TIMEOUT_S
    ) -> SafekeeperView:
        """Say that it is ``active``, ``offline`` (expected back) or ``decommissioned`` (never).

        Once it has returned, no earlier order of this client's that is still under way changes
        anything any more. Raises InvalidArgument.
        """
        try:
            wanted = SafekeeperStatus(status)
        except ValueError:
            known = ", ".join(SafekeeperStatus)
            raise InvalidArgument(f"status {status!r}: one of {known}") from None
        with self._session.request() as request:
            order = SetSafekeeperStatus(request, SafekeeperId(safekeeper), wanted)
            return await self._masters.call(SET_SAFEKEEPER_STATUS, order, timeout_s=timeout)

    async def timelines(self, table: str = "", *, timeout: float = CALL_TIMEOUT_S) -> TimelineList:
        """Where the logs of a table's tablets are, or of all. Raises TableNotFound."""
        return await self._masters.call(LIST_TIMELINES, TablesTimelines(table), timeout_s=timeout)

    async def locate_timeline(
        self, tablet_id: str, *, timeout: float = CALL_TIMEOUT_S
    ) -> TimelineView:
        """All that is known of where a tablet's log is. Raises TabletNotFound, InvalidArgument."""
        order = LocateTimeline(TabletId(tablet_id))
        return await self._masters.call(LOCATE_TIMELINE, order, timeout_s=timeout)

    async def timeline_members(
        self, view: TimelineView, *, timeout: float = CALL_TIMEOUT_S
    ) -> list[MemberView]:
        """What each member of a timeline has of it, asked of the members themselves.

        One that does not answer is told of, and is no reason not to ask the others.
        """
        names = {one.record.safekeeper_id: one for one in await self.safekeepers(timeout=timeout)}
        return await ask_members(self.runtime.peers, view, names, timeout_s=timeout)

    # ---- migrations -------------------------------------------------------------------------

    async def migrate_timeline(
        self, tablet_id: str, desired: Sequence[int], *, timeout: float = CALL_TIMEOUT_S
    ) -> list[ScheduledMigration]:
        """Schedule the move of one tablet's log to these safekeepers.

        Raises TabletNotFound; InvalidArgument; MigrationUnderWay: one change at a time.
        """
        with self._session.request() as request:
            order = MigrateTimeline(request, TabletId(tablet_id), _ids(desired))
            reply = await self._masters.call(MIGRATE_TIMELINE, order, timeout_s=timeout)
        return list(reply.scheduled)

    async def migrate_table(
        self, table: str, desired: Sequence[int], *, timeout: float = CALL_TIMEOUT_S
    ) -> list[ScheduledMigration]:
        """The same for all tablets of a table that are elsewhere. Raises TableNotFound."""
        with self._session.request() as request:
            order = MigrateTable(request, table, _ids(desired))
            reply = await self._masters.call(MIGRATE_TABLE, order, timeout_s=timeout)
        return list(reply.scheduled)

    async def migrate_safekeeper(
        self,
        source: int,
        target: int,
        *,
        limit: int | None = None,
        timeout: float = CALL_TIMEOUT_S,
    ) -> list[ScheduledMigration]:
        """Schedule the move of all timelines, or so many, from one safekeeper to another."""
        ids = SafekeeperId(source), SafekeeperId(target)
        with self._session.request() as request:
            order = MigrateSafekeeper(request, *ids, limit)
            reply = await self._masters.call(MIGRATE_SAFEKEEPER, order, timeout_s=timeout)
        return list(reply.scheduled)

    async def abort_migration(
        self, tablet_id: str, *, timeout: float = CALL_TIMEOUT_S
    ) -> MigrationResult:
        """Take the change of a timeline's members back, if that can still be done."""
        with self._session.request() as request:
            order = AbortMigration(request, TabletId(tablet_id))
            return await self._masters.call(ABORT_MIGRATION, order, timeout_s=timeout)

    async def migrations(self, *, timeout: float = CALL_TIMEOUT_S) -> MigrationList:
        """What is under way, and how the last ones ended."""
        return await self._masters.call(LIST_MIGRATIONS, ListMigrations(), timeout_s=timeout)

    async def wait_migrated(
        self,
        tablet_id: str,
        desired: Sequence[int],
        *,
        on_look: Callable[[TimelineView], None] = lambda view: None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> TimelineView:
        """Wait until these, and nobody else, are the members; ``on_look`` sees how far it is.

        Raises RetryLater: it ended otherwise, or not in time; the text says how.
        """
        clock = self.runtime.clock
        deadline, wanted, misses = clock.monotonic() + timeout, sorted(desired), 0
        while True:
            view = await self.locate_timeline(tablet_id)
            on_look(view)
            told, stored = view.configuration, newest(view)
            if not told.is_joint and sorted(told.sk_set) == wanted:
                return view
            is_elsewhere = not stored.is_joint and sorted(stored.sk_set) != wanted
            is_given_up = view.running is None and is_elsewhere and not view.store_problem
            misses = misses + 1 if is_given_up else 0
            if misses >= LOOKS_TO_BELIEVE:
                raise RetryLater(_why_not(view))
            if clock.monotonic() >= deadline:
                raise RetryLater(f"the timeline of {tablet_id} has not moved within {timeout:g} s")
            await clock.sleep(WATCH_S)

    # ---- scrub ------------------------------------------------------------------------------

    async def scrub_safekeeper(
        self, safekeeper: int, *, timeout: float = CALL_TIMEOUT_S
    ) -> ScrubReply:
        """Remove from it what the configuration store says that it should not have.

        Raises InvalidArgument; RetryLater: it, or the store, does not answer.
        """
        order = ScrubSafekeeper(SafekeeperId(safekeeper))
        found = await self._masters.call(SCRUB_SAFEKEEPER, order, timeout_s=timeout)
        if found.silence:
            raise RetryLater(f"safekeeper {safekeeper} cannot be scrubbed: {found.silence}")
        return found


def _ids(numbers: Sequence[int]) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(number) for number in numbers)


def _why_not(view: TimelineView) -> str:
    stays = f"the log of {view.tablet.tablet_id} stays on safekeepers {list(newest(view).sk_set)}"
    if view.ended is None:
        return f"{stays}: the leader master that saw how the order ended leads no more"
    ended = view.ended
    why = f": {ended.reason}" if ended.reason else ""
    return f"{stays}; the last order for it ({ended.request}) ended: {ended.verdict}{why}"
