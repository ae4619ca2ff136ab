"""``stelae grafana``: dashboards and alerts for a Grafana, and what a Prometheus needs to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from types import ModuleType

grafana_app = typer.Typer(
    name="grafana",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Publish dashboards and alert rules to a Grafana, and show it to a Prometheus.",
)


def _needs(module: str) -> ModuleType:
    """Import what needs the extra. Raises InvalidArgument: it is not installed."""
    import importlib

    from stelae.core.errors import InvalidArgument

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        way_out = f"`stelae grafana` needs it: pip install 'stelae[grafana]' ({error})"
        raise InvalidArgument(way_out) from error


@grafana_app.command("publish")
def publish(
    url: Annotated[
        str, typer.Option(envvar="GRAFANA_URL", help="Where Grafana answers: http://host:3000")
    ],
    token: Annotated[
        str,
        typer.Option(
            envvar="GRAFANA_TOKEN", help="Of a service account: Editor, Admin with --prometheus."
        ),
    ],
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Make a data source of this Prometheus.")
    ] = "",
    datasource: Annotated[
        str, typer.Option(metavar="UID", help="Use this data source, which is there.")
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make folder, data source, dashboards and alert rules, or bring them up to date.

    Given again, it changes nothing. Changes of these dashboards and rules by hand are overwritten.
    Without --prometheus and --datasource the only Prometheus that Grafana has is used.

    \b
    stelae grafana publish --url http://localhost:3000 --prometheus http://localhost:9090
    GRAFANA_TOKEN=glsa_... stelae grafana publish --url https://host/grafana --datasource prom
    """
    import importlib.metadata

    adapter, publisher = _needs("stelae.dashboards.grafana"), _needs("stelae.dashboards.publisher")
    done = publisher.publish(
        adapter.GrafanaHttp(url, token),
        prometheus_url=prometheus,
        source_uid=datasource,
        message=f"stelae {importlib.metadata.version('stelae')}",
    )
    if as_json:
        print_json(done.document())
        return
    rows = [[name, "created"] for name in done.created]
    rows += [[name, "updated"] for name in done.updated]
    rows += [[name, "as it was"] for name in done.unchanged]
    rows.append([f"{done.rules} alert rules", "written"])
    print_table(f"Grafana {done.grafana}, data source {done.source}", ["what", ""], rows)


@grafana_app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Made if it is not there.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the dashboards as JSON files, for a Grafana that is provisioned from files.

    \b
    stelae grafana export /etc/grafana/dashboards/stelae
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for dashboard in _needs("stelae.dashboards.panels").all_dashboards():
        written.append(folder / f"{dashboard['uid']}.json")
        written[-1].write_text(json.dumps(dashboard, indent=2) + "\n")
    if as_json:
        print_json({"files": written})
        return
    for path in written:
        make_console().print(str(path), soft_wrap=True, markup=False)


@grafana_app.command("targets")
def targets(
    where: Where = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Written whole, or not at all."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Print where a Prometheus finds the metrics of this cluster's Ray, for its file_sd_configs.

    It is one JSON document, so there is no --json.

    \b
    stelae grafana targets --output /etc/prometheus/stelae.json
    """
    import ray

    from stelae.deploy.ray_session import join_ray

    with open_cluster(where) as database:
        join_ray(database.ray_address)
        try:
            text = json.dumps(scrape_targets(ray.nodes()), indent=2)
        finally:
            ray.shutdown()
    if output is None:
        print(text)
        return
    partial = output.with_name(f".{output.name}.new")  # which Prometheus's pattern does not match
    partial.write_text(text + "\n")
    partial.replace(output)


def scrape_targets(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of Ray's list of nodes, what Prometheus reads from a file."""
    found = [
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in nodes
        if node["Alive"] and node.get("MetricsExportPort")
    ]
    return [{"labels": {"job": "ray"}, "targets": sorted(found)}]


@grafana_app.command("metrics")
def metrics(as_json: Json = False, debug: Debug = False) -> None:
    """List all metrics: name in Prometheus, kind, labels, and what it says.

    \b
    stelae grafana metrics
    stelae grafana metrics --json | jq -r '.[].metric'
    """
    from stelae.core.metric_catalogue import COMMON_LABELS, METRICS

    rows = [
        [each.exported, each.kind.value, ", ".join([*COMMON_LABELS, *each.labels]), each.help]
        for each in METRICS.values()
    ]
    columns = ["metric", "kind", "labels", "what it says"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table("metrics", columns, rows)
