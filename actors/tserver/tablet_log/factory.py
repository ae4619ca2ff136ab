"""Which log a tablet gets: that of its table's durability."""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.interface import BuildImage, MakeLog, TabletLog
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.actors.tserver.tablet_log.segment_log import RaiseEpoch, SegmentLog
from stelae.actors.tserver.tablet_log.wal_log import WalLog
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.messages.servers import OpenTablet
from stelae.core.records.records import TableRecord, TabletRecord
from stelae.core.records.timelines import TimelineSource
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Replicas, Wal, media_of
from stelae.core.schema.shares import share_of
from stelae.core.tasks import Tasks


def segment_log_of(
    runtime: Runtime,
    settings: Settings,
    members: Membership,
    traffic: SegmentTraffic,
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
            traffic,
            tasks,
            tablet_id=record.tablet_id,
            term=record.term,
            media=media_of(table.durability),
            raise_epoch=raise_epoch,
            build_image=build_image,
            on_failed=on_failed,
            intake=intake,
            share=share_of(record.number, table.partitioning.tablet_count),
            inherits=record.inherits,
        )

    return make


def wal_log_of(
    runtime: Runtime,
    settings: Settings,
    members: Membership,
    traffic: SegmentTraffic,
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
            traffic,
            tasks,
            tablet_id=record.tablet_id,
            term=record.term,
            media=media_of(table.durability),
            source=source,
            mailbox=mailbox,
            build_image=build_image,
            on_failed=on_failed,
            intake=intake,
            given_up=record.kept.given_up if record.kept is not None else (),
        )

    return make


def log_of(
    runtime: Runtime,
    settings: Settings,
    members: Membership,
    traffic: SegmentTraffic,
    mailbox: AcceptorMailbox,
    order: OpenTablet,
    *,
    raise_epoch: RaiseEpoch,
    intake: Intake,
) -> MakeLog:
    """The log of a tablet to be opened. Raises InvalidArgument: a timeline is needed, and not
    named; or this durability is not the tablet's."""
    table, record = order.table, order.tablet
    world = (runtime, settings, members, traffic)
    has_timeline = isinstance(table.durability, Wal)
    if record.is_group or isinstance(table.durability, Replicas):
        raise InvalidArgument(f"tablet {record.tablet_id}, {table.durability}, has no owner")
    if (record.timeline is not None) != has_timeline:
        raise InvalidArgument(f"the log of tablet {record.tablet_id} is none of {table.durability}")
    if not has_timeline:
        return segment_log_of(
            *world, table=table, record=record, raise_epoch=raise_epoch, intake=intake
        )
    if order.timeline is None:
        raise InvalidArgument(f"no timeline of tablet {record.tablet_id}, {table.durability}")
    return wal_log_of(
        *world, mailbox, table=table, record=record, source=order.timeline, intake=intake
    )
