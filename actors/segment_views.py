"""Views of a segment's content, as the blobs of one message."""

from __future__ import annotations

import pyarrow as pa

from stelae.core.rpc import Blob

JOIN_BYTES = 64 << 10
"""Many small entries up to this size go out as one blob: each blob costs something at every hop."""


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
