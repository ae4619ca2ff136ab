"""Benchmarks run end to end at their smallest sizes: figures are taken, results are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITES = [
    "launch", "writes", "bulk", "memory", "replay", "recovery",
    "rows-on-demand", "cold-start", "large-catalog", "masters", "failover", "replica-writes",
    "wal-writes", "wal-moves", "tablet-copy", "idle-tablets", "indexing", "recovery-indexed",
    "ray-data", "http", "spark-read", "over-nodes",
]  # fmt: skip
pytestmark = [pytest.mark.soak, pytest.mark.ray]


@pytest.mark.parametrize("suite", SUITES)
def test_a_quick_benchmark_takes_its_figures_and_writes_them_down(
    suite: str, tmp_path: Path
) -> None:
    """``run.py --quick`` ends with code 0, and every figure is a number or says why it is not."""
    results = tmp_path / "results.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.run",
            "--quick",
            "--only",
            suite,
            "--json",
            str(results),
        ],
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(results.read_text())["suites"][suite]["figures"]
    assert figures
    for figure in figures:
        assert figure["value"] is not None or (figure["measured"] == "skipped" and figure["note"])
    judged = [figure for figure in figures if figure["met"] is not None]
    assert all(figure["target"] for figure in judged)
    assert judged
