"""Room that is reserved ahead in a replica's log files never shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stelae.actors.raft.storage import ReplicaStorage
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry, EntryKind, TermAndVote, first_configuration
from stelae.runtime.files import LocalDisk

GROUP = TabletId("group")
FIRST = first_configuration({})


def storage(disk: LocalDisk) -> ReplicaStorage:
    """Files of 4,000 bytes, with 1,000 of them reserved ahead."""
    return ReplicaStorage(disk, "", GROUP, log_file_bytes=4000, log_ahead_bytes=1000)


def entry(index: int) -> Entry:
    return Entry(1, index, EntryKind.COMMAND, b"x" * 300)


def test_reserved_room_is_cut_off_where_a_file_ends_and_when_one_is_read(tmp_path: Path) -> None:
    """Only the newest file has it; what is read back, and appended then, is what was saved."""

    async def run() -> None:
        disk = LocalDisk(tmp_path)
        log = storage(disk)
        await log.load(FIRST)
        await log.save(TermAndVote(1, None), None, [])
        for index in range(1, 31):
            await log.save(None, None, [entry(index)])
        log.close()
        files = sorted((tmp_path / "wals" / GROUP).iterdir())
        sizes = [path.stat().st_size for path in files]
        assert len(files) == 3
        assert max(sizes[:-1]) < 4400, "a whole file ends with its last record"
        assert all(path.read_bytes().endswith(b"x") for path in files[:-1])
        assert files[-1].read_bytes().endswith(bytes(10)), "nothing is reserved"
        again = storage(disk)
        loaded = await again.load(FIRST)
        assert loaded.entries == tuple(entry(index) for index in range(1, 31))
        await again.save(None, None, [entry(31)])
        await again.save(None, None, [entry(25)])
        await again.save(None, None, [entry(26)])
        again.close()
        last = storage(disk)
        loaded = await last.load(FIRST)
        assert loaded.entries == tuple(entry(index) for index in range(1, 27))
        last.close()
        disk.close()

    asyncio.run(run())
