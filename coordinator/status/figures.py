"""What the leader master knows of the whole cluster, as gauges: dashboards and alerts go by them.

From the same knowledge as the status document. Every figure is there at every look, and is 0 while
all is well, so that an alert compares a number and never waits for a series to appear. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from stelae.coordinator.groups.group import TAKES_PART, group_of, problem_of
from stelae.coordinator.liveness.liveness import Run, run_of
from stelae.coordinator.placement.known_backups import not_heard_backups
from stelae.coordinator.status.document import StatusInputs
from stelae.coordinator.status.groups import copies
from stelae.coordinator.status.indexes import views_of
from stelae.coordinator.status.recoveries import Recovery
from stelae.core.messages.servers import TabletReport
from stelae.core.metric_catalogue import CLUSTER_METRICS, METRICS
from stelae.core.records.records import ServerKind, TabletRecord, TabletState
from stelae.core.schema.durability import Replicas
from stelae.core.schema.indexes import IndexletState


class Figure(NamedTuple):
    """One value of one gauge of the catalogue."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


class _OfTablet(NamedTuple):
    """What is known of one tablet."""

    report: TabletReport | None
    """Of its owner or leader, in this term."""
    is_served: bool
    is_incomplete: bool
    segments_missing: int
    replicas_missing: int


def figures(inputs: StatusInputs) -> list[Figure]:
    """All of them, in the order of the catalogue."""
    tablets = [_look_at(inputs, tablet) for tablet in inputs.catalog.live_tablets()]
    return [
        *_of_servers(inputs),
        *_of_tablets(inputs, tablets),
        *_of_recoveries(inputs),
        *_of_changes(inputs),
    ]


def nothing() -> list[Figure]:
    """The same gauges, of a master that does not lead."""
    kinds = [{"kind": kind.value} for kind in ServerKind]
    return [
        Figure(name, 0.0, labels)
        for name in CLUSTER_METRICS
        for labels in (kinds if METRICS[name].labels else [{}])
    ]


def _of_servers(inputs: StatusInputs) -> Iterator[Figure]:
    live = dict.fromkeys(ServerKind, 0)
    dead = dict.fromkeys(ServerKind, 0)
    for view in inputs.masters:
        (live if view.is_live else dead)[ServerKind.MASTER] += 1
    for seen in inputs.liveness.newest_runs():
        is_live = inputs.liveness.is_live(run_of(seen), inputs.now)
        (live if is_live else dead)[seen.server.kind] += 1
    for kind in ServerKind:
        yield Figure("cluster_servers_live", live[kind], {"kind": kind.value})
        yield Figure("cluster_servers_dead", dead[kind], {"kind": kind.value})
    missed = not_heard_backups(inputs.catalog, inputs.liveness, inputs.now)
    yield Figure("cluster_backups_not_heard", len(missed))


def _of_tablets(inputs: StatusInputs, tablets: list[_OfTablet]) -> Iterator[Figure]:
    reports = [each.report for each in tablets if each.report is not None]
    lacking = [each for each in tablets if each.segments_missing or each.replicas_missing]
    shortages = [report.shortage for report in reports if report.shortage is not None]
    yield Figure("cluster_tables", len(list(inputs.catalog.live_tables())))
    yield Figure("cluster_tablets", len(tablets))
    yield Figure("cluster_rows", sum(report.row_count for report in reports))
    yield Figure("cluster_rows_bytes", sum(report.memory_bytes for report in reports))
    yield Figure("cluster_calls_per_s", sum(max(0.0, report.load_per_s) for report in reports))
    yield Figure("cluster_tablets_offline", sum(not each.is_served for each in tablets))
    yield Figure("cluster_tablets_incomplete", sum(each.is_incomplete for each in tablets))
    yield Figure("cluster_tablets_under_replicated", len(lacking))
    yield Figure(
        "cluster_segments_under_replicated", sum(each.segments_missing for each in tablets)
    )
    yield Figure("cluster_replicas_missing", sum(each.replicas_missing for each in tablets))
    yield Figure("cluster_shortage_bytes", sum(each.size_bytes for each in shortages))
    yield Figure("cluster_tablets_loading", sum(report.remote_bytes > 0 for report in reports))


def _look_at(inputs: StatusInputs, tablet: TabletRecord) -> _OfTablet:
    durability = inputs.catalog.tables[tablet.table_id].durability_of(tablet)
    if tablet.is_group and isinstance(durability, Replicas):
        return _look_at_group(inputs, tablet, durability.count)
    seen = inputs.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    report = None if seen is None else seen.reports.get(tablet.tablet_id)
    if report is not None and report.term != tablet.term:
        report = None
    is_served = tablet.state is TabletState.RUNNING
    waits = tablet.tablet_id in inputs.recoveries.incomplete and not is_served
    lacks = waits or (report is not None and bool(report.lacks))
    missing = 0 if report is None else report.under_replicated
    return _OfTablet(report, is_served, lacks, missing, 0)


def _look_at_group(inputs: StatusInputs, tablet: TabletRecord, wanted: int) -> _OfTablet:
    liveness, now = inputs.liveness, inputs.now
    group = group_of(tablet, liveness.reporters(now).of.get(tablet.tablet_id, ()))
    replicas, leader = group.replicas, group.leader
    part = sum(
        uuid in replicas and replicas[uuid].group.role in TAKES_PART
        for uuid in group.configuration.voters
    )
    is_created = tablet.state is TabletState.RUNNING
    waits = is_created and leader is None and bool(problem_of(group, liveness, now))
    missing = max(0, wanted - part) if is_created else 0
    report = None if leader is None else leader.report
    return _OfTablet(report, is_created and leader is not None, waits, 0, missing)


def _of_recoveries(inputs: StatusInputs) -> Iterator[Figure]:
    running = inputs.recoveries.unfinished()
    oldest = min(running, key=lambda recovery: recovery.detected, default=None)
    late_s = [_age_s(inputs, each) - _expected_s(each) for each in running]
    yield Figure("cluster_recoveries_running", len(running))
    yield Figure("cluster_recovery_age_s", _age_s(inputs, oldest) if oldest else 0.0)
    yield Figure("cluster_recovery_expected_s", _expected_s(oldest) if oldest else 0.0)
    yield Figure("cluster_recovery_late_s", max([0.0, *late_s]))


def _age_s(inputs: StatusInputs, recovery: Recovery) -> float:
    return inputs.now - recovery.detected


def _expected_s(recovery: Recovery) -> float:
    """Of all engines that were put to work, one after the other: it is late only beyond that."""
    return sum(use.expected_s.get(use.engine, 0.0) for use in recovery.engines)


def _of_changes(inputs: StatusInputs) -> Iterator[Figure]:
    catalog, now = inputs.catalog, inputs.now
    moving = inputs.migrations
    views = [
        view
        for table in catalog.live_tables()
        if table.schema.indexes
        for view in views_of(catalog, inputs.liveness, now, table)
    ]
    filling = sum(view.state is not IndexletState.SERVING for view in views)
    yield Figure("cluster_migrations_running", len(moving))
    yield Figure("cluster_migration_age_s", _longest(now - each.started_s for each in moving))
    yield Figure("cluster_migration_idle_s", _longest(now - each.moved_s for each in moving))
    yield Figure("cluster_copies_running", sum(1 for _ in copies(catalog, inputs.liveness, now)))
    yield Figure("cluster_indexes_filling", filling)
    yield Figure("cluster_losses_accepted", len(catalog.backups.losses))


def _longest(times_s: Iterable[float]) -> float:
    return max(times_s, default=0.0)
