"""The handshake alone: who passes, who does not, and that no bit of it may change on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import ProtocolMismatch, StelaeError, Unauthorized
from stelae.runtime.tcp import handshake
from stelae.runtime.tcp.handshake import (
    MESSAGE_BYTES,
    ClientHandshake,
    Credentials,
    Handshake,
    ServerHandshake,
    Status,
)

SECRET = bytes(range(32))


def ends(
    client: Credentials | None = None, server: Credentials | None = None
) -> tuple[ClientHandshake, ServerHandshake]:
    default = Credentials("demo", SECRET)
    return ClientHandshake(client or default, "s:1"), ServerHandshake(server or default, "c:2")


def run(client: Handshake, server: Handshake, flip: int | None = None) -> list[bytes]:
    """Pass messages to and fro; ``flip`` is a bit to change, counted over all that is sent."""
    sent: list[bytes] = []
    message, to, other = client.start(), server, client
    position = 0
    while message and to.error is None and not to.done:
        if flip is not None and position <= flip < position + 8 * len(message):
            changed = bytearray(message)
            changed[(flip - position) // 8] ^= 1 << ((flip - position) % 8)
            message = bytes(changed)
        position += 8 * len(message)
        sent.append(message)
        assert len(message) == to.needed <= MESSAGE_BYTES
        message, to, other = to.feed(message), other, to
    return sent


def test_ends_with_the_same_secret_and_cluster_trust_each_other() -> None:
    """Four messages, and both are done."""
    client, server = ends()
    assert len(run(client, server)) == 4
    assert (client.done, server.done) == (True, True)
    assert (client.error, server.error) == (None, None)


def test_who_understands_ids_of_requests_says_so_and_others_pass_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bits of the challenge's status that clients of before do not look at: to them it is
    neither of the refusals."""
    client, server = ends()
    sent = run(client, server)
    assert client.knows_requests
    status = int.from_bytes(sent[1][12:16], "little")
    assert status not in (Status.OTHER_VERSION, Status.BUSY)
    monkeypatch.setattr(handshake, "KNOWS_REQUESTS", 0)
    client, server = ends()
    sent = run(client, server)
    assert int.from_bytes(sent[1][12:16], "little") == Status.OK, "a server of before"
    assert (client.done, client.knows_requests) == (True, False)


SIZE_BITS = 8 * sum(map(len, run(*ends())))


@given(flip=st.integers(0, SIZE_BITS - 1))
def test_any_bit_changed_on_the_way_ends_the_handshake(flip: int) -> None:
    """The client is never done then: its proofs cover all bytes that passed."""
    client, server = ends()
    run(client, server, flip)
    assert not client.done
    assert client.error is not None or server.error is not None


@pytest.mark.parametrize(
    ("mine", "client_error", "server_error"),
    [
        (Credentials("demo", bytes(32)), Unauthorized, None),
        (Credentials("prod", SECRET), Unauthorized, Unauthorized),
        (Credentials("demo", SECRET, version=9), ProtocolMismatch, ProtocolMismatch),
    ],
    ids=["secret", "cluster", "version"],
)
def test_ends_that_differ_do_not_trust_each_other(
    mine: Credentials,
    client_error: type[StelaeError],
    server_error: type[StelaeError] | None,
) -> None:
    """Another secret, cluster or version: neither end is done, and both know why if they can."""
    client, server = ends(client=mine)
    run(client, server)
    assert (client.done, server.done) == (False, False)
    assert type(client.error) is client_error
    assert type(server.error) is (server_error or type(None))


def test_a_client_that_only_guesses_is_refused() -> None:
    """Whoever does not have the secret cannot answer the challenge, even knowing all else."""
    client, server = ends()
    server.feed(client.start())
    server.feed(bytes(server.needed))
    assert isinstance(server.error, Unauthorized)


def test_a_servers_proof_cannot_be_sent_back_to_it() -> None:
    """Proofs name their sender's role, so a reflection proves nothing."""
    client, server = ends()
    challenge = server.feed(client.start())
    server.feed(challenge[-32:])
    assert isinstance(server.error, Unauthorized)


def test_both_ends_see_the_same_certificates_or_neither_is_done() -> None:
    """Inside TLS the proofs are over the certificates; also against an end that sees none."""
    for of_client, of_server in (
        ((b"s", b"c"), (b"s", b"c")),
        ((b"between", b"c"), (b"s", b"c")),
        ((b"s", b"c"), (b"s", b"between")),
        ((b"s", b"c"), None),
        (None, (b"s", b"c")),
    ):
        client, server = ends()
        for end, seen in ((client, of_client), (server, of_server)):
            if seen is not None:
                end.bind(*seen)
        run(client, server)
        assert (client.done, server.done) == (of_client == of_server,) * 2


def test_a_recorded_handshake_cannot_be_replayed() -> None:
    """The server's nonce is new each time."""
    recorded = run(*ends())
    _, server = ends()
    server.feed(recorded[0])
    server.feed(recorded[2])
    assert isinstance(server.error, Unauthorized)
