"""How a leader's entries become durable beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stelae.actors.raft.log_writer import LogWriter
from stelae.core.ids import OpId
from stelae.core.records.replication import Entry, EntryKind


class SlowStorage:
    """Saves when it is let."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.may_save = asyncio.Semaphore(0)

    async def save(self, vote: object, snapshot: object, entries: Sequence[Entry]) -> None:
        await self.may_save.acquire()
        self.saved += [entry.index for entry in entries]


def entry(index: int) -> Entry:
    return Entry(1, index, EntryKind.COMMAND, b"x")


async def test_a_log_is_drained_once_everything_given_is_durable() -> None:
    """Also what was given while the entries before it were written: whoever waits writes to the
    same log next."""
    told: list[OpId] = []
    is_told = asyncio.Event()

    def on_written(op_id: OpId) -> None:
        told.append(op_id)
        is_told.set()

    storage: Any = SlowStorage()
    writer = LogWriter(storage, on_written)
    running = asyncio.create_task(writer.run())
    writer.write([entry(1)])
    await asyncio.sleep(0)
    writer.write([entry(2), entry(3)])
    drained = asyncio.create_task(writer.drained())
    storage.may_save.release()
    await asyncio.wait_for(is_told.wait(), 10.0)
    await asyncio.sleep(0)
    assert not drained.done()
    assert not writer.is_idle
    storage.may_save.release()
    await asyncio.wait_for(drained, 10.0)
    assert storage.saved == [1, 2, 3]
    assert told == [OpId(1, 1), OpId(1, 3)]
    running.cancel()
