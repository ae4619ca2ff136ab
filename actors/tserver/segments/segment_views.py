"""Views of a segment's content, as the blobs of one message."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import pyarrow as pa

from stelae.core.rpc import Blob

JOIN_BYTES = 64 << 10
"""Many small entries up to this size go out as one blob: each blob costs something at every hop."""
VIEWS_MAX = 256
"""Above it, small neighbours are joined: a message takes a bounded number of blobs."""


def gathered(views: list[Blob]) -> list[Blob]:
    """The same bytes in fewer blobs: neighbours are copied together up to `JOIN_BYTES`."""
    joined: list[Blob] = []
    waiting: list[Blob] = []
    size = 0
    for view in views:
        if waiting and size + size_of(view) > JOIN_BYTES:
            joined.append(b"".join(waiting) if len(waiting) > 1 else waiting[0])
            waiting, size = [], 0
        waiting.append(view)
        size += size_of(view)
    joined.append(b"".join(waiting) if len(waiting) > 1 else waiting[0])
    return joined


def size_of(buffer: Blob) -> int:
    """Bytes of any buffer."""
    return buffer.size if isinstance(buffer, pa.Buffer) else memoryview(buffer).nbytes


def sliced(content: Sequence[Blob], ends: Sequence[int], start: int, end: int) -> list[Blob]:
    """Bytes [start, end) of buffers that end at ``ends``: views, or one copy where they are small
    and many."""
    views: list[Blob] = []
    join = end - start <= JOIN_BYTES
    at = bisect.bisect_right(ends, start)
    while start < end:
        begin = ends[at - 1] if at else 0
        buffer, stop = content[at], ends[at]
        if start > begin or stop > end:
            stop = min(end, stop)
            buffer = memoryview(buffer)[start - begin : stop - begin]
        views.append(buffer)
        start, at = stop, at + 1
    if join and len(views) > 1:
        return [b"".join(views)]
    return views if len(views) <= VIEWS_MAX else gathered(views)
