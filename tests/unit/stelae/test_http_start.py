"""The HTTP front of a launch starts in the background: what is waited for and written down."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from stelae.applying import front as apply_front
from stelae.applying import http_start
from stelae.applying import run as apply_run
from stelae.applying.front import wait_front
from stelae.applying.http_start import HttpStart, LaunchFront
from stelae.applying.run import Applied
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, RetryLater, Unavailable
from stelae.deploy import cluster_state, launcher
from stelae.deploy.changed import Connected
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.deploy.launcher import HttpFront

URL = "http://127.0.0.1:1"
LONG_S = 60.0
DATABASE = cast("Connected", object())


class FakeFront:
    """A front that starts when it is let, and fails with ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_start = threading.Event()
        self.is_starting = threading.Event()
        self.error = error
        self.done: list[str] = []
        self.when_finished: Callable[[], object] = lambda: None

    def start(self) -> HttpFront:
        self.is_starting.set()
        assert self.may_start.wait(LONG_S)
        if self.error is not None:
            raise self.error
        self.done.append("started")
        return HttpFront(URL, True)

    def finish(self, front: HttpFront, database: Connected) -> HttpFront:
        assert database is DATABASE
        self.done.append("finished")
        self.when_finished()
        return front

    def give_up(self, front: HttpFront, why: str, *, is_down: bool) -> None:
        self.done.append(f"given up {front.url} {'down' if is_down else 'serving'}".strip())
        self.why = why


@pytest.fixture
def begin() -> Iterator[Callable[[FakeFront], HttpStart]]:
    """``begin(front)``: its start, which is ended with the test."""
    begun: list[tuple[FakeFront, HttpStart]] = []

    def start(front: FakeFront) -> HttpStart:
        begun.append((front, HttpStart(front)))
        return begun[-1][1]

    yield start
    for front, http in begun:
        front.may_start.set()
        http.cancel()
        http.settle()


