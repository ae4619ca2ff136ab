"""Whether the HTTP front can listen where a spec wants it."""

from __future__ import annotations

import socket

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import AlreadyRunning


def check_http_place(spec: ClusterSpec) -> None:
    """Raises AlreadyRunning: the HTTP front cannot listen on this node where the spec wants it."""
    if spec.serve is not None and (problem := place_problem(spec.serve.host, spec.serve.port)):
        raise AlreadyRunning(problem)


def place_problem(host: str, port: int) -> str:
    """Why nobody can listen there on this node; empty: one can. Port 0 is any free one."""
    if port == 0:
        return ""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return (
            f"serve.port {port} on {host} cannot be used: {error.strerror}; choose another in "
            "cluster.yaml, or 0 for any free one"
        )
    return ""
