"""`connect` to a cluster that has ended, as after a restart of a notebook's kernel; `detach`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray

import stelae
from stelae import cluster as module
from stelae.core.errors import AlreadyRunning, InvalidArgument, Unavailable
from stelae.deploy import cluster_state, ray_session
from stelae.deploy.cluster_state import ClusterState
from stelae.deploy.locks import LaunchLock
from stelae.keeper_process import Up


@pytest.fixture
def listener() -> Iterator[str]:
    """A place where somebody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _nobody() -> str:
    """A place where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def _cluster(folder: Path, master: str, **more: Any) -> str:
    """The data_dir of a cluster with one master at this address."""
    (folder / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    ClusterState("demo", str(folder), {"master-1": master}, **more).save()
    return str(folder)


@pytest.mark.parametrize("has_ray", [False, True])
def test_connect_says_at_once_that_a_cluster_does_not_run(tmp_path: Path, *, has_ray: bool) -> None:
    """It was taken down, or its kernel was killed and its state names a Ray that ended."""
    data_dir = _cluster(tmp_path, _nobody(), ray_address=_nobody() if has_ray else "")
    with pytest.raises(Unavailable) as refused:
        stelae.connect(data_dir)
    text = str(refused.value)
    assert "cluster 'demo'" in text
    assert data_dir in text
    assert "does not run" in text
    assert "stelae.launch" in text
    assert "stelae up" in text


def test_a_master_that_listens_is_a_cluster_that_runs(tmp_path: Path, listener: str) -> None:
    """Whatever its state says: a launch may just be writing it."""
    stelae.connect(_cluster(tmp_path, listener)).close()


def test_masters_that_are_being_restarted_are_waited_for(tmp_path: Path, listener: str) -> None:
    """Their Ray runs: it starts them again, and calls wait for them."""
    stelae.connect(_cluster(tmp_path, _nobody(), ray_address=listener)).close()


def test_a_cluster_that_is_being_launched_is_waited_for(tmp_path: Path) -> None:
    """A process holds its data_dir."""
    data_dir = _cluster(tmp_path, _nobody())
    lock = LaunchLock(tmp_path)
    try:
        stelae.connect(data_dir).close()
    finally:
        lock.release()


def test_a_name_needs_a_ray_and_the_text_says_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart of the kernel its Ray is gone as well."""

    def join(address: str) -> None:
        raise Unavailable(f"Ray at {address!r}", "none runs")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_session, "join_ray", join)
    with pytest.raises(Unavailable, match=r"cluster 'demo' .*data_dir.*stelae\.launch"):
        stelae.connect("demo")


def test_detach_has_a_keeper_hold_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """`launch` connects to it then, and closing that ends nothing."""
    started: list[Any] = []

    def start(spec: Any, progress: Any) -> Up:
        started.append(spec)
        progress("starting Ray")
        return Up(spec.cluster, _cluster(tmp_path, listener), "", 1)

    monkeypatch.setattr(module, "start_keeper", start)
    told: list[str] = []
    database = stelae.launch(
        {"cluster": "demo", "data_dir": str(tmp_path)}, detach=True, progress=told.append
    )
    assert [spec.cluster for spec in started] == ["demo"]
    assert told == ["starting Ray"]
    assert (database.home, database.cluster) == (str(tmp_path), "demo")
    assert not isinstance(database, module.LaunchedDatabase)
    database.close()


def test_detach_refuses_a_ray_that_ends_with_this_process_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier launch of this process started it. Afterwards the caller would have no object with
    which to take the cluster down."""
    launched: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_session, "_own_ray", ray_session._OwnRay())
    ray_session._own_ray.started()
    monkeypatch.setattr(module, "_launch_here", lambda spec, progress: launched.append(spec))
    spec = {"cluster": "demo", "data_dir": str(tmp_path), "ray": {"address": "auto"}}
    with pytest.raises(InvalidArgument, match=r"detach=True.*address: auto.*ends with it.*local"):
        stelae.launch(spec, detach=True)
    assert not launched
    assert ray_session._own_ray.clusters == 1


def test_detach_again_says_how_to_connect(tmp_path: Path) -> None:
    """The cell that launched it is run once more after a restart of the kernel."""
    lock = LaunchLock(tmp_path)
    try:
        with pytest.raises(AlreadyRunning, match=r"stelae\.connect"):
            LaunchLock(tmp_path)
    finally:
        lock.release()


def test_importing_prints_nothing() -> None:
    """Neither hints at widgets nor warnings below the first cell."""
    program = "import stelae, json, sys; stelae.launch, stelae.plan; print(json.dumps(1))"
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(made.stdout) == 1
    assert made.stderr == ""
