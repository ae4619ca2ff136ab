"""What the leader master tells of the cluster in gauges, from what servers reported."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.actors.master.gauges import CLUSTER_PERIOD_S, MasterGauges
from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.status.document import MasterView, StatusInputs
from stelae.coordinator.status.figures import figures, nothing
from stelae.coordinator.status.recoveries import EngineUse, Recoveries
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat, ReplicaRole, TabletProgress, TabletReport
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.metric_catalogue import CLUSTER_METRICS, METRICS
from stelae.core.records.configurations import TimelineId
from stelae.core.records.losses import SegmentFacts
from stelae.core.records.records import (
    BackupRecord,
    ServerInfo,
    ServerKind,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import replicas, segments
from stelae.runtime.real import CountingMetrics
from tests.unit.coordinator.groups.group_world import World

NOW = 100.0
ONE = TabletId("1" * 32)


def server(kind: ServerKind, name: str) -> ServerInfo:
    process = ProcessIdentity("node", 1, 0.0)
    return ServerInfo(kind, name, ServerUuid(name), 1, Address(f"{name}:1"), process)


def inputs(**more: Any) -> StatusInputs:
    liveness = Liveness(Settings())
    liveness.lead(0.0)
    known: dict[str, Any] = {
        "masters": (),
        "catalog": Catalog(),
        "liveness": liveness,
        "recoveries": Recoveries(),
        "problems": {},
        **more,
    }
    return StatusInputs("c", 0.0, NOW, 1, **known)


def told(known: StatusInputs) -> dict[str, float]:
    """By name, or by name and kind."""
    return {
        "/".join([each.name, *each.labels.values()]): float(each.value) for each in figures(known)
    }


def test_every_figure_is_told_at_every_look_under_its_labels() -> None:
    """Also where there is nothing: an alert compares numbers, and a former leader says zeros."""
    for found in (figures(inputs()), nothing()):
        assert dict.fromkeys(each.name for each in found) == dict.fromkeys(CLUSTER_METRICS)
        assert all(set(each.labels) == set(METRICS[each.name].labels) for each in found)
        assert len({(e.name, *e.labels.values()) for e in found}) == len(found)
        assert not any(each.value for each in found)


def test_servers_are_counted_by_kind_and_life() -> None:
    """Masters as this one sees them, others by their heartbeats."""
    liveness = Liveness(Settings(dead_after_s=3.0))
    liveness.lead(0.0)
    liveness.heartbeat(Heartbeat(server(ServerKind.TSERVER, "t1"), 0.0), NOW - 1)
    liveness.heartbeat(Heartbeat(server(ServerKind.TSERVER, "t2"), 0.0), NOW - 50)
    masters = (
        MasterView(server(ServerKind.MASTER, "m1"), True, True),
        MasterView(server(ServerKind.MASTER, "m2"), False, False),
    )
    found = told(inputs(liveness=liveness, masters=masters))
    assert found["cluster_servers_live/tserver"] == 1
    assert found["cluster_servers_dead/tserver"] == 1
    assert found["cluster_servers_live/master"] == found["cluster_servers_dead/master"] == 1
    assert found["cluster_servers_dead/backup"] == 0


def test_backups_that_were_expected_in_vain_are_counted() -> None:
    """Servers that are dead were heard once; these are known by the catalog alone."""
    catalog, liveness = Catalog(), Liveness(Settings(dead_after_s=3.0))
    known = [BackupRecord(ServerUuid(name), name, "m", ("disk",), 0.0) for name in ("b1", "b2")]
    catalog.apply(1, 1, CatalogBatch(backups=BackupChanges(tuple(known))).encode())
    liveness.lead(NOW - 2.0)
    liveness.heartbeat(Heartbeat(server(ServerKind.BACKUP, "b1"), 0.0), NOW - 1)
    assert told(inputs(catalog=catalog, liveness=liveness))["cluster_backups_not_heard"] == 0
    liveness.lead(NOW - 50.0)
    found = told(inputs(catalog=catalog, liveness=liveness))
    assert (found["cluster_backups_not_heard"], found["cluster_servers_dead/backup"]) == (1, 0)


def test_a_recovery_is_late_beyond_what_all_its_engines_were_expected_to_take() -> None:
    """One that is put to work after another failed has its own time; done ones are not counted."""
    recoveries = Recoveries()
    page = recoveries.begin("t1", "killed", now=NOW - 20.0, wall=0.0, silent_s=0.0)
    recoveries.add(page, ONE, "table")
    assert told(inputs(recoveries=recoveries))["cluster_recovery_late_s"] == 20.0
    recoveries.note_engine([ONE], EngineUse("spark", 1, 10, {"native": 3.0, "spark": 8.0}))
    recoveries.note_engine([ONE], EngineUse("native", 1, 10, {"native": 3.0, "spark": 8.0}))
    found = told(inputs(recoveries=recoveries))
    assert found["cluster_recoveries_running"] == 1
    assert found["cluster_recovery_age_s"] == 20.0
    assert found["cluster_recovery_expected_s"] == 11.0
    assert found["cluster_recovery_late_s"] == 9.0
    recoveries.reached([ONE], "running", NOW)
    found = told(inputs(recoveries=recoveries))
    assert found["cluster_recoveries_running"] == found["cluster_recovery_late_s"] == 0


def test_a_migration_is_as_idle_as_its_last_step_is_old() -> None:
    """The longest of all that run."""

    def moving(number: int, started_s: float, moved_s: float) -> MigrationProgress:
        timeline = TimelineId(TableId("t"), TabletId(str(number) * 32))
        return MigrationProgress(
            timeline, 1, "pull", 1, (), None, (), {}, started_s=started_s, moved_s=moved_s
        )

    found = told(inputs(migrations=(moving(1, NOW - 90, NOW - 1), moving(2, NOW - 50, NOW - 40))))
    assert found["cluster_migrations_running"] == 2
    assert found["cluster_migration_age_s"] == 90
    assert found["cluster_migration_idle_s"] == 40


def test_a_master_that_leads_no_more_says_zeros_once() -> None:
    """Its gauges would say for ever what was so when it led; while it leads it looks at all tablets
    now and then, and less often where that takes long."""
    metrics, now, took_s = CountingMetrics(), NOW, 0.0
    gauges = MasterGauges(metrics, lambda: now)
    recoveries = Recoveries()
    page = recoveries.begin("t1", "killed", now=NOW - 20.0, wall=0.0, silent_s=0.0)
    recoveries.add(page, ONE, "table")
    key = ("cluster_recovery_age_s", ())
    looks = 0

    def known() -> StatusInputs:
        nonlocal looks, now
        looks, now = looks + 1, now + took_s
        return inputs(recoveries=recoveries)

    gauges.show_cluster(known)
    assert metrics.gauges[key] == 20.0
    now += CLUSTER_PERIOD_S / 2
    gauges.show_cluster(known)
    assert looks == 1
    gauges.show_cluster(None)
    assert metrics.gauges[key] == 0.0
    assert metrics.gauges["timelines_broken", ()] == 0.0
    metrics.gauges.clear()
    gauges.show_cluster(None)
    assert not metrics.gauges
    took_s = 0.2
    gauges.show_cluster(known)
    assert (looks, metrics.gauges[key]) == (2, 20.0)
    now += 2 * CLUSTER_PERIOD_S
    gauges.show_cluster(known)
    assert looks == 2
    now += 2 * CLUSTER_PERIOD_S
    gauges.show_cluster(known)
    assert looks == 3


def test_a_group_lacks_the_voters_that_take_no_part_and_is_incomplete_without_a_majority() -> None:
    """While somebody leads it serves, and heals; without a majority it waits."""
    world = World("a", "b", "c")
    (tablet,) = world.create(replicas(3))
    tablet = world.form(tablet)

    def known() -> dict[str, float]:
        now = world.now
        found = StatusInputs("c", 0.0, now, 1, (), world.catalog, world.liveness, Recoveries(), {})
        return told(found)

    well = known()
    assert (well["cluster_tablets"], well["cluster_tablets_offline"]) == (1, 0)
    assert well["cluster_tablets_under_replicated"] == well["cluster_tablets_incomplete"] == 0
    first, *rest = tablet.configuration.voters if tablet.configuration is not None else ()
    world.held[rest[0]].clear()
    world.beat()
    hurt = known()
    assert (hurt["cluster_replicas_missing"], hurt["cluster_tablets_under_replicated"]) == (1, 1)
    assert hurt["cluster_tablets_offline"] == hurt["cluster_tablets_incomplete"] == 0
    world.held[rest[1]].clear()
    world.says(first, tablet, ReplicaRole.FOLLOWER, 2)
    world.beat()
    alone = known()
    assert (alone["cluster_tablets_offline"], alone["cluster_tablets_incomplete"]) == (1, 1)


def test_a_tablet_is_incomplete_while_segments_of_its_log_are_nowhere() -> None:
    """Until it is planned whole, or deleted; one that just recovers is offline only."""
    world = World("a", "b", "c")
    (tablet,) = world.create(segments("disk"))
    recoveries = Recoveries()
    inputs_of_world = StatusInputs(
        "c", 0.0, world.now, 1, (), world.catalog, world.liveness, recoveries, {}
    )
    found = told(inputs_of_world)
    assert (found["cluster_tablets_offline"], found["cluster_tablets_incomplete"]) == (1, 0)
    recoveries.incomplete[tablet.tablet_id] = None
    assert told(inputs_of_world)["cluster_tablets_incomplete"] == 1
    recoveries.drop([tablet.tablet_id])
    assert told(inputs_of_world)["cluster_tablets_incomplete"] == 0


def test_a_tablet_that_is_served_without_some_rows_is_incomplete() -> None:
    """By its owner's word, in this term; it is not offline."""
    world = World("a", "b", "c")
    (tablet,) = world.create(segments("disk"))
    world.put(CatalogBatch(tablets=(_running(tablet),)))
    inputs_of_world = StatusInputs(
        "c", 0.0, world.now, 1, (), world.catalog, world.liveness, Recoveries(), {}
    )
    run = Run(tablet.owner, tablet.owner_incarnation)
    for term, lacks, incomplete in (
        (tablet.term, (SegmentFacts(1, 2, 3, 4),), 1),
        (tablet.term, (), 0),
        (tablet.term - 1, (SegmentFacts(1, 2, 3, 4),), 0),
    ):
        seen = world.liveness.find(run)
        assert seen is not None
        seen.reports[tablet.tablet_id] = TabletReport(
            tablet.tablet_id, term, TabletProgress.SERVING, lacks=lacks
        )
        found = told(inputs_of_world)
        assert found["cluster_tablets_incomplete"] == incomplete
        assert found["cluster_tablets_offline"] == 0


def _running(tablet: TabletRecord) -> TabletRecord:
    return msgspec.structs.replace(
        tablet, state=TabletState.RUNNING, generation=tablet.generation + 1
    )
