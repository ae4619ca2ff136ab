"""How a replica's log gets shorter: own snapshots, or flushes by the host; and who needs a copy.

Where a state machine gives its whole state, the replica takes a snapshot once enough was applied.

Where the host keeps the state (``copies_by_host``), the host makes rows durable in files of its own
and then hands in the snapshot that names them. It is saved first, by whoever calls; only then, in
the replica's loop, is the log trimmed to what is still needed: everything after the snapshot
(absolute), what a copy session has pinned (absolute), and of what other members lack at most the
newest ``keep_bytes``, so that one that is far behind gets a copy and does not fill memory and disk.
Design §8; Kudu's two bounds of log retention (C11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stelae.actors.raft.storage import ReplicaStorage
from stelae.actors.raft.types import ReplicaSettings, StateMachine
from stelae.consensus.raft.messages import AppendResponse, Message
from stelae.consensus.raft.raft import Raft
from stelae.core.ids import OpId, ServerUuid
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import Entry, Snapshot
from stelae.core.runtime import Runtime


def snapshot_at(core: Raft, index: int, data: bytes) -> Snapshot:
    """The snapshot after ``index``, which is applied and not compacted away."""
    term = core.log.term_at(index)
    assert term is not None, "snapshot of what is not in the log"
    assert index <= core.log.applied_index, "snapshot of what is not applied"
    return Snapshot(OpId(term, index), core.log.configuration_at(index), data)


class OwnSnapshots:
    """The snapshots that a replica takes of its state machine by itself."""

    def __init__(
        self, storage: ReplicaStorage, settings: ReplicaSettings, state_machine: StateMachine
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._state_machine = state_machine
        self.restored()

    def restored(self) -> None:
        """The state is that of a snapshot."""
        self._entries = self._bytes = 0

    def applied(self, entry: Entry) -> None:
        """One more entry since the last snapshot."""
        self._entries += 1
        self._bytes += len(entry.body)

    async def after_turn(self, core: Raft) -> None:
        """Shorten the log once enough was applied. Raises OSError."""
        settings = self._settings
        few = self._entries < settings.snapshot_entries and self._bytes < settings.snapshot_bytes
        if few or settings.raft.copies_by_host:
            return
        index = core.log.applied_index
        snapshot = snapshot_at(core, index, self._state_machine.snapshot())
        await self._storage.save_snapshot(snapshot)
        await self._storage.trim(index - settings.keep_entries + 1)
        core.compact(snapshot, settings.keep_entries)
        self.restored()


class CopyNeeds:
    """Members that need a copy by the hosts, as a leader learns of them."""

    def __init__(self, runtime: Runtime) -> None:
        self.watchers: list[Callable[[ServerUuid], None]] = []
        self._absent: dict[ServerUuid, DataState] = {}
        """Those that answered since the last turn that they have no data."""
        self._without: dict[ServerUuid, DataState] = {}
        """The same, for as long as they do not answer as replicas again."""
        self._runtime = runtime

    def is_absent(self, uuid: ServerUuid, state: DataState) -> None:
        """It answered that it has no data."""
        self._absent[uuid] = self._without[uuid] = state

    def heard(self, message: Message) -> None:
        """Who answers as a replica has a log."""
        if self._without and isinstance(message, AppendResponse):
            self._without.pop(message.source, None)

    def state_of(self, uuid: ServerUuid) -> DataState:
        """What its server has of the tablet, as far as was heard."""
        return self._without.get(uuid, DataState.READY)

    def tell_absent(self, core: Raft) -> None:
        """Whose server has no data needs a copy, whatever its log was."""
        absent, self._absent = self._absent, {}
        if core.leader is not None:
            self.tell([uuid for uuid in absent if uuid in core.leader.progress])

    def tell(self, uuids: Sequence[ServerUuid]) -> None:
        """Tell all watchers; each time anew."""
        for uuid in uuids:
            self._runtime.metrics.count("raft_copies_needed")
            for watcher in self.watchers:
                watcher(uuid)


class ReplicaFlushes:
    """The flushes of one replica, and what of its log is pinned."""

    def __init__(self, storage: ReplicaStorage, keep_bytes: int) -> None:
        self._storage = storage
        self._keep_bytes = keep_bytes
        self._saving = asyncio.Lock()
        self._saved: list[tuple[Snapshot, asyncio.Future[None]]] = []
        self._pins: dict[int, int] = {}
        self._next_pin = 1
        self._is_closed = False

    def pin(self, first_index: int) -> int:
        """Keep the log from ``first_index`` on, until `unpin` of the number returned."""
        number = self._next_pin
        self._next_pin += 1
        self._pins[number] = first_index
        return number

    def unpin(self, number: int) -> None:
        """Unknown numbers are fine."""
        self._pins.pop(number, None)

    async def save(self, snapshot: Snapshot) -> asyncio.Future[None]:
        """Make it durable; what is returned is done when the log is trimmed. Raises OSError."""
        async with self._saving:  # the last one written is the newest
            await self._storage.save_snapshot(snapshot)
            trimmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._saved.append((snapshot, trimmed))
            if self._is_closed:
                self.close()
        return trimmed

    async def trim(self, core: Raft) -> None:
        """Shorten log and core by the snapshots that are durable. Raises OSError."""
        saved, self._saved = self._saved, []
        if not saved:
            return
        snapshot, _ = saved[-1]
        index = snapshot.last.index
        first = min([core.keep_from(index, self._keep_bytes), *self._pins.values()])
        await self._storage.trim(first)
        core.compact(snapshot, index + 1 - first)
        for _, trimmed in saved:
            if not trimmed.done():
                trimmed.set_result(None)

    def close(self) -> None:
        """Nobody will trim any more; what was saved is durable, and counts with the next start."""
        self._is_closed = True
        for _, trimmed in self._saved:
            if not trimmed.done():
                trimmed.set_result(None)
        self._saved.clear()
