"""Addresses of servers, ``host:port``: an IPv6 host stands in brackets. Pure."""

from __future__ import annotations

from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address

NODE_ADDRESS = "ray.io/node-address"
"""Stands for a label with the address of each of Ray's nodes; Ray itself has none like it."""


def address_of(host: str, port: int) -> Address:
    """The address of a port of a host."""
    return Address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises InvalidArgument."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def host_of(address: str) -> str:
    """The host of an address; empty: the address is."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
