"""How entries become durable: at a leader beside everything else, at a follower where they arrive.

A follower must not answer before it has written, and so waits. A leader need not: it sends entries
to the others at once, and its own copy counts once it is durable here (`Raft.written`). So what
arrives while one sync is under way shares the next one, and an entry that a majority has otherwise
is committed without this server's disk. Raft thesis §10.2.1.

Invariant: entries are written in the order given; whoever else writes to the log waits until all of
them are (`drained`). After a failure nothing is written or told any more.

A follower's turn begins where its leader's message arrived, and not in a task (`FollowerAppend`).
What the leader waits for is done there and then, if the disk is quick: entries are made durable,
and what is to be said of them goes back with the reply. What comes after that, and what needs a
wait, is for the replica's loop (`stelae.actors.raft.loop`), in the same order as ever:
durable, then sent, then applied. Until it has done so, nothing else steps the core. Design §8, §13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stelae.actors.raft.links import ReplicaLinks
from stelae.actors.raft.storage import ReplicaStorage
from stelae.consensus.raft.messages import Message
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready
from stelae.core.ids import OpId, ServerUuid
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


class FollowerAppend:
    """A follower's turn that has begun: at most one at a time, of one replica."""

    def __init__(self, storage: ReplicaStorage, links: ReplicaLinks) -> None:
        self._storage = storage
        self._links = links
        self._ready: Ready | None = None
        self._is_sent = False
        self._failure: OSError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed here; `take` raises that."""
        return self._failure is not None

    def begin(self, core: Raft, source: ServerUuid) -> tuple[Message, ...] | None:
        """Begin the turn of a plain follower that was just stepped; None if there is none.

        Returns what is to be said to ``source`` at once: nothing before it is durable, and nothing
        any more once the disk has failed.
        """
        assert self._ready is None, "a turn is begun already"
        ready = core.take_ready()
        if not ready:
            return None
        self._ready, self._is_sent = ready, False
        self._links.learn(core.configuration)
        try:
            if ready.entries and not self._storage.save_at_once(ready.entries):
                return ()
        except OSError as error:
            self._failure = error
            return ()
        self._is_sent = True
        self._links.send([m for m in ready.messages if m.destination != source])
        return tuple([m for m in ready.messages if m.destination == source])

    def take(self) -> tuple[Ready | None, bool]:
        """What the loop is to go on with, and whether that is durable and sent.

        Raises OSError: nothing is known of the disk any more.
        """
        if self._failure is not None:
            raise self._failure
        ready, self._ready = self._ready, None
        return ready, self._is_sent
