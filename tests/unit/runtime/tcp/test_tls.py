"""TLS under the same calls: both modes, renewal, and what becomes of those who do not belong."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from stelae.core.addresses import split_address
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.errors import InvalidArgument, StelaeError, Unauthorized, Unavailable
from stelae.core.ids import Address
from stelae.runtime.tcp import door, handshake, local, tls
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.peers import TcpPeers
from stelae.runtime.tcp.server import Service
from stelae.runtime.tcp.tls import TlsContexts
from tests.unit.runtime.tcp.peers_world import ECHO, KEEP, SECRET, UUID, Servers, Text, echo
from tests.until import until_async

INTERNAL = PeerTls("internal")
OTHER_SECRET = bytes(32)
HOUR_S = 3600.0


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    """Servers that are reached over TCP only, as those of other machines are."""
    monkeypatch.setattr(local, "_socket", lambda: None)
    servers = Servers()
    yield servers
    for peers in servers.made:
        await peers.close()
    assert not servers.failures


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def files_in(
    folder: Path, *, secret: bytes = SECRET, now: float | None = None, valid_s: float = HOUR_S
) -> PeerTls:
    """Write a certificate, its key and its authority, as an operator would."""
    folder.mkdir(exist_ok=True)
    made = TlsContexts(Credentials("demo", secret))
    at = time.time() if now is None else now
    authority, pair = tls.issued(made._seed, at, valid_s=valid_s)
    end = pair.index(b"-----BEGIN PRIVATE KEY")
    (folder / "ca.pem").write_bytes(authority)
    (folder / "cert.pem").write_bytes(pair[:end])
    (folder / "key.pem").write_bytes(pair[end:])
    names = ("cert.pem", "key.pem", "ca.pem")
    return PeerTls("files", *(str(folder / name) for name in names))


def session_of(context_of: tls.Contexts) -> ssl.SSLObject:
    """The client's end after a handshake with a server of the same contexts."""
    inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context_of.client.wrap_bio(inbound, outbound)
    server = context_of.server.wrap_bio(outbound, inbound, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    with contextlib.suppress(ssl.SSLWantReadError):
        client.read(1)  # what the server sends by itself
    return client


def serial(context_of: tls.Contexts) -> str:
    """The serial number of the certificate that a server with these contexts shows."""
    return str(dict(session_of(context_of).getpeercert() or {})["serialNumber"])


async def silent(address: Address, count: int) -> list[asyncio.StreamWriter]:
    """Connections that never say anything."""
    host, port = split_address(address)
    return [(await asyncio.open_connection(host, port))[1] for _ in range(count)]


async def is_closed(reader: asyncio.StreamReader) -> None:
    """The other end has closed the connection, and said nothing."""
    async with asyncio.timeout(20.0):
        assert await reader.read() == b""


def unproved(peers: TcpPeers) -> int:
    assert peers._service is not None
    return len(peers._service._unproved)


async def no_unproved(peers: TcpPeers) -> None:
    async def none() -> bool:
        return unproved(peers) == 0

    await until_async(none, 20.0, "no slot taken", poll_s=0.01)


# ---- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["internal", "files"])
async def test_calls_of_all_sizes_go_over_tls(world: Servers, tmp_path: Path, mode: str) -> None:
    """Small and large messages pass, in both modes; what is on the wire is TLS 1.3."""
    how = INTERNAL if mode == "internal" else files_in(tmp_path / "tls")
    server, client = await world.listening(tls=how), world.peers(tls=how)
    blob = bytes(range(256)) * 8192
    for text in ("one", "two"):
        reply = await echo(client, server.address, text, blobs=[blob])
        assert reply.body.text == text
        assert bytes(reply.blobs[0]) == blob
    transport = client._links[server.address]._connection._transport  # type: ignore[union-attr]
    assert transport is not None
    assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_blocking_calls_go_over_tls(world: Servers) -> None:
    """A connection of a caller's own thread is used again, and noticed to be gone."""
    server = await world.listening(tls=INTERNAL)
    calls = DirectCalls(Credentials("demo", SECRET, tls=INTERNAL))

    def call(text: str) -> str:
        return calls.call(server.address, KEEP, Text(text), timeout_s=10, destination=UUID).text

    for text in ("one", "two", "three"):
        assert await asyncio.to_thread(call, text) == text
    assert len(list(calls._lines)) == 1
    port = split_address(server.address)[1]
    await server.close()
    with pytest.raises(Unavailable):
        await asyncio.to_thread(call, "nobody is there")
    server = await world.listening(tls=INTERNAL, port=port)
    assert await asyncio.to_thread(call, "again") == "again"
    calls.close()


async def test_a_blocking_call_over_tls_ends_at_its_deadline(world: Servers) -> None:
    """Python's TLS sockets ignore the kernel's limits: the deadline is kept by their own."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = Address(f"127.0.0.1:{deaf.getsockname()[1]}")
        calls = DirectCalls(Credentials("demo", SECRET, tls=INTERNAL))
        with pytest.raises(Unavailable, match="no handshake within"):
            await asyncio.to_thread(
                calls.call, address, KEEP, Text("x"), timeout_s=0.3, destination=UUID
            )


async def test_processes_of_one_machine_need_no_tls_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the machine's own socket there is none; another user's process is not believed there."""
    servers = Servers()
    server, client = await servers.listening(tls=INTERNAL), servers.peers(tls=INTERNAL)
    try:
        assert (await echo(client, server.address, "x")).body.text == "x"
        sock = client._links[server.address]._connection._stream  # type: ignore[union-attr]
        assert sock.get_extra_info("ssl_object") is None
        monkeypatch.setattr(local, "is_of_own_user", lambda connected: False)
        stranger = servers.peers(tls=INTERNAL)
        assert (await echo(stranger, server.address, "x")).body.text == "x"
        sock = stranger._links[server.address]._connection._stream  # type: ignore[union-attr]
        assert sock.get_extra_info("ssl_object") is not None
    finally:
        for peers in servers.made:
            await peers.close()


async def test_a_server_takes_no_plain_connection_of_another_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A relay of another user's could otherwise pass the machine's socket by, and TLS with it."""
    servers = Servers()
    server = await servers.listening(tls=INTERNAL)
    monkeypatch.setattr(door, "is_of_own_user", lambda connected: False)
    client = servers.peers(tls=INTERNAL)
    try:
        assert (await echo(client, server.address, "x")).body.text == "x"
        stream = client._links[server.address]._connection._stream  # type: ignore[union-attr]
        assert stream.get_extra_info("ssl_object") is not None
    finally:
        for peers in servers.made:
            await peers.close()


# ---- those who do not belong --------------------------------------------------------------------

Call = Callable[[Address, Credentials], Awaitable[None]]


async def by_loop(address: Address, credentials: Credentials) -> None:
    peers = TcpPeers(credentials, on_failure=lambda error: None)
    try:
        await peers.call(address, ECHO, Text("x"), timeout_s=10)
    finally:
        await peers.close()


async def by_thread(address: Address, credentials: Credentials) -> None:
    calls = DirectCalls(credentials)
    await asyncio.to_thread(calls.call, address, KEEP, Text("x"), timeout_s=10, destination=UUID)
    calls.close()


@pytest.fixture(params=[by_loop, by_thread])
def call(request: pytest.FixtureRequest) -> Call:
    """Both ways of calling."""
    found: Call = request.param
    return found


async def error_of(call: Call, server: TcpPeers, credentials: Credentials) -> StelaeError:
    with pytest.raises(StelaeError) as caught:
        await call(server.address, credentials)
    await no_unproved(server)
    return caught.value


async def test_a_client_without_tls_is_told_to_have_it(world: Servers, call: Call) -> None:
    """The server sees that the first byte is not of TLS, and says so in the client's terms."""
    server = await world.listening(tls=INTERNAL)
    error = await error_of(call, server, Credentials("demo", SECRET, tls=OFF))
    assert isinstance(error, Unauthorized)
    assert f"tls: {server.address} takes TLS only, and TLS is off here" in str(error)
    assert "stelae attach" in str(error)


async def test_a_client_with_tls_learns_that_the_server_has_none(
    world: Servers, call: Call
) -> None:
    """It says what differs, and never goes on without."""
    server = await world.listening()
    error = await error_of(call, server, Credentials("demo", SECRET, tls=INTERNAL))
    assert isinstance(error, Unauthorized)
    assert f"tls: {server.address} speaks without TLS, and TLS is on here" in str(error)
    assert "stelae attach" in str(error)


async def test_a_server_of_another_authority_is_not_believed(world: Servers, call: Call) -> None:
    """With another secret there is another authority; nothing was said to it."""
    server = await world.listening(tls=INTERNAL)
    error = await error_of(call, server, Credentials("demo", OTHER_SECRET, tls=INTERNAL))
    assert isinstance(error, Unauthorized)
    assert "tls" in str(error)
    assert "another authority" in str(error)


async def test_a_server_takes_no_client_of_another_authority(
    world: Servers, tmp_path: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that believes the server, but has a certificate of its own making."""
    server = await world.listening(tls=files_in(tmp_path / "server"))
    other = files_in(tmp_path / "other", secret=OTHER_SECRET)
    half = replace(other, authority=str(tmp_path / "server" / "ca.pem"))
    error = await error_of(call, server, Credentials("demo", SECRET, tls=half))
    assert "tls" in str(error)
    assert "certificate of another authority" in str(error)
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_the_challenge_on_the_secret_stays_inside_tls(
    world: Servers, tmp_path: Path, call: Call
) -> None:
    """A good certificate alone opens nothing."""
    how = files_in(tmp_path / "tls")
    server = await world.listening(tls=how)
    error = await error_of(call, server, Credentials("demo", OTHER_SECRET, tls=how))
    assert isinstance(error, Unauthorized)
    assert "does not have the secret" in str(error)


async def test_nobody_with_another_certificate_relays_the_challenge(
    world: Servers, tmp_path: Path, call: Call
) -> None:
    """An authority that signs for others, too, lets them pass TLS. The challenge on the secret is
    over the certificates of both ends, and one who stands between shows another one."""
    server = await world.listening(tls=files_in(tmp_path / "server"))
    between = await TlsContexts(
        Credentials("demo", OTHER_SECRET, tls=files_in(tmp_path / "between"))
    ).current()
    host, port = split_address(server.address)

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(host, port, ssl=between.client, server_hostname="")
        with contextlib.suppress(OSError):
            await asyncio.gather(pipe(reader, onward[1]), pipe(onward[0], writer))

    relaying = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=between.server)
    there = Address(f"127.0.0.1:{relaying.sockets[0].getsockname()[1]}")
    good = Credentials("demo", SECRET, tls=files_in(tmp_path / "client"))
    with pytest.raises(Unauthorized, match="another process relays this connection"):
        await call(there, good)
    await call(server.address, good)
    relaying.close()
    await no_unproved(server)


async def test_an_expired_certificate_is_named_and_its_renewal_is_seen(
    world: Servers, tmp_path: Path, call: Call
) -> None:
    """Files that have expired end connections with that reason, on either side; new ones serve, and
    nothing was started anew for them."""
    clock, folder = Clock(), tmp_path / "server"
    expired = files_in(folder, now=time.time() - 2 * HOUR_S)
    contexts = TlsContexts(Credentials("demo", SECRET, tls=expired), clock)
    server = await world.listening(tls=expired, contexts=contexts)
    good = files_in(tmp_path / "client")
    error = await error_of(call, server, Credentials("demo", SECRET, tls=good))
    assert isinstance(error, Unavailable)
    assert "tls" in str(error)
    assert "has expired" in str(error)
    files_in(folder)
    clock.now_s += tls.LOOK_S
    await call(server.address, Credentials("demo", SECRET, tls=good))
    late = files_in(tmp_path / "late", now=time.time() - 2 * HOUR_S)
    error = await error_of(call, server, Credentials("demo", SECRET, tls=late))
    assert isinstance(error, Unavailable)
    assert "tls" in str(error)
    assert "has expired" in str(error)


async def test_a_stranger_that_speaks_another_protocol_is_refused(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """What is neither TLS nor Stelae gets no answer."""
    server = await world.listening(tls=INTERNAL)
    host, port = split_address(server.address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await is_closed(reader)
    writer.close()
    await no_unproved(server)
    assert "a peer came without TLS" in caplog.text


# ---- slots --------------------------------------------------------------------------------------


async def test_silent_connections_are_counted(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 80 that never send a ClientHello holds a slot until it ends; others come in."""
    monkeypatch.setattr(door, "PROOF_TIMEOUT_S", 600.0)
    server = await world.listening(tls=INTERNAL)
    writers = await silent(server.address, 80)

    async def all_counted() -> bool:
        return unproved(server) == 80

    await until_async(all_counted, 20.0, "80 slots taken", poll_s=0.01)
    assert (await echo(world.peers(tls=INTERNAL), server.address, "x")).body.text == "x"
    assert unproved(server) == 80
    for writer in writers:
        writer.close()
    await no_unproved(server)


async def test_silent_connections_keep_nobody_out(world: Servers) -> None:
    """Bounds hold from the first moment: one too many ends the oldest, and peers come in."""
    server = await world.listening(tls=INTERNAL, limits=Limits(handshakes_of_host=8))
    writers = await silent(server.address, 80)
    assert (await echo(world.peers(tls=INTERNAL), server.address, "x")).body.text == "x"
    assert unproved(server) <= 8
    for writer in writers:
        writer.close()
    await no_unproved(server)


class Slow:
    """A connection whose end comes in a later turn of the loop, as in a TLS handshake."""

    peer = "a peer"

    def __init__(self) -> None:
        self.reasons: list[StelaeError] = []

    def fail(self, reason: StelaeError) -> None:
        self.reasons.append(reason)

    def close(self) -> None:
        """Nothing to do."""


async def test_those_that_come_in_one_turn_end_one_each() -> None:
    """A slot is free as soon as its connection is told to end, and another is the next to go."""
    service = Service(UUID, {}, Limits(handshakes=3), print)
    came = [Slow() for _ in range(10)]
    for n, each in enumerate(came):
        service.opened(each, f"10.0.0.{n}")
    assert [len(each.reasons) for each in came] == [1] * 7 + [0] * 3
    assert list(service._unproved) == came[7:]


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"], ids=["nothing", "half a hello"])
async def test_a_connection_has_a_short_time_for_tls(
    world: Servers, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """One that says nothing, or begins a handshake and stops, is closed and gives its slot back."""
    monkeypatch.setattr(door, "PROOF_TIMEOUT_S", 0.3)
    server = await world.listening(tls=INTERNAL)
    host, port = split_address(server.address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(said)
    await is_closed(reader)
    writer.close()
    await no_unproved(server)


async def test_a_server_closes_while_handshakes_are_under_way(world: Servers) -> None:
    """Nothing is left of those that were in their TLS handshake."""
    server = await world.listening(tls=INTERNAL)
    host, port = split_address(server.address)
    reader, writer = await asyncio.open_connection(host, port)

    async def counted() -> bool:
        return unproved(server) == 1

    await until_async(counted, 20.0, "a slot taken", poll_s=0.01)
    await server.close()
    await is_closed(reader)
    writer.close()


async def test_a_full_server_says_so_inside_tls(world: Servers) -> None:
    """Peers learn that it has too many connections, as without TLS."""
    server = await world.listening(tls=INTERNAL, limits=Limits(connections=1))
    first = world.peers(tls=INTERNAL)
    await echo(first, server.address, "x")
    with pytest.raises(Unavailable, match="too many connections"):
        await echo(world.peers(tls=INTERNAL), server.address, "x")


# ---- renewal ------------------------------------------------------------------------------------


async def test_a_certificate_is_renewed_while_connections_stand(world: Servers) -> None:
    """New connections see another certificate; those that are there go on."""
    clock = Clock()
    credentials = Credentials("demo", SECRET, tls=INTERNAL)
    contexts = TlsContexts(credentials, clock)
    server = await world.listening(tls=INTERNAL, contexts=contexts)
    client = world.peers(tls=INTERNAL)
    await echo(client, server.address, "before")
    link, first = client._links[server.address], await contexts.current()
    clock.now_s += tls.RENEW_S - 1
    assert await contexts.current() is first
    clock.now_s += 1
    second = await contexts.current()
    assert serial(second) != serial(first)
    assert (await echo(client, server.address, "after")).body.text == "after"
    assert client._links[server.address] is link
    assert (await echo(world.peers(tls=INTERNAL), server.address, "new")).body.text == "new"


async def test_no_session_can_be_resumed() -> None:
    """A ticket would let a client in by a certificate of before."""
    session = session_of(await TlsContexts(Credentials("demo", SECRET, tls=INTERNAL)).current())
    assert session.session is not None
    assert not session.session.has_ticket


async def test_a_clock_that_is_set_back_renews_as_well() -> None:
    """A certificate of the future would be refused by others."""
    clock = Clock()
    contexts = TlsContexts(Credentials("demo", SECRET, tls=INTERNAL), clock)
    first = await contexts.current()
    clock.now_s -= 10 * HOUR_S
    assert await contexts.current() is not first


async def test_files_are_read_again_only_once_they_have_changed(tmp_path: Path) -> None:
    """They are looked at after a while, and a pair that does not fit leaves the former in use."""
    clock, how = Clock(), files_in(tmp_path / "tls")
    contexts = TlsContexts(Credentials("demo", SECRET, tls=how), clock)
    first = await contexts.current()
    clock.now_s += tls.LOOK_S
    assert await contexts.current() is first
    other = files_in(tmp_path / "other")
    os.replace(other.certificate, how.certificate)  # and the key has yet to come
    clock.now_s += tls.LOOK_S
    assert await contexts.current() is first
    os.replace(other.key, how.key)
    clock.now_s += tls.LOOK_S
    second = await contexts.current()
    assert serial(second) != serial(first)


async def test_a_renewal_that_fails_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator learns which file is missing."""
    clock, how = Clock(), files_in(tmp_path / "tls")
    contexts = TlsContexts(Credentials("demo", SECRET, tls=how), clock)
    first = await contexts.current()
    os.remove(how.key)
    clock.now_s += tls.LOOK_S
    with caplog.at_level(logging.WARNING):
        assert await contexts.current() is first
    assert f"tls.key: {how.key} cannot be read" in caplog.text


# ---- what is missing ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
async def test_a_missing_file_is_named(world: Servers, tmp_path: Path, name: str) -> None:
    """By its field and path, before anything listens or is sent."""
    files: dict[str, Any] = {name: "/nowhere/x.pem"}
    how = replace(files_in(tmp_path / "tls"), **files)
    for work in (world.listening(tls=how), echo(world.peers(tls=how), Address("127.0.0.1:1"), "x")):
        with pytest.raises(InvalidArgument, match=f"tls.{name}: /nowhere/x.pem cannot be read"):
            await work
    assert f"tls.{name}" in tls.tls_problem(how)


def test_files_that_are_no_pem_are_named(tmp_path: Path) -> None:
    """As are a key of another certificate, and one with a passphrase."""
    how = files_in(tmp_path / "tls")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert "tls.authority" in tls.tls_problem(replace(how, authority=str(junk)))
    assert "tls.key" in tls.tls_problem(replace(how, key=str(junk)))
    other = files_in(tmp_path / "other")
    assert "tls.key" in tls.tls_problem(replace(how, key=other.key))
    assert tls.tls_problem(how) == ""
    key = serialization.load_pem_private_key(Path(how.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    assert "passphrase" in tls.tls_problem(replace(how, key=str(locked)))


def test_files_that_peers_would_refuse_are_named_before_anything_starts(tmp_path: Path) -> None:
    """A certificate that has expired, and one that the authority did not sign."""
    expired = files_in(tmp_path / "old", now=time.time() - 2 * HOUR_S)
    assert "has expired" in tls.tls_problem(expired)
    how = files_in(tmp_path / "tls")
    other = files_in(tmp_path / "other", secret=b"o" * len(SECRET))
    problem = tls.tls_problem(replace(how, authority=other.authority))
    assert "not accepted by tls.authority" in problem
    assert other.authority in problem


def test_files_that_peers_would_refuse_do_not_replace_those_in_use(tmp_path: Path) -> None:
    """The former certificate goes on serving, until better files are there."""
    moment = time.time()
    how = files_in(tmp_path / "tls")
    contexts = TlsContexts(Credentials("demo", SECRET, tls=how), lambda: moment)
    first = contexts.load()
    files_in(tmp_path / "tls", now=time.time() - 2 * HOUR_S)
    moment += 2 * tls.LOOK_S
    assert contexts.load() is first
    files_in(tmp_path / "tls")
    moment += 2 * tls.LOOK_S
    assert contexts.load() is not first


async def test_without_the_library_the_extra_is_named(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode internal needs it; the mode files does not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"pip install 'stelae\[tls\]'"):
        await world.listening(tls=INTERNAL)
    assert "stelae[tls]" in tls.tls_problem(INTERNAL)


def test_nothing_else_that_follows_from_the_secret_is_the_authoritys_key() -> None:
    """Proofs of the challenge and the tokens' key have other labels than the authority's."""
    credentials = Credentials("demo", SECRET)
    seed = TlsContexts(credentials)._seed
    labels = (b"server", b"client", *(b"welcome" + bytes([n]) for n in range(256)))
    others: list[Any] = [credentials.proof(label, b"") for label in labels]
    assert tls.AUTHORITY_LABEL not in labels
    assert seed not in [SECRET, *others]
    assert len(seed) == handshake.SECRET_BYTES
