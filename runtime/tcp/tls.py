"""TLS between the processes of a cluster: contexts for both ends, renewed while they are used.

Rules:

T1. Both ends show a certificate, and each checks the other's against the cluster's authority. Names
    in certificates are not compared: addresses change, the authority is what counts.
    The challenge on the secret, inside TLS, is bound to both certificates: whoever has another one
    of the same authority cannot stand between two ends and relay it.
T2. TLS 1.3 or nothing. Neither end ever falls back to a connection without TLS.
T3. In the mode ``internal`` nothing is stored or distributed. The authority's Ed25519 key is an
    HMAC of the cluster's secret under a label of its own; the key of a process is random, lives in
    its memory only, and its certificate expires after `VALID_S`.
T4. Contexts are renewed before their certificates expire (`RENEW_S`), and when the files of the
    mode ``files`` have changed. A renewal that fails leaves the former contexts in use.
T5. Whatever reads files or makes keys runs off the event loop.

TLS protects the bytes between two processes; who may call is still settled by the challenge on the
secret, inside TLS (`stelae.runtime.tcp.handshake`). ``docs/transport-security.md`` has the threat
model.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib.util
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stelae.core.config.peer_tls import INSTALL, PeerTls
from stelae.core.errors import InvalidArgument, StelaeError, Unauthorized, Unavailable
from stelae.runtime.tcp.handshake import TLS_WAY_OUT, Credentials

logger = logging.getLogger(__name__)

RENEW_S = 3600.0
"""Age at which a process replaces its own certificate in the mode ``internal``."""
VALID_S = 24 * 3600.0
"""Time for which such a certificate is valid after its making. Clocks may differ by this much,
less `RENEW_S`."""
SKEW_S = 24 * 3600.0
"""Time before its making from which such a certificate is valid, for clocks that are late."""
LOOK_S = 10.0
"""Age at which the files of the mode ``files`` are looked at again, at the next connection."""
SHUTDOWN_S = 1.0
"""Time that the end of a connection waits for the other end's; nothing depends on it."""
AUTHORITY_LABEL = b"tls authority"
_NO_TLS_REASON = "TLSV1_ALERT_PROTOCOL_VERSION"
_OUT_OF_TIME = (9, 10)
"""OpenSSL's verify codes of certificates that are not valid yet, or no more."""
_OUT_OF_TIME_REASONS = ("SSLV3_ALERT_CERTIFICATE_EXPIRED",)
_STRANGERS_REASONS = (
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_DECRYPT_ERROR",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
)


@dataclass(frozen=True, slots=True)
class Contexts:
    """What the two ends of new connections use. Both show the same certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes
    """In DER; the challenge on the secret is bound to it."""


class TlsContexts:
    """The contexts of one process, renewed as T4 says. Safe to use from any thread.

    ``now`` is the wall clock, by which certificates expire.
    """

    def __init__(self, credentials: Credentials, now: Callable[[], float] = time.time) -> None:
        self._tls = credentials.tls
        self._seed = credentials.proof(AUTHORITY_LABEL, b"")
        self._now = now
        self._lock = threading.Lock()
        self._contexts: Contexts | None = None
        self._looked_at = 0.0
        self._files: tuple[tuple[int, int, int], ...] = ()

    async def current(self) -> Contexts:
        """The contexts for a new connection, renewed off the event loop if that is due.

        Raises InvalidArgument: there were none before, and a file or the library is missing.
        """
        fresh = self._fresh()
        return await asyncio.to_thread(self.load) if fresh is None else fresh

    def load(self) -> Contexts:
        """The same for a thread that may block. Raises InvalidArgument."""
        if (fresh := self._fresh()) is not None:
            return fresh
        with self._lock:
            # Another thread may have renewed them while this one waited.
            return self._fresh() or self._renewed()

    def _fresh(self) -> Contexts | None:
        limit_s = LOOK_S if self._tls.mode == "files" else RENEW_S
        # A wall clock that was set back says nothing about age.
        return self._contexts if 0 <= self._now() - self._looked_at < limit_s else None

    def _renewed(self) -> Contexts:
        former = self._contexts
        try:
            contexts = self._made(former)
        except (InvalidArgument, OSError) as error:
            if former is None:
                raise
            # T4: files may be half replaced, or no file descriptor be left: it is tried again.
            logger.warning("tls: the former certificate stays in use: %s", error)
            contexts = former
        self._contexts, self._looked_at = contexts, self._now()
        return contexts

    def _made(self, former: Contexts | None) -> Contexts:
        if self._tls.mode != "files":
            return _contexts_of_secret(self._seed, self._now())
        found = _stamps(self._tls)  # before they are read: what changes meanwhile is seen next time
        if former is None or found != self._files:
            # T4: files that peers would refuse do not replace those in use. A process that starts
            # has no others, and takes better ones within `LOOK_S`.
            made = _contexts_of_files(self._tls, must_be_accepted=former is not None)
            former, self._files = made, found
        return former


def contexts_of(credentials: Credentials) -> TlsContexts | None:
    """The contexts that a cluster's processes use; None: its connections have no TLS."""
    return TlsContexts(credentials) if credentials.tls.is_on else None


