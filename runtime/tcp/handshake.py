"""Who is at the other end: a mutual challenge on the cluster's secret, before all else.

Pure state machines over fixed-size messages; `connection` moves the bytes. (design.md §4)

::

    client -> server   HELLO      magic, version, nonce, cluster name
    server -> client   CHALLENGE  magic, version, status, nonce, proof of the server
    client -> server   PROOF      proof of the client
    server -> client   WELCOME    status, proof of the status

A proof is HMAC-SHA256 under the secret over a label naming the sender's role and all bytes so far,
so none can be replayed or reflected. Inside TLS it is also over the certificates of both ends, so
that nobody who has another certificate of the same authority can relay it. Invariants: until it has
seen the other's proof, neither side reads anything but these messages; versions are compared first,
as later messages may differ between them.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import struct
from collections.abc import Callable

from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.errors import Overloaded, ProtocolMismatch, StelaeError, Unauthorized, Unavailable
from stelae.core.rpc import PROTOCOL_VERSION

SECRET_BYTES = 32
CLUSTER_NAME_BYTES_MAX = 64
HANDSHAKE_TIMEOUT_S = 5.0
PROOF_TIMEOUT_S = 2.0
"""Time that a listener gives a connection to prove who it is; a peer needs a few milliseconds."""
LOCAL_TIMEOUT_S = 1.0
"""Time for a handshake over the socket of this machine, before TCP is tried: its name may be held
by a process that is no server."""

MAGIC = b"STELAE\r\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_HELLO = struct.Struct("<8sI32s64s")
_CHALLENGE = struct.Struct("<8sII32s32s")
_WELCOME = struct.Struct("<I32s")
MESSAGE_BYTES = max(_HELLO.size, _CHALLENGE.size, _WELCOME.size, _PROOF_BYTES)
"""The size of the largest message; both ends receive into a buffer of this size."""


KNOWS_REQUESTS = 0x100
"""With the status of a CHALLENGE, where those of before see nothing: the server understands the id
and the trace that may follow a method's name (`stelae.runtime.tcp.frames.ASKED_BY`)."""


TLS_RECORD = b"\x16"
"""First byte of a connection that begins with TLS."""
ALERT_NO_TLS = bytes([21, 3, 3, 0, 2, 2, 70])
"""A fatal TLS alert (protocol_version), which a server without TLS answers to a TLS handshake.
Peers speak the same version of TLS, so that it means nothing else between them."""
TLS_WAY_OUT = (
    "Connect with the tls section that the cluster runs with: by the cluster's name inside its "
    "Ray, or by a data_dir that `stelae attach` wrote"
)


class Status(enum.IntEnum):
    OK = 0
    OTHER_VERSION = 1
    UNAUTHORIZED = 2
    OTHER_CLUSTER = 3
    BUSY = 4
    TLS_ONLY = 5
    """The server takes TLS only. Sent without TLS, to a client that began without."""


class Credentials:
    """What both ends must agree on: the cluster's name, its secret of 32 bytes, and its TLS."""

    def __init__(
        self,
        cluster: str,
        secret: bytes,
        version: int = PROTOCOL_VERSION,
        *,
        tls: PeerTls = OFF,
    ) -> None:
        name = cluster.encode()
        assert len(secret) == SECRET_BYTES, f"the secret must have {SECRET_BYTES} bytes"
        assert 0 < len(name) <= CLUSTER_NAME_BYTES_MAX, "cluster name: 1 to 64 bytes"
        self.cluster = cluster
        self.name = name.ljust(CLUSTER_NAME_BYTES_MAX, b"\0")
        self.version = version
        self.tls = tls
        self._secret = secret

    def proof(self, label: bytes, transcript: bytes) -> bytes:
        return hmac.new(self._secret, label + b"\0" + transcript, hashlib.sha256).digest()


_OR_RELAYED = ", or another process relays this connection"


def tls_only(version: int) -> bytes:
    """What a server that takes TLS only answers to a HELLO that came without TLS."""
    none = bytes(_NONCE_BYTES), bytes(_PROOF_BYTES)
    return _CHALLENGE.pack(MAGIC, version, Status.TLS_ONLY, *none)


def _name_text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="replace")


class Handshake:
    """One end of it. Feed it exactly ``needed`` bytes at a time, and send what it returns."""

    def __init__(
        self, credentials: Credentials, peer: str, entropy: Callable[[int], bytes]
    ) -> None:
        self._credentials = credentials
        self._peer = peer
        self._entropy = entropy
        self._transcript = b""
        self._channel = b""
        self.needed = 0
        self.done = False
        self.has_heard = False
        """Whether the other end has said anything."""
        self.knows_requests = False
        """Whether the server at the other end does."""
        self.error: StelaeError | None = None

    def bind(self, server_certificate: bytes, client_certificate: bytes) -> None:
        """Let it hold for this TLS connection only. Before `start`; certificates are in DER."""
        for certificate in (server_certificate, client_certificate):
            self._channel += hashlib.sha256(certificate).digest()

    def _proof(self, label: bytes) -> bytes:
        # A label of its own: no proof of a connection without TLS is one of a connection with it.
        label += b" in TLS" if self._channel else b""
        return self._credentials.proof(label, self._channel + self._transcript)

    def start(self) -> bytes:
        """What to send as soon as the connection stands."""
        raise NotImplementedError

    def feed(self, message: bytes) -> bytes:
        """Take the next message; return what to send. Sets ``done`` or ``error`` at the end."""
        raise NotImplementedError

    def _fail(self, error: StelaeError) -> bytes:
        self.error = error
        return b""


