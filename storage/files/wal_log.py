"""Format and index of a timeline's WAL: files of checksummed records, rolled by size. Pure.

A file is named after its first LSN and after the *cut* that it was made under. A divergent tail is
cut by one number in the control file (`LogCut`): from then on nothing counts that lies from the
cut's LSN on in files made under an earlier cut, whether it was removed already or not; what is
appended next begins a file of its own. Trimming moves the base, by whole files.

Damage below the commit LSN, or of what was provably durable, is `CorruptData`; else it is where an
append was torn, and the log ends. Design §10; Neon's WAL storage, with LSNs that count entries.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stelae.core.errors import CorruptData
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import (
    LogCut,
    TermHistory,
    TermStart,
    cut_history,
    extended_history,
    joined_history,
)
from stelae.storage.files.log_records import (
    RECORD_HEADER_BYTES,
    DecodedFile,
    FileHeader,
    decode_records,
    encode_record_header,
    numbered_name,
    parse_numbered_name,
)

NO_CUT = LogCut(0, 0)
_HEADER = FileHeader(b"STWL", struct.Struct("<QQ"))  # first LSN, number of the cut
_PREFIX = "wal"


@dataclass(frozen=True, slots=True, order=True)
class WalName:
    """What the name of a WAL file says; names sort like this."""

    first_lsn: int
    cut_number: int

    def __str__(self) -> str:
        return numbered_name(_PREFIX, self.first_lsn, self.cut_number)


def parse_wal_name(name: str) -> WalName | None:
    """None if it is no WAL file's name."""
    numbers = parse_numbered_name(_PREFIX, 2, name)
    return WalName(*numbers) if numbers is not None else None


def encode_wal_header(tablet_id: TabletId, name: WalName) -> bytes:
    """The beginning of a file."""
    return _HEADER.encode(tablet_id, name.first_lsn, name.cut_number)


def encode_entries(entries: Sequence[Entry], durable_lsn: int) -> list[bytes]:
    """Buffers to be written one after the other; bodies are not copied.

    The log was durable up to ``durable_lsn`` before.
    """
    buffers: list[bytes] = []
    for entry in entries:
        buffers.append(encode_record_header(entry, durable_lsn))
        buffers.append(entry.body)
    return buffers


def record_bytes(entry: Entry) -> int:
    """What an entry takes in a file."""
    return RECORD_HEADER_BYTES + len(entry.body)


def decode_wal_file(
    where: str,
    tablet_id: TabletId,
    name: WalName,
    data: bytes,
    *,
    newest: bool,
    cut: LogCut,
    commit_lsn: int,
) -> DecodedFile:
    """Decode a file; ``where`` names it in errors. Only the ``newest`` may be torn.

    What the cut has removed is not looked at. A file whose header is torn decodes to nothing, with
    ``end`` 0. Raises CorruptData for any other damage.
    """
    stop = cut.from_lsn if name.cut_number < cut.number else None
    offset = _HEADER.end(where, data, tablet_id, name.first_lsn, name.cut_number)
    return decode_records(
        where,
        data,
        offset,
        name.first_lsn,
        newest=newest,
        durable_index=commit_lsn,
        stop_index=stop,
    )


def counted_names(
    folder: str, names: Sequence[str], cut: LogCut, base_lsn: int
) -> tuple[list[WalName], list[str]]:
    """The files that count, in order, and those that a trim or a cut was still to remove.

    Raises CorruptData for files that no control file with this cut and base can go with.
    """
    counted, dropped = [], []
    for text in names:
        name = parse_wal_name(text)
        if name is None:
            raise CorruptData(f"{folder}/{text}", 0, "is no file of a WAL")
        if name.cut_number > cut.number:
            reason = f"was made under cut {name.cut_number}, and the last one was {cut.number}"
            raise CorruptData(f"{folder}/{text}", 0, reason)
        is_cut = name.cut_number < cut.number and name.first_lsn >= cut.from_lsn
        if is_cut or name.first_lsn <= base_lsn:
            dropped.append(text)
        else:
            counted.append(name)
    return sorted(counted), dropped


def history_after(history: TermHistory, base_lsn: int) -> TermHistory:
    """Who wrote the entries after the base: that of a log which begins there."""
    started = bisect_right([start.start_lsn for start in history], base_lsn + 1)
    if not started:
        return history
    return (TermStart(history[started - 1].term, base_lsn + 1), *history[started:])


class IndexedFile:
    """One file of a WAL in memory: where its records begin, and where the last one ends."""

    __slots__ = ("end", "name", "offsets")

    def __init__(self, name: WalName, offsets: Sequence[int], end: int) -> None:
        self.name = name
        self.offsets = array("Q", offsets)
        self.end = end

    @property
    def last_lsn(self) -> int:
        return self.name.first_lsn + len(self.offsets) - 1

    def start_of(self, lsn: int) -> int:
        """Where the record of ``lsn`` begins; the end, if it is the one after the last."""
        position = lsn - self.name.first_lsn
        return self.offsets[position] if position < len(self.offsets) else self.end


