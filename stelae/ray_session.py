"""The Ray that a cluster lives in: its own, which ends with this process, or one that runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import ray

from stelae.actors.ray_host import NAMESPACE
from stelae.core.errors import InvalidArgument, Unavailable
from stelae.core.spec import ClusterSpec
from stelae.recovery.java import find_java, java_environment

HALF_STARTED_GRACE_S = 3.0


def start_ray(spec: ClusterSpec) -> bool:
    """Start or join Ray as the spec says; true if this process started it.

    What must stand in the environment before Ray starts is set here: the auth mode (a cluster with
    two modes kills actors), that workers run at ordinary priority (Ray's default of nice 15 makes
    a store wait for every other program of the machine), and Java for RayDP where there is one.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    if spec.spark is not None:
        with contextlib.suppress(InvalidArgument):  # no Java: all but Spark works
            os.environ.update(java_environment(find_java()))
    if spec.ray.address != "local":
        join_ray(spec.ray.address)
        return False
    options: dict[str, Any] = {"include_dashboard": False}
    if spec.ray.num_cpus is not None:
        options["num_cpus"] = spec.ray.num_cpus
    before = psutil.Process().children(recursive=True)
    try:
        _init_ray("local", **options)
    except BaseException:
        _end_half_started(before)
        raise
    if (former := sys.modules.get("ray.serve.context")) is not None:
        # Serve keeps its controller's handle by job id, the same in each Ray a process starts.
        former._set_global_client(None)
    return True


def join_ray(address: str) -> None:
    """Join a Ray that runs: ``auto`` or its address. Raises Unavailable if there is none."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        _init_ray(address)
    except ConnectionError as error:
        raise Unavailable(
            f"Ray at {address!r}",
            f"{error}; start one (`ray start --head`), or write ray: {{address: local}}",
        ) from error


def _init_ray(address: str, **options: Any) -> None:
    # Ray prints notices of dead workers even so; a cluster tells of its dead servers itself.
    ray._private.worker._worker_logs_enabled = False
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.WARNING,
        **options,
    )


def _end_half_started(before: Sequence[psutil.Process]) -> None:
    """End what a Ray has started whose start was interrupted, or failed.

    Ray itself knows it only at the end of this process, and does not wait for the raylet's agents:
    these outlive a raylet that is killed while it starts.
    """
    children = psutil.Process().children(recursive=True)
    started = [each for each in children if each not in before and _is_of_ray(each)]
    ray.shutdown()
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):  # the one above it has ended it
            process.terminate()
    _, left = psutil.wait_procs(started, HALF_STARTED_GRACE_S)
    for process in left:
        process.kill()
    psutil.wait_procs(left, HALF_STARTED_GRACE_S)


def _is_of_ray(process: psutil.Process) -> bool:
    try:
        return any("ray" in part for part in process.cmdline())
    except psutil.Error:
        return False  # it has ended