def test_the_front_is_finished_once_the_tables_serve(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """`wait` returns the URL then, and not before; until then there is none to be shown."""
    front = FakeFront()
    http = begin(front)
    assert repr(http) == "<stelae http: starting>"
    front.may_start.set()
    with pytest.raises(RetryLater, match=r"not started within 0\.01 s; tables can be used"):
        http.wait(0.01)
    assert http.url == ""
    assert "finished" not in front.done
    http.serve_tables(DATABASE)
    assert http.wait(LONG_S) == URL
    assert http.url == URL
    assert repr(http) == f"<stelae http: {URL}>"
    assert front.done == ["started", "finished"]


def test_what_kept_the_front_from_starting_is_told_and_the_tables_serve(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """By each `wait`, and by ``repr``; ``cluster.json`` has no start under way."""
    front = FakeFront(AlreadyRunning("port 1 is in use"))
    http = begin(front)
    front.may_start.set()
    http.serve_tables(DATABASE)
    for _ in range(2):
        with pytest.raises(AlreadyRunning, match="port 1 is in use"):
            http.wait(LONG_S)
    assert http.url == ""
    assert repr(http) == "<stelae http: did not start: port 1 is in use>"
    assert front.done == ["given up  serving"]
    assert front.why == "port 1 is in use"


def test_the_failure_is_logged(
    begin: Callable[[FakeFront], HttpStart], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may call `wait`."""
    logged: list[str] = []
    monkeypatch.setattr(
        http_start.logger, "warning", lambda text, *values: logged.append(text % values)
    )
    front = FakeFront(AlreadyRunning("port 1 is in use"))
    http = begin(front)
    front.may_start.set()
    http.serve_tables(DATABASE)
    http.settle()
    assert logged == ["the HTTP front did not start; tables can be used: port 1 is in use"]


def test_a_front_that_nobody_waits_for_any_more_is_taken_away(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """A launch that fails meanwhile, or a close that gave up, leaves no front behind (R2)."""
    front = FakeFront()
    http = begin(front)
    assert front.is_starting.wait(LONG_S)
    http.cancel()
    front.may_start.set()
    with pytest.raises(RetryLater, match="taken down before its HTTP front"):
        http.wait(LONG_S)
    assert front.done == ["started", f"given up {URL} down"]


def test_a_close_waits_up_to_a_bound_and_then_gives_the_front_up(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """`settle` returns although the start hangs; the front is taken away once it is there."""
    front = FakeFront()
    http = begin(front)
    assert front.is_starting.wait(LONG_S)
    http.settle(0.01)
    front.may_start.set()
    http.settle()
    assert front.done == ["started", f"given up {URL} down"]


def test_a_front_that_is_given_up_while_it_is_finished_is_taken_away(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """Whoever closes does not wait for it any more, and ends the cluster (R2)."""
    front = FakeFront()
    http = begin(front)
    front.when_finished = http.cancel
    front.may_start.set()
    http.serve_tables(DATABASE)
    with pytest.raises(RetryLater, match="taken down before its HTTP front"):
        http.wait(LONG_S)
    assert front.done == ["started", "finished", f"given up {URL} down"]


def test_fronts_of_one_process_start_one_at_a_time(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """Two that start at once would each take the Serve for their own (R1)."""
    first, second = FakeFront(), FakeFront()
    http = begin(first)
    assert first.is_starting.wait(LONG_S)
    other = begin(second)
    second.may_start.set()
    assert not second.is_starting.wait(0.05)
    first.may_start.set()
    assert second.is_starting.wait(LONG_S)
    for each in (http, other):
        each.serve_tables(DATABASE)
        assert each.wait(LONG_S) == URL


def test_no_front_starts_while_a_cluster_is_taken_down(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """It would join a Serve that is about to end (R1)."""
    first, second = FakeFront(), FakeFront()
    first.may_start.set()
    second.may_start.set()
    http = begin(first)
    http.serve_tables(DATABASE)
    http.settle()
    with http.alone():
        begin(second)
        assert not second.is_starting.wait(0.05)
    assert second.is_starting.wait(LONG_S)


def _in_child(work: Callable[[], bool]) -> bool:
    """Whether it returns true in a forked child, which ends with it."""
    pid = os.fork()
    if pid == 0:
        result = 2
        try:
            result = 0 if work() else 1
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_waits_for_no_thread_of_its_parent(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """It is told at once who starts the front, and may start one for a cluster of its own, while
    the parent's goes on (R4). What was known before the fork it knows."""
    front = FakeFront()
    http = begin(front)
    assert front.is_starting.wait(LONG_S)

    def is_told() -> bool:
        with pytest.raises(Unavailable, match=rf"process {os.getppid()}, from which this one was"):
            http.wait(LONG_S)
        http.settle()
        return http.url == ""

    def starts_its_own() -> bool:
        own = FakeFront()
        own.may_start.set()
        started = HttpStart(own)
        started.serve_tables(DATABASE)
        return started.wait(LONG_S) == URL

    began = time.monotonic()
    assert _in_child(is_told)
    assert _in_child(starts_its_own)
    assert time.monotonic() - began < LONG_S / 2
    front.may_start.set()
    http.serve_tables(DATABASE)
    assert http.wait(LONG_S) == URL
    assert _in_child(lambda: http.wait(LONG_S) == http.url == URL)


def test_a_forked_child_knows_of_a_front_that_had_failed(
    begin: Callable[[FakeFront], HttpStart],
) -> None:
    """And why, as its parent does."""
    front = FakeFront(AlreadyRunning("port 1 is in use"))
    http = begin(front)
    front.may_start.set()
    http.serve_tables(DATABASE)
    http.settle()

    def is_told() -> bool:
        with pytest.raises(AlreadyRunning, match="port 1 is in use"):
            http.wait(LONG_S)
        return True

    assert _in_child(is_told)


# ---- what is written down -----------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    """A cluster that runs, whose front starts."""
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    state = ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"}, http_starts=True)
    state.save()
    monkeypatch.setattr(http_start, "publish", lambda home, cluster: None)
    return state


def _revoked(monkeypatch: pytest.MonkeyPatch, *, is_revoked: bool) -> list[Any]:
    """The starts of a front whose token of launch was revoked, or not."""
    starts: list[Any] = []

    def start(spec: Any, state: Any, started_serve: bool | None = None) -> HttpFront:
        starts.append(started_serve)
        return HttpFront(URL, True)

    monkeypatch.setattr(http_start, "start_http", start)
    monkeypatch.setattr(http_start, "drop_revoked", lambda database, data_dir: is_revoked)
    return starts


def test_the_url_is_written_down_when_the_front_answers(
    kept: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others wrote meanwhile stays; a token that was revoked has another one follow it."""
    starts = _revoked(monkeypatch, is_revoked=True)
    assert b"http_problem" not in (kept.folder / cluster_state.STATE_FILE).read_bytes()
    front = LaunchFront(load_spec({"data_dir": kept.data_dir}), kept)
    cluster_state.change(
        kept.folder, lambda state: ClusterState("demo", state.data_dir, {"m": "h:2"})
    )
    front.finish(front.start(), DATABASE)
    found = load_state(kept.folder)
    assert (found.http, found.started_serve, found.http_starts) == (URL, True, False)
    assert found.masters == {"m": "h:2"}
    assert starts == [None, True]


def test_a_token_that_is_good_needs_no_second_start(
    kept: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual case."""
    starts = _revoked(monkeypatch, is_revoked=False)
    front = LaunchFront(load_spec({"data_dir": kept.data_dir}), kept)
    assert front.finish(front.start(), DATABASE).url == URL
    assert starts == [None]


def test_a_front_that_failed_is_no_start_under_way(kept: ClusterState) -> None:
    """An apply need not wait for it, and starts one."""
    front = LaunchFront(load_spec({"data_dir": kept.data_dir}), kept)
    front.give_up(HttpFront(), "port 1 is in use", is_down=False)
    found = load_state(kept.folder)
    assert (found.http, found.http_starts, found.http_problem) == ("", False, "port 1 is in use")
    assert cluster_state.at_rest(found).http_problem == ""


def test_a_front_that_does_not_end_is_no_start_under_way_either(
    kept: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised, and an apply need not wait."""

    def stop(state: ClusterState) -> None:
        raise RetryLater("Serve does not answer")

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(launcher, "stop_http", stop)
    front = LaunchFront(load_spec({"data_dir": kept.data_dir}), kept)
    with pytest.raises(RetryLater, match="Serve does not answer"):
        front.give_up(HttpFront(URL, True), "no leader", is_down=False)
    assert not load_state(kept.folder).http_starts


def test_a_cluster_that_is_down_is_written_down_by_who_took_it_down(kept: ClusterState) -> None:
    """Its folder may be gone, too, and is not made again."""
    front = LaunchFront(load_spec({"data_dir": kept.data_dir}), kept)
    before = (kept.folder / cluster_state.STATE_FILE).read_bytes()
    front.give_up(HttpFront(), "it was closed", is_down=True)
    assert (kept.folder / cluster_state.STATE_FILE).read_bytes() == before
    gone = kept.folder / "gone"
    cluster_state.change(gone, lambda state: state)
    assert not gone.exists()


# ---- an apply meanwhile -------------------------------------------------------------------------


def test_an_apply_waits_for_the_front_of_the_launch(kept: ClusterState) -> None:
    """Else it would see no front, and start a second one (R3)."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            cluster_state.change(kept.folder, lambda state: replace(state, http_starts=False))

    wait_front(kept.folder, lambda: load_state(kept.folder), LONG_S, lambda: 0.0, sleep)
    assert len(slept) == 3


def test_an_apply_does_not_wait_for_ever_for_a_launch_that_ended(kept: ClusterState) -> None:
    """It goes on after the bound; the next one does not wait at all."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def read() -> ClusterState:
        return load_state(kept.folder)

    wait_front(kept.folder, read, 10 * LONG_S, lambda: clock[0], sleep)
    assert clock[0] == pytest.approx(apply_front.FRONT_TIMEOUT_S, abs=1.0)
    assert not read().http_starts
    before = clock[0]
    wait_front(kept.folder, read, 10 * LONG_S, lambda: clock[0], sleep)
    assert clock[0] == before


def test_an_apply_waits_no_longer_than_its_caller_allows(kept: ClusterState) -> None:
    """The mark stays: the launch may still start its front, and a second one must not (R3)."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    with pytest.raises(RetryLater, match=r"timeout of this apply is over.*over 60 s"):
        wait_front(kept.folder, lambda: load_state(kept.folder), 1.5, lambda: clock[0], sleep)
    assert clock[0] == pytest.approx(1.5)
    assert load_state(kept.folder).http_starts


@pytest.mark.parametrize("dry_run", [True, False])
def test_only_an_apply_that_changes_something_waits_for_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    """A dry run neither waits nor writes. The deadline of the others is the caller's."""
    waited: list[Any] = []
    judged = Applied((), ())

    def wait(home: Path, refreshed: Any, deadline: float) -> None:
        waited.append((home, deadline))
        raise RetryLater("the front starts")

    monkeypatch.setattr(apply_run, "wait_front", wait)
    work: Any = SimpleNamespace(home=tmp_path, refreshed=None, _deadline=7.0, judge=lambda: judged)
    if dry_run:
        assert apply_run._applied(work, dry_run=True) is judged
        assert not waited
    else:
        with pytest.raises(RetryLater, match="the front starts"):
            apply_run._applied(work, dry_run=False)
        assert waited == [(tmp_path, 7.0)]
