"""What timelines have promised, whoever writes to them: judged at each election and each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stelae.core.records.replication import Entry


@dataclass
class Election:
    """A proposer has won ``term``; it has all after ``base_lsn``, and all of it is committed."""

    term: int
    proposer: str
    base_lsn: int
    last_lsn: int


@dataclass
class TimelineJudge:
    """Of one timeline."""

    committed: dict[int, bytes] = field(default_factory=dict)
    """All that was ever known to be committed, by LSN."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """LSNs whose writers were told, and in which term."""
    winners: dict[int, str] = field(default_factory=dict)
    elections: list[Election] = field(default_factory=list)
    trimmed_lsn: int = 0
    """The highest horizon that any writer named."""

    def leads(self, term: int, proposer: str) -> None:
        """One leader per term."""
        other = self.winners.setdefault(term, proposer)
        assert other == proposer, f"{proposer} leads term {term}, as {other} did"

    def elected(self, term: int, proposer: str, tail: Sequence[Entry]) -> None:
        """A new leader has all that was acknowledged by those of lower terms."""
        self.leads(term, proposer)
        assert tail, "a leader commits an entry of its own"
        election = Election(term, proposer, tail[0].index - 1, tail[-1].index)
        who = f"{proposer}, elected in {term} with {election.base_lsn + 1} to {election.last_lsn}"
        assert election.base_lsn <= self.trimmed_lsn, f"{who}: nobody trimmed so far"
        for entry in tail:
            self._commit(entry.index, bytes(entry.body), who)
        for lsn, by_term in self.acknowledged.items():
            assert by_term >= term or lsn <= election.last_lsn, f"{who}, lacks {lsn} of {by_term}"
        self.elections.append(election)

    def answered(self, term: int, proposer: str, lsn: int, body: bytes) -> None:
        """A writer is told that its entry counts."""
        who = f"{proposer} in term {term}"
        self._commit(lsn, body, who)
        self.acknowledged.setdefault(lsn, term)
        for election in self.elections:
            missing = election.term > term and lsn > election.last_lsn
            assert not missing, f"{who} answered {lsn} after {election}"

    def found(self, safekeeper: int, entries: Sequence[Entry]) -> None:
        """A safekeeper believes these to be committed."""
        for entry in entries:
            self._commit(entry.index, bytes(entry.body), f"safekeeper {safekeeper}")

    def _commit(self, lsn: int, body: bytes, who: str) -> None:
        known = self.committed.setdefault(lsn, body)
        assert known == body, f"{who}: entry {lsn} is {body!r}, and was committed as {known!r}"
