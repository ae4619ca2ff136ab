"""A log as the model of timelines sees it: the term of each entry, kept as where each term starts.

Values, as `spec/Timeline.tla` has them; a log of a million entries takes as many pairs as it has
terms.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from stelae.core.records.timelines import LogPosition


@dataclass(frozen=True, slots=True)
class TermLog:
    """``starts`` are (first LSN, term), ascending in both; ``end`` is the last LSN."""

    starts: tuple[tuple[int, int], ...] = ()
    end: int = 0

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.starts[-1][1] if self.starts else 0, self.end)

    def term_at(self, lsn: int) -> int:
        """The term of the entry ``lsn``, which is one of this log."""
        assert 1 <= lsn <= self.end
        return self.starts[bisect_right(self.starts, lsn, key=lambda start: start[0]) - 1][1]

    def cut(self, end: int) -> TermLog:
        """Without the entries after ``end``."""
        assert end <= self.end
        return TermLog(tuple(start for start in self.starts if start[0] <= end), end)

    def extended(self, term: int, end: int) -> TermLog:
        """With entries of ``term`` up to ``end``."""
        assert end > self.end
        same = self.position.last_log_term == term
        return TermLog(self.starts if same else (*self.starts, (self.end + 1, term)), end)

    def common_length(self, other: TermLog) -> int:
        """How many entries both logs begin with in common: the model's CommonLength."""
        common = 0
        for mine, theirs in zip(self.starts, other.starts, strict=False):
            if mine != theirs:
                break
            common += 1
        if common == 0:
            return 0
        ends = [
            log.starts[common][0] - 1 if common < len(log.starts) else log.end
            for log in (self, other)
        ]
        return min(ends)
