"""TLS under the same calls, by a pair of ssl contexts."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from functools import partial
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stelae.core.errors import Unavailable
from stelae.core.ids import ServerUuid
from stelae.core.rpc import Call, Method, Reply
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.peers import TcpPeers, split_address

CREDENTIALS = Credentials("demo", bytes(32))


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Method("test.echo", Text, Text, "of tests, with one server")


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1: the server's context and the client's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    start = datetime.datetime(2020, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36500))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "server.pem"
    file.write_bytes(secret + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=pem.decode())


async def echo(call: Call[Text]) -> Reply[Text]:
    return Reply(call.body, call.blobs)


async def test_calls_go_over_tls_and_only_over_tls(tmp_path: Path) -> None:
    """Large and small messages pass; a client without TLS gets no further than the connection."""
    server_tls, client_tls = contexts(tmp_path)
    errors: list[BaseException] = []
    make = partial(
        TcpPeers,
        CREDENTIALS,
        on_failure=errors.append,
        server_tls=server_tls,
        client_tls=client_tls,
    )
    server, client = make(), make()
    plain = TcpPeers(CREDENTIALS, on_failure=errors.append)
    await server.listen(ServerUuid("a" * 32), {ECHO: echo})
    blob = bytes(range(256)) * 8192
    for text in ("one", "two"):
        reply = await client.call(server.address, ECHO, Text(text), timeout_s=10, blobs=[blob])
        assert reply.body.text == text
        assert bytes(reply.blobs[0]) == blob
    with pytest.raises(Unavailable):
        await plain.call(server.address, ECHO, Text("x"), timeout_s=0.5)
    for peers in (plain, client, server):
        await peers.close()
    assert errors == []


async def test_a_certificate_that_is_not_trusted_is_unavailable(tmp_path: Path) -> None:
    """The client believes only its own authorities; nothing was sent."""
    server_tls, client_tls = contexts(tmp_path)
    errors: list[BaseException] = []
    server = TcpPeers(
        CREDENTIALS, on_failure=errors.append, server_tls=server_tls, client_tls=client_tls
    )
    await server.listen(ServerUuid("a" * 32), {ECHO: echo})
    stranger = TcpPeers(
        CREDENTIALS,
        on_failure=errors.append,
        server_tls=server_tls,
        client_tls=ssl.create_default_context(),
    )
    with pytest.raises(Unavailable, match="TLS"):
        await stranger.call(server.address, ECHO, Text("x"), timeout_s=10)
    for peers in (stranger, server):
        await peers.close()


async def test_failed_tls_handshakes_take_no_place(tmp_path: Path) -> None:
    """They never become connections: who comes after them is let in, for as long as they come."""
    server_tls, client_tls = contexts(tmp_path)
    errors: list[BaseException] = []
    make = partial(
        TcpPeers,
        CREDENTIALS,
        on_failure=errors.append,
        server_tls=server_tls,
        client_tls=client_tls,
        limits=Limits(handshakes=2, connections=2),
    )
    server, client = make(), make()
    await server.listen(ServerUuid("a" * 32), {ECHO: echo})
    host, port = split_address(server.address)
    for _ in range(5):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    service = server._service
    assert service is not None
    assert not service._unproved
    reply = await client.call(server.address, ECHO, Text("x"), timeout_s=10)
    assert reply.body.text == "x"
    for peers in (client, server):
        await peers.close()
    assert errors == []
