"""How long a cluster takes to stand, and what its processes weigh when it is empty.

Of the default cluster and of the small profile: seconds until tables can be used, seconds until
HTTP answers, CPU seconds until then, and memory by kind of process. PSS divides pages that several
processes map between them, so that its sum is what the machine loses; the sum of RSS counts them
once a process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import stelae
from benchmarks.common.clusters import servers
from benchmarks.common.figures import Figure, at_most, shown

DEFAULT_SPEC = Path(__file__).resolve().parents[2] / "cluster.yaml"
SMALL_SPEC = {"profile": "small"}
SERVE = {"port": 0}
SETTLE_S = 2.0
LIMIT_MB = 300
DEFAULT_FIRST_S, DEFAULT_WARM_S = 15.0, 8.0
SMALL_WARM_S, SMALL_PSS_MB = 4.0, 700.0
KINDS = {
    "gcs_server": "Ray: GCS",
    "raylet": "Ray: raylet",
    "dashboard/agent.py": "Ray: agents",
    "runtime_env/agent": "Ray: agents",
    "ray::IDLE": "Ray: idle workers",
    "ServeController": "Serve",
    "ProxyActor": "Serve",
    "HAProxy": "Serve",
    "haproxy": "Serve",
    "ServeReplica": "Serve",
}
"""Kinds of process that are no servers, by a part of the command line."""


@dataclass
class Weight:
    """Memory of the processes of one kind."""

    processes: int = 0
    rss_mb: float = 0.0
    pss_mb: float = 0.0
    heaviest_mb: float = 0.0


@dataclass
class Launch:
    """What one launch took."""

    tables_s: float
    http_s: float
    cpu_s: float
    """CPU time of all processes when HTTP answered, without what this process used before."""
    weights: dict[str, Weight] = field(default_factory=lambda: defaultdict(Weight))

    @property
    def pss_mb(self) -> float:
        return sum(weight.pss_mb for weight in self.weights.values())

    @property
    def rss_mb(self) -> float:
        return sum(weight.rss_mb for weight in self.weights.values())


def measure(quick: bool) -> list[Figure]:
    """Both clusters, launched anew each time; files are in the page cache from the second on."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    times = 1 if quick else 3
    default = [launched(str(DEFAULT_SPEC)) for _ in range(times)]
    small = [launched(SMALL_SPEC, serve=None) for _ in range(times)]
    with_http = launched(SMALL_SPEC)
    figures = [
        at_most("default cluster, first time: tables", default[0].tables_s, DEFAULT_FIRST_S, "s"),
        *_of("default cluster", default, DEFAULT_WARM_S),
        *_of("profile: small", small, SMALL_WARM_S),
        at_most(
            "profile: small, memory of all processes (PSS)",
            small[-1].pss_mb,
            SMALL_PSS_MB,
            "MB",
            f"{small[-1].weights['driver'].pss_mb:.0f} MB of it are whoever launched it",
        ),
        shown("… with HTTP", with_http.pss_mb, "MB", f"HTTP after {with_http.http_s:.1f} s"),
    ]
    kinds = ("master", "tserver", "backup")
    heaviest = max(default[-1].weights[kind].heaviest_mb for kind in kinds)
    figures.append(at_most("heaviest empty server, resident", heaviest, LIMIT_MB, "MB"))
    return figures


def _of(name: str, launches: list[Launch], limit_s: float) -> list[Figure]:
    """The best of the launches that were not the first, and the memory of the last one."""
    warm = launches[1:] or launches
    best = min(warm, key=lambda launch: launch.tables_s)
    note = "first " + ", then ".join(f"{launch.tables_s:.1f} s" for launch in launches)
    figures = [
        at_most(f"{name}, warm page cache: tables", best.tables_s, limit_s, "s", note),
        shown("… HTTP", min(launch.http_s for launch in warm), "s"),
        shown("… CPU time until HTTP", min(launch.cpu_s for launch in warm), "s"),
    ]
    last = launches[-1]
    figures.append(shown("… memory of all processes, PSS", last.pss_mb, "MB"))
    figures.append(shown("… memory of all processes, RSS", last.rss_mb, "MB"))
    for kind, weight in sorted(last.weights.items()):
        note = f"{weight.processes} processes, RSS {weight.rss_mb:.0f} MB"
        figures.append(shown(f"… {kind}, PSS", weight.pss_mb, "MB", note))
    return figures


def launched(spec: Any, serve: dict[str, Any] | None = SERVE) -> Launch:
    """Launch a cluster in a folder of its own, and close it. ``serve``: None is without HTTP."""
    folder = tempfile.mkdtemp(prefix="stelae-bench-launch-", dir="/var/tmp")
    cpu_before_s = _cpu_s(psutil.Process())
    began = time.perf_counter()
    try:
        with stelae.launch(spec, data_dir=folder, serve=serve) as database:
            tables_s = time.perf_counter() - began
            database.http.wait()
            http_s = time.perf_counter() - began
            cpu_s = sum(_cpu_s(process) for process in _processes()) - cpu_before_s
            found = Launch(tables_s, http_s, cpu_s)
            time.sleep(SETTLE_S)
            _weigh(found, {server["pid"]: server["kind"] for server in servers(database)})
            return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _processes() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0
    return float(times.user + times.system)


def _weigh(launch: Launch, kinds: dict[int, str]) -> None:
    """Add up the memory of each kind of process. ``kinds``: of the servers, by pid."""
    for process in _processes():
        try:
            memory, line = process.memory_full_info(), " ".join(process.cmdline())
        except psutil.NoSuchProcess:  # it has just ended
            continue
        named = next((kind for part, kind in KINDS.items() if part in line), "other")
        kind = "driver" if process.pid == os.getpid() else kinds.get(process.pid, named)
        weight = launch.weights[kind]
        weight.processes += 1
        weight.rss_mb += memory.rss / 1e6
        weight.pss_mb += memory.pss / 1e6
        weight.heaviest_mb = max(weight.heaviest_mb, memory.rss / 1e6)
