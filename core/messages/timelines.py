"""Messages of operators to masters about safekeepers and timelines: list, set, migrate, scrub.

All are idempotent; what changes something is carried out once per request: a copy that comes late,
after the answer or after its client has given it up, changes nothing any more. Migrations are
scheduled, which outlives the leader that says so, and go on by themselves: `LIST_MIGRATIONS` says
how far they are and how they ended, and `LOCATE_TIMELINE` what has come of one.

Implements seed 004 ("API"), where *tenant* is the table and *timeline* the tablet; design §10.
"""

from __future__ import annotations

from collections.abc import Mapping

from stelae.core.ids import Address, RequestId, TableId, TabletId
from stelae.core.records.configurations import StoredRecord, TimelineId
from stelae.core.records.records import SafekeeperRecord, TabletRecord
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperPlace,
    SafekeeperStatus,
    TimelineConfiguration,
)
from stelae.core.rpc import ANY_MASTER, Body, Method


class SafekeeperView(Body, frozen=True):
    """One safekeeper: what operators say of it, and what the leader master sees."""

    record: SafekeeperRecord
    is_live: bool
    silent_s: float
    address: Address
    """Where it was heard last; empty: this leader never heard it."""
    timelines: int
    """Of which it is a member, by the catalog."""
    broken: int = 0
    """Of these, so many do nothing any more there: a disk failed below them."""


class ListSafekeepers(Body, frozen=True):
    """All that ever registered, in the order of their ids."""


class SafekeeperList(Body, frozen=True):
    safekeepers: tuple[SafekeeperView, ...]


class SetSafekeeperStatus(Body, frozen=True):
    """Say that a safekeeper is active, offline or decommissioned; once per request: a copy that
    comes late does not undo what was said after it.

    One that is decommissioned is replaced in all its timelines, and nothing waits for it any more.
    Raises InvalidArgument: there is no such safekeeper.
    """

    request: RequestId
    safekeeper_id: SafekeeperId
    status: SafekeeperStatus


class MigrateTimeline(Body, frozen=True):
    """Move the log of one tablet to these safekeepers; begun once per request.

    Raises TabletNotFound; InvalidArgument: it has no timeline, or these cannot be its members;
    MigrationUnderWay: another change of it is made already.
    """

    request: RequestId
    tablet_id: TabletId
    desired_set: tuple[SafekeeperId, ...]


class MigrateTable(Body, frozen=True):
    """The same for all tablets of a table that are not there yet. Raises TableNotFound."""

    request: RequestId
    table: str
    desired_set: tuple[SafekeeperId, ...]


class MigrateSafekeeper(Body, frozen=True):
    """Move all timelines, or so many, from one safekeeper to another.

    Those that are being changed, or that the target has already, stay. Raises InvalidArgument.
    """

    request: RequestId
    src_sk: SafekeeperId
    dst_sk: SafekeeperId
    limit: int | None = None


class ScheduledMigration(Body, frozen=True):
    timeline: TimelineId
    desired_set: tuple[SafekeeperId, ...]
    reason: str


class ScheduledMigrations(Body, frozen=True):
    scheduled: tuple[ScheduledMigration, ...]


class AbortMigration(Body, frozen=True):
    """Go back to the members of before, if the change can still be taken back.

    Answered when it is decided, once per request: a copy that comes later does not end what was
    begun since, and is told how it stands. Raises as `MigrateTimeline` does.
    """

    request: RequestId
    tablet_id: TabletId


class MigrationProgress(Body, frozen=True):
    """One migration as status pages show it."""

    timeline: TimelineId
    step: int
    step_name: str
    generation: int
    members: tuple[SafekeeperId, ...]
    desired: tuple[SafekeeperId, ...] | None
    waits_for: tuple[str, ...]
    problems: Mapping[str, str]
    """What failed last, by effect."""
    started_s: float
    moved_s: float
    """When something moved last; both by the driver's clock."""
    sync_position: LogPosition | None = None
    verdict: str = ""


class MigrationResult(Body, frozen=True):
    """How the last request about a timeline ended, under this leader master."""

    timeline: TimelineId
    request: str
    verdict: str
    reason: str
    generation: int
    is_finished: bool
    """False: something is left to be done, and will be."""
    at: float
    """By the wall clock."""


class ListMigrations(Body, frozen=True):
    """What is under way, and how the last ones ended."""


class MigrationList(Body, frozen=True):
    running: tuple[MigrationProgress, ...]
    ended: tuple[MigrationResult, ...]
    """The newest last."""


class LocateTimeline(Body, frozen=True):
    """Where a tablet's log is. Raises TabletNotFound; InvalidArgument: it has no timeline."""

    tablet_id: TabletId


class TimelineView(Body, frozen=True):
    tablet: TabletRecord
    configuration: TimelineConfiguration
    """As the catalog was told."""
    places: tuple[SafekeeperPlace, ...]
    """Of its members, as far as this leader has heard them."""
    history: tuple[StoredRecord, ...] = ()
    """The last of what the configuration store has, the newest last."""
    store_problem: str = ""
    """Why nothing is known of that, if the store does not answer."""
    running: MigrationProgress | None = None
    ended: MigrationResult | None = None


class ScrubSafekeeper(Body, frozen=True):
    """Remove from a safekeeper the timelines that it should not have, by the store's word.

    Raises InvalidArgument: there is no such safekeeper.
    """

    safekeeper_id: SafekeeperId


class ScrubReply(Body, frozen=True):
    held: int
    removed: tuple[TimelineId, ...]
    unknown: tuple[TabletId, ...]
    """The store knows nothing of them: somebody else's, and left alone."""
    problems: Mapping[TabletId, str]
    """What could not be removed, and why."""
    silence: str = ""
    """Why the safekeeper, or the store, did not answer: then nothing was removed."""


class TablesTimelines(Body, frozen=True):
    """The timelines of one table, or of all (an empty name). Raises TableNotFound."""

    table: str = ""


class TimelineList(Body, frozen=True):
    timelines: tuple[tuple[TableId, TabletId, TimelineConfiguration], ...]
    """As the catalog was told."""


LIST_SAFEKEEPERS = Method("master.list_safekeepers", ListSafekeepers, SafekeeperList, ANY_MASTER)
SET_SAFEKEEPER_STATUS = Method(
    "master.set_safekeeper_status", SetSafekeeperStatus, SafekeeperView, ANY_MASTER
)
MIGRATE_TIMELINE = Method(
    "master.migrate_timeline", MigrateTimeline, ScheduledMigrations, ANY_MASTER
)
MIGRATE_TABLE = Method("master.migrate_table", MigrateTable, ScheduledMigrations, ANY_MASTER)
MIGRATE_SAFEKEEPER = Method(
    "master.migrate_safekeeper", MigrateSafekeeper, ScheduledMigrations, ANY_MASTER
)
ABORT_MIGRATION = Method("master.abort_migration", AbortMigration, MigrationResult, ANY_MASTER)
LIST_MIGRATIONS = Method("master.list_migrations", ListMigrations, MigrationList, ANY_MASTER)
LOCATE_TIMELINE = Method("master.locate_timeline", LocateTimeline, TimelineView, ANY_MASTER)
LIST_TIMELINES = Method("master.list_timelines", TablesTimelines, TimelineList, ANY_MASTER)
SCRUB_SAFEKEEPER = Method("master.scrub_safekeeper", ScrubSafekeeper, ScrubReply, ANY_MASTER)
