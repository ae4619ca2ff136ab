"""The alert rules: when somebody has to look, and what to do then.

Each is a query over all clusters that a Prometheus has, one alert for each cluster, and a bound.
What is healed without anybody waits for so long first as that usually takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.models import alerting as models
from grafana_foundation_sdk.models import dashboard

from stelae.dashboards.panels import as_json
from stelae.dashboards.queries import memory_share, series

GROUP = "stelae"
INTERVAL_S = 30
"""Between evaluations; Ray tells gauges every 10 s."""
LOOK_BACK_S = 120
GUIDE = "docs/monitoring.md"
EXPRESSION = "__expr__"
MEMORY_SHARE_MAX = 0.9
LAG_ENTRIES_MAX = 10_000
IDLE_S_MAX = 300
LATE_S_MAX = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. ``key`` makes its uid, which never changes."""

    key: str
    title: str
    query: str
    bound: float
    lasts: str
    severity: Literal["warning", "critical"]
    summary: str
    way_out: str
    is_below: bool = False
    no_data: Literal["Alerting", "NoData", "OK"] = "OK"

    @property
    def uid(self) -> str:
        return f"stelae-{self.key}"

    @property
    def promql(self) -> str:
        """With its bound, as a rule of Prometheus has it."""
        return f"{self.query} {'<' if self.is_below else '>'} {self.bound:g}"


def _most(name: str) -> str:
    return f"max by (cluster) ({series(name, '')})"


ALERTS = (
    Alert(
        "under-replicated",
        "Tablets lack replicas",
        _most("cluster_tablets_under_replicated"),
        0,
        "10m",
        "warning",
        "Another loss may cost data, or stop writes.",
        "Start the servers that are dead, or add others: `stelae status` names the tablets.",
    ),
    Alert(
        "incomplete",
        "Tablets are incomplete",
        _most("cluster_tablets_incomplete"),
        0,
        "1m",
        "critical",
        "Segments, or a majority of replicas, are nowhere to be had.",
        "`stelae recover` names what is missing and which servers may have it: start these.",
    ),
    Alert(
        "silent-safekeeper",
        "A safekeeper does not answer",
        f"sum by (cluster) ({series('wal_members_silent', '')})",
        0,
        "5m",
        "warning",
        "Logs have one copy less; with another loss writes wait.",
        "Start it, or `stelae safekeeper migrate`: `stelae safekeeper list` shows who is there.",
    ),
    Alert(
        "lagging-safekeeper",
        "A safekeeper lags",
        _most("wal_lag_entries"),
        LAG_ENTRIES_MAX,
        "5m",
        "warning",
        "It answers, and is far behind: its disk or its network is too slow.",
        "Look at that machine's disk; `stelae safekeeper migrate` moves its logs away.",
    ),
    Alert(
        "stuck-migration",
        "A migration is stuck",
        _most("cluster_migration_idle_s"),
        IDLE_S_MAX,
        "1m",
        "warning",
        "No step of it was made for five minutes.",
        "`stelae safekeeper status` says what it waits for; `abort` takes it back.",
    ),
    Alert(
        "memory",
        "Memory is above 90 %",
        memory_share("memory_live_bytes", ""),
        MEMORY_SHARE_MAX,
        "5m",
        "warning",
        "Live rows fill a tablet server; at 95 % it refuses writes.",
        "Add tablet servers and `stelae rebalance on`, give them more memory, or delete rows.",
    ),
    Alert(
        "late-recovery",
        "A recovery takes longer than predicted",
        _most("cluster_recovery_late_s"),
        LATE_S_MAX,
        "0s",
        "critical",
        "Tablets are offline for longer than the engine's rates say.",
        "`stelae status` shows its phase; if it waits for segments, `stelae recover`.",
    ),
    Alert(
        "no-leader",
        "No master leads",
        f"sum by (cluster) ({series('master_leads', '')})",
        1,
        "1m",
        "critical",
        "Nothing is created, recovered or moved; tables are served until leases end.",
        "Start masters until a majority lives: `stelae master list`.",
        is_below=True,
        no_data="NoData",
    ),
)


def rule_group(folder_uid: str, data_source_uid: str) -> dict[str, Any]:
    """All rules, as Grafana's provisioning API takes them."""
    group = alerting.RuleGroup(GROUP).folder_uid(folder_uid).interval(INTERVAL_S)
    for alert in ALERTS:
        group = group.with_rule(_rule(alert, folder_uid, data_source_uid))
    return as_json(group.build())


def _rule(alert: Alert, folder_uid: str, data_source_uid: str) -> alerting.Rule:
    source = dashboard.DataSourceRef(type_val="prometheus", uid=data_source_uid)
    asked = prometheus.Dataquery().expr(alert.query).instant().ref_id("A").datasource(source)
    evaluator = (
        expr.ExprTypeThresholdConditionsEvaluator()
        .type("lt" if alert.is_below else "gt")
        .params([alert.bound])
    )
    weighed = (
        expr.TypeThreshold()
        .ref_id("B")
        .expression("A")
        .datasource(dashboard.DataSourceRef(type_val=EXPRESSION, uid=EXPRESSION))
        .conditions([expr.ExprTypeThresholdConditions().evaluator(evaluator)])
    )
    return (
        alerting.Rule(alert.title)
        .uid(alert.uid)
        .org_id(1)
        .folder_uid(folder_uid)
        .rule_group(GROUP)
        .condition("B")
        .for_val(alert.lasts)
        .no_data_state(alert.no_data)
        .exec_err_state("Error")
        .labels({"severity": alert.severity, "product": "stelae"})
        .annotations(
            {"summary": alert.summary, "description": alert.way_out, "guide": f"{GUIDE}#alerts"}
        )
        .with_query(_query("A", data_source_uid, LOOK_BACK_S).model(asked))
        .with_query(_query("B", EXPRESSION, 0).model(weighed))
    )


def _query(ref_id: str, data_source_uid: str, look_back_s: int) -> alerting.Query:
    window = models.RelativeTimeRange(from_val=look_back_s, to=0)
    return (
        alerting.Query(ref_id)
        .ref_id(ref_id)
        .datasource_uid(data_source_uid)
        .relative_time_range(window)
    )
