"""When and how one replica of a tablet is flushed: images, then the superblock, then the log.

It stands between the replica and its state machine, to see after each command whether a flush is
due. A flush notes the state of one moment; images are built off the loop while commands go on, and
are durable before the superblock names them, which is before the log before them goes. Flushes of a
tablet follow each other. One that is given up (the disk is full) is begun anew after a while. The
size at which one is due is drawn anew each time: replicas that apply the same commands would else
all flush in the same moment, and none be quick enough to make up a majority.
Design §8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stelae.actors.raft.replica import Replica
from stelae.actors.tserver.tablet.survivor_images import ROWS_AT_ONCE
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.errors import RetryLater
from stelae.core.ids import OpId
from stelae.core.runtime import Runtime
from stelae.storage.files.superblock import StoredFile
from stelae.storage.replicated.flush import LOW_FACTOR, BuiltSurvivor, Flush, Window
from stelae.storage.replicated.manifest import ImageFile, describe_image
from stelae.storage.replicated.state_machine import TabletStateMachine

SMALLEST_SHARE = 0.7
"""Of the size of a segment, at which a flush may be due."""
RETRY_S = 1.0
"""After a flush that found no room."""


class TabletFlushes:
    """The flushes of one tablet on one server; the `StateMachine` of its replica."""

    def __init__(
        self,
        runtime: Runtime,
        store: TabletStore,
        machine: TabletStateMachine,
        segment_bytes: int,
        on_mark: Callable[[], None],
    ) -> None:
        """``on_mark`` is called when rows were kept aside, to be compared."""
        self._runtime = runtime
        self._on_mark = on_mark
        self._store = store
        self._machine = machine
        self._segment_bytes = segment_bytes
        self._due_bytes = self._draw_bytes()
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._cleans_soon = False

    # ---- the replica's state machine --------------------------------------------------------

    def apply(self, index: int, term: int, command: bytes) -> bytes | int | tuple[bytes, ...]:
        """Execute a command, and see whether a flush is due. Raises CorruptData."""
        outcome = self._machine.apply(index, term, command)
        if self._machine.flush_due(self._due_bytes):
            self._due.set()
        if self._machine.marked_index == index:
            self._on_mark()
        return outcome

    def snapshot(self) -> bytes:
        """Never asked for."""
        return self._machine.snapshot()

    def restore(self, data: bytes) -> None:
        """The replica says which snapshot it begins with."""
        self._machine.restore(data)

    # ---- flushes ----------------------------------------------------------------------------

    async def run(self, replica: Replica) -> None:
        """Flush whenever it is due, for ever. Raises OSError: the disk failed."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.flush(replica)
            except RetryLater:
                self._runtime.metrics.count("flushes_given_up")
                await self._runtime.clock.sleep(RETRY_S)
                self._due.set()

    async def flush(self, replica: Replica) -> None:
        """Make durable, outside of the log, everything that was applied when this began.

        Raises:
            NoSpace, TabletNotReady: given up; nothing has changed.
            OSError: the disk failed.
        """
        async with self._flushing:
            await self._flush(replica)

    def clean_soon(self) -> None:
        """Memory is low: have the next flush leave little that is dead, and begin it now."""
        memory = self._machine.memory
        if not self._cleans_soon and memory.memory_bytes > LOW_FACTOR * memory.live_bytes:
            self._cleans_soon = True
            self._due.set()

    async def _flush(self, replica: Replica) -> None:
        runtime, machine, log = self._runtime, self._machine, replica.core.log
        term, index = log.term_at(log.applied_index), log.applied_index
        is_new = log.snapshot is None or log.snapshot.last.index < index
        cleans, self._cleans_soon = self._cleans_soon, False
        if not (is_new or cleans):
            return
        assert term is not None, "what was just applied is in the log"
        started_s = runtime.clock.monotonic()
        self._due_bytes = self._draw_bytes()
        flush = machine.begin_flush(OpId(term, index), self._segment_bytes, memory_is_low=cleans)
        if not is_new and not flush.windows:
            return
        for slot in flush.unsealed:
            sealed = await runtime.offload(machine.seal, flush, slot)
            file = StoredFile(sealed.file.name, sealed.file.size_bytes, sealed.file.crc)
            await self._store.write_summed(machine.tablet_id, file, sealed.content)
            machine.installed(sealed)
        survivors: dict[int, ImageFile | None] = {}
        try:
            built = [await self._survive(flush, window, survivors) for window in flush.windows]
            await replica.flushed(replica.snapshot_at(index, machine.manifest(flush, survivors)))
        except RetryLater:  # the next flush makes others
            names = [file.name for file in survivors.values() if file is not None]
            await self._store.drop_images(machine.tablet_id, names)
            raise
        machine.flushed(flush)
        for each in built:
            await self._bring_over(each, survivors[each.window.slots[0]])
        runtime.metrics.count("flushes")
        runtime.metrics.observe("flush_s", runtime.clock.monotonic() - started_s)

    async def _survive(
        self, flush: Flush, window: Window, survivors: dict[int, ImageFile | None]
    ) -> BuiltSurvivor:
        """Put what takes the place of some images on disk. Raises as `flush` does."""
        runtime, machine = self._runtime, self._machine
        built = await runtime.offload(machine.survive, flush, window)
        survivors.update(dict.fromkeys(window.slots))
        if built.content is not None:
            id_, rows = window.segment_id, built.row_count
            file = await runtime.offload(describe_image, id_, built.content, rows)
            stored = StoredFile(file.name, file.size_bytes, file.crc)
            await self._store.write_summed(machine.tablet_id, stored, built.content)
            survivors[window.slots[0]] = file
        return built

    async def _bring_over(self, built: BuiltSurvivor, file: ImageFile | None) -> None:
        machine, clock = self._machine, self._runtime.clock
        move = machine.begin_move(built, file)
        while not machine.memory.step(move, ROWS_AT_ONCE):
            await clock.sleep(0.0)
        metrics = self._runtime.metrics
        metrics.count("segments_cleaned", len(built.window.slots))
        if file is not None:
            metrics.count("survivors")

    def _draw_bytes(self) -> int:
        return int(self._segment_bytes * self._runtime.rng.uniform(SMALLEST_SHARE, 1.0))
