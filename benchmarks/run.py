"""All benchmarks against their targets: ``python -m benchmarks.run [--quick] [--only NAME …]``.

Prints a table (target, measured, met or missed) and writes everything as JSON. What Stelae is
compared with (etcd, PostgreSQL) runs in the same run, in turn with it, on loopback; it is installed
where this process may, and otherwise left out with a line that says so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.figures import Figure, Load, skipped

RESULTS = Path("build") / "benchmarks.json"
SUITES: dict[str, tuple[str, dict[str, Any]]] = {
    "launch": ("operations.launching", {}),
    "indexing": ("tables.indexing", {}),
    "writes": ("tables.writes", {}),
    "bulk": ("tables.bulk", {}),
    "arrow-streams": ("tables.arrow_streams", {}),
    "ray-data": ("tables.ray_data", {}),
    "spark-read": ("tables.spark_read", {}),
    "large-catalog": ("operations.large_catalog", {}),
    "masters": ("operations.masters", {}),
    "memory": ("tables.memory", {}),
    "cleaning": ("tables.cleaning", {}),
    "replay": ("cores.replaying", {}),
    "recovery": ("failures.recovering", {"engine": "native"}),
    "recovery-large": ("failures.recovering", {"engine": "native", "gigabytes": 4}),
    "recovery-indexed": ("failures.recovering_indexed", {}),
    "rows-on-demand": ("failures.rows_on_demand", {}),
    "cold-start": ("failures.cold_start", {}),
    "recovery-spark": ("failures.recovering", {"engine": "spark"}),
    "failover": ("failures.failover", {}),
    "replica-writes": ("tables.replica_writes", {}),
    "wal-writes": ("tables.wal_writes", {}),
    "wal-moves": ("failures.wal_moves", {}),
    "over-nodes": ("failures.over_nodes", {}),
    "drain": ("operations.draining", {}),
    "tablet-copy": ("operations.tablet_copy", {}),
    "idle-tablets": ("operations.idle_tablets", {}),
    "http": ("tables.http_front", {}),
}


def _spark_is_here() -> str:
    """Empty, or why nothing of Spark can be measured."""
    try:
        importlib.import_module("stelae.recovery.spark_session").check_spark()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_suite(name: str, quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """The figures of one suite, and the load of the machine while they were taken."""
    module, options = SUITES[name]
    if name in ("recovery-spark", "spark-read") and (reason := _spark_is_here()):
        return [skipped(name, reason)], {}
    load, started = Load.begin(), time.perf_counter()
    measure: Callable[..., list[Figure]] = importlib.import_module(f"benchmarks.{module}").measure
    figures = measure(quick, **options)
    return figures, load.end(started).as_dict()


def show(console: Console, name: str, figures: list[Figure], load: dict[str, Any]) -> None:
    title = name
    if load:
        title += f"  (load {load['load_before']:.1f} → {load['load_after']:.1f}"
        title += f" on {load['cpus']} CPUs, {load['taken_s']:.0f} s)"
    table = Table(title=title, title_justify="left")
    for column in ("figure", "target", "measured", "", "note"):
        table.add_column(column, overflow="fold")
    words = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
    for figure in figures:
        table.add_row(figure.name, figure.target, figure.measured, words[figure.met], figure.note)
    console.print(table)


def main() -> int:
    """Exit code 1 if a suite broke; a missed target is reported, and is no error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it all work?")
    parser.add_argument("--only", nargs="+", choices=list(SUITES), metavar="NAME", default=None)
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"results, {RESULTS}")
    options = parser.parse_args()
    console = Console()
    results: dict[str, Any] = {"quick": options.quick, "machine": platform.platform(), "suites": {}}
    broken = 0
    for name in options.only or SUITES:
        try:
            figures, load = run_suite(name, options.quick)
        except Exception:
            broken += 1
            text = traceback.format_exc()
            console.print(f"{name} broke\n{text}", highlight=False, markup=False)
            results["suites"][name] = {"error": text}
            continue
        show(console, name, figures, load)
        results["suites"][name] = {
            "load": load,
            "figures": [{k: getattr(figure, k) for k in Figure.__slots__} for figure in figures],
        }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {options.json}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
