"""`stelae check` notes where bytes leave a machine in clear."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from stelae.client.check.check import judge
from stelae.client.check.encryption import judge_encryption, leaving
from stelae.client.check.facts import Facts, ServerFacts, Severity, StatusFacts
from stelae.core.ids import Address, ServerUuid
from tests.unit.client.routing.scripted import Scripted


def status(*addresses: str, is_encrypted: bool | None = False) -> StatusFacts:
    servers = tuple(
        ServerFacts("tserver", f"t{n}", ServerUuid(f"{n:032x}"), "live", Address(address))
        for n, address in enumerate(addresses)
    )
    return StatusFacts("c", 1, servers, (), (), is_encrypted=is_encrypted)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that knows two hosts, one of this machine."""
    known = {"here": ["127.0.0.1", "::1"], "there": ["127.0.0.1", "10.0.0.7"]}

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror("no such host")
        return [(0, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    ("address", "is_remote"),
    [
        ("127.0.0.1:7001", False),
        ("127.9.9.9:7001", False),
        ("[::1]:7001", False),
        ("[::ffff:127.0.0.1]:7001", False),
        ("here:7001", False),
        ("10.0.0.5:7001", True),
        ("192.168.1.9:7001", True),
        ("[fe80::1%eth0]:7001", True),
        ("[2001:db8::5]:7001", True),
        ("there:7001", True),
        ("nobody-knows:7001", True),
        ("", False),
    ],
)
async def test_an_address_that_leaves_the_machine_is_noticed(address: str, is_remote: bool) -> None:
    """All that is not loopback, and a host's name unless it resolves to nothing else."""
    found = await leaving(Scripted(), status("127.0.0.1:1", address))  # type: ignore[arg-type]
    assert found == (("t1",) if is_remote else ())


@pytest.mark.parametrize("is_encrypted", [True, None])
async def test_nobody_is_asked_for_hosts_of_a_cluster_with_tls(is_encrypted: bool | None) -> None:
    """Nor of one whose masters do not say."""
    found = status("10.0.0.5:1", is_encrypted=is_encrypted)
    assert await leaving(Scripted(), found) == ()  # type: ignore[arg-type]
    assert judge_encryption(found, ("t0",)) == []


def test_it_is_a_note_with_the_way_out() -> None:
    """The network may be trusted: the cluster is well all the same. Not all are named."""
    found = status(*(f"10.0.0.{n}:1" for n in range(1, 9)))
    report = judge(Facts((), found, leaving=tuple(server.id for server in found.servers)))
    (note,) = [f for f in report.findings if "encrypted" in f.text]
    assert note.severity is Severity.NOTE
    assert note.text.endswith("not encrypted, and other machines reach t0, t1, t2, t3, t4 …")
    assert "tls: {mode: internal}" in note.hint
