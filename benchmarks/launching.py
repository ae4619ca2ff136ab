"""How long the default cluster takes to stand, and what its servers weigh when they are empty."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from clusters import resident_total_bytes, servers
from figures import Figure, at_most, shown

import stelae

DEFAULT_SPEC = Path(__file__).resolve().parent.parent / "cluster.yaml"
LIMIT_MB = 300


def measure(quick: bool) -> list[Figure]:
    """`launch` of ``cluster.yaml``, the second time: files are in the page cache by then."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    times: list[float] = []
    weights: dict[str, float] = {}
    for _ in range(1 if quick else 3):
        folder = tempfile.mkdtemp(prefix="stelae-bench-launch-", dir="/var/tmp")
        start = time.perf_counter()
        try:
            with stelae.launch(str(DEFAULT_SPEC), data_dir=folder) as database:
                times.append(time.perf_counter() - start)
                time.sleep(2.0)
                for server in servers(database):
                    mb = resident_total_bytes(server["pid"]) / 1e6
                    weights[server["id"]] = max(mb, weights.get(server["id"], 0.0))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    heaviest = max(weights, key=lambda name: weights[name])
    best = times[0] if quick else min(times[1:])
    note = "first " + ", then ".join(f"{taken:.1f} s" for taken in times)
    figures = [at_most("launch of the default cluster, warm page cache", best, 20.0, "s", note)]
    figures.append(
        at_most("heaviest empty server, resident", weights[heaviest], LIMIT_MB, "MB", heaviest)
    )
    for kind in ("master", "tserver", "backup"):
        own = [mb for name, mb in weights.items() if name.startswith(kind)]
        figures.append(shown(f"… {kind}s, resident", max(own), "MB", "the heaviest of its kind"))
    return figures
