"""Starts the HTTP front of a launch in the background, while its tables can be used already.

A thread starts the front once the servers listen: on few cores Serve would otherwise take the CPU
time that they need. What needs the masters' leader (`finish`: revoked tokens, and writing down the
URL) waits until `serve_tables`.
Rules:

- R1: one front at a time is started or taken down in a process: a Serve that another cluster has
  just started, or is about to end, is not joined (`alone`).
- R2: a cluster is taken down only once its front has started or failed, or after `SETTLE_S`. A
  front that is given up before is taken away by the thread itself.
- R3: while the front starts, ``cluster.json`` says so (``http_starts``), and an apply waits.
- R4: a forked child waits for nothing that its parent starts: it has no such thread, and a lock may
  be held by it.

Decisions §58, §72.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import ray

from stelae.applying.front import start_http
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import RetryLater, Unavailable
from stelae.core.forks import forget_in_children
from stelae.deploy import cluster_state, launcher
from stelae.deploy.changed import Connected
from stelae.deploy.cluster_files import publish
from stelae.deploy.launcher import HttpFront
from stelae.deploy.revoked_tokens import drop_revoked

logger = logging.getLogger(__name__)

WAIT_TIMEOUT_S = 120.0
SETTLE_S = 60.0
"""Upper bound on what a close waits for a front that still starts."""
GIVEN_UP_S = 5.0
"""The same, of a front that was given up before."""


class _Alone:
    """The lock by which one front at a time starts in a process (R1)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        forget_in_children(self)

    def forget(self) -> None:
        """Let a forked child start a front of its own, whatever its parent does just now (R4)."""
        self.lock = threading.Lock()


_alone = _Alone()


class Front(Protocol):
    """What starts, and what is given up."""

    def start(self) -> HttpFront:
        """Start it; needs Ray only."""

    def finish(self, front: HttpFront, database: Connected) -> HttpFront:
        """Do what needs the servers, and write down where it answers."""

    def give_up(self, front: HttpFront, why: str, *, is_down: bool) -> None:
        """Take away what was started, and write down why. ``is_down``: the cluster is at rest, or
        will be soon."""


class LaunchFront:
    """The front of one launch."""

    def __init__(self, spec: ClusterSpec, state: cluster_state.ClusterState) -> None:
        self._spec = spec
        self._state = state

    def start(self) -> HttpFront:
        return start_http(self._spec, self._state)

    def finish(self, front: HttpFront, database: Connected) -> HttpFront:
        state = cluster_state.newest(self._state)
        if front.url and drop_revoked(database, state.data_dir):
            front = start_http(self._spec, state, front.started_serve)
        if front.url:
            self._write_down(front)
        return front

    def give_up(self, front: HttpFront, why: str, *, is_down: bool) -> None:
        try:
            if front.url and ray.is_initialized():
                launcher.stop_http(replace(self._state, started_serve=front.started_serve))
        finally:
            if not is_down:  # also of a front that does not end, or an apply waits for it (R3)
                self._write_down(HttpFront(), why)

    def _write_down(self, front: HttpFront, problem: str = "") -> None:
        cluster_state.change(
            self._state.folder,
            lambda state: replace(
                state,
                http=front.url,
                started_serve=front.started_serve,
                http_starts=False,
                http_problem=problem,
            ),
        )
        try:
            publish(self._state.folder, self._state.cluster)
        except RetryLater as error:  # others take it from here once more masters answer
            logger.warning("%s", error)


