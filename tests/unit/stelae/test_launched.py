"""Closing a launched database, and a launch that fails, while the HTTP front still starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stelae.applying import http_start
from stelae.applying.http_start import HttpStart
from stelae.cluster import LaunchedDatabase
from stelae.core.errors import RetryLater
from stelae.deploy.changed import Connected
from stelae.deploy.launcher import HttpFront

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

    def give_up(self, front: HttpFront, *, is_down: bool) -> None:
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