@dataclass(frozen=True, slots=True)
class Span:
    """Records that lie one after the other in a file."""

    name: WalName
    offset: int
    length: int
    first_lsn: int


class WalIndex:
    """What the files of one WAL hold, all of it durable. Changes follow what was done to them."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        """Entries up to here are not there (any more)."""
        self.files: list[IndexedFile] = []
        self._history: TermHistory = ()

    @property
    def last_lsn(self) -> int:
        return self.files[-1].last_lsn if self.files else self.base_lsn

    def history(self, kept: TermHistory) -> TermHistory:
        """Of the whole log; ``kept`` knows of what was trimmed away."""
        return joined_history(kept, self.base_lsn, self._history)

    def last(self, kept: TermHistory) -> OpId:
        """The last entry; (0, 0) if there never was one."""
        history = self.history(kept)
        return OpId(history[-1].term if history else 0, self.last_lsn)

    def loaded(self, where: str, name: WalName, decoded: DecodedFile) -> None:
        """The next file was read. Raises CorruptData if it does not follow the one before."""
        if name.first_lsn != self.last_lsn + 1:
            reason = f"entries {self.last_lsn + 1} to {name.first_lsn - 1} are missing before it"
            raise CorruptData(where, 0, reason)
        first_term = decoded.entries[0].term
        if self._history and self._history[-1].term > first_term:
            raise CorruptData(where, 0, f"term {first_term} follows {self._history[-1].term}")
        self.files.append(IndexedFile(name, decoded.offsets, decoded.end))
        self._history = extended_history(self._history, decoded.entries)

    def begun(self, name: WalName) -> IndexedFile:
        """A new file, for what comes after the last entry."""
        assert name.first_lsn == self.last_lsn + 1, f"{name} after {self.last_lsn}"
        self.files.append(IndexedFile(name, (), 0))
        return self.files[-1]

    def appended(self, entries: Sequence[Entry], start: int) -> None:
        """Entries are durable in the newest file, their records from offset ``start`` on."""
        newest = self.files[-1]
        for entry in entries:
            newest.offsets.append(start)
            start += record_bytes(entry)
        newest.end = start
        self._history = extended_history(self._history, entries)

    def cut(self, from_lsn: int) -> tuple[list[WalName], IndexedFile | None]:
        """Forget the entries from there on. Which files to remove, newest first, and which one to
        truncate at its end."""
        removed = []
        while self.files and self.files[-1].name.first_lsn >= from_lsn:
            removed.append(self.files.pop().name)
        truncated = None
        if self.files and self.files[-1].last_lsn >= from_lsn:
            truncated = self.files[-1]
            truncated.end = truncated.start_of(from_lsn)
            del truncated.offsets[from_lsn - truncated.name.first_lsn :]
        self._history = cut_history(self._history, self.last_lsn)
        return removed, truncated

    def trimmable(self, through_lsn: int) -> int:
        """The base after removing the files wholly up to there; the newest one stays."""
        base_lsn = self.base_lsn
        for file in self.files[:-1]:
            if file.last_lsn > through_lsn:
                break
            base_lsn = file.last_lsn
        return base_lsn

    def trim(self, base_lsn: int) -> list[WalName]:
        """Forget the entries up to a base that `trimmable` told. Which files to remove."""
        removed = []
        while len(self.files) > 1 and self.files[0].last_lsn <= base_lsn:
            removed.append(self.files.pop(0).name)
        self.base_lsn = base_lsn
        self._history = history_after(self._history, base_lsn)
        return removed

    def spans(self, first_lsn: int, last_lsn: int, size_max_bytes: int) -> list[Span]:
        """Where those entries lie: at least the first one, and as many as fit."""
        assert self.base_lsn < first_lsn <= last_lsn <= self.last_lsn, (first_lsn, last_lsn)
        spans: list[Span] = []
        lsn, room = first_lsn, size_max_bytes
        while lsn <= last_lsn:
            file = self._file_of(lsn)
            start = file.start_of(lsn)
            until = bisect_right(file.offsets, start + max(room, 0)) + file.name.first_lsn - 1
            if file.end - start <= room:
                until = file.last_lsn + 1
            until = min(until, last_lsn + 1)
            if until <= lsn:
                if spans:
                    break
                until = lsn + 1
            length = file.start_of(until) - start
            spans.append(Span(file.name, start, length, lsn))
            room -= length
            whole_file = until > file.last_lsn
            lsn = until
            if not whole_file:
                break
        return spans

    def _file_of(self, lsn: int) -> IndexedFile:
        firsts = [file.name.first_lsn for file in self.files]
        return self.files[bisect_right(firsts, lsn) - 1]
