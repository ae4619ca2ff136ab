"""A launched cluster belongs to the process that launched it, and not to a child that it forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.cluster import LaunchedDatabase
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.deploy import ray_session
from stelae.deploy.forked_ray import parents_ray
from stelae.deploy.launcher import prepare
from stelae.deploy.locks import LaunchLock, lock_holder
from stelae.runtime.files import LocalDisk

ROOT = Path(__file__).parents[4]
EXITS = """
import atexit, ctypes, os, sys, ray
from stelae.deploy import ray_session

class Node:
    def is_head(self):
        return False

    def kill_all_processes(self, **options):
        print("the parent's processes were killed")

worker = ray._private.worker
worker._global_node = Node()
worker.global_worker.set_is_connected(True)
c_library = ctypes.CDLL(None)
c_library.on_exit(c_library.abort, None)
pid = os.fork()
if pid == 0:
    atexit.register(print, "own handler", ray.is_initialized(), flush=True)
    ray.shutdown()
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), ray.is_initialized(), flush=True)
os._exit(0)
"""


def test_a_child_that_exits_does_not_end_its_parents_ray() -> None:
    """Neither by exit handlers of Python nor by those of C, nor by a call of its own. Its own
    handlers run, and its exit status is what it says."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["own handler False", "3 True"]


def test_a_child_of_a_process_with_ray_is_told_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a call of Ray's that never returns."""
    monkeypatch.setattr(parents_ray, "is_inherited", True)
    with pytest.raises(InvalidArgument, match=r"forked from one that uses it.*data_dir or URL"):
        ray_session.join_ray("auto")


def test_a_child_does_not_hold_its_parents_cluster(tmp_path: Path) -> None:
    """A child that outlives the process that launched does not keep the data_dir in use."""
    lock = LaunchLock(tmp_path)
    ready, begun = os.pipe()
    over, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            os.write(begun, b"1" if lock.is_of_parent else b"0")
            os.read(over, 1)
        finally:
            os._exit(0)
    assert os.read(ready, 1) == b"1"
    assert not lock.is_of_parent
    assert lock_holder(tmp_path) == os.getpid()
    lock.release()
    assert lock_holder(tmp_path) == 0
    os.close(end)
    os.waitpid(pid, 0)
    for descriptor in (ready, begun, over):
        os.close(descriptor)


def test_close_in_a_child_takes_no_cluster_down() -> None:
    """Nor does it touch Ray, or the launch lock."""
    closed: list[bool] = []
    lock: Any = SimpleNamespace(is_of_parent=True)
    connection: Any = SimpleNamespace(
        origin=None, is_closed=False, close=lambda: closed.append(True)
    )
    launched = LaunchedDatabase.over(connection, "c")
    launched.lock = lock
    launched.close()
    assert closed == [True]


def test_a_data_dir_with_orphaned_servers_says_which_process_to_wait_for(tmp_path: Path) -> None:
    """As after the driver was killed: nobody holds the launch, and a server holds its folder."""
    spec = ClusterSpec.model_validate(
        {"cluster": "c", "data_dir": str(tmp_path), "serve": None, "spark": None}
    )
    _, lock = prepare(spec)
    lock.release()
    disk = LocalDisk(tmp_path / "tserver-1")
    words = (
        rf"tserver-1.*\(process {os.getpid()} .*end by themselves, usually within 30 s.*end that"
    )
    with pytest.raises(AlreadyRunning, match=words):
        prepare(spec)
    disk.close()
    _, lock = prepare(spec)
    lock.release()
