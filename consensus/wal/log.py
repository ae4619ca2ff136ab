"""The part of a timeline's log that its proposer holds in memory, and how far it has come.

Invariants: ``base <= applied <= commit <= last``; entries up to the commit never change; what is
applied may be dropped, what is not never is. The history says who wrote which entry, from the first
one on, also of those that are not held here; it is unknown until safekeepers told it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stelae.core.ids import OpId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import TermHistory, cut_history, extended_history, term_at


class ProposerLog:
    """Entries after ``base``, which its owner has by other means, or has been handed."""

    def __init__(self, base: OpId) -> None:
        self.base = base
        self.history: TermHistory | None = None
        self.commit_lsn = self.applied_lsn = base.index
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        """Bytes of content up to and with each entry, counted from `_start`."""
        self._start = 0

    @property
    def last(self) -> OpId:
        return self._entries[-1].op_id if self._entries else self.base

    @property
    def size_bytes(self) -> int:
        """Of all that is held."""
        return self._ends[-1] - self._start if self._ends else 0

    @property
    def uncommitted_bytes(self) -> int:
        return self.size_bytes - (self._end_of(self.commit_lsn) - self._start)

    def term_at(self, lsn: int) -> int:
        """Who wrote that entry; 0 before the first."""
        assert self.history is not None, "the history is not known yet"
        return term_at(self.history, lsn)

    def op_id_at(self, lsn: int) -> OpId:
        return OpId(self.term_at(lsn), lsn)

    def holds(self, lsn: int) -> bool:
        return self.base.index < lsn <= self.last.index

    def found(self, history: TermHistory) -> None:
        """Learn who wrote what, up to the base."""
        assert self.history is None
        assert not self._entries
        self.history = cut_history(history, self.base.index)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add what follows."""
        assert self.history is not None
        lsn, end = self.last.index, self._end_of(self.last.index)
        for entry in entries:
            lsn, end = lsn + 1, end + len(entry.body)
            assert entry.index == lsn, "gap in the log"
            self._ends.append(end)
        self.history = extended_history(self.history, entries)
        self._entries.extend(entries)

    def cut(self, last_lsn: int) -> None:
        """Give up what comes after it, which nobody was promised."""
        assert last_lsn >= self.commit_lsn, "cut below the commit"
        assert self.history is not None
        kept = last_lsn - self.base.index
        del self._entries[kept:], self._ends[kept:]
        self.history = cut_history(self.history, last_lsn)

    def slice(self, first_lsn: int, count_max: int, size_max_bytes: int) -> tuple[Entry, ...]:
        """Entries from the first on, within both limits, but at least one if there is one."""
        start = first_lsn - self.base.index - 1
        assert start >= 0, "entries were dropped"
        limit = self._end_of(first_lsn - 1) + size_max_bytes
        stop = bisect_left(self._ends, limit + 1, start, min(start + count_max, len(self._ends)))
        return tuple(self._entries[start : max(stop, min(start + 1, len(self._entries)))])

    def unapplied(self, count_max: int, size_max_bytes: int) -> tuple[Entry, ...]:
        """Committed entries that were not handed out, within both limits, but at least one."""
        count = min(count_max, self.commit_lsn - self.applied_lsn)
        return self.slice(self.applied_lsn + 1, count, size_max_bytes) if count else ()

    def drop(self, unneeded_lsn: int, keep_bytes: int) -> None:
        """Forget what is applied, as far as nobody needs it, and beyond the newest so many bytes
        whether or not somebody does."""
        lsn = unneeded_lsn
        if self.size_bytes > keep_bytes:
            fits = bisect_left(self._ends, self._ends[-1] - keep_bytes)
            lsn = max(lsn, self.base.index + fits + 1)
        lsn = min(lsn, self.applied_lsn)
        if lsn <= self.base.index:
            return
        count = lsn - self.base.index
        self._start = self._ends[count - 1]
        self.base = self._entries[count - 1].op_id
        del self._entries[:count], self._ends[:count]

    def _end_of(self, lsn: int) -> int:
        count = lsn - self.base.index
        return self._ends[count - 1] if count else self._start

    def check_invariants(self) -> None:
        """Assert what the module docstring promises."""
        assert self.base.index <= self.applied_lsn <= self.commit_lsn <= self.last.index
        assert len(self._ends) == len(self._entries)
        if self.history is not None:
            assert self.history == cut_history(self.history, self.last.index)
            assert all(entry.term == self.term_at(entry.index) for entry in self._entries[-20:])
