"""What one replica keeps on disk: consensus metadata, snapshot and log files, over a `Disk`.

Invariants: everything given to `save` is durable when it returns; the term is durable before
entries of that term, a snapshot before the log that it replaces is removed; a cut is durable before
the next append. So a crash at any point leaves a state that `load` accepts. Formats:
`stelae.storage.raft_log`, `stelae.storage.consensus_metadata`. Design §8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.replication import Configuration, Entry, Snapshot, TermAndVote
from stelae.core.runtime import Disk, File
from stelae.storage.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    decode_snapshot,
    encode_consensus_metadata,
    encode_snapshot,
)
from stelae.storage.raft_log import (
    check_sequence,
    decode_file,
    encode_file_header,
    encode_record,
    log_file_name,
    parse_log_file_name,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the disk held. ``entries`` follow the snapshot without a gap.

    ``configuration`` is the one that this replica began with; later ones are in snapshot and log.
    """

    term_and_vote: TermAndVote
    configuration: Configuration
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]


class _LogFile:
    """One open log file: its entries begin at ``offsets``, the first being ``first_index``."""

    def __init__(self, path: str, file: File, first_index: int, offsets: list[int]) -> None:
        self.path = path
        self.file = file
        self.first_index = first_index
        self.offsets = offsets

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.offsets) - 1


