"""Writing rows while they arrive: an Arrow stream of any length, a window at a time.

A window is whole messages of the stream, about `WINDOW_BYTES` of them, cut at the same places
however the network cut the stream; it is written, and let go of, before more is read, so the client
is held back as far as the tablets are. Each window is a write of its own: what was acknowledged
before an error stays, and the problem's `notes` say how many rows that is. A stream that is not
done in time has an unknown outcome, once a window was begun. (design §12)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
from fastapi import Request
from starlette.requests import ClientDisconnect

from stelae.client.http.protocol import ARROW_END, REQUEST_ID_HEADER
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    StelaeError,
    TooLarge,
)
from stelae.serve.bodies.arrow import DICTIONARY, SCHEMA, message_head, read_stream
from stelae.serve.bodies.problems import MalformedBody
from stelae.serve.gateway.gateway import Gateway, offload
from stelae.serve.gateway.guard import release_body

WINDOW_BYTES = 8 << 20
HEAD_BYTES = 8
LEAST_S = 0.001


async def write_stream_of(
    request: Request,
    gateway: Gateway,
    timeout_s: float,
    write: Callable[[int, bytes, pa.Table, float], Awaitable[None]],
) -> int:
    """Hand each window to ``write`` with its number and bytes, and the seconds that are left; how
    many rows there were.

    Raises:
        MalformedBody: it is no Arrow stream, or has no end.
        DeadlineExpired: no window was begun in time.
        OutcomeUnknown: some were, and not all were done in time.
        TooLarge, InvalidArgument, and what ``write`` raises.
    """
    if REQUEST_ID_HEADER in request.headers:
        raise InvalidArgument(f"{REQUEST_ID_HEADER} is of one write, and a stream is several")
    limits, rows, number, begun = gateway.limits, 0, 0, 0
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    try:
        async with asyncio.timeout_at(deadline):
            async for window in _windows(request, limits.body_bytes):
                table = await offload(len(window), _read, window, limits.body_bytes, limits.rows)
                if table.num_rows:
                    begun = rows + table.num_rows
                    await write(number, window, table, max(deadline - clock(), LEAST_S))
                    number, rows = number + 1, begun
    except TimeoutError:
        raise _noted(_late(begun, timeout_s, "the rest of it"), rows, begun) from None
    except ClientDisconnect:
        raise _noted(_late(begun, timeout_s, "a client that left"), rows, begun) from None
    except StelaeError as error:
        raise _noted(error, rows, begun) from None
    return rows


def _late(begun: int, timeout_s: float, waited_for: str) -> StelaeError:
    if begun:
        return OutcomeUnknown("the table", "a stream of rows", timeout_s)
    return DeadlineExpired("writing a stream", waited_for)


def _noted(error: StelaeError, rows: int, begun: int) -> StelaeError:
    """What was done before, and what nobody knows of."""
    if rows:
        error.add_note(f"{rows} rows of the stream were written before")
    if begun > rows and isinstance(error, OutcomeUnknown):
        error.add_note(f"the next {begun - rows} rows may or may not have been written")
    return error


def _read(window: bytes, size_bytes_max: int, rows_max: int) -> pa.Table:
    return read_stream(window, size_bytes_max=size_bytes_max, rows_max=rows_max)


async def _windows(request: Request, size_bytes_max: int) -> AsyncIterator[bytes]:
    """Whole streams made of the messages that arrive: the schema and the dictionaries so far,
    and batches."""
    first, batches = b"", bytearray()
    async for kind, message in _messages(request, size_bytes_max):
        if kind in (SCHEMA, DICTIONARY):
            if kind == DICTIONARY and batches:
                yield first + batches + ARROW_END
                release_body(request, len(batches))
                batches.clear()
            first += message
            if len(first) > size_bytes_max:
                raise TooLarge("the dictionaries", len(first), size_bytes_max)
            continue
        batches += message
        if len(batches) >= WINDOW_BYTES:
            yield first + batches + ARROW_END
            release_body(request, len(batches))
            batches.clear()
    if batches:
        yield first + batches + ARROW_END


async def _messages(request: Request, size_bytes_max: int) -> AsyncIterator[tuple[int, bytes]]:
    """The kind of each message, and all its bytes. Raises MalformedBody unless there is an end."""
    got, wanted, ended = bytearray(), HEAD_BYTES, False
    async for piece in request.stream():
        got += piece
        while len(got) >= wanted and not ended:
            found = message_head(got)
            if found is None:
                ended = True
                del got[:HEAD_BYTES]
                break
            kind, size = found
            if size > size_bytes_max:
                raise TooLarge("a batch of the stream", size, size_bytes_max)
            wanted = size
            if kind is None or len(got) < size:
                break
            yield kind, bytes(got[:size])
            del got[:size]
            wanted = HEAD_BYTES
        if ended and got:
            raise MalformedBody("there are bytes behind the end of the Arrow stream")
    if not ended:
        raise MalformedBody("the Arrow stream has no end: it was cut off")
