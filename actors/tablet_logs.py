"""Which log a tablet gets: that of its table's durability."""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.membership import Membership
from stelae.actors.segment_log import RaiseEpoch, SegmentLog
from stelae.actors.tablet_log import BuildImage, MakeLog, TabletLog
from stelae.actors.tablet_recovery import Intake
from stelae.actors.timeline_proposer import AcceptorMailbox
from stelae.actors.wal_log import WalLog
from stelae.core.durability import media_of
from stelae.core.errors import StelaeError
from stelae.core.records import TableRecord, TabletRecord
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.core.timelines import TimelineSource


def segment_log_of(
    runtime: Runtime,
    settings: Settings,
    members: Membership,
    *,
    table: TableRecord,
    record: TabletRecord,
    raise_epoch: RaiseEpoch,
    intake: Intake,
) -> MakeLog:
    """A log on the backups that ``segments(…)`` names."""

    def make(
        tasks: Tasks, build_image: BuildImage, on_failed: Callable[[StelaeError], None]
    ) -> TabletLog:
        return SegmentLog(
            runtime,
            settings,
            members,
            tasks,
            tablet_id=record.tablet_id,
            term=record.term,
            media=media_of(table.durability),
            raise_epoch=raise_epoch,
            build_image=build_image,
            on_failed=on_failed,
            intake=intake,
        )

    return make


def wal_log_of(
    runtime: Runtime,
    settings: Settings,
    members: Membership,
    mailbox: AcceptorMailbox,
    *,
    table: TableRecord,
    record: TabletRecord,
    source: TimelineSource,
    intake: Intake,
) -> MakeLog:
    """A log on the safekeepers of a timeline, and on the backups that ``wal(…)`` names."""

    def make(
        tasks: Tasks, build_image: BuildImage, on_failed: Callable[[StelaeError], None]
    ) -> TabletLog:
        return WalLog(
            runtime,
            settings,
            members,
            tasks,
            tablet_id=record.tablet_id,
            term=record.term,
            media=media_of(table.durability),
            source=source,
            mailbox=mailbox,
            build_image=build_image,
            on_failed=on_failed,
            intake=intake,
        )

    return make