class ReplicaStorage:
    """Owner of the files of one replica below ``folder``."""

    def __init__(self, disk: Disk, folder: str, group_id: TabletId, *, log_file_bytes: int) -> None:
        prefix = f"{folder}/" if folder else ""
        self._metadata_path = f"{prefix}consensus-meta/{group_id}"
        self._snapshot_path = f"{prefix}snapshots/{group_id}"
        self._log_folder = f"{prefix}wals/{group_id}"
        self._disk = disk
        self._group_id = group_id
        self._log_file_bytes = log_file_bytes
        self._files: list[_LogFile] = []
        self._durable_index = 0
        self._configuration: Configuration | None = None
        self._term_and_vote = TermAndVote(0, None)

    async def load(self, first_configuration: Configuration) -> Loaded:
        """Read everything back, cut a torn tail; a new replica gets ``first_configuration``.

        Raises CorruptData.
        """
        metadata = await self._load_metadata()
        if metadata is None:
            if await self._disk.list(self._log_folder):
                raise CorruptData(self._metadata_path, 0, "is missing, but there is a log")
            await self._replace_metadata(TermAndVote(0, None), first_configuration)
        else:
            self._configuration = metadata.configuration
            self._term_and_vote = metadata.term_and_vote
        snapshot = await self._load_snapshot()
        entries = await self._load_log()
        entries = await self._after_snapshot(snapshot, entries)
        if entries and entries[-1].term > self._term_and_vote.term:
            reason = f"term {self._term_and_vote.term} is below that of {entries[-1].op_id}"
            raise CorruptData(self._metadata_path, 0, reason)
        assert self._configuration is not None
        return Loaded(self._term_and_vote, self._configuration, snapshot, entries)

    async def _load_metadata(self) -> ConsensusMetadata | None:
        try:
            data = await self._disk.read(self._metadata_path)
        except FileNotFoundError:
            return None
        return decode_consensus_metadata(self._metadata_path, self._group_id, data)

    async def _load_snapshot(self) -> Snapshot | None:
        try:
            data = await self._disk.read(self._snapshot_path)
        except FileNotFoundError:
            return None
        return decode_snapshot(self._snapshot_path, self._group_id, data)

    async def _load_log(self) -> tuple[Entry, ...]:
        names = await self._disk.list(self._log_folder)
        firsts = [(parse_log_file_name(name), f"{self._log_folder}/{name}") for name in names]
        found = [(first, path) for first, path in firsts if first is not None]
        entries: list[Entry] = []
        for position, (first, path) in enumerate(found):
            newest = position == len(found) - 1
            data = await self._disk.read(path)
            decoded = decode_file(path, self._group_id, first, data, newest=newest)
            if not decoded.entries:  # its first append never became durable
                await self._disk.remove(path)
                continue
            file = await self._disk.open(path)
            if decoded.torn:
                file.truncate(decoded.end)
            if newest:  # what is read here will be vouched for: it must not vanish later
                await file.sync()
            self._files.append(_LogFile(path, file, first, list(decoded.offsets)))
            entries.extend(decoded.entries)
        check_sequence(self._log_folder, entries)
        self._durable_index = entries[-1].index if entries else 0
        return tuple(entries)

    async def _after_snapshot(
        self, snapshot: Snapshot | None, entries: tuple[Entry, ...]
    ) -> tuple[Entry, ...]:
        """Entries past the snapshot; a log that the snapshot was to replace is removed now."""
        covered = snapshot.last.index if snapshot is not None else 0
        if entries and entries[0].index > covered + 1:
            reason = f"entries {covered + 1} to {entries[0].index - 1} are missing"
            raise CorruptData(self._log_folder, 0, reason)
        if snapshot is None:
            return entries
        rest = entries[covered + 1 - entries[0].index :] if entries else ()
        joined = [entry for entry in entries if entry.index == covered]
        stale = bool(joined) and joined[0].term != snapshot.last.term
        if stale or not entries or entries[-1].index < covered:
            await self._remove_log()
            self._durable_index = covered
            return ()
        return rest

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
            await self._replace_snapshot(snapshot)
            await self._remove_log()
            self._durable_index = snapshot.last.index
        if entries:
            if entries[0].index <= self._durable_index:
                await self._cut(entries[0].index)
            await self._append(entries)

    async def save_snapshot(self, snapshot: Snapshot, keep_from: int) -> None:
        """Make an own snapshot durable, then remove log files wholly below ``keep_from``."""
        await self._replace_snapshot(snapshot)
        while len(self._files) > 1 and self._files[0].last_index < keep_from:
            await self._remove(self._files.pop(0))

    def close(self) -> None:
        """Close all files; what `save` returned for is durable."""
        for log_file in self._files:
            log_file.file.close()
        self._files.clear()

    async def _replace_metadata(self, vote: TermAndVote, configuration: Configuration) -> None:
        metadata = ConsensusMetadata(self._group_id, vote, configuration)
        await self._disk.replace(self._metadata_path, encode_consensus_metadata(metadata))
        self._term_and_vote, self._configuration = vote, configuration

    async def _replace_snapshot(self, snapshot: Snapshot) -> None:
        await self._disk.replace(self._snapshot_path, encode_snapshot(self._group_id, snapshot))

    async def _remove_log(self) -> None:
        """Newest first: what a crash leaves is a prefix, which `load` knows to be stale."""
        while self._files:
            await self._remove(self._files.pop())

    async def _remove(self, log_file: _LogFile) -> None:
        log_file.file.close()
        await self._disk.remove(log_file.path)

    async def _cut(self, index: int) -> None:
        """Durably remove all entries from ``index`` on."""
        while self._files and self._files[-1].first_index >= index:
            await self._remove(self._files.pop())
        if self._files and self._files[-1].last_index >= index:
            newest = self._files[-1]
            position = index - newest.first_index
            newest.file.truncate(newest.offsets[position])
            await newest.file.sync()
            del newest.offsets[position:]
        self._durable_index = index - 1

    async def _append(self, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self._durable_index + 1, "gap in the log"
        buffers: list[bytes] = []
        if not self._files or self._files[-1].file.size >= self._log_file_bytes:
            first = entries[0].index
            path = f"{self._log_folder}/{log_file_name(first)}"
            self._files.append(_LogFile(path, await self._disk.open(path), first, []))
            buffers.append(encode_file_header(self._group_id, first))
        newest = self._files[-1]
        start = newest.file.size
        assert start == 0 or newest.offsets, "a file of the same name was there"
        offset = start + sum(len(buffer) for buffer in buffers)
        for entry in entries:
            record = encode_record(entry, self._durable_index)
            newest.offsets.append(offset)
            offset += len(record)
            buffers.append(record)
        newest.file.write_at(start, *buffers)
        await newest.file.sync()
        self._durable_index = entries[-1].index
