"""Making a Spark session warm, and keeping it so: by recovery jobs that recover nothing.

The first job of a session costs seconds (class loading, Python workers), the next few some tenths
more (the JVMs' compilers). They take the very way of a real one: same RDD, same function, same
Python workers. A session that idles loses its workers after a minute, and an executor that is lost
is replaced by a cold one; so an idle session gets such a job now and then, and as many as at its
start when its executors have changed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stelae.recovery.spark_job import encode_jobs, run_groups
from stelae.recovery.spark_link import ClusterLink

WARM_ROUNDS = 4
"""Warm-up jobs at most until each core has a Python worker."""
WARM_JOBS = 24
"""Empty recovery jobs after that: by then the JVMs have compiled most of what they need."""
KEEP_WARM_S = 20.0
"""Between empty jobs on an idle session. Spark ends Python workers that were idle for 60 s."""


def warm_up(spark: Any, link: ClusterLink, cores: int) -> int:
    """Run empty recovery jobs until each core has had a Python worker, and some more.

    Returns the number of Python workers seen.
    """
    workers: dict[tuple[str, int], None] = {}
    for _ in range(WARM_ROUNDS):
        found = spark.sparkContext.parallelize(range(cores), cores).map(_who).collect()
        workers.update(dict.fromkeys(found))
        if len(workers) >= cores:
            break
    for _ in range(WARM_JOBS):
        run_empty_job(spark, link, cores)
    return len(workers)


def run_empty_job(spark: Any, link: ClusterLink, cores: int) -> None:
    """One that recovers nothing, on every core. Blocks."""
    run_groups(spark, link, [encode_jobs(())] * cores)


def executors_of(spark: Any) -> frozenset[str]:
    """Where a session's executors listen: another port is another executor."""
    addresses = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet()
    return frozenset(addresses.mkString(",").split(","))


class KeptWarm:
    """What an idle session is given to do. All methods may be called on any thread."""

    def __init__(
        self, executors: Callable[[], frozenset[str]], run_empty: Callable[[], None]
    ) -> None:
        """Of a session that is warm. ``run_empty`` runs an empty job and waits for it."""
        self._executors = executors
        self._run_empty = run_empty
        self._warm = executors()
        self._lock = threading.Lock()
        self._orders = 0

    @contextmanager
    def order(self) -> Iterator[None]:
        """While the session works for somebody: nothing is added to that."""
        with self._lock:
            self._orders += 1
        try:
            yield
        finally:
            with self._lock:
                self._orders -= 1

    def beat(self) -> int:
        """Run what is due, one job after the other; how many that were. Raises as Spark does."""
        found = self._executors()
        due = 1 if found == self._warm else WARM_JOBS
        for done in range(due):
            if self._orders:
                return done
            self._run_empty()
        self._warm = found
        return due


def _who(_: int) -> tuple[str, int]:
    """In a Python worker: which one it is."""
    return socket.gethostname(), os.getpid()
