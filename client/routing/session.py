"""A client's side of exactly-once: its id, the numbers of its requests, and which are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stelae.core.ids import ClientId, RequestId


@dataclass(slots=True)
class _Numbers:
    """The requests to one receiver."""

    next: int = 1
    open: dict[int, None] = field(default_factory=dict)
    """Insertion order is numeric order."""


class Session:
    """Numbers requests. A request is incomplete until its caller has the answer or gives up.

    Each receiver (a tablet with its successors, or the masters) keeps results for itself, so each
    has numbers of its own: a request that is stuck at one does not make the others keep theirs.
    Sequences are drawn in
    rising order; `first_incomplete` is the lowest one still open, so receivers know which results
    nobody will ask for again. Any thread may draw a request.
    """

    def __init__(self, client_id: ClientId) -> None:
        self.client_id = client_id
        self._receivers: dict[str, _Numbers] = {}
        self._lock = threading.Lock()

    @contextmanager
    def request(self, receiver: str = "") -> Iterator[RequestId]:
        """Draw a request id, the same for every attempt made inside the block."""
        with self._lock:
            numbers = self._receivers.get(receiver)
            if numbers is None:
                numbers = self._receivers[receiver] = _Numbers()
            sequence = numbers.next
            numbers.next += 1
            numbers.open[sequence] = None
            first_incomplete = next(iter(numbers.open))
        try:
            yield RequestId(self.client_id, sequence, first_incomplete)
        finally:
            with self._lock:
                del numbers.open[sequence]
