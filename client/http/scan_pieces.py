"""A scan over HTTP as a stream of pieces: one page after the other, the next one read ahead.

The tokens of pages make a scan resumable through lost answers and other replicas of the endpoint:
the same token gives the same page. What the newest token pins is released when the stream ends.
Pins of tablets that were read to their end go by themselves, as those of all pages do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

import pyarrow as pa

from stelae.client.table.streams import Piece
from stelae.core.errors import StelaeError

PAGE_ROWS = 250_000
"""Maximum rows of a page; a page ends at about 32 MiB as well."""
RELEASE_S = 5.0
"""Upper bound on the release of pins. The servers drop pins that are not used by themselves."""


class Page(NamedTuple):
    """Rows, and the token of the page after them; empty: there is none."""

    rows: pa.Table
    after: str


Fetch = Callable[[str, int], Awaitable[Page]]
"""(token, rows) → the page after the token with up to that many rows; 0 rows: release its pins."""


async def page_pieces(fetch: Fetch, limit: int | None) -> AsyncGenerator[Piece, None]:
    """Yield an empty batch of the schema, then up to ``limit`` rows; see `open_stream`.

    Raises as ``fetch`` does.
    """
    reading = _Reading(fetch, limit)
    try:
        piece = await reading.next()
        assert piece is not None, "the first page has a schema"
        yield [pa.RecordBatch.from_pylist([], schema=piece.schema)]
        while piece is not None:
            batches = piece.to_batches()
            del piece
            if batches:
                yield batches
            del batches  # not held while the next page is waited for
            piece = await reading.next()
    finally:
        reading.end()


class _Reading:
    """The pages of one scan."""

    def __init__(self, fetch: Fetch, limit: int | None) -> None:
        self._fetch = fetch
        self._left = limit
        self._token = ""
        self._ahead: asyncio.Task[Page] | None = self._ask()

    def _ask(self) -> asyncio.Task[Page]:
        rows = PAGE_ROWS if self._left is None else max(1, min(self._left, PAGE_ROWS))

        async def fetch(token: str) -> Page:
            return await self._fetch(token, rows)

        return asyncio.create_task(fetch(self._token))

    async def next(self) -> pa.Table | None:
        """Return the next page's rows, and ask for the page after it; None: there is none."""
        if self._ahead is None:
            return None
        rows, token = await self._ahead
        if self._left is not None:
            rows = rows.slice(0, self._left)
            self._left -= rows.num_rows
        self._ahead, self._token = None, token or self._token
        if token and self._left != 0:
            self._ahead = self._ask()
        return rows

    def end(self) -> None:
        """Release, in the background, what the newest token pins."""
        if self._token or self._ahead is not None:
            task = asyncio.create_task(self._release())
            _releasing.add(task)
            task.add_done_callback(_releasing.discard)

    async def _release(self) -> None:
        token = self._token
        # Errors end the release only: servers drop pins that nobody uses.
        with contextlib.suppress(StelaeError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                if (ahead := self._ahead) is not None:  # it may pin more
                    await asyncio.wait({ahead})
                    if not ahead.cancelled() and ahead.exception() is None:
                        token = ahead.result().after or token
                if token:
                    await self._fetch(token, 0)


_releasing: set[asyncio.Task[None]] = set()
"""Tasks that an event loop itself would refer to weakly."""
