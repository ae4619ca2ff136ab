"""A name for each server's log among the files of Ray's session: whose it is, and of which process.

Ray keeps what a process writes to stderr in ``worker-ID-JOB-PID.err``. A server makes a link to its
own as ``stelae_CLUSTER_SERVER_PID.err``, which stays when the process has died. Ray's own programs
look at files of other names only. `title_as` names the process itself, for ``ps`` and ``top``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import ray

logger = logging.getLogger(__name__)

PREFIX = "stelae_"
SUFFIX = ".err"


def link_name(cluster: str, server: str, process: int | str) -> str:
    """What the log of a server's process is called. ``process``: its id, or a pattern for ids."""
    return f"{PREFIX}{cluster}_{server}_{process}{SUFFIX}"


def logs_folder() -> Path:
    """Where Ray's session has its logs on this machine. Needs a connection to Ray."""
    node: Any = ray._private.worker._global_node
    return Path(node.get_logs_dir_path())


def link_own_log(cluster: str, server: str) -> None:
    """Give this process's log its name. A server does not need it, so a failure is logged only."""
    try:
        worker, process = ray.get_runtime_context().get_worker_id(), os.getpid()
        link_log(logs_folder(), worker, link_name(cluster, server, process), process)
    except (OSError, AttributeError) as error:  # another Ray may have the folder elsewhere
        logger.warning("the log of %s has no name of its own: %s", server, error)


def title_as(cluster: str, server: str) -> None:
    """Have ``ps`` show whose this process is, until Ray sets another title: at each call of the
    actor it takes the method's name."""
    raylet: Any = ray._raylet
    raylet.setproctitle(f"ray::ServerHost {cluster}/{server}")


def link_log(folder: Path, worker: str, name: str, process: int) -> None:
    """Link the log of a worker, if there is one: where Ray's workers write to a terminal it is not.

    Raises:
        OSError: no link can be made there.
    """
    found = sorted(folder.glob(f"worker-{worker}-*-{process}{SUFFIX}"))
    if not found:
        return
    link = folder / name
    link.unlink(missing_ok=True)  # of an older process that had the same id
    link.symlink_to(found[0].name)
