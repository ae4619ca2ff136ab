"""A cluster's life on real Ray: launched once only, found, closed, back from its disks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
import ray

import stelae
from stelae import errors, hash_partition, segments
from stelae.core.records.losses import LossReport
from stelae.demo.writers import check_table, load_table
from stelae.deploy import cluster_state
from stelae.runtime.tcp import local
from tests.traces_collector import collecting
from tests.until import until

pytestmark = pytest.mark.ray

BACKUPS = ("backup-2", "backup-3")
LOOK_S = 120.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
ROWS = pa.table({"id": range(20_000), "name": [f"row {i}" for i in range(20_000)]}, schema=SCHEMA)
READ_IN_ANOTHER_PROCESS = """
import sys, stelae
with stelae.connect(sys.argv[1]) as db:
    print(db.table("t").get(7))
"""


@pytest.mark.soak
def test_a_cluster_is_launched_once_closed_whole_and_comes_back_from_disk(
    ray_folder: Path,
    launch_small: Callable[..., Any],
    small_spec: Callable[..., dict[str, Any]],
) -> None:
    """While it runs no second launch gets at its data; after close() nothing of it runs; launched
    again on its data_dir, every row and version is there, and deleted rows are not."""
    folder = ray_folder / "life"
    db = launch_small("life")
    table = db.create_table("t", SCHEMA, key="id", partition=hash_partition("id", 4))
    ledger = table._loop.run(load_table(table._table, ROWS, lambda _: None))
    (version,) = table.upsert({"id": 7, "name": "again"})
    ledger.written[7] = ({"id": 7, "name": "again"}, int(version))
    table.upsert({"id": 30_000, "name": "gone"})
    table.delete(30_000)

    with pytest.raises(errors.AlreadyRunning, match="in use by process"):
        stelae.launch(small_spec(folder))
    with pytest.raises(errors.AlreadyRunning, match="running already in this Ray"):
        stelae.launch(small_spec(ray_folder / "elsewhere"))
    with pytest.raises(errors.InvalidArgument, match=r"not a cluster's data_dir"):
        stelae.connect(ray_folder)
    with pytest.raises(errors.Unavailable, match="does not run in this Ray"):
        stelae.connect("another")
    with stelae.connect("test") as by_name:
        assert by_name.table("t").get(7) == {"id": 7, "name": "again"}
    answer = subprocess.run(
        [sys.executable, "-c", READ_IN_ANOTHER_PROCESS, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert answer.stdout.strip() == "{'id': 7, 'name': 'again'}"

    pids = [server["pid"] for server in db.status()["servers"]]
    db.close()
    db.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not ray.is_initialized()
    with pytest.raises(errors.InvalidArgument, match="holds cluster 'test', not 'other'"):
        stelae.launch(small_spec(folder, cluster="other"))

    db = launch_small("life")
    table = db.table("t")
    checked = table._loop.run(check_table(table._table, ledger))
    assert checked.is_right, checked.problems
    assert checked.rows == ROWS.num_rows
    (later,) = table.upsert({"id": 7, "name": "third"}, timeout=LOOK_S)
    assert later > version
    db.close()
    _start_without_backups(folder, small_spec)


def _start_without_backups(folder: Path, small_spec: Callable[..., dict[str, Any]]) -> None:
    """Cold, with the disks of two of three backups away: these are named, though no master has
    heard them, and nothing is given up. With them all is there."""
    with stelae.launch(small_spec(folder, backups={"count": 1})) as db:

        def incomplete() -> LossReport | None:
            found = db.losses()
            return found if found.waiting else None

        what = "segments that the other two have are missed"
        report = until(incomplete, LOOK_S, what, poll_s=0.2)
        assert report.silent_backups == BACKUPS
        assert all(each.silent_s < 0 for each in report.silent)
        assert [each["id"] for each in db.status()["backups_not_heard"]] == list(BACKUPS)
        with pytest.raises(errors.InvalidArgument, match=r"backup-2 on .*backup-3 on .*--gone"):
            db.accept_loss(report, by="somebody")
    with stelae.launch(small_spec(folder)) as db:
        assert db.table("t").get(7, timeout=LOOK_S) == {"id": 7, "name": "third"}
        assert db.table("t").count() == ROWS.num_rows
        assert not db.losses().accepted


def test_a_request_is_one_trace_from_the_front_to_the_tablet_server(
    ray_folder: Path, launch_small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes of the cluster send their spans to where `traces` of its file says. All of it
    runs with TLS, which this process uses as another machine would: over TCP."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="the extra [traces] is not installed")
    pytest.importorskip("cryptography", reason="the extra [tls] is not installed")
    monkeypatch.setattr(local, "_socket", lambda: None)  # of this process, and not of the servers
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # ms, instead of five seconds
    trace = "ab" * 16
    with collecting() as collector:
        few = {"count": 1}
        db = launch_small(
            "traced",
            masters=few,
            tservers={**few, "memory": "128MiB"},
            backups=few,
            serve={"host": "127.0.0.1", "port": 0},
            traces={"endpoint": collector.url},
            tls={"mode": "internal"},
        )
        db.create_table("t", SCHEMA, key="id", durability=segments("disk"))
        folder = ray_folder / "traced"
        url = db.http.wait(LOOK_S)
        token = (folder / cluster_state.ADMIN_TOKEN_FILE).read_text().strip()
        answer = httpx.put(
            f"{url}/v1/tables/t/rows/7",
            json={"name": "traced"},
            headers={
                "Authorization": f"Bearer {token}",
                "traceparent": f"00-{trace}-{'cd' * 8}-01",
            },
            timeout=LOOK_S,
        )
        assert answer.status_code == 200, answer.text

        def is_whole() -> bool:
            found = collector.spans(bytes.fromhex(trace))
            ids = {span.span_id for _, span in found} | {bytes.fromhex("cd" * 8)}
            has_parents = all(span.parent_span_id in ids for _, span in found)
            return has_parents and {"http", "tserver"} <= {kind for kind, _ in found}

        def seen() -> str:
            return str([(kind, span.name) for kind, span in collector.spans(bytes.fromhex(trace))])

        until(is_whole, LOOK_S, seen, poll_s=0.1)
        _reach_over_tls(folder)
        db.close()


def _reach_over_tls(folder: Path) -> None:
    """By its files and by its name; without TLS nobody comes in, and is told why."""
    for where in (str(folder), "test"):
        with stelae.connect(where) as found:
            assert found.status()["is_encrypted"]
            assert found.table("t").get(7) == {"id": 7, "name": "traced"}
    state = cluster_state.load_state(folder)
    assert state.peer_tls.mode == "internal"
    plain = folder.with_name("plain")
    plain.mkdir()
    shutil.copy(folder / cluster_state.SECRET_FILE, plain)
    replace(state, data_dir=str(plain), home="", tls={}).save()
    with (
        stelae.connect(str(plain)) as found,
        pytest.raises(errors.Unauthorized, match="takes TLS only, and TLS is off here"),
    ):
        found.status()
