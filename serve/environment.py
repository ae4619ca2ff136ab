"""What has to be in the environment before Ray starts. Imports no Ray: it would be too late.

Source: Ray Serve 2.60, ``ray/serve/_private/constants.py``. (design §12)
"""

from __future__ import annotations

import hashlib
import socket
import tempfile
from pathlib import Path


def serve_environment(cluster: str, data_dir: str) -> dict[str, str]:
    """What the environment must have before Ray starts for Serve's HAProxy mode.

    That is, before `ray.init` and before anybody imports ``ray.serve``, on every node. Paths and
    ports of its own for each cluster, where Serve's defaults clash, and short waits at the end.
    Measured figures: docs/decisions.md, "HTTP through HAProxy".
    """
    folder = Path(data_dir).absolute() / "haproxy"
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    socket_folder = Path(tempfile.gettempdir()) / f"stelae-{cluster}-{digest}"  # 107 bytes at most
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(socket_folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # both listen on all interfaces
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port("")),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port("")),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "2",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.5",
    }


def free_port(host: str) -> int:
    """A port of ``host`` that nobody listens on just now."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])
