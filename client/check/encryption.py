"""Whether connections that leave a machine are encrypted: part of `stelae check`.

`leaving` asks for the addresses of hosts that have names; the judgement is pure. A host counts as
remote unless all of its addresses are loopback ones, as others are seen by a network.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from stelae.client.check import hints as check_hints
from stelae.client.check.facts import Finding, Severity, StatusFacts
from stelae.core.addresses import host_of
from stelae.core.runtime import Runtime

NAMED_MAX = 5
"""Servers that the finding names."""


async def leaving(runtime: Runtime, status: StatusFacts) -> tuple[str, ...]:
    """The names of servers that other machines reach, of a cluster without TLS; else none."""
    if status.is_encrypted is not False:
        return ()
    hosts = dict.fromkeys(host_of(server.address) for server in status.servers if server.address)
    remote = {host: not _is_loopback(host) for host in hosts if _is_number(host)}
    for host in hosts:
        if host not in remote:
            remote[host] = await runtime.offload(_resolves_elsewhere, host)
    return tuple(s.id for s in status.servers if s.address and remote[host_of(s.address)])


def judge_encryption(status: StatusFacts, remote: Sequence[str]) -> list[Finding]:
    """A note where bytes leave a machine in clear. Pure. ``remote``: as `leaving` found them."""
    if status.is_encrypted is not False or not remote:
        return []
    names = list(dict.fromkeys(remote))
    named = ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
    text = f"connections are not encrypted, and other machines reach {named}"
    return [Finding("servers", "", text, Severity.NOTE, check_hints.NOT_ENCRYPTED)]


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _resolves_elsewhere(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # other machines may know it
    return not all(_is_loopback(str(place[0])) for *_, place in found)
