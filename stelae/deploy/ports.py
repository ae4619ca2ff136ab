"""Whether the HTTP front, and masters, can listen where they are to."""

from __future__ import annotations

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import AlreadyRunning
from stelae.deploy.cluster_state import STATE_FILE, ClusterState
from stelae.runtime.free_ports import port_problem


def check_http_place(spec: ClusterSpec) -> None:
    """Raises AlreadyRunning: the HTTP front cannot listen on this node where the spec wants it."""
    if spec.serve is not None and (problem := place_problem(spec.serve.host, spec.serve.port)):
        raise AlreadyRunning(problem)


def place_problem(host: str, port: int) -> str:
    """Why the HTTP front cannot listen there on this node; empty: it can."""
    problem = port_problem(host, port)
    return problem and (
        f"serve.port {port} on {host} cannot be used: {problem}; choose another in "
        "cluster.yaml, or 0 for any free one"
    )


def check_master_ports(state: ClusterState) -> None:
    """Masters keep their addresses: say at once that another program listens on one.

    Raises:
        AlreadyRunning: naming the master, its port and the file that says so.
    """
    for name, address in state.masters.items():
        host, _, port = address.rpartition(":")
        if problem := port_problem(host, int(port)):
            raise AlreadyRunning(
                f"{name} cannot listen on {address}, which is its address in "
                f"{state.folder / STATE_FILE}: {problem}; end the program that listens there "
                f"(`ss -ltnp 'sport = :{port}'` names it)"
            )
