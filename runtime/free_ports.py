"""Ports for what will listen in a moment, and must find them free then.

They lie below those that the system gives to outgoing connections: Ray makes hundreds of these
while a cluster starts, and one of them on the port would keep its listener out.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator

from stelae.core.errors import AlreadyRunning

PORTS = range(20_000, 32_000)


def free_ports(count: int, host: str = "127.0.0.1") -> Iterator[int]:
    """That many ports of ``host`` ("": every IPv4 address; IPv6 addresses without brackets) on
    which nobody listens just now.

    They are held until the last one is taken, so they differ. Raises AlreadyRunning: there are
    not that many; OSError: it is no address of this machine.
    """
    with contextlib.ExitStack() as sockets:
        found = 0
        for port in random.sample(PORTS, len(PORTS)):
            each = _bound(host, port)
            if each is None:
                continue
            sockets.enter_context(each)
            yield port
            found += 1
            if found == count:
                return
    raise AlreadyRunning(f"no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")


def _bound(host: str, port: int) -> socket.socket | None:
    """A socket that holds the port; None: it is not to be had. Raises OSError: no port is."""
    made = socket.socket(family_of(host))
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        return None
    return made


def free_port(host: str) -> int:
    """One such port."""
    (port,) = free_ports(1, host)
    return port


def family_of(host: str) -> socket.AddressFamily:
    """The family of a numeric address or a name; names are looked up in IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def port_problem(host: str, port: int) -> str:
    """Why nobody can listen there on this node; empty: one can. Port 0 is any free one."""
    if port == 0:
        return ""
    try:
        with socket.socket(family_of(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""
