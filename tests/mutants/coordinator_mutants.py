"""Protections of `coordinator`, and of who is avoided: owners and backups that are given up."""

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
    *mutants_of(
        "coordinator/decide.py",
        (*_OWNERS, "tests/unit/coordinator/test_decide.py"),
        [
            (
                "            if tablet.may_be_served:  # it answers by its lease, until it has closed it\n",
                "            if False:\n",
            ),
            (
                "if tablet.state is TabletState.CREATING or not report.unreached:",
                "if not report.unreached:",
            ),
            (
                "            avoid[owner] = math.inf  # the last of all: its pause begins with the entry of this move\n",
                "            pass\n",
            ),
            (
                "elif reason := self._pacing.owners.given_up(tablet.tablet_id, tablet.term):",
                'elif reason := "":',
            ),
            (
                "if self._pacing.owners.is_untold(tablet.tablet_id, tablet.term, self._now):",
                "if False:",
            ),
            ("if self._pacing.owners.may_move(tablet.tablet_id, self._now):", "if True:"),
        ],
    ),
    *mutants_of(
        "coordinator/liveness/shunned_backups.py",
        ("tests/unit/coordinator/placement/test_shunned_backups.py",),
        [
            ("if 2 * len(who) > len(tservers)", "if 2 * len(who) >= len(tservers)"),
            (
                "if uuid in self._shunned_at or now >= since + after_s:",
                "if now >= since + after_s:",
            ),
            ("if uuid in self._shunned_at or now >= since + after_s:", "if True:"),
            ("if now < last + after_s}", "if now <= last}"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/avoided.py",
        ("tests/unit/actors/tserver/segments/test_avoided.py",),
        [
            (
                "        if now >= known.until:  # several segments learn of one failure\n",
                "        if True:\n",
            ),
            ("if each.count > 1 and each.until > old]", "if each.until > old]"),
            ("if each.count > 1 and each.until > old]", "if each.count > 1]"),
            (
                "        self._known = {uuid: each for uuid, each in self._known.items() if each.until > old}\n",
                "",
            ),
        ],
    ),
]
