"""Protections of `consensus/wal`: acceptor, proposer, sessions."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/consensus/wal"
_GOLDEN = "tests/golden/test_wal_conversations.py"
_ACCEPTOR = (f"{_UNIT}/test_wal_acceptor.py", f"{_UNIT}/test_wal_lives.py", _GOLDEN)
_PROPOSER = (f"{_UNIT}/test_wal_proposer.py", f"{_UNIT}/test_wal_lives.py", _GOLDEN)

MUTANTS = [
    *mutants_of(
        "consensus/wal/acceptor.py",
        _ACCEPTOR,
        [
            ("if message.generation != self.generation:", "if False:"),
            ("        elif not self.is_member:", "        elif False:"),
            ("        elif message.term < self.term:", "        elif False:"),
            (
                "if not again and request.term <= self.term:",
                "if not again and request.term < self.term:",
            ),
            ("        self.voted_for = request.proposer\n", "        pass\n"),
            (
                "if elected.term == self.term and self.proposer not in (NOBODY, elected.proposer):",
                "if False:",
            ),
            ("if common_lsn is None or common_lsn < self.commit_lsn:", "if common_lsn is None:"),
            (
                "if session.elected_term != request.term or request.previous != self.last:",
                "if session.elected_term != request.term:",
            ),
            (
                "if session.elected_term != request.term or request.previous != self.last:",
                "if request.previous != self.last:",
            ),
            (
                "max(self.commit_lsn, min(request.commit_lsn, self.last_lsn))",
                "max(self.commit_lsn, request.commit_lsn)",
            ),
            ("        if call.generation < self.generation:\n", "        if False:\n"),
            ("        if configuration.generation > self.generation:\n", "        if True:\n"),
            (
                "if configuration.generation == ours.generation and configuration != ours:",
                "if False:",
            ),
            (
                "excluded = newer and self.safekeeper not in call.configuration.members",
                "excluded = newer",
            ),
            (
                "excluded = newer and self.safekeeper not in call.configuration.members",
                "excluded = self.safekeeper not in call.configuration.members",
            ),
            ("        if self.is_excluded:\n            return\n", ""),
            (
                "if call.term == self.term and call.generation == self.generation:",
                "if call.generation == self.generation:",
            ),
            (
                "last_lsn = min(call.last_lsn, self.commit_lsn, self._durable_lsn)",
                "last_lsn = min(call.last_lsn, self._durable_lsn)",
            ),
            (
                "        if self.last_lsn < state.commit_lsn or log.base_lsn > horizon_lsn:\n",
                "        if log.base_lsn > horizon_lsn:\n",
            ),
            (
                "            or self.voted_for != durable.voted_for\n",
                "",
                "a vote is given only in a term that is new here, so the term has changed as well",
            ),
            ("            or self.term != durable.term\n", ""),
            (
                "commit_lsn = min(self.commit_lsn, self._durable_lsn)",
                "commit_lsn = self.commit_lsn",
            ),
            (
                "replace(source, configuration=higher, voted_for=NOBODY)",
                "replace(source, configuration=higher)",
            ),
        ],
    ),
    *mutants_of(
        "consensus/wal/sessions.py",
        _ACCEPTOR,
        [
            ("is_new = known is None or greeting.session > known.number", "is_new = True"),
            (
                "if is_next or (has_room and len(self.waiting) < WAITING_MAX):",
                "if is_next or has_room:",
            ),
            (
                "if is_next or (has_room and len(self.waiting) < WAITING_MAX):",
                "if is_next or len(self.waiting) < WAITING_MAX:",
            ),
            ("        if len(self._sessions) > PROPOSERS_MAX:", "        if False:"),
            (
                "if sequence < self.next_sequence or sequence in self.waiting:",
                "if sequence in self.waiting:",
            ),
        ],
    ),
    *mutants_of(
        "consensus/wal/proposer.py",
        _PROPOSER,
        [
            ("if not self.configuration.agreed(self._votes):", "if not self._votes:"),
            (
                "            if self._highest.agreed(self._greeted):",
                "            if self._greeted:",
            ),
            (
                "if self.phase is Phase.VOTING and vote.term == self.term:",
                "if self.phase is Phase.VOTING:",
            ),
            ("if self.leader is None or response.term != self.term:", "if self.leader is None:"),
            (
                "if link is None or link.session != message.session or self.phase is Phase.ENDED:",
                "if link is None or self.phase is Phase.ENDED:",
            ),
            ("        elif term > self.term:\n", "        elif False:\n"),
            ("if reply.horizon_lsn > self.log.last.index:", "if False:"),
            (
                "if not reply.entries or not is_expected or last_lsn > vote.flush_lsn:",
                "if not reply.entries or last_lsn > vote.flush_lsn:",
            ),
            (
                "if entries and is_expected and entries[-1].index <= self.log.last.index:",
                "if entries:",
            ),
            (
                "if self.log.uncommitted_bytes + len(body) > limit and self.log.uncommitted_bytes:",
                "if False:",
            ),
            (
                "max(self.horizon_lsn, min(horizon_lsn, self.log.commit_lsn))",
                "max(self.horizon_lsn, horizon_lsn)",
            ),
            (
                "key=lambda member: (self._votes[member].position, -member)",
                "key=lambda member: -member",
            ),
        ],
    ),
    *mutants_of(
        "consensus/wal/leader.py",
        _PROPOSER,
        [
            (
                "return lsn >= self.start_lsn and lsn > self._log.commit_lsn",
                "return lsn > self._log.commit_lsn",
            ),
            ("        if flush_lsn > self._log.last.index:\n", "        if False:\n"),
            (
                "        if self.is_settled:\n            self._pend",
                "        if True:\n            self._pend",
            ),
            (
                "(self._round + 1, request, self._log.commit_lsn)",
                "(0, request, self._log.commit_lsn)",
            ),
            (
                "and other.horizon_lsn < first_lsn <= self.acked.get(other.safekeeper, 0)",
                "and True",
            ),
            ("if len(self._early_reads) + len(self._pending_reads) >= limit:", "if False:"),
        ],
    ),
    *mutants_of(
        "consensus/wal/campaign.py",
        _PROPOSER,
        [
            ("    if common_lsn < log.commit_lsn:", "    if False:"),
            ("    if vote.horizon_lsn > common_lsn:", "    if False:"),
            ("has_base = vote.flush_lsn >= log.base.index", "has_base = True"),
        ],
    ),
]
