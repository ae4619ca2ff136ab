"""Protections of a launch whose HTTP follows, and of `connect` to a cluster that has ended."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_START = ("tests/unit/stelae/test_http_start.py",)
_CONNECT = ("tests/unit/stelae/test_connect.py",)

MUTANTS = [
    *mutants_of(
        "stelae/applying/http_start.py",
        _START,
        [
            (
                "            with _alone:\n                self._check_wanted()\n"
                "                front = self._starting.start()\n",
                "            self._check_wanted()\n            front = self._starting.start()\n",
            ),
            ("            if is_held:\n", "            if False:\n"),
            (
                "            with _alone:\n                self._check_wanted()\n"
                "                assert self._database",
                "            with _alone:\n                assert self._database",
            ),
            ("is_down=self._is_cancelled)", "is_down=False)"),
            ("        if not is_down:\n", "        if True:\n"),
            ("if front.url and drop_revoked(database, state.data_dir):", "if False:"),
            ("started_serve=front.started_serve, http_starts=False\n", "http_starts=True\n"),
        ],
    ),
    *mutants_of(
        "stelae/applying/front.py",
        _START,
        [
            ("    while refreshed().http_starts:\n", "    while False:\n"),
            (
                "            cluster_state.change(home, lambda state: replace(state, http_starts",
                ("            (lambda *_: None)(home, lambda state: replace(state, http_starts"),
            ),
        ],
    ),
    *mutants_of(
        "stelae/deploy/launcher.py",
        _CONNECT,
        [
            ("        if lock_holder(state.folder):\n            return\n", "        pass\n"),
            ("    if all(_is_refused(place) for place in places):\n", "    if False:\n"),
            (
                "    if all(_is_refused(place) for place in places):\n",
                "    if any(map(_is_refused, places)):\n",
            ),
        ],
    ),
]
