"""The worker processes of a soak: each runs the seeds that the soak sends it, one at a time.

1. A worker that dies, or does not finish a seed within the limit, costs the seed that it was
   running: the result of that seed is a failure, and a new process takes the worker's place.
2. A worker is replaced after a number of seeds, or when it has grown, so that a leak of memory
   does not end a soak of many hours.
3. Workers ignore SIGINT and SIGTERM, which a terminal sends to all processes of the group: only
   the soak decides when they end. A worker whose soak is gone ends by itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from stelae.simulation.runner import run_seed
from stelae.simulation.scenarios import Scenario, load_scenario

START_LIMIT_S = 600.0
"""Wall time in which a worker must have loaded the scenarios; a busy machine needs minutes."""
WORKER_MEMORY_MAX_KB = 2 * 1024 * 1024
"""Peak resident memory at which a worker is replaced."""
CAUSE_CHARACTERS = 200


class SoakStartError(Exception):
    """The workers of a soak cannot start; no seed can run."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed. ``error`` is the error's first line, "" if every rule held."""

    scenario: str
    seed: int
    wall_s: float
    virtual_s: float
    error: str = ""
    worker_is_spent: bool = False
    """Whether the worker has grown so much that another process should go on."""


@dataclass(frozen=True, slots=True)
class RunningSeed:
    """A seed that a worker is running, and the moment of the monotonic clock it began."""

    scenario: str
    seed: int
    began_s: float


def first_line(error: BaseException) -> str:
    """Return the kind and the first line of an error, as the kept list shows it."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:CAUSE_CHARACTERS]


class Worker:
    """One worker process, and the seed that it is running."""

    def __init__(self, scenarios: Sequence[str]) -> None:
        # Not forked: the soak may have threads (its progress bar), and a fork copies their locks.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_seeds, args=(theirs, tuple(scenarios)), daemon=True
        )
        self._process.start()
        theirs.close()  # or the death of the worker would not end the connection
        self.started_s = time.monotonic()
        self.is_ready = False
        self.running: RunningSeed | None = None
        self.seeds = 0

    def send(self, scenario: str, seed: int) -> None:
        """Begin a seed. A worker that has died meanwhile is noticed by the next look."""
        self.running = RunningSeed(scenario, seed, time.monotonic())
        with contextlib.suppress(OSError):
            self.connection.send((scenario, seed))

    def end(self) -> int | None:
        """Kill the process, if it still runs, and return its exit code (negative: a signal)."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        return self._process.exitcode

    def ended(self) -> str:
        """Say how a process ended whose connection is closed."""
        self._process.join(10.0)
        code = self.end()
        if code is None or code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
        return f"signal {-code}"


class WorkerPool:
    """A fixed number of workers, replaced one by one as they die, hang or grow.

    Args:
        scenarios: the names that the workers load before their first seed.
        jobs: number of processes.
        seed_limit_s: upper bound of a seed's wall time.
        seeds_per_process: number of seeds after which a worker is replaced.
    """

    def __init__(
        self, scenarios: Sequence[str], jobs: int, seed_limit_s: float, seeds_per_process: int
    ) -> None:
        self._scenarios = tuple(scenarios)
        self._seed_limit_s = seed_limit_s
        self._seeds_per_process = seeds_per_process
        self._workers = [self._start() for _ in range(jobs)]

    def _start(self) -> Worker:
        return Worker(self._scenarios)

    @property
    def running(self) -> list[RunningSeed]:
        """The seeds that have begun and not ended."""
        return [worker.running for worker in self._workers if worker.running is not None]

    @property
    def has_room(self) -> bool:
        """Whether a worker is ready and has no seed."""
        return any(worker.is_ready and worker.running is None for worker in self._workers)

    def submit(self, scenario: str, seed: int) -> None:
        """Begin a seed; only where the pool `has_room`."""
        free = next(w for w in self._workers if w.is_ready and w.running is None)
        free.send(scenario, seed)

    def wait(self, timeout_s: float) -> list[SeedResult]:
        """Wait until a worker reports, at most ``timeout_s``, and return the seeds that ended.

        Raises:
            SoakStartError: a worker cannot load the scenarios.
        """
        connections = [worker.connection for worker in self._workers]
        multiprocessing.connection.wait(connections, timeout_s)
        found = [self._look_at(place) for place in range(len(self._workers))]
        return [result for result in found if result is not None]

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.end()

    def _look_at(self, place: int) -> SeedResult | None:
        worker = self._workers[place]
        if not worker.is_ready:
            self._look_at_start(place)
            return None
        result: SeedResult | None = None
        try:
            if worker.connection.poll():
                received = worker.connection.recv()
                assert isinstance(received, SeedResult)
                result = received
        except (EOFError, OSError):
            return self._replace(place, f"the worker process died: {worker.ended()}")
        if result is not None:
            worker.running = None
            worker.seeds += 1
            if result.worker_is_spent or worker.seeds >= self._seeds_per_process:
                self._replace(place, "")
        elif worker.running is not None and self._is_late(worker.running):
            return self._replace(place, f"no end within {self._seed_limit_s:g} s of wall time")
        return result

    def _is_late(self, running: RunningSeed) -> bool:
        return time.monotonic() - running.began_s > self._seed_limit_s

    def _look_at_start(self, place: int) -> None:
        worker = self._workers[place]
        try:
            if worker.connection.poll():
                error = worker.connection.recv()
                if error:
                    raise SoakStartError(error)
                worker.is_ready = True
        except (EOFError, OSError):
            raise SoakStartError(f"a worker process died at its start: {worker.ended()}") from None
        if not worker.is_ready and time.monotonic() - worker.started_s > START_LIMIT_S:
            raise SoakStartError(f"a worker process did not start within {START_LIMIT_S:g} s")

    def _replace(self, place: int, cause: str) -> SeedResult | None:
        """Put a new process into a worker's place; its seed, if it has one, failed of ``cause``."""
        worker = self._workers[place]
        worker.end()
        self._workers[place] = self._start()
        if worker.running is None:
            return None
        wall_s = time.monotonic() - worker.running.began_s
        return SeedResult(worker.running.scenario, worker.running.seed, wall_s, 0.0, cause)


# --- inside a worker ---------------------------------------------------------------------------


def serve_seeds(soak: Connection, scenarios: Sequence[str]) -> None:
    """Run the seeds that arrive on the connection until it is closed: the main of a worker."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    try:
        loaded = {name: load_scenario(name) for name in scenarios}
    except Exception as error:
        soak.send(first_line(error))
        return
    with contextlib.suppress(EOFError, OSError):  # the soak is gone
        soak.send("")
        while True:
            name, seed = soak.recv()
            soak.send(run_one(name, loaded[name], seed))


def _end_with_parent() -> None:
    # A closed connection ends a worker between two seeds; this ends one whose seed hangs.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_one(name: str, scenario: Scenario, seed: int) -> SeedResult:
    """Run one seed; an error outside of the world, of the scenario's options, is a failure too."""
    began_s = time.monotonic()
    virtual_s, error = 0.0, ""
    try:
        outcome = run_seed(scenario, seed)
        virtual_s = outcome.virtual_s
        if outcome.failure is not None:
            error = first_line(outcome.failure.error)
    except Exception as raised:
        error = first_line(raised)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall_s = time.monotonic() - began_s
    return SeedResult(name, seed, wall_s, virtual_s, error, peak_kb > WORKER_MEMORY_MAX_KB)
