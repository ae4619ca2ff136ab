"""Protections of `coordinator`: owners that are given up, and those that are not."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_OWNERS = ("tests/unit/coordinator/test_failed_owners.py",)

MUTANTS = [
    *mutants_of(
        "coordinator/backoff/complaints.py",
        _OWNERS,
        [
            ("(MISSED_WHILE_SERVED if serves else 1)", "1"),
            ("(MISSED_WHILE_SERVED if serves else 1)", "MISSED_WHILE_SERVED"),
            ("for each in set(unreached))", "for each in unreached)"),
            ("or not self._tservers - {owner}:", "or False:"),
            ("return not wait and not avoid and server not in self._shunned", "return not avoid"),
            ("return not wait and not avoid and server not in self._shunned", "return not wait"),
            ("return not wait and not (avoid and server in self._shunned)", "return not wait"),
            (
                "return not wait and not (avoid and server in self._shunned)",
                "return not (avoid and server in self._shunned)",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/backoff/owners.py",
        _OWNERS,
        [
            (
                "if known is None or known.term != term:\n            known = _Waiting",
                "if known is None:\n            known = _Waiting",
            ),
            ("doubled_s(PATIENCE_S, times, LONGEST_PATIENCE_S)", "PATIENCE_S"),
            (
                "known is not None and known.term == term and self._is_over",
                "known is not None and self._is_over",
            ),
            ("known is not None and known.term == term else", "known is not None else"),
            ("self._waited, self._waiting = self._waiting, {}", "self._waited = self._waiting"),
        ],
    ),
]
