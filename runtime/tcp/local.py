"""The short way between processes of one machine: a Unix socket beside each server's TCP port.

A call over the loopback interface goes through all of TCP on both ends: 55 µs there and back,
against 38 µs over a Unix socket, and several such ways lie one after the other in a durable write.
The socket has a name in Linux's abstract namespace, made from the address that others are told; it
ends with the process and leaves no file. Whoever calls tries the name first. On another machine, or
in another network namespace, it does not exist, and the call goes over TCP as ever.

`is_own_host` tells whether an address is one of this machine's.

The name proves nothing about who listens there; the handshake does, on either way. (design.md §4)
These sockets carry no TLS: what goes over them never leaves the machine. Where a cluster has TLS,
each end accepts only processes of its own user (or of root): another user's process could otherwise
take the name of a server elsewhere, and relay the handshake past TLS.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import os
import socket
import struct
import sys

from stelae.core.ids import Address

logger = logging.getLogger(__name__)

HOSTS_MAX = 1024
"""Maximum number of hosts whose answer is remembered; a machine's addresses seldom change."""
_BUFFER_BYTES = 4 << 20  # asked for; the kernel gives what its bounds allow


def listen_locally(address: Address, backlog: int) -> socket.socket | None:
    """A listening socket under the name of ``address``; None where there cannot be one."""
    made = _socket()
    if made is None:
        return None
    try:
        made.bind(_name(address))
        made.listen(backlog)
    except OSError as error:
        logger.warning("%s is reached over TCP only: %s", address, error)
        made.close()
        return None
    return made


def connect_locally(address: Address, *, own_user: bool = False) -> socket.socket | None:
    """A connection to the server at ``address`` if it is on this machine. Never blocks.

    ``own_user``: only if its process has this one's user, or is root's.
    """
    made = _socket()
    if made is None:
        return None
    try:
        made.connect(_name(address))
    except OSError:  # not here, or too busy: TCP tells which
        made.close()
        return None
    if own_user and not is_of_own_user(made):
        logger.warning("%s is reached over TCP: its local name is another user's", address)
        made.close()
        return None
    return made


@functools.lru_cache(HOSTS_MAX)
def is_own_host(host: str) -> bool:
    """Whether ``host`` is an address of this machine (of this network namespace). A name is none:
    to look it up could block."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((host, 0))  # the kernel binds a socket to the machine's own addresses only
        except OSError:
            return False
    return True


def is_of_own_user(connected: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of this one's user, or of root."""
    size = struct.calcsize("3i")
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", found)
    return uid in (os.geteuid(), 0)


def give_away(connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Leave a socket to the transport that was made of it.

    asyncio's own transports close the socket object. Those of uvloop close its number, and tell the
    object only if they were not closed before they knew of it, as when the other end dies while
    the connection is made. The object would close the number once more: by then it may be that of
    another connection of this process, and libuv ends a process whose numbers it finds closed.
    """
    if not isinstance(loop, asyncio.BaseEventLoop):
        connected.detach()


def _name(address: Address) -> str:
    return f"\0stelae/{address}"


def _socket() -> socket.socket | None:
    if sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return made
