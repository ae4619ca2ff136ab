"""`stelae check` says what the loss of one machine would stop, if it stops anything."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.client.check.facts import (
    ReplicaFacts,
    ServerFacts,
    Severity,
    StatusFacts,
    TabletFacts,
)
from stelae.client.check.nodes import judge_nodes, spread_warnings
from stelae.core.ids import ServerUuid, TabletId


def status(
    masters: str, tservers: str = "", groups: str = "", racks: dict[str, str] | None = None
) -> StatusFacts:
    """Each letter is the node of a master, or of a tserver; groups are places of tservers."""
    in_racks = {node: rack for rack, nodes in (racks or {}).items() for node in nodes}
    servers = [
        ServerFacts(
            *(kind, f"{kind}-{n}", ServerUuid(f"{kind}-{n}"), "live"),
            node=node,
            rack=in_racks.get(node, ""),
        )
        for kind, nodes in (("master", masters), ("tserver", tservers))
        for n, node in enumerate(nodes)
    ]
    tablets = [
        TabletFacts(
            TabletId(f"x{number}"),
            "x",
            number,
            "running",
            1,
            "",
            replicas=tuple(
                ReplicaFacts(f"tserver-{n}", ServerUuid(f"tserver-{n}"), "voter", server_live=True)
                for n in group
            ),
        )
        for number, group in enumerate(groups.split())
    ]
    return StatusFacts("c", 1, tuple(servers), (), tuple(tablets))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (status("abc", "abc", "012"), []),
        (status("aaa", "aaa", "012"), []),
        (status("a", "abc"), []),
        (status("aab"), ["2 of 3 are on a: none leads without it"]),
        (status("aabbc"), []),
        (status("aaabc"), ["3 of 5 are on a: none leads without it"]),
        (
            status("abc", "aabb", "012 123 0"),
            [
                "table 'x': 1 tablets have most of their replicas on a, and stop without it",
                "table 'x': 1 tablets have most of their replicas on b, and stop without it",
            ],
        ),
        (
            status("abc", racks={"r": "a", "s": "bc"}),
            ["2 of 3 are in rack s: none leads without it"],
        ),
        (status("abc", racks={"r": "abc"}), []),
        (status("abc", racks={"s": "bc"}), ["2 of 3 are in rack s: none leads without it"]),
        (status("abb", racks={"r": "a", "s": "bc"}), ["2 of 3 are on b: none leads without it"]),
        (
            status("abc", "abcd", "012 123 013", {"r": "ab", "s": "cd", "c": "x"}),
            [
                "2 of 3 are in rack r: none leads without it",
                "table 'x': 2 tablets have most of their replicas in rack r, and stop without it",
                "table 'x': 1 tablets have most of their replicas in rack s, and stop without it",
            ],
        ),
    ],
)
def test_a_machine_or_a_rack_that_most_of_a_group_is_on_is_named(
    facts: StatusFacts, expected: list[str]
) -> None:
    """As a note: nothing is wrong, and where all is on one machine everybody knows."""
    found = judge_nodes(facts)
    assert [str(finding).partition("\n")[0].split(" (")[0] for finding in found] == expected
    assert all(finding.severity is Severity.NOTE for finding in found)
    assert all("stelae apply" in finding.hint for finding in found)


def document(places: str, masters: int, **tables: str) -> dict[str, Any]:
    """Words like ``ar``: a server on node a in rack r; of those in capitals none lives."""
    servers = [
        {
            "kind": "master" if number < masters else "tserver",
            "state": "dead" if word.isupper() else "live",
            "node": word[0].lower(),
            "rack": word[1:].lower(),
        }
        for number, word in enumerate(places.split())
    ]
    listed = [{"name": name, "durability": durability} for name, durability in tables.items()]
    return {"servers": servers, "tables": listed}


@pytest.mark.parametrize(
    ("status", "has_racks", "expected"),
    [
        (document("a b c", 3, t="replicas(3)"), False, []),
        (document("a b C", 3), False, ["on 2 nodes, too few for the copies of masters (3) to"]),
        (document("a b b", 1, t="replicas(3)"), False, ["of table 't' (3) to be on different no"]),
        (document("a b b", 1, t="wal(3, segments=('disk', 'disk'))"), False, ["table 't' (3)"]),
        (document("a b", 1, t="segments('disk', 'disk', 'disk')"), False, ["table 't' (3)"]),
        (document("a b", 1, t="segments('disk', 'disk')", u="segments()"), False, []),
        (document("ar br cs", 3), False, []),
        (document("ar br cs", 3), True, ["on 2 racks, too few for the copies of masters (3) to"]),
        (document("ar bs c", 3), True, []),
        (document("ar ar bs", 3), True, ["on 2 nodes"]),
        (
            document("ar br cr", 3, t="replicas(5)"),
            True,
            [
                "copies of table 't' (5) to be on different nodes",
                "masters (3) to be on different r",
            ],
        ),
        (
            document("a", 1, **{f"t{n}": "replicas(3)" for n in range(6)}),
            False,
            ["'t0' (3), table 't1' (3), table 't2' (3), table 't3' (3) and 2 more tables to be"],
        ),
        (document("A", 1, t="replicas(3)"), False, []),
    ],
)
def test_a_spread_that_nodes_or_racks_are_too_few_for_is_told(
    status: dict[str, Any], has_racks: bool, expected: list[str]
) -> None:
    """By the servers that live, with the way out. Racks are not named where nodes are too few
    already, and nothing is known while no server lives."""
    found = spread_warnings(status, has_racks=has_racks)
    assert len(found) == len(expected)
    for words, told in zip(expected, found, strict=True):
        assert words in told
        assert told.endswith("and put a server there: `stelae apply`")