# ---- the mode files -------------------------------------------------------------------------


def tls_problem(tls: PeerTls) -> str:
    """What this machine lacks for a mode, and what to do; empty: nothing. Reads the files."""
    try:
        if tls.mode == "files":
            _contexts_of_files(tls, must_be_accepted=True)
        elif tls.mode == "internal":
            _require_library()
    except InvalidArgument as error:
        return str(error)
    return ""


def _stamps(tls: PeerTls) -> tuple[tuple[int, int, int], ...]:
    found = []
    for name, path in tls.files.items():
        try:
            seen = os.stat(path)
        except OSError as error:
            raise InvalidArgument(_unreadable(name, path, error.strerror or str(error))) from None
        found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return tuple(found)


def _contexts_of_files(tls: PeerTls, *, must_be_accepted: bool) -> Contexts:
    for name, path in tls.files.items():  # OpenSSL does not say which file it could not read
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            raise InvalidArgument(_unreadable(name, path, error.strerror or str(error))) from None
    server, client = _bare_contexts()
    for context in (server, client):
        try:
            context.load_verify_locations(cafile=tls.authority)
        except ssl.SSLError as error:
            text = f"tls.authority: {tls.authority} has no certificates in PEM: {error}"
            raise InvalidArgument(text) from None
        try:
            # No passphrase: OpenSSL would ask for one at the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password=_no_passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgument(
                f"tls.certificate {tls.certificate} and tls.key {tls.key} are not a certificate "
                f"and its key in PEM, without a passphrase: {error}"
            ) from None
    try:
        shown = _shown_by(server, client if must_be_accepted else None)
    except ssl.SSLError as error:
        raise InvalidArgument(_not_accepted(tls, error)) from None
    return Contexts(server, client, shown)


def _not_accepted(tls: PeerTls, error: ssl.SSLError) -> str:
    """Peers would refuse what this process refuses: another authority, a date, or a key usage."""
    why = getattr(error, "verify_message", "") or error.reason or str(error)
    return (
        f"tls.certificate {tls.certificate} is not accepted by tls.authority {tls.authority}: {why}"
        ". It has to be signed by that authority, be valid now, and be for servers and for clients"
    )


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _unreadable(name: str, path: str, why: str) -> str:
    return f"{name}: {path} cannot be read on this machine: {why}; copy it here, or fix its rights"


# ---- the mode internal ----------------------------------------------------------------------


def _require_library() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise InvalidArgument(f"tls.mode internal needs the package cryptography: {INSTALL}")


