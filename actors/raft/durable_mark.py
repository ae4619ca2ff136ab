"""A note beside a replica's log: up to where the log was known to be durable.

By itself a log cannot tell damage to what was written last from an append that a crash interrupted:
both end in a record that cannot be read. The note tells. It is a small file in the log's folder,
written in place after each sync of the log and not synced itself while the log grows: that costs a
few microseconds, and is enough where a process dies. Once the log has rested for `REST_S` the note
is synced, so that it also outlives a machine that loses its power.

Invariants: no slot ever names an entry that is not durable in the log or covered by the snapshot.
So the note is lowered, durably and in both slots, before anything is cut; and a slot that is torn
is merely void, as the two are written in turn. What remains: after a loss of power, damage to the
log's end that was written after the last note which reached the disk is taken for a torn tail.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from stelae.core.ids import TabletId
from stelae.core.runtime import Clock, Disk, File
from stelae.storage.files.raft_log import (
    NOTE_NAME,
    NOTE_SLOT_BYTES,
    Note,
    decode_notes,
    encode_note,
)

REST_S = 2.0
"""Without an append, after which the note is synced and its file closed."""


class LogNote:
    """The note of one log. `load` it first."""

    def __init__(self, disk: Disk, log_folder: str, group_id: TabletId) -> None:
        self._disk = disk
        self._path = f"{log_folder}/{NOTE_NAME}"
        self._group_id = group_id
        self._number = 0
        self._highest = 0
        """What a slot may name, at most."""
        self._file: File | None = None
        self._lock = asyncio.Lock()
        """While the file is opened, synced or closed."""
        self._grown = asyncio.Event()

    async def load(self) -> int:
        """The entry up to which the log must be there; 0: nothing is known."""
        try:
            data = await self._disk.read(self._path)
        except FileNotFoundError:
            return 0
        notes = decode_notes(self._group_id, data)
        self._number = max([note.number for note in notes], default=0)
        self._highest = max([note.index for note in notes], default=0)
        return self._highest

    def grown(self, index: int) -> None:
        """The log is durable up to there. Raises OSError."""
        if self._file is not None:
            self._write(self._file, index)
        self._grown.set()

    def _write(self, file: File, index: int) -> None:
        self._number += 1
        self._highest = max(self._highest, index)
        note = encode_note(self._group_id, Note(self._number, index))
        file.write_at(self._number % 2 * NOTE_SLOT_BYTES, note)

    async def lower(self, index: int) -> None:
        """What follows that entry is about to be cut: say so durably first. Raises OSError."""
        if self._highest <= index:
            return
        async with self._lock:
            file = self._file or await self._disk.open(self._path)
            for _ in range(2):
                self._write(file, index)
            await file.sync()
            self._highest = index
            if self._file is None:
                file.close()

    async def run(self, durable_index: Callable[[], int], clock: Clock) -> None:
        """Write for ever. Raises OSError: nothing is known of the disk any more."""
        while True:
            await self._grown.wait()
            self._grown.clear()
            async with self._lock:
                if self._file is None:
                    self._file = await self._open()
            if self._file is None:
                continue  # there is no room: with the next append
            self._write(self._file, durable_index())
            await clock.sleep(REST_S)
            async with self._lock:
                await self._rest()

    async def _rest(self) -> None:
        if self._file is None or self._grown.is_set():
            return
        await self._file.sync()
        if not self._grown.is_set():
            self.close()

    async def _open(self) -> File | None:
        """With room for both slots, so that writing never needs any; None if there is none."""
        file: File | None = None
        try:
            file = await self._disk.open(self._path)
            file.preallocate(2 * NOTE_SLOT_BYTES)
        except OSError as error:
            if file is not None:
                file.close()
            if error.errno != errno.ENOSPC:
                raise
            return None
        return file

    def close(self) -> None:
        """Nothing is written any more, but by `grown` after another `run`."""
        if self._file is not None:
            self._file.close()
            self._file = None
