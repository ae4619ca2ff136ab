"""Closing a launched database, and a launch that fails, while the HTTP front still starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stelae import cluster as module
from stelae.applying import http_start
from stelae.applying.http_start import HttpStart
from stelae.cluster import LaunchedDatabase
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import NotEnoughServers, RetryLater
from stelae.deploy import launcher, ray_session
from stelae.deploy.changed import Connected
from stelae.deploy.cluster_state import ClusterState
from stelae.deploy.launcher import HttpFront
from tests.until import until

URL = "http://127.0.0.1:1"
LONG_S = 60.0


class SlowFront:
    """A front that starts when it is let. ``done`` is what was done, in order."""

    def __init__(self, done: list[str]) -> None:
        self.may_start = threading.Event()
        self.is_starting = threading.Event()
        self.done = done

    def start(self) -> HttpFront:
        self.is_starting.set()
        assert self.may_start.wait(LONG_S)
        self.done.append("started")
        return HttpFront(URL, True)

    def finish(self, front: HttpFront, database: Connected) -> HttpFront:
        self.done.append("finished")
        return front

    def give_up(self, front: HttpFront, why: str, *, is_down: bool) -> None:
        self.done.append("given up, down" if is_down else "given up, serving")


@pytest.fixture
def done() -> list[str]:
    """What was done, in order."""
    return []


@pytest.fixture
def front(done: list[str]) -> Iterator[SlowFront]:
    """A front whose start hangs until the end of the test at most."""
    slow = SlowFront(done)
    yield slow
    slow.may_start.set()


def test_a_close_that_is_interrupted_gives_the_front_up_and_takes_the_cluster_down(
    front: SlowFront, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread would finish a front of a cluster that is down, which nobody ends (R2)."""
    http = HttpStart(front)
    assert front.is_starting.wait(LONG_S)
    connection: Any = SimpleNamespace(
        origin=None, is_closed=False, close=lambda: done.append("closed")
    )
    database = LaunchedDatabase.over(connection, "demo")
    database.http = http
    database.lock = cast(
        "Any", SimpleNamespace(is_of_parent=False, release=lambda: done.append("released"))
    )
    http.serve_tables(database)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(http, "settle", interrupted)
    monkeypatch.setattr(http_start, "GIVEN_UP_S", 0.01)
    monkeypatch.setattr(http_start, "SETTLE_S", 0.01)
    monkeypatch.setattr(LaunchedDatabase, "_take_down", lambda self: done.append("down"))
    with pytest.raises(KeyboardInterrupt):
        database.close()
    assert done == ["closed", "down", "released"]
    front.may_start.set()
    with pytest.raises(RetryLater, match="taken down before its HTTP front"):
        http.wait(LONG_S)
    assert done[3:] == ["started", "given up, down"]


def _launch_that_fails(
    front: SlowFront, done: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch a cluster whose servers do not become live. Raises NotEnoughServers."""

    def none_live(spec: Any, state: Any, lock: Any, http: HttpStart, *rest: Any) -> Any:
        assert front.is_starting.wait(LONG_S)
        raise NotEnoughServers("launch", 3, "servers", 0)

    def take_down(*args: Any, **more: Any) -> None:
        done.append("down, alone" if http_start._alone.lock.locked() else "down, not alone")

    monkeypatch.setattr(ray_session, "start_ray", lambda spec: True)
    monkeypatch.setattr(module, "check_launch", lambda spec, state, names: None)
    monkeypatch.setattr(launcher, "place", lambda spec, state: state)
    monkeypatch.setattr(launcher, "start_servers", lambda spec, state, actors: None)
    monkeypatch.setattr(launcher, "take_down", take_down)
    monkeypatch.setattr(module, "LaunchFront", lambda spec, state: front)
    monkeypatch.setattr(module, "_with_servers", none_live)
    state = ClusterState("demo", str(folder), {"master-1": "127.0.0.1:1"})
    monkeypatch.setattr(launcher, "plans", lambda spec, state: [])
    lock: Any = SimpleNamespace()
    spec = load_spec({"cluster": "demo", "data_dir": str(folder)})
    module._launch(spec, state, lock, lambda text: None)


def test_a_launch_that_fails_waits_for_its_front_before_ray_ends(
    front: SlowFront, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the front calls Ray, and is taken away by its own thread first (R2). No other
    front starts meanwhile (R1)."""
    settle = HttpStart.settle

    def lets_start(http: HttpStart, timeout_s: float = LONG_S) -> None:
        front.may_start.set()
        settle(http, timeout_s)

    monkeypatch.setattr(HttpStart, "settle", lets_start)
    monkeypatch.setattr(http_start, "GIVEN_UP_S", LONG_S)
    with pytest.raises(NotEnoughServers):
        _launch_that_fails(front, done, tmp_path, monkeypatch)
    assert done == ["started", "given up, down", "down, alone"]


def test_a_launch_that_fails_does_not_wait_long_for_a_front_that_hangs(
    front: SlowFront, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is taken down, and the front is never finished."""
    monkeypatch.setattr(http_start, "GIVEN_UP_S", 0.01)
    with pytest.raises(NotEnoughServers):
        _launch_that_fails(front, done, tmp_path, monkeypatch)
    assert [each.partition(",")[0] for each in done] == ["down"]
    front.may_start.set()
    until(lambda: len(done) == 3, LONG_S, "the front is taken away")
    assert done[1:] == ["started", "given up, down"]
