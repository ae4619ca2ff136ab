"""The process that holds the cluster's Spark session: a Ray driver, child of `SparkHost`.

A process of its own, because RayDP names its actors in the namespace of the driver that starts it,
which only a driver can choose; and because Spark can hang: then its parent kills it, and with the
driver go Spark's actors and JVMs. It reads requests from its standard input, answers on what was
its standard output, and ends, in order, when the input does (its parent has died).

Run as ``python -m stelae.actors.ray_host.spark_process``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

import msgspec
import ray

from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.recovery.engine import RecoveryJob
from stelae.recovery.spark_job import TabletOutcome, run_job
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_session import (
    SessionSize,
    is_over,
    recovery_configuration,
    start_session,
    stop_session,
    wait_executors,
)
from stelae.recovery.spark_warmth import (
    KEEP_WARM_S,
    KeptWarm,
    executors_of,
    run_empty_job,
    warm_up,
)

logger = logging.getLogger(__name__)

CONCURRENT_JOBS = 4
FRAME_BYTES_MAX = 1 << 30
EXIT_NOT_STARTED = 3
STOP_TIMEOUT_S = 2.0
POLL_S = 0.05

M = TypeVar("M", bound=msgspec.Struct)


class Setup(msgspec.Struct, frozen=True):
    """The first message: everything the session is made from."""

    ray_address: str
    ray_namespace: str
    cluster: str
    masters: tuple[Address, ...]
    secret: bytes
    settings: Settings
    size: SessionSize
    start_timeout_s: float
    peer_tls: PeerTls = OFF
    node_address: str = ""
    """Of the node that this process runs on, in Ray's network."""

    def __repr__(self) -> str:
        return f"Setup(cluster={self.cluster!r}, ray_address={self.ray_address!r})"


class Started(msgspec.Struct, frozen=True):
    """The first answer. ``problem`` empty: the session is there, and warm."""

    session_s: float = 0.0
    warm_s: float = 0.0
    workers: int = 0
    problem: str = ""


class Order(msgspec.Struct, frozen=True):
    """Recover these tablets."""

    number: int
    jobs: tuple[RecoveryJob, ...]


class Done(msgspec.Struct, frozen=True):
    """What became of an order; ``problem``: why there are no outcomes."""

    number: int
    seconds: float = 0.0
    outcomes: tuple[TabletOutcome, ...] = ()
    problem: str = ""
    is_over: bool = False
    """No later order will be carried out either: the session is to be ended."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """A message as it goes through the pipe: its length in 8 bytes, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(8, "little") + body


class Channel:
    """The child's end of the two pipes. Whatever prints goes to standard error instead."""

    def __init__(self) -> None:
        self._requests: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._answers: BinaryIO = os.fdopen(os.dup(1), "wb")
        self._lock = threading.Lock()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def read(self, kind: type[M]) -> M | None:
        """The next request; None at the end of the input."""
        head = self._requests.read(8)
        if len(head) < 8:
            return None
        length = int.from_bytes(head, "little")
        assert length <= FRAME_BYTES_MAX, "an order beyond all bounds"
        body = self._requests.read(length)
        return msgspec.msgpack.decode(body, type=kind) if len(body) == length else None

    def write(self, message: msgspec.Struct) -> None:
        with self._lock:
            self._answers.write(encode_frame(message))
            self._answers.flush()


def _start(setup: Setup) -> tuple[object, Started]:
    began = time.monotonic()
    ray.init(
        address=setup.ray_address,
        # Where several raylets are on one machine, Ray would take any of them. Spark's driver
        # listens at the address of the one that is taken.
        _node_ip_address=setup.node_address or None,
        namespace=setup.ray_namespace,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    spark = start_session(f"stelae-{setup.cluster}", setup.size, recovery_configuration())
    spark.sparkContext.setLogLevel("ERROR")
    wait_executors(spark, setup.size.executors, setup.start_timeout_s)
    ready = time.monotonic()
    workers = warm_up(spark, _link(setup), setup.size.total_cores)
    return spark, Started(ready - began, time.monotonic() - ready, workers)


def _link(setup: Setup) -> ClusterLink:
    return ClusterLink(setup.cluster, setup.masters, setup.secret, setup.settings, setup.peer_tls)


def _carry_out(
    spark: object, link: ClusterLink, setup: Setup, kept: KeptWarm, order: Order
) -> Done:
    began = time.monotonic()
    try:
        with kept.order():
            outcomes = run_job(spark, link, order.jobs, setup.size.total_cores)
    except Exception as error:  # whatever Spark raises is an answer: the caller goes on without
        logger.warning("a recovery job failed", exc_info=True)
        problem = f"{type(error).__name__}: {str(error)[:2000]}"
        return Done(order.number, problem=problem, is_over=is_over(spark))
    return Done(order.number, time.monotonic() - began, tuple(outcomes))


def _keep_warm(spark: object, kept: KeptWarm, is_ending: threading.Event) -> None:
    """Until the process ends, or the session is over: the next order finds that, and says so."""
    while not is_ending.wait(KEEP_WARM_S):
        try:
            kept.beat()
        except Exception:  # whatever Spark raises: whoever has an order is told of it then
            if is_ending.is_set():
                return
            logger.warning("an empty job failed", exc_info=True)
            if is_over(spark):
                return


def _keeper(spark: object, setup: Setup) -> KeptWarm:
    link, cores = _link(setup), setup.size.total_cores
    return KeptWarm(lambda: executors_of(spark), lambda: run_empty_job(spark, link, cores))


def main() -> int:
    """Start the session, answer orders until the input ends, stop the session."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    channel = Channel()
    setup = channel.read(Setup)
    if setup is None:
        return 0
    try:
        spark, started = _start(setup)
        kept = _keeper(spark, setup)
    except Exception as error:  # told to the parent in words
        logger.warning("Spark does not start", exc_info=True)
        channel.write(Started(problem=f"{type(error).__name__}: {str(error)[:2000]}"))
        return EXIT_NOT_STARTED
    channel.write(started)
    link, is_ending = _link(setup), threading.Event()
    # A daemon: a session that hangs would hold up the process's end.
    threading.Thread(target=_keep_warm, args=(spark, kept, is_ending), daemon=True).start()
    with ThreadPoolExecutor(CONCURRENT_JOBS, thread_name_prefix="order") as threads:
        while (order := channel.read(Order)) is not None:
            work = threads.submit(_carry_out, spark, link, setup, kept, order)
            work.add_done_callback(lambda done: channel.write(done.result()))
    is_ending.set()
    _stop()
    return 0


def _stop() -> None:
    """End the session, and wait until its actors have ended the JVMs that they started."""
    stop_session()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while ray.util.list_named_actors() and time.monotonic() < deadline:
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
