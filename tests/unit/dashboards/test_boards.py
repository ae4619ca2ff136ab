"""Dashboards and alerts: valid, stable, and about metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import alerting, dashboard

from stelae.cli.cluster.grafana import scrape_targets
from stelae.core.metric_catalogue import COMMON_LABELS, METRICS, PREFIX
from stelae.dashboards.alerts import ALERTS, INTERVAL_S, rule_group
from stelae.dashboards.boards import BOARDS
from stelae.dashboards.panels import all_dashboards
from stelae.dashboards.queries import SERVE_METRICS, series
from tests.prometheus import needed_program

DOCS = Path(__file__).parents[3] / "docs"
UIDS = {"overview", "masters", "tablets", "safekeepers", "backups", "doors"}
QUERIES = [query for board in BOARDS for panel in board.panels for query, _ in panel.queries]
EXPORTED = {each.exported: each for each in METRICS.values()}


def metrics_in(query: str) -> set[str]:
    """Names in Prometheus that a query asks for."""
    return set(re.findall(r"\bray_\w+", query))


def catalogued(name: str) -> str:
    """A histogram's parts stand for it."""
    for end in ("_bucket", "_sum", "_count"):
        if name.removesuffix(end) in EXPORTED:
            return name.removesuffix(end)
    return name


def test_every_panel_asks_for_metrics_of_the_catalogue_by_labels_that_they_have() -> None:
    """A metric that is renamed or goes leaves no empty panel behind."""
    of_serve = {f"{name}{end}" for name in SERVE_METRICS for end in ("", "_bucket")}
    for query in [*QUERIES, *(alert.query for alert in ALERTS)]:
        known = [EXPORTED[catalogued(name)] for name in metrics_in(query) - of_serve]
        allowed = {"le", *COMMON_LABELS, *(label for each in known for label in each.labels)}
        groups = re.findall(r"by \(([^)]*)\)", query)
        grouped = {label.strip() for labels in groups for label in labels.split(",")}
        assert grouped <= allowed, query


def test_a_metric_that_is_not_in_the_catalogue_cannot_be_asked_for() -> None:
    """Not by a query of ours."""
    with pytest.raises(KeyError):
        series("writes")


def test_dashboards_are_valid_by_the_sdk_and_come_out_of_it_as_they_went_in() -> None:
    """Its model reads them, and says the same again."""
    for made in all_dashboards():
        read = dashboard.Dashboard.from_json(made)
        assert json.loads(JSONEncoder().encode(read)) == made
    group = rule_group("folder", "source")
    read_group = alerting.RuleGroup.from_json(group)
    assert len(read_group.rules or []) == len(ALERTS)


def test_uids_are_stable_and_panels_lie_side_by_side() -> None:
    """Links outlive releases; ids are unique; no panel covers another or leaves the grid."""
    made = all_dashboards()
    assert {each["uid"] for each in made} == {f"stelae-{key}" for key in UIDS}
    assert len({alert.uid for alert in ALERTS}) == len(ALERTS)
    for each in made:
        cells: set[tuple[int, int]] = set()
        ids = [panel["id"] for panel in each["panels"]]
        assert len(ids) == len(set(ids))
        for panel in each["panels"]:
            place = panel["gridPos"]
            taken = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not taken & cells, f"{each['title']}: {panel['title']}"
            cells |= taken
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"


def test_every_alert_says_what_to_do_and_the_guide_has_it() -> None:
    """Each title is a heading of the page that the alert names."""
    text = (DOCS / "monitoring.md").read_text()
    for alert in ALERTS:
        assert f"### {alert.title}\n" in text
        assert alert.summary
        assert alert.way_out
    assert INTERVAL_S % 10 == 0


def test_targets_are_those_of_nodes_that_live() -> None:
    """In the form that Prometheus reads from files."""
    nodes = [
        {"NodeManagerAddress": "10.0.0.2", "MetricsExportPort": 8080, "Alive": True},
        {"NodeManagerAddress": "10.0.0.1", "MetricsExportPort": 8080, "Alive": True},
        {"NodeManagerAddress": "10.0.0.3", "MetricsExportPort": 8080, "Alive": False},
        {"NodeManagerAddress": "10.0.0.4", "MetricsExportPort": 0, "Alive": True},
    ]
    (found,) = scrape_targets(nodes)
    assert found["targets"] == ["10.0.0.1:8080", "10.0.0.2:8080"]


def test_every_query_is_one_that_prometheus_understands(tmp_path: Path) -> None:
    """By its own parser; that each has data is shown on a cluster, which takes longer."""
    queries = [query.replace("$__rate_interval", "1m") for query in QUERIES]
    queries += [alert.promql for alert in ALERTS]
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(queries)]
    document = {"groups": [{"name": "all", "rules": rules}]}
    (tmp_path / "rules.json").write_text(json.dumps(document))
    promtool = needed_program("promtool")
    done = subprocess.run(
        [promtool, "check", "rules", "rules.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


SERIES_OF_ALERT = {
    "under-replicated": {"cluster_tablets_under_replicated": (0, 2)},
    "incomplete": {"cluster_tablets_incomplete": (0, 1)},
    "silent-safekeeper": {"wal_members_silent": (0, 1)},
    "lagging-safekeeper": {"wal_lag_entries": (200, 20_000)},
    "stuck-migration": {"cluster_migration_idle_s": (20, 400)},
    "memory": {"memory_live_bytes": (50, 93), "memory_limit_bytes": (100, 100)},
    "late-recovery": {"cluster_recovery_late_s": (0, 11)},
    "no-leader": {"master_leads": (1, 0)},
}
"""By alert: metric → its value while all is well, and while it is not."""


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.key)
def test_an_alert_fires_when_it_should_and_not_before(tmp_path: Path, alert: object) -> None:
    """By Prometheus's own evaluation: calm, then bad for as long as the alert waits, then calm."""
    (rule,) = [each for each in ALERTS if each is alert]
    well_for, bad_for = 5, 20
    rules = {
        "groups": [
            {
                "name": "g",
                "interval": "30s",
                "rules": [{"alert": "A", "expr": rule.promql, "for": rule.lasts}],
            }
        ]
    }
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    labels = 'cluster="c", server="s"'
    inputs = [
        {
            "series": f"{PREFIX}{name}{{{labels}}}",
            "values": f"{well}x{well_for} {bad}x{bad_for} {well}x20",
        }
        for name, (well, bad) in SERIES_OF_ALERT[rule.key].items()
    ]
    fired = {"exp_labels": {"cluster": "c", **({"server": "s"} if rule.key == "memory" else {})}}
    lasts_m = int(rule.lasts[:-1]) if rule.lasts.endswith("m") else 0
    bad_from_m = well_for + 1
    tests = [
        {
            "interval": "1m",
            "input_series": inputs,
            "alert_rule_test": [
                {"eval_time": f"{bad_from_m - 1}m", "alertname": "A", "exp_alerts": []},
                {"eval_time": f"{bad_from_m + lasts_m}m", "alertname": "A", "exp_alerts": [fired]},
                {"eval_time": f"{bad_from_m + bad_for + 3}m", "alertname": "A", "exp_alerts": []},
            ],
        }
    ]
    if lasts_m:
        before = {"eval_time": f"{bad_from_m + lasts_m - 1}m", "alertname": "A", "exp_alerts": []}
        tests[0]["alert_rule_test"].insert(1, before)  # type: ignore[attr-defined]
    document = {"rule_files": ["rules.json"], "evaluation_interval": "30s", "tests": tests}
    (tmp_path / "test.json").write_text(json.dumps(document))
    promtool = needed_program("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", "test.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
