"""What one replica keeps on disk: consensus metadata, snapshot and log files, over a `Disk`.

Invariants: everything given to `save` is durable when it returns; the term is durable before
entries of that term, a snapshot before the log that it replaces is removed; a cut is durable before
the next append. So a crash at any point leaves a state that `load` accepts; and a log that ends
before what is noted as durable (`stelae.actors.raft.durable_mark`) it does not. Formats:
`stelae.storage.files.raft_log`, `stelae.storage.files.consensus_metadata`. Design §8.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from stelae.actors.raft.durable_mark import LogNote
from stelae.actors.raft.types import SnapshotStore
from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.records.replication import Configuration, Entry, Snapshot, TermAndVote
from stelae.core.runtime import Clock, Disk, File
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    decode_snapshot,
    encode_consensus_metadata,
    encode_snapshot,
)
from stelae.storage.files.raft_log import (
    DecodedFile,
    check_sequence,
    decode_file,
    encode_file_header,
    encode_record,
    log_file_name,
    parse_log_file_name,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the disk held. ``entries`` follow the snapshot without a gap, or begin before its end.

    ``configuration`` is the one that this replica began with; later ones are in snapshot and log.
    """

    term_and_vote: TermAndVote
    configuration: Configuration
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]


class MetadataFile:
    """Term, vote and first configuration of one replica, durable before anything is answered."""

    def __init__(self, disk: Disk, folder: str, group_id: TabletId) -> None:
        prefix = f"{folder}/" if folder else ""
        self.path = f"{prefix}consensus-meta/{group_id}"
        self._disk = disk
        self._group_id = group_id

    async def load(self) -> ConsensusMetadata | None:
        """What was written last; None if nothing ever was. Raises CorruptData."""
        try:
            data = await self._disk.read(self.path)
        except FileNotFoundError:
            return None
        return decode_consensus_metadata(self.path, self._group_id, data)

    async def replace(self, vote: TermAndVote, configuration: Configuration) -> None:
        """Make it durable. Raises OSError: the server must stop."""
        metadata = ConsensusMetadata(self._group_id, vote, configuration)
        await self._disk.replace(self.path, encode_consensus_metadata(metadata))


class SnapshotFile:
    """A snapshot as a file of its own: the `SnapshotStore` of those that hold their whole state."""

    def __init__(self, disk: Disk, folder: str, group_id: TabletId) -> None:
        prefix = f"{folder}/" if folder else ""
        self._path = f"{prefix}snapshots/{group_id}"
        self._disk = disk
        self._group_id = group_id

    async def load(self) -> Snapshot | None:
        """The last one; None if there never was one. Raises CorruptData."""
        try:
            data = await self._disk.read(self._path)
        except FileNotFoundError:
            return None
        return decode_snapshot(self._path, self._group_id, data)

    async def replace(self, snapshot: Snapshot) -> None:
        """Make it durable. Raises OSError: the server must stop."""
        await self._disk.replace(self._path, encode_snapshot(self._group_id, snapshot))


class _LogFile:
    """One open log file: its entries begin at ``offsets``, the first being ``first_index``.

    They end at ``end``; after that there is nothing, or zeros that were written ahead.
    """

    def __init__(
        self, path: str, file: File, first_index: int, offsets: list[int], end: int
    ) -> None:
        self.path = path
        self.file = file
        self.first_index = first_index
        self.offsets = offsets
        self.end = end

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.offsets) - 1


