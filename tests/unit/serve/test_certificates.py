"""A certificate's files, and a server of TLS that takes new ones while it serves."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.cli.cluster.certificates import described
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.deploy.certificates import Shown
from stelae.serve.certificates import (
    SOON_S,
    Certificate,
    await_served,
    look,
    read_files,
    take,
    what_is_served,
)
from tests.pem import DAY, write_pair

WAIT_S = 10.0


def test_files_that_fit_are_read(tmp_path: Path) -> None:
    """What is known of the certificate is what clients are shown."""
    cert, key = write_pair(tmp_path, 0xBEEF)
    _, found = read_files(str(cert), str(key))
    assert (found.names, found.serial) == (("127.0.0.1",), "BEEF")
    assert abs(found.ends_at - time.time() - 90 * 86_400) < 60


def test_files_that_are_no_good_are_refused_in_plain_words(tmp_path: Path) -> None:
    """Each says which file it is, and what is wrong with it."""

    def refused(cert: Path, key: Path) -> str:
        with pytest.raises(InvalidArgument) as found:
            read_files(str(cert), str(key))
        return str(found.value).replace(f"{tmp_path}/", "")

    folders = [tmp_path / name for name in ("a", "b", "old", "new", "locked")]
    for folder in folders:
        folder.mkdir()
    a, b, old, new, locked = folders
    cert, key = write_pair(a, 1)
    write_pair(b, 2)
    write_pair(old, 3, begins=-3 * DAY, ends=-DAY)
    write_pair(new, 4, begins=DAY)
    write_pair(locked, 5, passphrase=b"secret")
    assert refused(a / "none.pem", key) == "a/none.pem cannot be read: No such file or directory"
    assert refused(cert, b / "key.pem") == "b/key.pem is not the key of the certificate a/cert.pem"
    assert refused(key, cert) == "a/key.pem has no certificate in PEM"
    assert refused(cert, cert) == "a/cert.pem has no private key in PEM"
    expired = "the certificate old/cert.pem is no good: it has expired"
    assert refused(old / "cert.pem", old / "key.pem") == expired
    assert refused(new / "cert.pem", new / "key.pem").endswith("it is not valid yet")
    assert "has a passphrase" in refused(locked / "cert.pem", locked / "key.pem")
    key.write_text("".join(line for line in key.open() if "-----" in line))
    assert refused(cert, key).startswith("a/cert.pem and a/key.pem are no certificate and key")


@asynccontextmanager
async def proxy_with(cert: Path, key: Path) -> AsyncIterator[tuple[Any, int]]:
    """What is asked of Serve's proxy, in this process, and the port of a server behind it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline() not in (b"\r\n", b""):
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await reader.read()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    config = SimpleNamespace(
        ssl=context, ssl_certfile=str(cert), ssl_keyfile=str(key), ssl_keyfile_password=None,
        host="0.0.0.0", port=port,
    )  # fmt: skip
    started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    started.set_result((None, SimpleNamespace(config=config)))
    async with server:
        yield SimpleNamespace(_start_http_server_task=started), port


@pytest.mark.parametrize("was_rsa", [True, False], ids=["rsa", "ec"])
async def test_new_connections_are_shown_the_new_certificate_and_open_ones_go_on(
    tmp_path: Path, was_rsa: bool
) -> None:
    """Also if its key is of another kind than the old one: no client is shown the old one then."""
    cert, key = write_pair(tmp_path, 1, is_rsa=was_rsa)
    async with proxy_with(cert, key) as (proxy, port):

        async def served() -> Certificate:
            found = await asyncio.to_thread(what_is_served, "127.0.0.1", port, WAIT_S)
            assert isinstance(found, Certificate)
            return found

        before = await served()
        trusting = ssl.create_default_context(cafile=cert)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        write_pair(tmp_path, 2, is_rsa=not was_rsa)
        looked = look(proxy)
        assert looked.certificate is not None
        assert (looked.host, looked.port, looked.certificate.serial) == ("127.0.0.1", port, "02")
        assert await served() == before, "a look changes nothing"
        found = take(proxy)
        assert await served() == found == looked.certificate
        await asyncio.to_thread(await_served, "127.0.0.1", port, "/", found.sha256, WAIT_S)
        old_kind = ssl.create_default_context(cafile=cert)
        old_kind.maximum_version = ssl.TLSVersion.TLSv1_2
        old_kind.set_ciphers("aRSA" if was_rsa else "aECDSA")
        with pytest.raises((ssl.SSLError, ConnectionError)):  # the other end may reset it first
            await asyncio.open_connection("127.0.0.1", port, ssl=old_kind)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_files_that_are_no_good_change_nothing(tmp_path: Path) -> None:
    """The certificate from before is served on, and whoever waits for another is told so."""
    cert, key = write_pair(tmp_path, 1)
    async with proxy_with(cert, key) as (proxy, port):
        key.write_text("nothing")
        assert look(proxy).problem == f"{key} has no private key in PEM"
        with pytest.raises(InvalidArgument):
            take(proxy)
        found = await asyncio.to_thread(what_is_served, "127.0.0.1", port, WAIT_S)
        assert isinstance(found, Certificate)
        assert found.serial == "01"
        with pytest.raises(RetryLater, match="are shown another certificate"):
            await asyncio.to_thread(await_served, "127.0.0.1", port, "/", "other", 0.1)


async def test_a_proxy_that_starts_reads_the_files_by_itself() -> None:
    """Whoever asks for it meanwhile asks again."""
    starting = SimpleNamespace(_start_http_server_task=asyncio.get_running_loop().create_future())
    with pytest.raises(RetryLater):
        take(starting)


def test_what_ends_within_two_weeks_is_told() -> None:
    """So is what cannot be told; what other files have counts once it is taken."""
    old = Certificate(("a",), "01", 1000.0 + SOON_S, "x")
    new = Certificate(("a",), "02", 2000.0 + SOON_S, "y")
    assert not Shown("n", old, old).ends_soon(now_s=999.0)
    assert Shown("n", old, new).ends_soon(now_s=1001.0)
    assert Shown("n", None, new, "no answer").ends_soon(now_s=0.0)
    assert [described(Shown("n", old, files))["files"] for files in (old, new, None)] == [
        "the same",
        "another one (`stelae certificate renew`)",
        "no good",
    ]
