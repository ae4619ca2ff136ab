"""Stelae clusters for benchmarks: on a Ray of their own, in a folder that goes with them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray

import stelae

Status = dict[str, Any]


@contextmanager
def cluster(name: str, **sections: Any) -> Iterator[Any]:
    """A launched database without HTTP and Spark unless ``sections`` say so."""
    with cluster_spec(name, **sections) as spec:
        database = stelae.launch(spec)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def cluster_spec(name: str, **sections: Any) -> Iterator[dict[str, Any]]:
    """What to launch, as often as wanted, in a folder that goes with it."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = Path(tempfile.mkdtemp(prefix=f"stelae-bench-{name}-", dir="/var/tmp"))
    spec = {
        "apiVersion": "stelae/v1",
        "kind": "Cluster",
        "cluster": f"bench-{name}",
        "data_dir": str(folder),
        "serve": None,
        "spark": None,
        **sections,
    }
    try:
        yield spec
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def servers(database: Any, kind: str = "") -> list[Status]:
    """The servers of the status document, of one kind if named."""
    return [s for s in database.status()["servers"] if not kind or s["kind"] == kind]


def resident_total_bytes(pid: int) -> int:
    """All resident memory of a process, shared libraries included."""
    return int(psutil.Process(pid).memory_info().rss)


def shared_store_bytes() -> int:
    """What lies in this node's object store."""
    total = ray.cluster_resources().get("object_store_memory", 0.0)
    free = ray.available_resources().get("object_store_memory", 0.0)
    return int(total - free)
