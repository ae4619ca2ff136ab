"""Tokens of pages: the place where a scan goes on, signed, as its reader carries it.

A place names servers and what they pinned, so one that this cluster did not make is refused; and so
is one that is brought with another request than it was made for. Nothing in it is secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from stelae.client.table.scan_pages import ScanPlace
from stelae.core.errors import InvalidArgument
from stelae.serve.bodies.models import ScanRequest

SIGNATURE_BYTES = 16


class _Token(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes
    """Of the request."""
    schema_version: int
    place: ScanPlace


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Token)


def request_digest(table_id: str, wanted: ScanRequest) -> bytes:
    """What must be the same in all pages of a scan."""
    same = (table_id, wanted.columns, wanted.where, wanted.with_versions)
    return hashlib.sha256(_ENCODER.encode(same)).digest()[:SIGNATURE_BYTES]


def encode_place(key: bytes, digest: bytes, place: ScanPlace, schema_version: int) -> str:
    data = _ENCODER.encode(_Token(digest, schema_version, place))
    return base64.urlsafe_b64encode(_signature(key, data) + data).decode()


def decode_place(key: bytes, digest: bytes, text: str) -> tuple[ScanPlace, int]:
    """The place, and the version of the schema that the scan was begun with.

    Raises:
        InvalidArgument: it is no token of this cluster, or is another request's.
    """
    try:
        whole = base64.b64decode(text, b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("after: this is no token of a page") from None
    signature, data = whole[:SIGNATURE_BYTES], whole[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(key, data)):
        raise InvalidArgument("after: this is no token of a page of this cluster")
    token = _DECODER.decode(data)
    if token.digest != digest:
        raise InvalidArgument("after: the token is of another scan: only page_rows may differ")
    return token.place, token.schema_version


def _signature(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, b"stelae page" + data, "sha256")[:SIGNATURE_BYTES]
