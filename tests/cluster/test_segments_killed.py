"""A table of 600 MB on backups, on real Ray: rolling kills, then a loss of power of everything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pyarrow import feather

import stelae
from stelae.demo.writers import Ledger, check_table
from tests.cluster.segments_load import (
    FIRST_LAST_ID,
    IDS_EACH,
    KILLS,
    LAST_WRITERS,
    last_row,
)
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
LAST_WRITES = 200
"""So many are acknowledged before the power is lost."""
WHOLE_S = 90.0


def lines_of(process: subprocess.Popen[str], key: str) -> list[dict[str, Any]]:
    """What it says, up to the line with ``key``."""
    assert process.stdout is not None
    said: list[dict[str, Any]] = []
    for line in process.stdout:
        if line.startswith("{"):
            said.append(json.loads(line))
            if key in said[-1]:
                return said
    raise AssertionError(f"it ended after {said}")


def acknowledged(folder: Path) -> dict[int, int]:
    """Ids and versions of what the last writers were told is stored."""
    found: dict[int, int] = {}
    for writer in range(LAST_WRITERS):
        path = folder / f"acknowledged-{writer}"
        for line in path.read_text().splitlines() if path.exists() else ():
            number, version = line.split()
            found[int(number)] = int(version)
    return found


def lose_power(process: subprocess.Popen[str]) -> int:
    """Everything stops in one moment, and nothing of it runs ever again; how many processes."""
    everything = [
        *psutil.Process(process.pid).children(recursive=True),
        psutil.Process(process.pid),
    ]
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for each in everything:
            try:
                each.send_signal(how)
            except psutil.NoSuchProcess:
                continue
    process.wait(30.0)
    _, left = psutil.wait_procs(everything, 30.0)
    assert not left
    return len(everything)


def ledger_of(folder: Path, acked: dict[int, int]) -> Ledger:
    """What must be there after the cold start."""
    expected = feather.read_table(str(folder / "expected"))
    versions = expected["_version"].to_numpy().astype(np.uint64)
    ledger = Ledger(expected.drop_columns(["_version"]), versions, ("id",))
    for number, version in acked.items():
        ledger.written[number] = (last_row(number), version)
    for writer in range(LAST_WRITERS):
        first = FIRST_LAST_ID + writer * IDS_EACH
        under_way = first + sum(first <= number < first + IDS_EACH for number in acked)
        ledger.unsure[under_way] = [last_row(under_way)]
    return ledger


def test_rolling_kills_and_a_loss_of_power_lose_nothing(
    ray_folder: Path, small_spec: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty tablet servers and backups are killed in turn under load; then every process at once
    while rows are written. After a cold start each acknowledged row is there as it was."""
    began = time.monotonic()
    spec = small_spec(
        ray_folder / "killed", tservers={"count": 3, "memory": "2GiB"}, segment_size="8MiB"
    )
    spec["media"] = {"disk": {"path": "disk"}}
    given = ray_folder / "spec.json"
    given.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "tests.cluster.segments_load", str(given), str(ray_folder)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = lines_of(process, "last")

        def are_acknowledged() -> bool:
            assert process.poll() is None, "it ended"
            return len(acknowledged(ray_folder)) >= LAST_WRITES

        left_s = began + LIMIT_S - time.monotonic()
        until(are_acknowledged, left_s, f"{LAST_WRITES} writes before the loss of power")
    finally:
        ended = lose_power(process)
    acked = acknowledged(ray_folder)
    cold_at = time.monotonic()
    with stelae.launch(spec) as db:
        up_s = time.monotonic() - cold_at
        table = db.table("t")
        checked = table._loop.run(check_table(table._table, ledger_of(ray_folder, acked)))
        assert checked.is_right, checked.problems
        read_s = time.monotonic() - cold_at
        report = db.check(wait=WHOLE_S, timeout=WHOLE_S)
        assert report.is_well, [str(problem) for problem in report.problems]
        assert not db.losses().waiting
    facts = {key: value for line in said for key, value in line.items()}
    assert facts["killed"] == KILLS
    with capsys.disabled():
        print(
            f"\n{facts['rows']} rows loaded in {facts['loaded_s']:.1f} s; {facts['killed']} kills "
            f"in {facts['killing_s']:.1f} s under {facts['writes']} writes; {ended} processes lost "
            f"power after {len(acked)} more; up after {up_s:.1f} s, all rows read after "
            f"{read_s:.1f} s; {time.monotonic() - began:.0f} s in all"
        )
