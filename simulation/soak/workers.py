"""The worker processes of a soak: each runs the seeds that the soak sends it, one at a time.

1. A worker that dies, or does not finish a seed within the limit, costs the seed that it was
   running: the result of that seed is a failure, and a new process takes the worker's place.
2. A worker is replaced after a number of seeds, or when it has grown, so that a leak of memory
   does not end a soak of many hours.
3. Time in which the whole soak is stopped (SIGSTOP, a suspended machine) does not count: no seed
   hangs because of it, and the soak still runs for its minutes.
4. Workers ignore SIGINT and SIGTERM, which a terminal sends to all processes of the group: only
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from stelae.simulation.runner import run_seed
from stelae.simulation.scenarios import Scenario, load_scenario

START_LIMIT_S = 600.0
"""Wall time in which a worker must have loaded the scenarios; a busy machine needs minutes."""
WORKER_MEMORY_MAX_KB = 2 * 1024 * 1024
"""Peak resident memory at which a worker is replaced."""
CAUSE_CHARACTERS = 200
STEP_MAX_S = 30.0
"""Longest time between two looks at the clock that counts; a busy machine delays the soak less."""


class SoakStartError(Exception):
    """The workers of a soak cannot start; no seed can run."""


class SoakClock:
    """The wall time in which the soak was running; a pause of the soak adds `STEP_MAX_S` at most.

    The soak looks at its clock more than once a second. A longer step means that it was stopped,
    and its workers with it.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._looked_s = source()
        self._now_s = 0.0

    def now(self) -> float:
        """Return the seconds since the clock was made, without pauses."""
        at_s = self._source()
        self._now_s += min(at_s - self._looked_s, STEP_MAX_S)
        self._looked_s = at_s
        return self._now_s


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed. ``error`` is the error's first line, "" if every rule held."""

    scenario: str
    seed: int
    virtual_s: float
    error: str = ""
    wall_s: float = 0.0
    """By the clock of the soak; a worker does not know it."""
    worker_is_spent: bool = False
    """Whether the worker has grown so much that another process should go on."""


@dataclass(frozen=True, slots=True)
class RunningSeed:
    """A seed that a worker is running, and the moment of the soak's clock it began."""

    scenario: str
    seed: int
    began_s: float


def first_line(error: BaseException) -> str:
    """Return the kind and the first line of an error, as the kept list shows it."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:CAUSE_CHARACTERS]


class Worker:
    """One worker process, and the seed that it is running."""

    def __init__(self, scenarios: Sequence[str], now_s: float) -> None:
        # Not forked: the soak may have threads (its progress bar), and a fork copies their locks.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_seeds, args=(theirs, tuple(scenarios)), daemon=True
        )
        self._process.start()
        theirs.close()  # or the death of the worker would not end the connection
        self.started_s = now_s
        self.is_ready = False
        self.running: RunningSeed | None = None
        self.seeds = 0

    def send(self, scenario: str, seed: int, now_s: float) -> None:
        """Begin a seed. A worker that has died meanwhile is noticed by the next look."""
        self.running = RunningSeed(scenario, seed, now_s)
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
        self.clock = SoakClock()
        self._workers = [self._start() for _ in range(jobs)]

    def _start(self) -> Worker:
        return Worker(self._scenarios, self.clock.now())

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
        free.send(scenario, seed, self.clock.now())

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
            result = replace(result, wall_s=self._wall_s(worker))
            worker.running = None
            worker.seeds += 1
            if result.worker_is_spent or worker.seeds >= self._seeds_per_process:
                self._replace(place, "")
        elif self._wall_s(worker) > self._seed_limit_s:
            return self._replace(place, f"no end within {self._seed_limit_s:g} s of wall time")
        return result

    def _wall_s(self, worker: Worker) -> float:
        """Return the wall time of the seed that a worker is running; 0.0 if it has none."""
        return 0.0 if worker.running is None else self.clock.now() - worker.running.began_s

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
        if not worker.is_ready and self.clock.now() - worker.started_s > START_LIMIT_S:
            raise SoakStartError(f"a worker process did not start within {START_LIMIT_S:g} s")

    def _replace(self, place: int, cause: str) -> SeedResult | None:
        """Put a new process into a worker's place; its seed, if it has one, failed of ``cause``."""
        worker = self._workers[place]
        worker.end()
        self._workers[place] = self._start()
        if worker.running is None:
            return None
        scenario, seed = worker.running.scenario, worker.running.seed
        return SeedResult(scenario, seed, 0.0, cause, self._wall_s(worker))


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
    virtual_s, error = 0.0, ""
    try:
        outcome = run_seed(scenario, seed)
        virtual_s = outcome.virtual_s
        if outcome.failure is not None:
            error = first_line(outcome.failure.error)
    except Exception as raised:
        error = first_line(raised)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_spent = peak_kb > WORKER_MEMORY_MAX_KB
    return SeedResult(name, seed, virtual_s, error, worker_is_spent=is_spent)
