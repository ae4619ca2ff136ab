"""Small appends to a WAL: written at once where the disk is quick, and ahead of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper.timeline_store.log_end import AT_ONCE_BYTES, SMALL_BYTES
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import AcceptorState
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk, LocalFile
from stelae.storage.files.wal_log import record_bytes
from tests.unit.actors.safekeeper.timeline_store.timeline_world import ME, entry, members

TABLET = TabletId("t1")
FILE_BYTES = 4096


class SlowDisk(LocalDisk):
    """A disk whose syncs cannot be done at once while ``is_slow`` is set."""

    is_slow = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: list[tuple[int, int]] = []
        """Offset and size in bytes of each write while it was slow."""

    async def open(self, path: str) -> Any:
        return SlowFile(self, await super().open(path))


class SlowFile:
    """A file of it."""

    def __init__(self, disk: SlowDisk, file: LocalFile) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, offset: int, *buffers: bytes) -> None:
        if self._disk.is_slow:
            self._disk.written.append((offset, sum(map(len, buffers))))
        self._file.write_at(offset, *buffers)

    def sync_at_once(self) -> bool:
        return not self._disk.is_slow and self._file.sync_at_once()


class Keeper:
    """A store of timelines on real files, whose syncs are all quick; it can be started again."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self.disk: SlowDisk | None = None
        self.store: TimelineStore

    async def start(self) -> TimelineStore:
        """Anew, as after a crash: nothing is closed in order."""
        if self.disk is not None:
            self.disk.close()
        self.disk = SlowDisk(self.folder)
        self.store = TimelineStore(self.disk, Tasks(), ME, file_bytes=self.file_bytes)
        loaded = await self.store.load_all()
        assert not loaded.failed
        return self.store

    async def timeline(self, count: int, size_bytes: int = 40) -> Timeline:
        """One of term 2 with so many entries of term 1."""
        await self.start()
        timeline = await self.store.create(TABLET, members(1))
        await timeline.save(AcceptorState(members(1), term=2))
        await timeline.append([entry(1, lsn, size_bytes) for lsn in range(1, count + 1)])
        return timeline

    def slow(self) -> list[tuple[int, int]]:
        """Let no sync be done at once until the next start. Returns what is written from now on."""
        assert self.disk is not None
        self.disk.is_slow = True
        return self.disk.written

    def files(self) -> list[bytes]:
        folder = self.folder / "timeline-wals" / f"{TABLET}-1"
        return [path.read_bytes() for path in sorted(folder.iterdir())]


async def test_a_small_append_is_durable_at_once_and_the_next_one_finds_zeros(
    tmp_path: Path,
) -> None:
    """No task is needed; the file does not grow with the next append; a start takes the zeros for
    the end of the log, and everything that was told is there."""
    keeper = Keeper(tmp_path, FILE_BYTES)
    timeline = await keeper.timeline(1)
    assert timeline.append_at_once([entry(1, 2)])
    assert timeline.flush_lsn == 2
    (before,) = keeper.files()
    assert before.endswith(bytes(500)), "zeros lie behind the last entry"
    assert timeline.append_at_once([entry(1, 3), entry(2, 4)])
    (after,) = keeper.files()
    assert len(after) == len(before)
    assert (await keeper.start()).timeline(TABLET).last == OpId(2, 4)
    again = keeper.store.timeline(TABLET)
    assert await again.read(1, 4, 1 << 20) == [entry(1, 1), entry(1, 2), entry(1, 3), entry(2, 4)]
    (cut,) = keeper.files()
    assert not cut.endswith(bytes(2)), "what vouches for an end has it as its end"


async def test_a_file_ends_with_its_last_entry_before_the_next_one_begins(tmp_path: Path) -> None:
    """Only the newest file may have an end that is not an entry's: in any other, zeros would be
    damage."""
    keeper = Keeper(tmp_path, FILE_BYTES)
    timeline = await keeper.timeline(1)
    for lsn in range(2, 200):
        if not timeline.append_at_once([entry(1, lsn)]):
            await timeline.append([entry(1, lsn)])
    log = await timeline.resident()
    sizes = [len(data) for data in keeper.files()]
    assert len(sizes) > 2
    assert sizes[:-1] == [file.end for file in log.index.files[:-1]]
    assert sizes[-1] > log.index.files[-1].end, "else this shows nothing"
    assert (await keeper.start()).timeline(TABLET).last == OpId(1, 199)