class ReplicaStorage:
    """Owner of the files of one replica below ``folder``."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        group_id: TabletId,
        *,
        log_file_bytes: int,
        log_ahead_bytes: int = 0,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        """``snapshots``: where the snapshot lies, if not in a file of its own."""
        prefix = f"{folder}/" if folder else ""
        self._metadata = MetadataFile(disk, folder, group_id)
        self._snapshots = snapshots or SnapshotFile(disk, folder, group_id)
        self._log_folder = f"{prefix}wals/{group_id}"
        self._disk = disk
        self._group_id = group_id
        self._log_file_bytes = log_file_bytes
        self._log_ahead_bytes = log_ahead_bytes
        self._files: list[_LogFile] = []
        self._durable_index = 0
        self._written: Sequence[Entry] | None = None
        """At the end of the newest file, and not durable yet."""
        self._note = LogNote(disk, self._log_folder, group_id)
        self._configuration: Configuration | None = None
        self._term_and_vote = TermAndVote(0, None)

    async def load(self, first_configuration: Configuration) -> Loaded:
        """Read everything back, cut a torn tail; a new replica gets ``first_configuration``.

        Raises CorruptData.
        """
        metadata = await self._metadata.load()
        if metadata is None:
            if await self._disk.list(self._log_folder):
                raise CorruptData(self._metadata.path, 0, "is missing, but there is a log")
            await self._replace_metadata(TermAndVote(0, None), first_configuration)
        else:
            self._configuration = metadata.configuration
            self._term_and_vote = metadata.term_and_vote
        snapshot = await self._snapshots.load()
        entries = await self._load_log(snapshot.last.index if snapshot is not None else 0)
        entries = await self._after_snapshot(snapshot, entries)
        if entries and entries[-1].term > self._term_and_vote.term:
            reason = f"term {self._term_and_vote.term} is below that of {entries[-1].op_id}"
            raise CorruptData(self._metadata.path, 0, reason)
        assert self._configuration is not None
        return Loaded(self._term_and_vote, self._configuration, snapshot, entries)

    async def _load_log(self, covered: int) -> tuple[Entry, ...]:
        """All entries, after what a crash left half written is gone. ``covered``: by the snapshot.

        Nothing is changed unless all that was durable is there."""
        noted = await self._note.load()
        names = await self._disk.list(self._log_folder)
        firsts = [(parse_log_file_name(name), f"{self._log_folder}/{name}") for name in names]
        found = [(first, path) for first, path in firsts if first is not None]
        decoded_files: list[tuple[int, str, DecodedFile]] = []
        for first, path in found:
            newest = path == found[-1][1]
            data = await self._disk.read(path)
            decoded = decode_file(path, self._group_id, first, data, newest=newest)
            decoded_files.append((first, path, decoded))
        entries = [entry for _, _, decoded in decoded_files for entry in decoded.entries]
        last = entries[-1].index if entries else 0
        if max(last, covered) < noted:
            where, offset = self._log_folder, 0
            if decoded_files:
                where, offset = decoded_files[-1][1], decoded_files[-1][2].end
            raise CorruptData(where, offset, f"the log ends at {last}, and was durable to {noted}")
        for first, path, decoded in decoded_files:
            if not decoded.entries:  # its first append never became durable
                await self._disk.remove(path)
                continue
            file = await self._disk.open(path)
            if decoded.torn:
                file.truncate(decoded.end)
            if path == decoded_files[-1][1]:  # will be vouched for: it must not vanish later
                await file.sync()
            self._files.append(_LogFile(path, file, first, list(decoded.offsets), decoded.end))
        check_sequence(self._log_folder, entries)
        self._durable_index = last
        return tuple(entries)

    async def _after_snapshot(
        self, snapshot: Snapshot | None, entries: tuple[Entry, ...]
    ) -> tuple[Entry, ...]:
        """All that is there; a log that the snapshot was to replace is removed now."""
        covered = snapshot.last.index if snapshot is not None else 0
        if entries and entries[0].index > covered + 1:
            reason = f"entries {covered + 1} to {entries[0].index - 1} are missing"
            raise CorruptData(self._log_folder, 0, reason)
        if snapshot is None:
            return entries
        joined = [entry for entry in entries if entry.index == covered]
        stale = bool(joined) and joined[0].term != snapshot.last.term
        if stale or not entries or entries[-1].index < covered:
            await self._remove_log(covered)
            return ()
        return entries

    async def save(
        self,
        term_and_vote: TermAndVote | None,
        snapshot: Snapshot | None,
        entries: Sequence[Entry],
    ) -> None:
        """Make all of it durable. ``entries`` replace the log from their first index on.

        Raises OSError: nothing is known of the disk any more, and the server must stop.
        """
        assert self._configuration is not None, "save before load"
        if term_and_vote is not None:
            await self._replace_metadata(term_and_vote, self._configuration)
        if snapshot is not None:
            await self._snapshots.replace(snapshot)
            await self._remove_log(snapshot.last.index)
        if entries:
            if entries[0].index <= self._durable_index:
                await self._cut(entries[0].index)
            await self._append(entries)

    def save_at_once(self, entries: Sequence[Entry]) -> bool:
        """What `save` does with entries that follow the log, where the disk is quick.

        If false, they are not durable, and `save` of the same must come next. Raises OSError.
        """
        newest = self._files[-1] if self._files else None
        if newest is None or newest.end >= self._log_file_bytes:
            return False
        if entries[0].index <= self._durable_index:
            return False
        self._write(newest, entries)
        if not newest.file.sync_at_once():
            return False
        self._is_durable(entries)
        return True

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make an own snapshot durable. Raises OSError."""
        await self._snapshots.replace(snapshot)

    async def trim(self, keep_from: int) -> None:
        """Remove log files wholly below ``keep_from``, which a durable snapshot covers."""
        while len(self._files) > 1 and self._files[0].last_index < keep_from:
            await self._remove(self._files.pop(0))

    def close(self) -> None:
        """Close all files; what `save` returned for is durable."""
        for log_file in self._files:
            log_file.file.close()
        self._files.clear()
        self._note.close()

    async def note_for_ever(self, clock: Clock) -> None:
        """Note how far the log is durable. Raises OSError."""
        await self._note.run(lambda: self._durable_index, clock)

    async def _replace_metadata(self, vote: TermAndVote, configuration: Configuration) -> None:
        await self._metadata.replace(vote, configuration)
        self._term_and_vote, self._configuration = vote, configuration

    async def _remove_log(self, covered: int) -> None:
        """Newest first: what a crash leaves is a prefix, which `load` knows to be stale."""
        self._durable_index = covered
        await self._note.lower(covered)
        while self._files:
            await self._remove(self._files.pop())

    async def _remove(self, log_file: _LogFile) -> None:
        log_file.file.close()
        await self._disk.remove(log_file.path)

    async def _cut(self, index: int) -> None:
        """Durably remove all entries from ``index`` on."""
        self._durable_index = index - 1
        await self._note.lower(index - 1)
        while self._files and self._files[-1].first_index >= index:
            await self._remove(self._files.pop())
        if self._files and self._files[-1].last_index >= index:
            newest = self._files[-1]
            position = index - newest.first_index
            newest.end = newest.offsets[position]
            newest.file.truncate(newest.end)
            await newest.file.sync()
            del newest.offsets[position:]

    async def _append(self, entries: Sequence[Entry]) -> None:
        if self._written is None:
            if not self._files or self._files[-1].end >= self._log_file_bytes:
                await self._begin_file(entries[0].index)
            self._write(self._files[-1], entries)
        assert self._written is entries, "other entries were begun to be written"
        await self._files[-1].file.sync()
        self._is_durable(entries)

    def _is_durable(self, entries: Sequence[Entry]) -> None:
        self._written, self._durable_index = None, entries[-1].index
        self._note.grown(self._durable_index)

    def _write(self, newest: _LogFile, entries: Sequence[Entry]) -> None:
        """Write at the end of the newest file, which may be new. Nothing is durable yet."""
        assert entries[0].index == self._durable_index + 1, "gap in the log"
        buffers: list[bytes] = []
        start = offset = newest.end
        if not newest.offsets:
            assert start == 0, "a file of the same name was there"
            buffers.append(encode_file_header(self._group_id, entries[0].index))
            offset = len(buffers[0])
        for entry in entries:
            record = encode_record(entry, self._durable_index)
            newest.offsets.append(offset)
            offset += len(record)
            buffers.append(record)
        self._reserve(newest, offset)
        newest.file.write_at(start, *buffers)
        newest.end = offset
        self._written = entries

    def _reserve(self, newest: _LogFile, end: int) -> None:
        """Make room ahead in a file that grows: a sync then need not write where the file ends too,
        which takes as long again. Groups at rest have no such room."""
        ahead = self._log_ahead_bytes
        if end <= newest.file.size or newest.end * 16 < ahead:
            return
        try:
            newest.file.preallocate(max(end, min(end + ahead, self._log_file_bytes)))
        except OSError as error:
            if error.errno != errno.ENOSPC:  # what is to be written may fit all the same
                raise

    async def _begin_file(self, first_index: int) -> None:
        """Go on in a new file; the one before it ends where its entries do."""
        if self._files and self._files[-1].file.size > self._files[-1].end:
            before = self._files[-1]
            before.file.truncate(before.end)
            await before.file.sync()
        path = f"{self._log_folder}/{log_file_name(first_index)}"
        file = await self._disk.open(path)
        self._files.append(_LogFile(path, file, first_index, [], file.size))