def _contexts_of_secret(seed: bytes, now: float) -> Contexts:
    """Contexts with a new certificate under the authority of this seed."""
    _require_library()
    authority, certificate_and_key = issued(seed, now)
    server, client = _bare_contexts()
    # T3: a file without a name; the key never reaches a disk.
    file = os.memfd_create("stelae-tls", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate_and_key)
        for context in (server, client):
            context.load_verify_locations(cadata=authority.decode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return Contexts(server, client, _shown_by(server))


def issued(
    seed: bytes, now: float, *, valid_s: float = VALID_S, skew_s: float = SKEW_S
) -> tuple[bytes, bytes]:
    """The authority's certificate, and a new certificate under it followed by its key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    authority_key, key = Ed25519PrivateKey.from_private_bytes(seed), Ed25519PrivateKey.generate()
    authority_name = x509.Name.from_rfc4514_string("CN=Stelae authority")
    # Always the same bytes, as all but the key is fixed: peers compare nothing but the signature.
    authority = (
        x509.CertificateBuilder()
        .subject_name(authority_name)
        .issuer_name(authority_name)
        .public_key(authority_key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, None)
    )
    at = datetime.datetime.fromtimestamp(now, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name.from_rfc4514_string("CN=Stelae process"))
        .issuer_name(authority_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - datetime.timedelta(seconds=skew_s))
        .not_valid_after(at + datetime.timedelta(seconds=valid_s))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, None)
    )
    pem = serialization.Encoding.PEM
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return (
        authority.public_bytes(pem),
        certificate.public_bytes(pem) + key.private_bytes(pem, form, none),
    )


def _bare_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Both ends without certificates: T1 and T2."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # T2
        context.check_hostname = False  # T1
        # T1: a server that asked for no certificate would let a relay of the challenge in.
        context.verify_mode = ssl.CERT_REQUIRED
    # Sessions are not resumed: each connection is checked against the authority of its day. A
    # blocking client also relies on silence between its calls.
    server.num_tickets = 0
    return server, client


def _shown_by(server: ssl.SSLContext, client: ssl.SSLContext | None = None) -> bytes:
    """The certificate that a server with this context shows, in DER.

    Asked of the context, as the file that it was loaded from may have been replaced since. With
    ``client`` the handshake goes to its end, and raises ssl.SSLError if one end refuses the other.
    """
    looking = client
    if looking is None:
        looking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        looking.check_hostname, looking.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
    looks = looking.wrap_bio(inbound, outbound)
    shows = server.wrap_bio(outbound, inbound, server_side=True)
    for end in (looks, shows, looks) if client is None else (looks, shows, looks, shows):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    found = looks.getpeercert(binary_form=True)
    assert found is not None, "a server shows a certificate"
    return found


# ---- what went wrong ------------------------------------------------------------------------


def tls_failure(address: str, error: ssl.SSLError) -> StelaeError:
    """The error of a connection that TLS ended, as the end that connected sees it.

    Unauthorized: trying again does not help. Unavailable: it may, once clocks or files are right.
    """
    reason = error.reason or str(error)
    if reason == _NO_TLS_REASON:
        return Unauthorized(f"tls: {address} speaks without TLS, and TLS is on here. {TLS_WAY_OUT}")
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OUT_OF_TIME:
            return Unavailable(address, f"tls: its {error.verify_message}: {_RENEW}")
        return Unauthorized(f"tls: {address} shows a {_STRANGERS} ({error.verify_message})")
    if reason in _OUT_OF_TIME_REASONS:
        return Unavailable(
            address, f"tls: it says that this end's certificate has expired: {_RENEW}"
        )
    if reason in _STRANGERS_REASONS:
        return Unauthorized(f"tls: {address} refused this end's certificate as a {_STRANGERS}")
    return Unavailable(address, f"tls: {reason}; does a Stelae server with TLS listen there?")


def closed_after_tls(address: str) -> Unavailable:
    """The other end closed the connection right after TLS stood, for the end that connected.

    In TLS 1.3 that is how a server looks that refuses the client's certificate: its handshake ends
    after the client's, and asyncio closes the socket without the alert that would tell.
    """
    return Unavailable(
        address,
        "tls: it closed the connection after the TLS handshake, as a server does that refuses this "
        f"end's certificate: it has expired, or is a {_STRANGERS}; the server's log says which",
    )


_RENEW = (
    "compare the clocks of both machines; in the mode files, replace the files of that end "
    "(they are read again within seconds)"
)
_STRANGERS = (
    "certificate of another authority: it belongs to another cluster, or the secret differs "
    "(tls.mode internal), or tls.authority did not sign it (tls.mode files)"
)