class HttpStart:
    """The HTTP front of a launched database, which comes up in the background."""

    def __init__(self, front: Front) -> None:
        self._starting = front
        self._front: Future[HttpFront] = Future()
        self._outcome: HttpFront | BaseException | None = None
        """What the future has: to be read without its lock."""
        self._database: Connected | None = None
        self._can_finish = threading.Event()
        self._is_cancelled = False
        self._pid = os.getpid()
        forget_in_children(self)
        # At exit Ray ends: a thread that still calls it then would crash the process.
        atexit.register(self.settle)
        threading.Thread(target=self._run, daemon=True, name="stelae http").start()

    def _run(self) -> None:
        try:
            front = self._outcome = self._started()
            self._front.set_result(front)
        except BaseException as error:  # also SystemExit, or `wait` would find no reason
            if not self._is_cancelled:
                logger.warning("the HTTP front did not start; tables can be used: %s", error)
            self._outcome = error
            self._front.set_exception(error)
        finally:
            atexit.unregister(self.settle)

    def _started(self) -> HttpFront:
        front = HttpFront()
        try:
            with _alone.lock:
                self._check_wanted()
                front = self._starting.start()
            self._can_finish.wait()
            with _alone.lock:
                self._check_wanted()
                assert self._database is not None
                front = self._starting.finish(front, self._database)
                self._check_wanted()  # a close may have given up the wait meanwhile (R2)
                return front
        except BaseException as error:
            self._can_finish.wait()
            why = str(error) or type(error).__name__
            with _alone.lock:
                self._starting.give_up(front, why, is_down=self._is_cancelled)
            raise

    def forget(self) -> None:
        """Keep what was known at the fork, in a forked child; what starts is the parent's (R4)."""
        outcome = self._outcome
        self._front, self._can_finish = Future(), threading.Event()
        if isinstance(outcome, HttpFront):
            self._front.set_result(outcome)
            return
        why = (
            f"process {self._pid}, from which this one was forked, was starting it at the fork: "
            "wait there, or look at status()['http'] here"
        )
        self._front.set_exception(outcome or Unavailable("the HTTP front", why))

    def _check_wanted(self) -> None:
        if self._is_cancelled:
            raise RetryLater("the cluster was taken down before its HTTP front answered")

    def serve_tables(self, database: Connected) -> None:
        """Tell that all servers are live, and that ``cluster.json`` says so."""
        self._database = database
        self._can_finish.set()

    def cancel(self) -> None:
        """Give the front up, without waiting; again is fine."""
        self._is_cancelled = True
        self._can_finish.set()

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait until the front has started or failed; give it up after the timeout (R2)."""
        if os.getpid() != self._pid:
            return  # a forked child has no such thread, and takes nothing down
        try:
            self._front.exception(GIVEN_UP_S if self._is_cancelled else timeout_s)
        except TimeoutError:
            logger.warning("the HTTP front has not started within %g s: it is given up", timeout_s)
            self.cancel()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep fronts of this process from starting meanwhile (R1). After a timeout, go on: taking
        a cluster down must not depend on the front of another one."""
        is_held = _alone.lock.acquire(timeout=GIVEN_UP_S if self._is_cancelled else SETTLE_S)
        try:
            yield
        finally:
            if is_held:
                _alone.lock.release()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Give the front up, and keep fronts from starting while its cluster is taken down (R1).

        An interrupt of the wait for the thread (R2) is raised once that is done.
        """
        self.cancel()
        try:
            self.settle()
        finally:
            with self.alone():
                yield

    @property
    def url(self) -> str:
        """URL of the front; empty while it starts, if it did not start, and if there is none."""
        if not self._front.done() or self._front.exception() is not None:
            return ""
        return self._front.result().url

    def wait(self, timeout: float = WAIT_TIMEOUT_S) -> str:
        """Wait until the front answers; return its URL, empty if the spec has no HTTP.

        ``timeout`` is in seconds. Raises what kept the front from starting, or RetryLater: it is
        still starting. Tables can be used either way.
        """
        try:
            return self._front.result(timeout).url
        except TimeoutError:
            if self._front.done():  # its own error
                raise
            raise RetryLater(
                f"the HTTP front has not started within {timeout:g} s; tables can be used, and "
                "http.wait() may be called again"
            ) from None

    def __repr__(self) -> str:
        if not self._front.done():
            return "<stelae http: starting>"
        error = self._front.exception()
        if error is not None:
            return f"<stelae http: did not start: {error}>"
        return f"<stelae http: {self.url or 'none'}>"