class ClientHandshake(Handshake):
    """The end that connects."""

    def __init__(
        self, credentials: Credentials, peer: str, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        super().__init__(credentials, peer, entropy)
        self.needed = _CHALLENGE.size

    def start(self) -> bytes:
        mine = self._credentials
        self._transcript = _HELLO.pack(MAGIC, mine.version, self._entropy(_NONCE_BYTES), mine.name)
        return self._transcript

    def feed(self, message: bytes) -> bytes:
        self.has_heard = True
        return (
            self._challenged(message) if self.needed == _CHALLENGE.size else self._welcomed(message)
        )

    def _challenged(self, message: bytes) -> bytes:
        mine = self._credentials
        magic, version, status, _nonce, proof = _CHALLENGE.unpack(message)
        if magic != MAGIC:
            return self._fail(Unauthorized(f"{self._peer} is not a Stelae server"))
        if version != mine.version or status == Status.OTHER_VERSION:
            return self._fail(ProtocolMismatch(self._peer, version, mine.version))
        if status == Status.BUSY:
            return self._fail(Unavailable(self._peer, "it has too many connections"))
        if status == Status.TLS_ONLY:
            return self._fail(
                Unauthorized(
                    f"tls: {self._peer} takes TLS only, and TLS is off here. {TLS_WAY_OUT}"
                )
            )
        self._transcript += message[:-_PROOF_BYTES]
        if not hmac.compare_digest(proof, self._proof(b"server")):
            return self._fail(
                Unauthorized(
                    f"{self._peer} does not have the secret of cluster {mine.cluster!r}; "
                    "either it belongs to another cluster or the secret used here is wrong"
                    f"{_OR_RELAYED if self._channel else ''}"
                )
            )
        self._transcript += proof
        self.knows_requests = bool(status & KNOWS_REQUESTS)
        self.needed = _WELCOME.size
        return self._proof(b"client")

    def _welcomed(self, message: bytes) -> bytes:
        mine = self._credentials
        status, proof = _WELCOME.unpack(message)
        if status == Status.UNAUTHORIZED:
            return self._fail(Unauthorized(f"{self._peer} refused the secret used here"))
        expected = self._proof(b"welcome" + bytes([status & 0xFF]))
        if not hmac.compare_digest(proof, expected):
            return self._fail(Unauthorized(f"{self._peer} broke off the handshake"))
        if status != Status.OK:
            return self._fail(
                Unauthorized(f"{self._peer} belongs to another cluster than {mine.cluster!r}")
            )
        self.done = True
        return b""


class ServerHandshake(Handshake):
    """The end that listens."""

    def __init__(
        self, credentials: Credentials, peer: str, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        super().__init__(credentials, peer, entropy)
        self.needed = _HELLO.size
        self._client_name = b""

    def start(self) -> bytes:
        return b""

    def busy(self, limit: int) -> bytes:
        """Refuse at once: too many connections. The answer to send."""
        self.error = Overloaded("connections", limit)
        return self._challenge(Status.BUSY, bytes(_NONCE_BYTES), bytes(_PROOF_BYTES))

    def _challenge(self, status: int, nonce: bytes, proof: bytes) -> bytes:
        return _CHALLENGE.pack(MAGIC, self._credentials.version, status, nonce, proof)

    def feed(self, message: bytes) -> bytes:
        self.has_heard = True
        return self._greeted(message) if self.needed == _HELLO.size else self._proved(message)

    def _greeted(self, message: bytes) -> bytes:
        mine = self._credentials
        magic, version, _nonce, self._client_name = _HELLO.unpack(message)
        if magic != MAGIC:
            if message.startswith(TLS_RECORD):
                self._fail(Unauthorized(f"tls: {self._peer} began with TLS, which is off here"))
                return ALERT_NO_TLS
            return self._fail(Unauthorized(f"{self._peer} does not speak Stelae's protocol"))
        if version != mine.version:
            self._fail(ProtocolMismatch(self._peer, version, mine.version))
            return self._challenge(Status.OTHER_VERSION, bytes(_NONCE_BYTES), bytes(_PROOF_BYTES))
        challenge = self._challenge(Status.OK | KNOWS_REQUESTS, self._entropy(_NONCE_BYTES), b"")
        self._transcript = message + challenge[:-_PROOF_BYTES]
        proof = self._proof(b"server")
        self._transcript += proof
        self.needed = _PROOF_BYTES
        return challenge[:-_PROOF_BYTES] + proof

    def _proved(self, message: bytes) -> bytes:
        mine = self._credentials
        if not hmac.compare_digest(message, self._proof(b"client")):
            self._fail(Unauthorized(f"{self._peer} does not have the cluster's secret"))
            return _WELCOME.pack(Status.UNAUTHORIZED, bytes(_PROOF_BYTES))
        status = Status.OK
        if self._client_name != mine.name:
            status = Status.OTHER_CLUSTER
            wanted = _name_text(self._client_name)
            self._fail(Unauthorized(f"{self._peer} wants cluster {wanted!r}, not {mine.cluster!r}"))
        else:
            self.done = True
        return _WELCOME.pack(status, self._proof(b"welcome" + bytes([status])))
