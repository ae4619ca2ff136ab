"""`stelae check` says what the loss of one machine would stop, if it stops anything."""

from __future__ import annotations

import pytest

from stelae.client.check.facts import (
    ReplicaFacts,
    ServerFacts,
    Severity,
    StatusFacts,
    TabletFacts,
)
from stelae.client.check.nodes import judge_nodes
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
