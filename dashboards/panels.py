"""Makes Grafana's JSON of the dashboards, with its own typed builders."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from stelae.core.metric_catalogue import METRICS
from stelae.dashboards.boards import BOARDS, Board, Panel

DATA_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "stelae"
REFRESH = "10s"
NUMBER_WIDTH, NUMBER_HEIGHT = 6, 4
LINES_WIDTH, LINES_HEIGHT = 12, 8
GREEN, RED = "green", "red"


def dashboard_json(board: Board) -> dict[str, Any]:
    """A dashboard as Grafana takes it."""
    made = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .time("now-1h", "now")
        .refresh(REFRESH)
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Source").type("prometheus"))
        .with_variable(_cluster_variable())
        .link(
            builders.DashboardLink("Stelae")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
    )
    for number, panel in enumerate(_in_rows(board.panels), start=1):
        made = made.with_panel(_panel(panel).id(number))
    return _as_json(made.build())


def all_dashboards() -> list[dict[str, Any]]:
    return [dashboard_json(board) for board in BOARDS]


def as_json(model: object) -> dict[str, Any]:
    """Any model of the SDK, as plain dicts and lists."""
    return _as_json(model)


def _as_json(model: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JSONEncoder().encode(model))
    return found


def _in_rows(panels: tuple[Panel, ...]) -> list[Panel]:
    """Numbers first: they are of another height, and rows are filled from the left."""
    return sorted(panels, key=lambda panel: not panel.is_number)


def _cluster_variable() -> builders.QueryVariable:
    asks = f"label_values({METRICS['master_leads'].exported}, cluster)"
    return (
        builders.QueryVariable("cluster")
        .label("Cluster")
        .datasource(DATA_SOURCE)
        .query(asks)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.is_number:
        made = (
            stat.Panel()
            .span(NUMBER_WIDTH)
            .height(NUMBER_HEIGHT)
            .graph_mode(common.BigValueGraphMode.AREA)
            .color_mode(common.BigValueColorMode.VALUE)
            .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        )
    else:
        made = (
            timeseries.Panel()
            .span(LINES_WIDTH)
            .height(LINES_HEIGHT)
            .fill_opacity(10)
            .show_points(common.VisibilityMode.NEVER)
            .axis_soft_min(0)
        )
    steps = [models.Threshold(value=None, color=GREEN)]
    if panel.bad_from is not None:
        steps.append(models.Threshold(value=panel.bad_from, color=RED))
    made = made.title(panel.title).description(panel.text).unit(panel.unit).datasource(DATA_SOURCE)
    made = made.thresholds(
        builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    )
    for number, (query, legend) in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query).ref_id(chr(ord("A") + number)).range()
        made = made.with_target(target.legend_format(legend) if legend else target)
    return made
