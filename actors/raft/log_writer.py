"""What a leader appends is written beside everything else: its loop goes on meanwhile.

A follower must not answer before it has written, and so waits. A leader need not: it sends entries
to the others at once, and its own copy counts once it is durable here (`Raft.written`). So what
arrives while one sync is under way shares the next one, and an entry that a majority has otherwise
is committed without this server's disk. Raft thesis §10.2.1.

Invariant: entries are written in the order given; whoever else writes to the log waits until all of
them are (`drained`). After a failure nothing is written or told any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stelae.actors.raft.storage import ReplicaStorage
from stelae.core.ids import OpId
from stelae.core.records.replication import Entry

AHEAD_BYTES_MAX = 16 << 20
"""A leader is ahead of its own disk by no more."""


class LogWriter:
    """Writes the entries of one leader. `run` is to be a task of the replica."""

    def __init__(self, storage: ReplicaStorage, on_written: Callable[[OpId], None]) -> None:
        """``on_written`` is told up to which entry the log is durable."""
        self._storage = storage
        self._on_written = on_written
        self._waiting: list[Entry] = []
        self._waiting_bytes = 0
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_full(self) -> bool:
        """Whether to wait, with `drained`, before more is written."""
        return self._waiting_bytes > AHEAD_BYTES_MAX

    @property
    def is_idle(self) -> bool:
        """Whether everything is durable."""
        return self._idle.is_set()

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries that follow those given before."""
        self._waiting.extend(entries)
        self._waiting_bytes += sum([len(entry.body) for entry in entries])
        self._idle.clear()
        self._due.set()

    async def drained(self) -> None:
        """Return once everything is durable. After a failure it never does."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write for ever. Raises OSError: nothing is known of the disk any more."""
        while True:
            await self._due.wait()
            self._due.clear()
            entries, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            await self._storage.save(None, None, entries)
            if not self._waiting:
                self._idle.set()
            self._on_written(entries[-1].op_id)
