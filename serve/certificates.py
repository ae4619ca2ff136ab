"""The certificate of Serve's own proxy: what its files have, and how it takes new ones.

uvicorn reads the files once, when it starts. New files are read into a context of their own, and
connections change over to it while they are made (`ssl.SSLContext.sni_callback`, which is called
whether a client names a server or not). So nothing is ended, connections that are open go on, and
files that are no good change nothing. A proxy that is made anew later reads the files by itself.
`look` and `take` run in the proxy's process. Imports no Ray.

Sources: Python, ``ssl``, "Memory BIO support" and ``SSLContext.sni_callback``; OpenSSL,
``SSL_set_SSL_CTX``, which brings certificate and key and leaves all other settings; Ray Serve 2.60,
``ray/serve/_private/proxy.py``.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stelae.core.errors import InvalidArgument, RetryLater

SOON_S = 14 * 86_400.0
"""Before its end, a certificate is to be seen to."""
ROUNDS = 10
"""Of a handshake; it takes two or three."""
POLL_S = 0.2
EXPIRED, NOT_YET_VALID = 10, 9
"""OpenSSL's ``X509_V_ERR_…``."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """What clients are shown."""

    names: tuple[str, ...]
    """Hosts and addresses that it is for."""
    serial: str
    ends_at: float
    """Seconds since 1970."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Looked:
    """Where a proxy listens on its node, and what its files have."""

    host: str
    port: int
    certificate: Certificate | None
    problem: str = ""
    """Why there is none to be taken."""


# ---- files ----------------------------------------------------------------------------------


def read_files(cert: str, key: str, password: str = "") -> tuple[ssl.SSLContext, Certificate]:
    """A server's context of two files in PEM, tried by a handshake with itself.

    Raises InvalidArgument: a file cannot be read or is no PEM, the key is another's, or the
    certificate is not valid now.
    """
    _expect(cert, "CERTIFICATE-----", "certificate")
    if "ENCRYPTED" in _expect(key, "PRIVATE KEY-----", "private key") and not password:
        raise InvalidArgument(f"the key {key} has a passphrase: write it without one")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # OpenSSL would ask whoever sits at a terminal for a password that it is not given.
        context.load_cert_chain(cert, key, password=lambda: password)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise InvalidArgument(f"{key} is not the key of the certificate {cert}") from None
        raise InvalidArgument(
            f"{cert} and {key} are no certificate and key that TLS can use: {_why(error)}"
        ) from None
    try:
        return context, _shown_by(context, cert)
    except ssl.SSLError as error:
        raise InvalidArgument(f"the certificate {cert} is no good: {_why(error)}") from None


def _expect(path: str, mark: str, what: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None
    if mark not in text:
        raise InvalidArgument(f"{path} has no {what} in PEM")
    return text


def _why(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        words = {EXPIRED: "it has expired", NOT_YET_VALID: "it is not valid yet"}
        return words.get(error.verify_code, error.verify_message)
    return error.reason or str(error)


def _shown_by(server: ssl.SSLContext, cert: str) -> Certificate:
    """By a handshake in memory. Raises ssl.SSLError: no client would go on."""
    client = _believing(cafile=cert)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(ROUNDS):
        if all([_is_done(asking), _is_done(answering)]):
            break
    return _certificate(asking)


def _is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _believing(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Of a client that believes this very certificate, whoever has signed it: its names, and who is
    believed, are between operators and their clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=cafile, cadata=cadata)
    return context


def _certificate(connection: ssl.SSLObject | ssl.SSLSocket) -> Certificate:
    """Of the other end, which was verified."""
    shown, der = connection.getpeercert(), connection.getpeercert(binary_form=True)
    assert shown, "the handshake is over"
    assert der is not None
    fields: dict[str, Any] = {**shown}
    names = [str(value) for _, value in fields.get("subjectAltName", ())]
    if not names:
        names = [
            value for part in fields["subject"] for name, value in part if name == "commonName"
        ]
    ends_at = float(ssl.cert_time_to_seconds(fields["notAfter"]))
    serial = str(fields["serialNumber"])
    return Certificate(tuple(names), serial, ends_at, hashlib.sha256(der).hexdigest())


# ---- in the proxy ---------------------------------------------------------------------------


def look(proxy: Any) -> Looked:
    """What the files have that this proxy was given; it changes nothing.

    Raises RetryLater: it is just starting, and reads them by itself.
    """
    config = _config(proxy)
    place = EVERYWHERE.get(config.host, config.host), config.port
    try:
        return Looked(*place, _read(config)[1])
    except InvalidArgument as error:
        return Looked(*place, None, str(error))


def take(proxy: Any) -> Certificate:
    """Show new connections what the files have from now on.

    Raises InvalidArgument, RetryLater: nothing has changed; as `read_files` and `look` do.
    """
    config = _config(proxy)
    fresh, certificate = _read(config)

    def change_over(
        connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = fresh

    config.ssl.sni_callback = change_over
    return certificate


def _read(config: Any) -> tuple[ssl.SSLContext, Certificate]:
    return read_files(config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password or "")


def _config(proxy: Any) -> Any:
    """uvicorn's, of a Serve proxy."""
    started = proxy._start_http_server_task
    if not started.done():
        raise RetryLater("it is just starting, and reads the files by itself")
    _, server = started.result()
    return server.config


# ---- on the proxy's node --------------------------------------------------------------------


def what_is_served(host: str, port: int, timeout_s: float) -> Certificate | str:
    """What a new connection is shown; in words, if it cannot be told."""
    try:
        shown = ssl.get_server_certificate((host, port), timeout=timeout_s)
        with _connected(host, port, timeout_s, _believing(cadata=shown)) as connection:
            return _certificate(connection.sock)
    except ssl.SSLError as error:
        return f"the certificate that new connections are shown is no good: {_why(error)}"
    except OSError as error:
        return f"{host}:{port} does not answer: {error}"


def await_served(host: str, port: int, path: str, sha256: str, timeout_s: float) -> None:
    """Return once a new connection is shown this certificate, and answered over it.

    Raises RetryLater: not within that time; the text says what is seen instead.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            problem = _problem_with(host, port, path, sha256, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        if not problem:
            return
        if time.monotonic() >= deadline:
            raise RetryLater(f"{host}:{port} does not answer within {timeout_s:g} s: {problem}")
        time.sleep(POLL_S)


def _problem_with(host: str, port: int, path: str, sha256: str, timeout_s: float) -> str:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with _connected(host, port, timeout_s, anybody) as connection:
        shown = connection.sock.getpeercert(binary_form=True)
        if hashlib.sha256(shown or b"").hexdigest() != sha256:
            return "new connections are shown another certificate"
        connection.request("GET", path)
        status = connection.getresponse().status
        return "" if status == http.client.OK else f"GET {path} is answered with {status}"


@contextmanager
def _connected(
    host: str, port: int, timeout_s: float, context: ssl.SSLContext
) -> Iterator[http.client.HTTPSConnection]:
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        connection.connect()
        yield connection
    finally:
        connection.close()
