"""The Ray that a cluster lives in: its own, which ends with this process, or one that runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import ray

from stelae.actors.ray_host.host import NAMESPACE
from stelae.actors.ray_host.ray_window import warn_outside_window
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import InvalidArgument, Unavailable
from stelae.deploy.forked_ray import parents_ray
from stelae.recovery.java import find_java, java_environment
from stelae.serve.environment import remove_sockets, set_environment

logger = logging.getLogger(__name__)

HALF_STARTED_GRACE_S = 3.0
COMMAND_LINE_GRACE_S = 1.0
IDLE_PROCESSES = ("start_api_server", "start_monitor", "start_log_monitor")
"""Methods of Ray's node. They start the dashboard's server, which without a dashboard only reports
usage statistics; the autoscaler, which has no nodes to add; and the reader of workers' output for
drivers, which Stelae turns off (``log_to_driver``): that output stays in Ray's folder."""
STARTS = 3  # Ray gives up on a start after 30 s, which a machine that is busy for a while needs


class _OwnRay:
    """The Ray that this process started, with the number of its clusters that live there."""

    def __init__(self) -> None:
        self.clusters = 0
        self._node: Any = None

    def started(self) -> None:
        """Its first cluster is being launched."""
        self.clusters, self._node = 1, ray._private.worker._global_node

    def joined(self) -> bool:
        """Count one more cluster; false if the Ray that is connected is somebody else's."""
        is_own = self.is_connected()
        self.clusters += is_own
        return is_own

    def is_connected(self) -> bool:
        """Whether it is the Ray that is connected."""
        return bool(self.clusters) and self._node is ray._private.worker._global_node


_own_ray = _OwnRay()


def start_ray(spec: ClusterSpec) -> bool:
    """Start or join Ray as the spec says; true if it is this process's own.

    Its own Ray takes further clusters, and lives until `end_ray` was called for each of them.

    What must stand in the environment before Ray starts is set here: the auth mode (a cluster with
    two modes kills actors), that workers run at ordinary priority (Ray's default of nice 15 makes
    a store wait for every other program of the machine), Serve's HAProxy, and Java for RayDP where
    there is one.
    """
    parents_ray.refuse("a launch")
    if ray.is_initialized():
        return _own_ray.joined()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    if spec.spark is not None:
        with contextlib.suppress(InvalidArgument):  # no Java: all but Spark works
            os.environ.update(java_environment(find_java()))
    if spec.ray.address != "local":
        join_ray(spec.ray.address)
        return False
    if spec.serve is not None:
        set_environment(spec.data_dir, tls=spec.serve.tls is not None)
    options: dict[str, Any] = {"include_dashboard": False}
    if spec.ray.num_cpus is not None:
        options["num_cpus"] = spec.ray.num_cpus
    try:
        _start_local(options)
    except BaseException:
        remove_sockets()
        raise
    _own_ray.started()
    if (former := sys.modules.get("ray.serve.context")) is not None:
        # Serve keeps its controller's handle by job id, the same in each Ray a process starts.
        former._set_global_client(None)
    return True


def _start_local(options: dict[str, Any]) -> None:
    """Start a Ray of our own, again if it did not come up. Raises Unavailable after the last start.

    What another start cannot mend, such as options that Ray refuses, is raised at once.
    """
    for start in range(1, STARTS + 1):
        before = psutil.Process().children(recursive=True)
        try:
            with without_idle_processes():
                return _init_ray("local", **options)
        except BaseException as error:
            _end_half_started(before)
            # Of what Ray raises when its own processes fail, some is an Exception of no class.
            if type(error) not in (Exception, RuntimeError, ConnectionError, TimeoutError):
                raise
            if start == STARTS:
                raise Unavailable("Ray", f"it did not start in {STARTS} tries: {error}") from error
            logger.warning("Ray did not start (try %d of %d): %s", start, STARTS, error)


@contextlib.contextmanager
def without_idle_processes() -> Iterator[None]:
    """Have a Ray that is started inside do without processes that a cluster of one node never uses.

    Ray has no option for them, and waits for the first one before `ray.init` returns. Its agent,
    which has the metrics, is none of them. A version that starts them by other names has them.
    """
    node = ray._private.node.Node
    saved = {name: getattr(node, name) for name in IDLE_PROCESSES if hasattr(node, name)}
    for name in saved:
        setattr(node, name, _start_nothing)
    try:
        yield
    finally:
        for name, start in saved.items():
            setattr(node, name, start)


def _start_nothing(node: object, **options: object) -> None:
    """In place of a method of Ray's node that starts a process."""


def is_own() -> bool:
    """Whether the Ray that is connected was started by this process, and ends with it."""
    return ray.is_initialized() and _own_ray.is_connected()


def is_last() -> bool:
    """Whether this process's own Ray ends with the next `end_ray`."""
    return _own_ray.clusters <= 1


def end_ray() -> None:
    """End the Ray that `start_ray` started, with what was made for it, unless other clusters that
    this process launched live there."""
    _own_ray.clusters = max(_own_ray.clusters - 1, 0)
    if _own_ray.clusters:
        return
    try:
        ray.shutdown()
    finally:
        remove_sockets()


def join_ray(address: str) -> None:
    """Join a Ray that runs: ``auto`` or its address.

    Raises:
        InvalidArgument: this process was forked from one that uses Ray.
        Unavailable: there is none.
    """
    parents_ray.refuse(f"joining the Ray at {address!r}")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        _init_ray(address)
    except ConnectionError as error:
        raise Unavailable(
            f"Ray at {address!r}",
            f"{error}; start one (`ray start --head`), or write ray: {{address: local}}",
        ) from error


def _init_ray(address: str, **options: Any) -> None:
    warn_outside_window()
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
    """For a moment after its start a process has no command line: it is looked at again then."""
    end_s = time.monotonic() + COMMAND_LINE_GRACE_S
    try:
        while not (parts := process.cmdline()) and time.monotonic() < end_s:
            time.sleep(0.01)
    except psutil.Error:
        return False  # it has ended
    return any("ray" in part for part in parts)
