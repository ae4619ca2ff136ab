"""An operator of safekeepers: what they type in a healthy cluster, and what they have to see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.front.test_cli_operators import run


class Operator:
    """Types commands, and reads the answers."""

    def __init__(self, capsys: pytest.CaptureFixture[str], tablet: str, other: str) -> None:
        self._capsys = capsys
        self.tablet, self.other = tablet, other
        """The first one lies on safekeepers, the other one on backups."""
        self.name_of: dict[int, str] = {}
        self.members: list[int] = []
        self.spare = 0

    def types(self, *arguments: str) -> tuple[int, str]:
        return run(self._capsys, *arguments)

    def document(self, *arguments: str) -> Any:
        code, out = self.types(*arguments, "--json")
        assert code == 0, out
        return json.loads(out)

    def lists(self) -> None:
        """Which safekeepers there are; and those of one log."""
        listed = self.document("safekeeper", "list")["safekeepers"]
        assert [s["id"] for s in listed] == [1, 2, 3, 4]
        assert all(s["live"] and s["status"] == "active" for s in listed)
        self.name_of = {s["id"]: s["name"] for s in listed}
        assert sum(s["timelines"] for s in listed) == 3
        assert "safekeeper-3" in self.types("safekeeper", "list")[1]
        self.members = members = [s["id"] for s in listed if s["timelines"]]
        (self.spare,) = [s["id"] for s in listed if not s["timelines"]]
        shown = self.document("tablet", "safekeepers", self.tablet)
        assert shown["configuration"] == {"generation": 1, "sk_set": members, "new_sk_set": None}
        assert [m["id"] for m in shown["members"]] == members
        assert max(m["flush_lsn"] for m in shown["members"]) >= 1
        assert all(m["term"] >= 1 for m in shown["members"] if m["flush_lsn"])
        code, out = self.types("tablet", "safekeepers", self.tablet)
        assert (code, f"generation 1: safekeepers {members}" in out) == (0, True), out
        assert self.types("tablet", "safekeepers", "0" * 32)[0] == 1
        assert self.types("tablet", "safekeepers", self.other)[0] == 2

    def moves(self) -> Any:
        """To the one that is spare; what the status then says. Returns the new configuration."""
        desired = sorted([*self.members[1:], self.spare])
        to = ",".join(map(str, desired))
        code, out = self.types("safekeeper", "migrate", "--tablet", self.tablet, "--to", to)
        assert (code, f"is on safekeepers {desired}" in out) == (0, True), out
        moved = self.document("tablet", "safekeepers", self.tablet)
        assert moved["configuration"] == {"generation": 3, "sk_set": desired, "new_sk_set": None}
        assert all(m["flush_lsn"] >= 1 and m["generation"] == 3 for m in moved["members"])
        status = self.document("safekeeper", "status")
        assert status["problems"] == []
        assert len(status["safekeepers"]) == 4
        assert status["migrations"]["ended"][-1]["verdict"] == "done"
        one = self.document("safekeeper", "status", self.name_of[self.spare])
        assert [t["timeline_id"] for t in one["timelines"]] == [self.tablet]
        assert self.document("safekeeper", "status", str(self.members[0]))["timelines"] == []
        out = self.types("safekeeper", "status", str(self.spare))[1]
        assert "its logs" in out
        assert f"move to {desired}" in out
        return moved["configuration"]

    def asks_for_what_cannot_be(self) -> None:
        wanted = ",".join(map(str, self.members))
        for wrong in ("9,8,7", "1,2", f"1,1,{self.spare}", "1,2,nobody", "1,2,3,4"):
            code, out = self.types("safekeeper", "migrate", "--table", "w", "--to", wrong)
            assert code == 2, (wrong, out)
        assert self.types("safekeeper", "migrate", "--table", "s", "--to", wanted)[0] == 2
        assert self.types("safekeeper", "migrate", "--table", "none", "--to", wanted)[0] == 1
        for command in ("status", "scrub"):
            assert self.types("safekeeper", command, "99")[0] == 2
            assert self.types("safekeeper", command, "nobody")[0] == 2
        assert self.types("safekeeper", "set-status", "99", "active")[0] == 2

    def aborts_and_scrubs(self) -> None:
        """Where there is nothing to take back, and nothing to remove."""
        code, out = self.types("safekeeper", "abort", self.tablet)
        said = "stays where it is: there is nothing to take back"
        assert (code, said in out) == (0, True), out
        assert self.types("safekeeper", "abort", "0" * 32)[0] == 1
        assert self.types("safekeeper", "abort", self.other)[0] == 2
        scrubbed = self.document("safekeeper", "scrub", self.name_of[self.members[0]])
        assert (scrubbed["removed"], scrubbed["problems"]) == ([], {})
        shown = self.types("safekeeper", "scrub", str(self.members[0]))[1]
        assert "logs; 0 were removed" in shown


def story(operator: Operator) -> None:
    """A healthy cluster, as operators of safekeepers see it."""
    operator.lists()
    moved = operator.moves()
    assert operator.types("safekeeper", "set-status", str(operator.spare), "offline")[0] == 0
    active = operator.document("safekeeper", "set-status", operator.name_of[1], "active")
    assert active["status"] == "active"
    operator.asks_for_what_cannot_be()
    still = operator.document("tablet", "safekeepers", operator.tablet)["configuration"]
    assert still == moved, "what was refused changed nothing"
    operator.aborts_and_scrubs()
