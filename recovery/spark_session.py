"""Spark on RayDP: its configuration, its start and end.

Everything that a Spark user would have to know about this mix of versions is set here: Java's
opened internals, the Python of the workers, sizes, and the settings that keep a session usable on a
full cluster. RayDP takes one session per process and one per Ray namespace (its actors' names are
fixed), both of the process that calls; which those are is the caller's business.

Blocks, and may hang (RayDP waits for resources for ever): the caller bounds the time and ends the
process. Source: design §9; RayDP 1.6.5, Spark 3.5.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import time
from typing import Any

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.recovery.java import (
    find_java,
    java_environment,
    python_environment,
    spark_options,
)

logger = logging.getLogger(__name__)

POLL_S = 0.1
JVM_END_S = 2.0
DAEMON_MODULE = "stelae.recovery.spark_daemon"
RECOVERY_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of a session whose JVMs see no rows: its code is compiled once, quickly, not again and better for
as long as hundreds of jobs last; and no threads collect garbage of which there is none."""
CLOSURE_BYTES = 256 << 20
"""Closures below this size travel in the task, not through Spark's files: they hold the secret."""


class SessionSize(msgspec.Struct, frozen=True):
    """How large a session is. CPUs are not reserved in Ray: it must start on a full cluster."""

    executors: int
    cores: int
    """Of each executor."""
    memory_bytes: int
    """Of each executor's JVM."""

    @property
    def total_cores(self) -> int:
        return self.executors * self.cores


def check_spark() -> None:
    """Find Java 17 and RayDP, and put that Java first on this process's ``PATH``.

    Raises:
        InvalidArgument: one of them is missing; the text says how to get it.
    """
    for package in ("pyspark", "raydp"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InvalidArgument(
                f"Spark needs the package {package}, which cannot be imported ({error}); install "
                "it with `pip install 'stelae[spark]'`. Everything but Spark works without it."
            ) from error
    os.environ.update(java_environment(find_java()))


def spark_configuration(size: SessionSize) -> dict[str, str]:
    """The configuration of a session of ours; what a user gives goes over it."""
    return {
        **spark_options(),
        **{
            f"spark.ray.raydp_spark_{who}": "0"
            for who in ("executor.actor.resource.cpu", "master.actor.resource.CPU")
        },
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.locality.wait": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(2, 2 * size.total_cores)),
        "spark.sql.session.timeZone": "UTC",
        "spark.broadcast.UDFCompressionThreshold": str(CLOSURE_BYTES),
    }


def recovery_configuration() -> dict[str, str]:
    """Over `spark_configuration`, of a session that runs recovery jobs and nothing else."""
    return spark_options(RECOVERY_JAVA_OPTIONS)


def start_session(name: str, size: SessionSize, configuration: dict[str, str]) -> Any:
    """Start RayDP in this process, which is connected to Ray; return the SparkSession.

    Raises:
        InvalidArgument: Java or RayDP is missing, or this process has a session already.
    """
    check_spark()
    os.environ.update(python_environment())
    import raydp
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise InvalidArgument(
            "this process has a Spark session already; a session for Stelae needs a process of "
            "its own, or stop that one first"
        )
    return raydp.init_spark(
        app_name=name,
        num_executors=size.executors,
        executor_cores=size.cores,
        executor_memory=f"{size.memory_bytes >> 20}MB",
        fault_tolerant_mode=False,
        configs={**spark_configuration(size), **configuration},
    )


def stop_session() -> None:
    """End this process's session, if it has one, and its JVMs; a new one can be started then.

    PySpark keeps the driver's JVM for as long as the process lives; it is ended here as well.
    """
    import raydp
    from pyspark import SparkContext

    raydp.stop_spark()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    gateway.shutdown()
    jvm: subprocess.Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # it ends itself when this does
    try:
        jvm.wait(JVM_END_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def is_over(spark: Any) -> bool:
    """Whether the session will never carry out a job again: its driver's JVM is gone, or stopped.

    Only to be asked after a failure: it waits for the JVM's answer.
    """
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # whatever Py4J raises when nobody is there
        logger.info("the Spark driver does not answer", exc_info=True)
        return True


def wait_executors(spark: Any, executors: int, timeout_s: float) -> None:
    """Wait until so many executors have registered. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while (found := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < executors:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {executors} Spark executors came up in {timeout_s} s")
        time.sleep(POLL_S)
