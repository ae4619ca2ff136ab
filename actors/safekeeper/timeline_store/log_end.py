"""The newest file of a WAL while it is appended to: behind its last entry zeros are written ahead.

A sync then need not write where the file ends, nor which of its blocks were written, for which the
file system would have to commit its journal. Decoding stops at zeros, as at any end that was torn.
Logs at rest have none, and large entries need none. Design §9, §10; as in a backup's frames.

Invariant: zeros end where a file is full, and only then another one begins: of a file that has a
successor the last entry is the end.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from stelae.core.rpc import Blob
from stelae.core.runtime import File

AHEAD_BYTES = 512 << 10
"""How far zeros are written ahead, at most, in files that are past a sixteenth of it."""
SMALL_BYTES = 64 << 10
"""Of entries, written together: zeros are written behind these."""
AT_ONCE_BYTES = 256 << 10
"""The same, synced on the loop's thread where the disk is quick; more takes too long there."""


class WalEnd:
    """An open file. Offsets are the caller's: its entries end there."""

    def __init__(self, file: File, file_bytes: int) -> None:
        """``file_bytes``: a file of that size is followed by another."""
        self._file = file
        self._file_bytes = file_bytes
        self._ahead_bytes = min(AHEAD_BYTES, file_bytes // 4)
        self._zeros_to = 0

    def write(self, offset: int, buffers: Sequence[Blob], size_bytes: int) -> None:
        """Write entries behind those that end at ``offset``. Raises OSError."""
        self._file.write_at(offset, *buffers)
        end = offset + size_bytes
        is_busy = size_bytes <= SMALL_BYTES and end * 16 >= self._ahead_bytes
        if end > self._zeros_to and is_busy:
            self._write_ahead(end)

    def _write_ahead(self, end: int) -> None:
        zeros_to = min(end + self._ahead_bytes, self._file_bytes)
        if zeros_to <= end:
            return
        try:
            self._file.write_at(end, bytes(zeros_to - end))
        except OSError as error:
            if error.errno != errno.ENOSPC:  # without them it is only slower
                raise
        else:
            self._zeros_to = zeros_to

    def cut_off(self, end: int) -> None:
        """Remove what lies behind it; durably so with the next sync. Raises OSError."""
        self._file.truncate(end)
        self._zeros_to = 0

    async def sync(self) -> None:
        """See `File.sync`."""
        await self._file.sync()

    def sync_at_once(self) -> bool:
        """See `File.sync_at_once`."""
        return self._file.sync_at_once()

    def close(self) -> None:
        self._file.close()
