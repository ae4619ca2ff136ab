"""What a client's request came to, as bytes: in the log, in memory, and again for each retry.

One byte says which of two: done, with the msgpack of a `WriteReply`, or refused, with
`encode_error` of the refusal. `ClientResults` keeps them by request. Design §5, exactly once.
"""

from __future__ import annotations

import msgspec

from stelae.core.errors import StelaeError, decode_error, encode_error
from stelae.core.messages.rows import WriteReply

_encode = msgspec.msgpack.Encoder().encode
_decode_reply = msgspec.msgpack.Decoder(WriteReply).decode
_DONE, _REFUSED = b"\0", b"\1"


def done(first_version: int, row_count: int) -> bytes:
    """The outcome of a write that was carried out."""
    return _DONE + _encode(WriteReply(first_version, row_count))


def refused(error: StelaeError) -> bytes:
    """The outcome of a write that was refused, and changed nothing."""
    return _REFUSED + encode_error(error)


def is_refused(outcome: bytes) -> bool:
    """Whether it is a refusal, and no reply."""
    return outcome[:1] == _REFUSED


def answer(outcome: bytes) -> WriteReply:
    """What a request came to: its reply, or the refusal raised."""
    if outcome[:1] == _REFUSED:
        raise decode_error(outcome[1:])
    return _decode_reply(memoryview(outcome)[1:])
