"""A real Prometheus scrapes a real cluster under load: every query of every panel has an answer.

The cluster has tables of each durability, an index, the HTTP door, and loses a tablet server, so
that there is a recovery to show.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import ray

from stelae import Database, hash_partition, replicas, segments, wal
from stelae.cli.cluster.grafana import scrape_targets
from stelae.core.errors import StelaeError
from stelae.core.metric_catalogue import COMMON_LABELS, LABELS, METRICS, PREFIX
from stelae.core.schema.durability import Durability
from stelae.dashboards.alerts import ALERTS
from stelae.dashboards.boards import BOARDS
from tests.prometheus import Prometheus, needed_program
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

DATA_LIMIT_S = 90.0
REPORT_MS = 2500
"""Ray keeps a gauge for two reports; servers tell theirs every 2 s."""
OF_PROMETHEUS = ("instance", "job", "le", "__name__")
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("note", pa.string())])
DURABILITIES: dict[str, Durability] = {
    "owned": segments("disk", "disk"),
    "grouped": replicas(3),
    "logged": wal(3),
}


@pytest.fixture(scope="module")
def database(ray_folder: Path, launch_small: Callable[..., Database]) -> Iterator[Database]:
    """A cluster that writers and readers keep busy, in Python and over HTTP."""
    needed_program()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_metrics_report_interval_ms", str(REPORT_MS))
        database = launch_small("dash", safekeepers={"count": 3}, serve={"port": 0})
        for name, durability in DURABILITIES.items():
            database.create_table(
                name,
                SCHEMA,
                key="id",
                partition=hash_partition("id", buckets=2),
                durability=durability,
            )
        database.table("owned").create_index("note")
        over = threading.Event()
        workers = [
            threading.Thread(target=_work, args=(database, over)),
            threading.Thread(target=_work_over_http, args=(database, over)),
        ]
        for worker in workers:
            worker.start()
        yield database
        over.set()
        for worker in workers:
            worker.join(60)


def _work(database: Any, over: threading.Event) -> None:
    turn = 0
    while not over.wait(0.05):
        turn += 1
        rows = [{"id": (turn * 20 + i) % 5000, "note": f"turn {turn}"} for i in range(20)]
        for name in DURABILITIES:
            try:
                database.table(name).upsert(rows, timeout=5.0)
                database.table(name).get(rows[0]["id"], timeout=5.0)
            except StelaeError:
                continue  # a server is being killed


def _work_over_http(database: Any, over: threading.Event) -> None:
    headers = {"Authorization": f"Bearer {database.admin_token}"}
    with httpx.Client(base_url=database.http_url, headers=headers, timeout=10.0) as client:
        while not over.wait(0.05):
            try:
                client.get("/v1/tables/grouped/rows/1")
            except httpx.TransportError:
                continue


@pytest.fixture(scope="module")
def prometheus(database: Database) -> Iterator[Prometheus]:
    server = Prometheus(needed_program(), scrape_targets(ray.nodes()))
    yield server
    server.remove()


def filled_in(query: str) -> str:
    """As Grafana sends it."""
    return query.replace("$cluster", "test").replace("$__rate_interval", "15s")


def has_data(prometheus: Prometheus, query: str) -> bool:
    values = [value for _, value in prometheus.query(filled_in(query))]
    return any(not math.isnan(value) for value in values)


def test_every_panel_of_every_dashboard_has_data(
    database: Database, prometheus: Prometheus
) -> None:
    """Also the panels of recoveries: a tablet server is killed meanwhile. The figures are right:
    tables, servers, and that something is done."""
    victim = next(s for s in database.status()["servers"] if s["kind"] == "tserver")
    os.kill(victim["pid"], signal.SIGKILL)
    queries = {
        f"{board.key} / {panel.title}: {query}": query
        for board in BOARDS
        for panel in board.panels
        for query, _ in panel.queries
    }
    assert len(queries) > 60
    left = dict(queries)

    def all_have_data() -> bool:
        for name in [name for name, query in left.items() if has_data(prometheus, query)]:
            del left[name]
        return not left

    until(all_have_data, DATA_LIMIT_S, lambda: "data of\n" + "\n".join(left), poll_s=1.0)
    until_value(prometheus, f"max({PREFIX}cluster_tables)", lambda n: n == len(DURABILITIES))
    until_value(prometheus, f"sum({PREFIX}master_leads)", lambda n: n == 1)
    until_value(prometheus, f"sum({PREFIX}tserver_calls_per_s)", lambda n: n > 0)


def until_value(prometheus: Prometheus, query: str, holds: Callable[[float], bool]) -> None:
    """Rates are not known at first, and Ray tells figures now and then."""
    until(
        lambda: any(holds(value) for _, value in prometheus.query(query)),
        DATA_LIMIT_S,
        lambda: f"{query}: {prometheus.query(query)}",
        poll_s=1.0,
    )


def is_of_ray(label: str) -> bool:
    """Ray writes its own like classes; its exporter begins with its name; Stelae's have no such."""
    return label[0].isupper() or label.startswith("otel_") or label in OF_PROMETHEUS


def test_series_are_named_and_labelled_as_the_catalogue_says(
    database: Database, prometheus: Prometheus
) -> None:
    """Nothing else goes out, under no other label; the number of series is bounded by servers."""
    answer = httpx.get(
        f"{prometheus.url}/api/v1/series", params={"match[]": f'{{__name__=~"{PREFIX}.*"}}'}
    )
    allowed = {each.exported: {*COMMON_LABELS, *each.labels} for each in METRICS.values()}
    found = answer.json()["data"]
    assert len(found) > 100
    for series in found:
        name = series["__name__"]
        for end in ("_bucket", "_sum", "_count"):
            if name not in allowed:
                name = name.removesuffix(end)
        assert name in allowed, series
        assert {label for label in series if not is_of_ray(label)} <= allowed[name], series
    assert set(LABELS) >= {label for each in METRICS.values() for label in each.labels}


def test_every_alert_is_evaluated_and_none_fires_while_all_is_well(
    database: Database, prometheus: Prometheus
) -> None:
    """Rules compare figures that are there also while nothing is wrong."""
    for alert in ALERTS:
        until_value(prometheus, alert.query, lambda _: True)

    def firing() -> list[str]:
        return [alert.title for alert in ALERTS if prometheus.query(alert.promql)]

    until(lambda: not firing(), DATA_LIMIT_S, lambda: f"no alert; {firing()}", poll_s=1.0)
