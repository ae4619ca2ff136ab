"""A client's side of exactly-once: its id, the numbers of its requests, and which are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stelae.core.ids import ClientId, RequestId


class Session:
    """Numbers requests. A request is incomplete until its caller has the answer or gives up.

    Sequences are drawn in rising order; `first_incomplete` is the lowest one still open, so servers
    know which results nobody will ask for again.
    """

    def __init__(self, client_id: ClientId) -> None:
        self.client_id = client_id
        self._next = 1
        self._open: dict[int, None] = {}  # insertion order is numeric order

    @contextmanager
    def request(self) -> Iterator[RequestId]:
        """Draw a request id, the same for every attempt made inside the block."""
        sequence = self._next
        self._next += 1
        self._open[sequence] = None
        try:
            yield RequestId(self.client_id, sequence, next(iter(self._open)))
        finally:
            del self._open[sequence]
