"""`stelae.deploy.ray_session`: a local Ray that does not come up is started again, a few times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import Unavailable
from stelae.deploy import ray_session


class Starts:
    """Stands for Ray's start: fails as often as told, and leaves a process of Ray's behind then."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.tried = 0
        self.left: list[subprocess.Popen[bytes]] = []

    def __call__(self, address: str, **options: Any) -> None:
        self.tried += 1
        if self.failures:
            self.left.append(process_of_ray())
            raise self.failures.pop(0)


def process_of_ray() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "raylet"])


def started(monkeypatch: pytest.MonkeyPatch, *failures: BaseException) -> Starts:
    starts = Starts(*failures)
    monkeypatch.setattr(ray_session, "_init_ray", starts)
    return starts


def late() -> Exception:
    return Exception("The current node timed out during startup.")


def test_a_ray_that_does_not_come_up_is_ended_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the failed start left running has ended before the next one begins."""
    starts = started(monkeypatch, late())
    ray_session._start_local({})
    assert starts.tried == 2
    assert [each.poll() is None for each in starts.left] == [False]


def test_after_the_last_try_the_error_says_what_ray_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Ray never comes up is told so, and nothing of Ray's runs on."""
    starts = started(monkeypatch, *(late() for _ in range(ray_session.STARTS + 1)))
    with pytest.raises(Unavailable, match=r"in 3 tries.*timed out during startup"):
        ray_session._start_local({})
    assert starts.tried == ray_session.STARTS
    assert not [each for each in starts.left if psutil.pid_exists(each.pid) and each.poll() is None]


def test_a_process_of_ray_is_known_though_it_has_no_command_line_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As is for a moment after it has begun; else it would be left."""
    looks: list[list[str]] = []

    def command_line(self: psutil.Process) -> list[str]:
        looks.append(shown(self) if looks else [])
        return looks[-1]

    shown = psutil.Process.cmdline
    monkeypatch.setattr(psutil.Process, "cmdline", command_line)
    with process_of_ray() as process:
        try:
            assert ray_session._is_of_ray(psutil.Process(process.pid))
            assert looks[0] == []
        finally:
            process.kill()


@pytest.mark.parametrize("failure", [ValueError("num_cpus must be > 0"), KeyboardInterrupt()])
def test_what_another_start_cannot_mend_is_raised_at_once(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that Ray refuses, and Ctrl-C, end the launch with the first try."""
    starts = started(monkeypatch, failure)
    with pytest.raises(type(failure)):
        ray_session._start_local({})
    assert starts.tried == 1


def test_a_ray_ends_with_the_last_cluster_that_was_launched_into_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Closing the first of two does not end the second; nor is the Ray of others ever ended."""
    nodes: list[object] = []
    shutdowns: list[object] = []

    def start(options: dict[str, Any]) -> None:
        nodes.append(object())
        monkeypatch.setattr(ray._private.worker, "_global_node", nodes[-1])

    def shut_down() -> None:
        shutdowns.append(nodes.pop())

    monkeypatch.setattr(ray, "is_initialized", lambda: bool(nodes))
    monkeypatch.setattr(ray, "shutdown", shut_down)
    monkeypatch.setattr(ray_session, "_start_local", start)
    spec = ClusterSpec.model_validate({"cluster": "c", "data_dir": str(tmp_path), "serve": None})
    assert ray_session.start_ray(spec)
    assert ray_session.is_last()
    assert ray_session.start_ray(spec)
    assert not ray_session.is_last()
    ray_session.end_ray()
    assert not shutdowns
    assert ray_session.start_ray(spec)
    ray_session.end_ray()
    assert not shutdowns
    ray_session.end_ray()
    assert len(shutdowns) == 1

    assert ray_session.start_ray(spec)
    nodes.clear()  # its user ends that Ray himself, and joins another
    start({})
    assert not ray_session.start_ray(spec)


def test_a_ray_of_our_own_starts_no_process_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node starts neither the dashboard's server, nor the autoscaler, nor the reader of output;
    whoever starts a Ray afterwards has them."""
    called: list[str] = []

    class Node:
        def start_api_server(self, *, include_dashboard: bool, raise_on_failure: bool) -> None:
            called.append("api server")

        def start_monitor(self) -> None:
            called.append("monitor")

        def start_raylet(self) -> None:
            called.append("raylet")

    def start(address: str, **options: Any) -> None:
        node = Node()
        node.start_api_server(include_dashboard=False, raise_on_failure=False)
        node.start_monitor()
        node.start_raylet()

    monkeypatch.setattr(ray._private.node, "Node", Node)  # it has no log monitor
    monkeypatch.setattr(ray_session, "_init_ray", start)
    ray_session._start_local({})
    assert called == ["raylet"]
    start("local")
    assert called == ["raylet", "api server", "monitor", "raylet"]


def test_the_processes_that_are_left_out_have_these_names_in_ray() -> None:
    """Else a version of Ray starts them again, and every launch takes longer."""
    for name in ray_session.IDLE_PROCESSES:
        assert callable(getattr(ray._private.node.Node, name))
