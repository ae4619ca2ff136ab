"""`stelae.runtime.free_ports`: ports that nobody else gets meanwhile."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from stelae.core.errors import AlreadyRunning
from stelae.runtime import free_ports
from stelae.runtime.free_ports import free_port

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="needs /proc of Linux")
def test_no_outgoing_connection_is_given_one() -> None:
    """As the system is configured where tests run."""
    first = int(RANGE.read_text().split()[0])
    assert all(port < first for port in free_ports.free_ports(20))


def test_those_of_one_call_differ_and_can_be_had_at_once() -> None:
    """They are given back when the last one is known."""
    ports = list(free_ports.free_ports(50, ""))
    assert len(set(ports)) == 50
    with socket.create_server(("", ports[-1])), socket.create_server(("", ports[0])):
        pass


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only one address of several is taken; and if all are, that is said."""
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(free_ports, "PORTS", range(taken, taken + 1))
        for host in ("", "127.0.0.1"):
            with pytest.raises(AlreadyRunning, match=str(taken)):
                free_port(host)


def replace_socket(patch: pytest.MonkeyPatch, made: type[socket.socket]) -> None:
    """Give `free_ports` another class of sockets; other threads of this process keep theirs."""
    patch.setattr(free_ports, "socket", SimpleNamespace(**{**vars(socket), "socket": made}))


def test_an_address_of_elsewhere_is_said_at_once_and_what_is_taken_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One socket is tried for the first, and those that found their port taken are closed."""
    made: list[socket.socket] = []

    class Counted(socket.socket):
        def __init__(self, family: int) -> None:
            super().__init__(family)
            made.append(self)

    replace_socket(monkeypatch, Counted)
    with pytest.raises(OSError, match="assign") as raised:
        free_port("192.0.2.1")
    assert raised.value.errno == errno.EADDRNOTAVAIL
    assert [each.fileno() for each in made] == [-1]

    class Taken(Counted):
        def bind(self, address: object) -> None:
            assert all(each.fileno() == -1 for each in made[:-1]), "they are not needed any more"
            raise OSError(errno.EADDRINUSE, "taken")

    replace_socket(monkeypatch, Taken)
    with pytest.raises(AlreadyRunning):
        free_port("127.0.0.1")
    assert made[-1].fileno() == -1


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")
def test_an_ipv6_address_has_ports_too() -> None:
    """By a socket of its own family."""
    with socket.create_server(("::1", free_port("::1")), family=socket.AF_INET6):
        pass
