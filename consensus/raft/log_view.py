"""The log as the Raft core sees it: entries after a base, and how far each purpose has come.

Invariant: ``base <= applied <= commit <= last`` and ``base <= stable <= handed <= last`` (by
index). Entries up to ``stable`` are durable here; those up to ``handed`` are being written, by a
leader only; entries up to ``commit`` never change. The entries after the base
are held in memory; snapshots keep that bounded. Raft §5.3, §7.

The configuration in force is that of the last entry here which carries one, committed or not; so
it changes with each append, cut and snapshot, and with nothing else (thesis §4.1).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from stelae.core.ids import OpId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Snapshot,
    configuration_of,
)

ORIGIN = OpId(0, 0)


class LogView:
    """Entries ``base.index + 1 ..= last.index`` and the latest snapshot, which covers base."""

    def __init__(
        self, first: Configuration, snapshot: Snapshot | None, entries: Sequence[Entry]
    ) -> None:
        """``entries`` are durable, and follow the snapshot, or an entry before its end, without a
        gap: what was kept for others that lag is kept after a restart too.

        ``first`` is the configuration that the group began with here, before any entry.
        """
        self.snapshot = snapshot
        self.base = covered = snapshot.last if snapshot is not None else ORIGIN
        if snapshot is not None and entries and entries[0].index <= covered.index:
            # The term before the first entry is not known, nor the members before the snapshot's.
            start = max(entries[0].index, snapshot.configuration.op_id.index)
            self.base = entries[start - entries[0].index].op_id
            entries = entries[start - entries[0].index + 1 :]
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        """Bytes of content up to and with each entry, counted from `_start`."""
        self._start = 0
        self._extend(entries)
        for position, entry in enumerate(self._entries):
            assert entry.index == self.base.index + 1 + position, "gap in the log"
        self.stable_index = self.handed_index = self.last.index
        assert self.matches(covered), "a log of another history than the snapshot"
        self.commit_index = covered.index
        self.applied_index = covered.index
        base = snapshot.configuration if snapshot is not None else first
        self._configurations = [base]
        self._learn(self._entries)

    @property
    def configuration(self) -> Configuration:
        """The one in force: the last in the log, whether committed or not."""
        return self._configurations[-1]

    @property
    def committed_configuration(self) -> Configuration:
        """The last one that is committed, as far as is known here."""
        return self.configuration_at(self.commit_index)

    @property
    def unfinished_change(self) -> OpId | None:
        """The entry of a change of members that is not known to be committed; there is one at most
        in a leader's own term."""
        op_id = self.configuration.op_id
        return op_id if op_id.index > self.commit_index else None

    @property
    def configuration_before(self) -> Configuration:
        """The one that the newest change began from, unless that change is known to be committed.

        Changes follow each other, so it is committed, even where a restart has not heard so yet.
        """
        index = self.configuration.op_id.index
        if index <= max(self.commit_index, self.base.index):
            return self.configuration
        return self.configuration_at(index - 1)

    def configuration_at(self, index: int) -> Configuration:
        """The configuration in force after the entry at ``index``, which is not before the base."""
        assert index >= self.base.index
        if self.configuration.op_id.index <= index:
            return self.configuration
        known = [c for c in self._configurations if c.op_id.index <= index]
        return known[-1] if known else self._configurations[0]

    def _extend(self, entries: Sequence[Entry]) -> None:
        end = self._ends[-1] if self._ends else self._start
        for entry in entries:
            end += len(entry.body)
            self._ends.append(end)
        self._entries.extend(entries)

    def _learn(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                self._configurations.append(configuration_of(entry))

    @property
    def last(self) -> OpId:
        return self._entries[-1].op_id if self._entries else self.base

    @property
    def last_index(self) -> int:
        """Of the last entry."""
        return self.base.index + len(self._entries)

    @property
    def is_settled(self) -> bool:
        """Whether nothing has to be written, and all that is committed was applied."""
        is_written = self.handed_index == self.last_index
        return is_written and self.applied_index == self.commit_index

    @property
    def committed(self) -> OpId:
        """The last committed entry."""
        term = self.term_at(self.commit_index)
        assert term is not None
        return OpId(term, self.commit_index)

    def lacks(self, op_id: OpId) -> bool:
        """Whether this log is without that committed entry of its group."""
        return op_id.index > self.commit_index and not self.matches(op_id)

    def term_at(self, index: int) -> int | None:
        """The term of the entry at ``index``; None if it is compacted away or not there yet."""
        position = index - self.base.index
        if position == 0:
            return self.base.term
        if 0 < position <= len(self._entries):
            return self._entries[position - 1].term
        return None

    def matches(self, op_id: OpId) -> bool:
        """True if the log holds this entry, so that all before it are the same too (Raft §5.3)."""
        return self.term_at(op_id.index) == op_id.term

    def slice(self, first: int, count_max: int, size_max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on, within both limits, but at least one if there is one."""
        start = first - self.base.index - 1
        assert start >= 0, "entries were compacted away"
        chosen: list[Entry] = []
        size_bytes = 0
        for entry in self._entries[start : start + count_max]:
            size_bytes += len(entry.body)
            if chosen and size_bytes > size_max_bytes:
                break
            chosen.append(entry)
        return tuple(chosen)

    def first_within(self, size_bytes: int) -> int:
        """The first entry such that it and all after it are at most ``size_bytes`` of content."""
        if not self._ends or self._ends[-1] - self._start <= size_bytes:
            return self.base.index + 1
        before = bisect_left(self._ends, self._ends[-1] - size_bytes)
        return self.base.index + min(before, len(self._ends) - 1) + 2

    def bytes_after(self, index: int) -> int:
        """Of content, in all entries after ``index``, which is not before the base."""
        if index >= self.last.index:
            return 0
        before = index - self.base.index
        return self._ends[-1] - (self._ends[before - 1] if before else self._start)

    def unstable(self) -> tuple[Entry, ...]:
        """Entries neither durable here nor being written."""
        return tuple(self._entries[self.handed_index - self.base.index :])

    def unapplied(self, count_max: int, size_max_bytes: int) -> tuple[Entry, ...]:
        """Committed entries that the state machine has not seen, oldest first, within both limits,
        but at least one if there is one."""
        start = self.applied_index - self.base.index
        stop = min(self.commit_index - self.base.index, start + count_max)
        if stop > start + 1:
            before = self._ends[start - 1] if start else self._start
            within = bisect_right(self._ends, before + size_max_bytes, start, stop)
            stop = max(within, start + 1)
        return tuple(self._entries[start:stop])

    def append(self, entry: Entry) -> None:
        """Add a leader's own entry."""
        assert entry.index == self.last.index + 1
        assert entry.term >= self.last.term
        self._extend((entry,))
        self._learn((entry,))

    def merge(self, previous: OpId, entries: Sequence[Entry]) -> int:
        """Take entries after ``previous``, which matches; return the last index verified.

        Entries that are here already are left alone; the first that differs cuts what follows
        (never of what is committed).
        """
        for position, entry in enumerate(entries):
            if self.matches(entry.op_id):
                continue
            if entry.index <= self.last.index:
                assert entry.index > self.commit_index, f"{entry.op_id} contradicts the commit"
                self.cut(entry.index)
            self._extend(entries[position:])
            self._learn(entries[position:])
            break
        return previous.index + len(entries)

    def cut(self, index: int) -> None:
        """Forget the entry at ``index``, which is not committed, and all after it.

        On disk they stay until others take their places, or come back with a restart.
        """
        assert self.commit_index < index <= self.last.index, "a cut of what is committed"
        kept = index - self.base.index - 1
        del self._entries[kept:], self._ends[kept:]
        self.stable_index = min(self.stable_index, index - 1)
        self.handed_index = min(self.handed_index, index - 1)
        while self.configuration.op_id.index >= index:
            self._configurations.pop()

    def commit_to(self, index: int) -> bool:
        """Move the commit index forward; False if it is there already."""
        if index <= self.commit_index:
            return False
        assert index <= self.last.index, "commit beyond the log"
        self.commit_index = index
        return True

    def last_possible_match(self, op_id: OpId) -> OpId:
        """The last entry here at or before ``op_id`` whose term is not above that of ``op_id``.

        Nothing after it can be in a log that has ``op_id``, so that repair skips whole terms.
        """
        index = min(op_id.index, self.last.index)
        while index > self.base.index:
            term = self.term_at(index)
            if term is not None and term <= op_id.term:
                return OpId(term, index)
            index -= 1
        return self.base

    def reset(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot received from the leader."""
        assert snapshot.last.index > self.commit_index, "snapshot older than the commit index"
        self.snapshot = snapshot
        self.base = snapshot.last
        self._entries.clear()
        self._ends.clear()
        self._configurations = [snapshot.configuration]
        self.stable_index = self.handed_index = snapshot.last.index
        self.commit_index = self.applied_index = snapshot.last.index

    def compact(self, snapshot: Snapshot, keep_entries: int) -> None:
        """Note an own snapshot, and drop what it covers but for its last ``keep_entries``."""
        assert snapshot.last.index <= self.applied_index, "snapshot of what was not applied"
        assert self.matches(snapshot.last), "snapshot of another history"
        self.snapshot = snapshot
        index = min(snapshot.last.index - keep_entries, self.stable_index)
        if index > self.base.index:
            term = self.term_at(index)
            assert term is not None
            in_force = self.configuration_at(index)
            later = [c for c in self._configurations if c.op_id.index > in_force.op_id.index]
            self._configurations = [in_force, *later]
            dropped = index - self.base.index
            self._start = self._ends[dropped - 1]
            del self._entries[:dropped], self._ends[:dropped]
            self.base = OpId(term, index)

    def check_invariants(self) -> None:
        """Assert what the class docstring promises, and that terms never fall."""
        base, last = self.base.index, self.last.index
        assert base <= self.applied_index <= self.commit_index <= last
        assert base <= self.stable_index <= self.handed_index <= last
        before = self.base
        for entry in self._entries:
            assert entry.index == before.index + 1
            assert entry.term >= before.term
            before = entry.op_id
        if self.base != ORIGIN:
            assert self.snapshot is not None
            assert self.snapshot.last.index >= base
        sizes = [end - start for start, end in pairwise([self._start, *self._ends])]
        assert sizes == [len(entry.body) for entry in self._entries]
        carried = [e.op_id for e in self._entries if e.kind is EntryKind.CONFIGURATION]
        assert [c.op_id for c in self._configurations[1:]] == carried
        assert self._configurations[0].op_id.index <= base
