"""What operators use of a `Database` where tables have ``wal(n)``: safekeepers, and where logs lie.

Blocking, as all of `stelae.database.api`; ``database.aio`` has the calls that these are made of.
Moves go on by themselves once they are taken: waiting for them may be interrupted.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stelae.client.admin.safekeepers import CALL_TIMEOUT_S, WAIT_TIMEOUT_S
from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument

if TYPE_CHECKING:
    from stelae.client.admin.timeline_views import MemberView
    from stelae.core.messages.timelines import (
        MigrationList,
        MigrationResult,
        SafekeeperView,
        ScheduledMigration,
        ScrubReply,
        TimelineList,
        TimelineView,
    )
    from stelae.recovery.spark_link import ClusterLink

Looking = Callable[["TimelineView"], None]


class SafekeeperOperations:
    """The part of `Database` that is for operators of safekeepers.

    A safekeeper is named by its id, or by its name if only one of that name lives.
    """

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

    link: ClusterLink | None
    """None where the connection is HTTP."""

    def _require_inside(self) -> None:
        if self.link is None:
            text = "servers are looked at and changed from inside the cluster, not over HTTP"
            raise InvalidArgument(text)

    def safekeepers(self, *, timeout: float = CALL_TIMEOUT_S) -> list[SafekeeperView]:
        """All that ever registered, by id: ``record`` (id, name, status, …), ``is_live``, and of
        how many ``timelines`` each is a member."""
        self._require_inside()
        return self._loop.run(self._database.safekeepers(timeout=timeout))

    def set_safekeeper_status(
        self, safekeeper: int | str, status: str, *, timeout: float = CALL_TIMEOUT_S
    ) -> SafekeeperView:
        """Say that one is ``active``, ``offline`` (expected back: it gets nothing new) or
        ``decommissioned`` (it never comes back: others take its timelines over).

        Raises `InvalidArgument`.
        """
        number = self.safekeeper_id(safekeeper)
        work = self._database.set_safekeeper_status(number, status, timeout=timeout)
        return self._loop.run(work)

    def timelines(self, table: str = "", *, timeout: float = CALL_TIMEOUT_S) -> TimelineList:
        """On which safekeepers the logs of a table's tablets are, or of all tables. Raises
        `TableNotFound`."""
        self._require_inside()
        return self._loop.run(self._database.timelines(table, timeout=timeout))

    def locate_timeline(self, tablet: str, *, timeout: float = CALL_TIMEOUT_S) -> TimelineView:
        """Where a tablet's log is: the configurations of the store, the move under way (if any),
        and how the last one ended. Raises `TabletNotFound`, `InvalidArgument`."""
        self._require_inside()
        return self._loop.run(self._database.locate_timeline(tablet, timeout=timeout))

    def timeline_members(
        self, view: TimelineView, *, timeout: float = CALL_TIMEOUT_S
    ) -> list[MemberView]:
        """What each member of a timeline has of it, as the members say: term, flush, commit."""
        self._require_inside()
        return self._loop.run(self._database.timeline_members(view, timeout=timeout))

    # ---- moves ------------------------------------------------------------------------------

    def migrate_timeline(
        self, tablet: str, desired: Sequence[int | str], *, timeout: float = CALL_TIMEOUT_S
    ) -> list[ScheduledMigration]:
        """Have the log of one tablet moved to these safekeepers; reads and writes go on.

        Returns once it is taken; `wait_migrated` waits for the rest. Raises `TabletNotFound`,
        `InvalidArgument` (these cannot be its members), `MigrationUnderWay`.
        """
        ids = self.safekeeper_ids(desired)
        return self._loop.run(self._database.migrate_timeline(tablet, ids, timeout=timeout))

    def migrate_table(
        self, table: str, desired: Sequence[int | str], *, timeout: float = CALL_TIMEOUT_S
    ) -> list[ScheduledMigration]:
        """The same for all tablets of a table that are elsewhere. Raises `TableNotFound` too."""
        ids = self.safekeeper_ids(desired)
        return self._loop.run(self._database.migrate_table(table, ids, timeout=timeout))

    def migrate_safekeeper(
        self,
        source: int | str,
        target: int | str,
        *,
        limit: int | None = None,
        timeout: float = CALL_TIMEOUT_S,
    ) -> list[ScheduledMigration]:
        """Have all timelines, or so many, moved from one safekeeper to another.

        Those that are being changed, or that the target has already, stay. Raises
        `InvalidArgument`.
        """
        from_id, to_id = self.safekeeper_ids((source, target))
        return self._loop.run(
            self._database.migrate_safekeeper(from_id, to_id, limit=limit, timeout=timeout)
        )

    def wait_migrated(
        self,
        scheduled: ScheduledMigration,
        *,
        on_look: Looking = lambda view: None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> TimelineView:
        """Wait until a move is done; ``on_look`` is told of each look, in another thread.

        Raises `RetryLater`: it ended otherwise, or not in time; the text says how.
        """
        self._require_inside()
        return self._loop.run(
            self._database.wait_migrated(
                scheduled.timeline.tablet_id,
                scheduled.desired_set,
                on_look=on_look,
                timeout=timeout,
            )
        )

    def abort_migration(self, tablet: str, *, timeout: float = CALL_TIMEOUT_S) -> MigrationResult:
        """Take the move of a tablet's log back, if that can still be done: ``verdict`` and
        ``reason`` tell. Raises `TabletNotFound`, `InvalidArgument`."""
        self._require_inside()
        return self._loop.run(self._database.abort_migration(tablet, timeout=timeout))

    def migrations(self, *, timeout: float = CALL_TIMEOUT_S) -> MigrationList:
        """What is under way, and how the last ones ended under this leader master."""
        self._require_inside()
        return self._loop.run(self._database.migrations(timeout=timeout))

    def scrub_safekeeper(
        self, safekeeper: int | str, *, timeout: float = CALL_TIMEOUT_S
    ) -> ScrubReply:
        """Remove from a safekeeper the timelines that it should not have, by the word of the
        configuration store. Raises `InvalidArgument`, `RetryLater`."""
        number = self.safekeeper_id(safekeeper)
        return self._loop.run(self._database.scrub_safekeeper(number, timeout=timeout))

    # ---- names ------------------------------------------------------------------------------

    def safekeeper_id(self, safekeeper: int | str) -> int:
        """The id of a safekeeper that is given by id or by name. Raises `InvalidArgument`."""
        return self.safekeeper_ids((safekeeper,))[0]

    def safekeeper_ids(self, safekeepers: Sequence[int | str]) -> list[int]:
        """The same for several. Ids are not looked up."""
        self._require_inside()
        numbers = [_number(each) for each in safekeepers]
        if None not in numbers:
            return [number for number in numbers if number is not None]
        known = self.safekeepers()
        return [
            _named(str(each), known) if number is None else number
            for each, number in zip(safekeepers, numbers, strict=True)
        ]


def _number(given: int | str) -> int | None:
    if isinstance(given, int):
        return given
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else None


def _named(name: str, known: Sequence[SafekeeperView]) -> int:
    """Of one name there may be several: those that lost their disks are others."""
    found = [one for one in known if one.record.name == name]
    if len(found) > 1:
        found = [one for one in found if one.is_live] or found
    ids = [int(one.record.safekeeper_id) for one in found]
    if not ids:
        raise InvalidArgument(f"there is no safekeeper {name!r}")
    if len(ids) > 1:
        raise InvalidArgument(f"safekeepers {ids} are all called {name!r}: give the id")
    return ids[0]