async def test_what_is_large_needs_a_new_file_or_waits_for_others_is_not_written_at_once(
    tmp_path: Path,
) -> None:
    """Then nothing has happened, and the ordinary way is open."""
    keeper = Keeper(tmp_path, 4 * AT_ONCE_BYTES)
    timeline = await keeper.timeline(1)
    large = [entry(1, 2, AT_ONCE_BYTES)]
    assert not timeline.append_at_once(large)
    assert timeline.flush_lsn == 1
    assert await timeline.append(large) == 2
    timeline.write([entry(1, 3)])
    assert not timeline.append_at_once([entry(1, 4)]), "entry 3 is not durable yet"
    assert await timeline.append([entry(1, 4)]) == 4
    fresh = await keeper.store.create(TabletId("t2"), members(1))
    assert not fresh.append_at_once([entry(1, 1)]), "it has no file"
    assert await fresh.append([entry(1, 1)]) == 1


async def test_what_is_larger_than_small_is_durable_at_once_too_and_no_zeros_follow_it(
    tmp_path: Path,
) -> None:
    """Its sync is as quick; zeros behind it would be written for nothing."""
    keeper = Keeper(tmp_path, 4 * AT_ONCE_BYTES)
    timeline = await keeper.timeline(1)
    assert timeline.append_at_once([entry(1, 2, SMALL_BYTES)])
    assert timeline.flush_lsn == 2
    assert timeline.log is not None
    (data,) = keeper.files()
    assert len(data) == timeline.log.index.files[-1].end
    assert (await keeper.start()).timeline(TABLET).last == OpId(1, 2)


@pytest.mark.parametrize(
    "instead", [[entry(2, 3)], [entry(2, 3, 41)], [entry(2, 3, 20)], [entry(1, 3)]]
)
async def test_nothing_stays_of_what_was_begun_at_once_and_then_given_up(
    tmp_path: Path, instead: Sequence[Entry]
) -> None:
    """Entries that lie behind the end, not synced, would follow another entry as if they were its
    successors: of an earlier term, or of none that anybody was told of."""
    keeper = Keeper(tmp_path, FILE_BYTES)
    timeline = await keeper.timeline(2)
    keeper.slow()
    begun = [entry(1, 3), entry(1, 4), entry(1, 5)]
    assert not timeline.append_at_once(begun)
    assert timeline.flush_lsn == 2
    await timeline.append(instead)
    assert (await keeper.start()).timeline(TABLET).last == instead[-1].op_id
    assert await keeper.store.timeline(TABLET).read(3, 9, 1 << 20) == list(instead)


async def test_what_was_begun_at_once_goes_on_in_the_ordinary_way(tmp_path: Path) -> None:
    """The same entries, given to `append`, are there once, and all of them; they were written
    once, and so is what comes behind them meanwhile."""
    keeper = Keeper(tmp_path, FILE_BYTES)
    timeline = await keeper.timeline(2)
    log, written = await timeline.resident(), keeper.slow()
    begun = [entry(1, 3), entry(1, 4), entry(1, 5)]
    end = log.index.files[-1].end
    assert not timeline.append_at_once(begun[:2])
    timeline.write(begun[:2])
    timeline.write(begun[2:])
    assert await timeline.flushed(5) == 5
    size_bytes = record_bytes(begun[0])
    assert written == [(end, 2 * size_bytes), (end + 2 * size_bytes, size_bytes)]
    state = msgspec.structs.replace(timeline.acceptor, term_history=timeline.history, commit_lsn=5)
    await timeline.save(state)
    assert (await keeper.start()).timeline(TABLET).last == OpId(1, 5)
    assert await keeper.store.timeline(TABLET).read(3, 9, 1 << 20) == begun
