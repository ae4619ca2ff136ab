"""Where segment replicas are put: a table of cases, and how evenly load is spread."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.actors.tserver.segments.placement import (
    USUAL_BYTES_PER_S,
    Candidate,
    Misplaced,
    choose_backup,
    expected_s,
    misplaced,
    next_move,
    next_to_leave,
    usual_rate,
)
from stelae.core.ids import ServerUuid
from stelae.core.places import Place

SEGMENT = 8 << 20


def backup(name: str, node: str = "", **facts: object) -> Candidate:
    """A node like ``r1/n1`` is in rack r1."""
    rack, _, node = node.rpartition("/")
    facts = {"rack": rack, **facts} if rack else facts
    return Candidate(ServerUuid(name), node or f"node of {name}", **facts)  # type: ignore[arg-type]


def place_of(node: str) -> Place:
    rack, _, node = node.rpartition("/")
    return Place(node, rack)


def group(names: str) -> tuple[ServerUuid, ...]:
    return tuple(ServerUuid(name) for name in names)


def chosen(
    candidates: Sequence[Candidate],
    used: str = "",
    nodes: Sequence[str] = (),
    replicas: int = 2,
    groups: Sequence[str] = (),
    home: str = "elsewhere",
) -> set[str]:
    """All that are ever chosen, whatever chance says."""
    found = {
        choose_backup(
            candidates,
            group(used),
            list(map(place_of, nodes)),
            replicas=replicas,
            size_bytes=SEGMENT,
            groups=[group(each) for each in groups],
            home=place_of(home),
            rng=random.Random(seed),
        )
        for seed in range(60)
    }
    return {str(each) for each in found}


PLAIN = [backup(name) for name in "abc"]
CASES: dict[str, tuple[set[str], set[str]]] = {
    "any of those that are there": (chosen(PLAIN), {"a", "b", "c"}),
    "who does not answer most owners comes last": (
        chosen([backup("a", is_shunned=True), backup("b", is_retiring=True)]),
        {"b"},
    ),
    "but before nobody": (chosen([backup("a", is_shunned=True)]), {"a"}),
    "nobody": (chosen([]), {"None"}),
    "the reserve of one only if there is no other": (
        chosen([backup("a", is_low=True), backup("b"), backup("c", has_room=False)]),
        {"b"},
    ),
    "the reserve rather than none": (
        chosen([backup("a", is_low=True), backup("b", has_room=False)]),
        {"a"},
    ),
    "not a full one": (chosen([backup("a"), backup("b", has_room=False)]), {"a"}),
    "all are full": (chosen([backup("a", has_room=False)]), {"None"}),
    "another machine": (
        chosen([backup("b", "one"), backup("c", "two")], "a", ["one"]),
        {"c"},
    ),
    "the same machine, if there is no other": (chosen([backup("b", "one")], "a", ["one"]), {"b"}),
    "not the owner's machine": (chosen(PLAIN, home="node of b"), {"a", "c"}),
    "the owner's machine, if all others are full": (
        chosen([backup("a"), backup("b", has_room=False)], home="node of a"),
        {"a"},
    ),
    "all are on one machine, the owner's": (
        chosen([backup("a", "one"), backup("b", "one")], home="one"),
        {"a", "b"},
    ),
    "rather beside the owner than beside another replica": (
        chosen([backup("b", "one"), backup("c", "two")], "a", ["one"], home="two"),
        {"c"},
    ),
    "beside another replica, if all machines have one": (
        chosen([backup("c", "one"), backup("d", "two")], "ab", ["one", "two"], 3, home="two"),
        {"c"},
    ),
    "another rack rather than another machine": (
        chosen([backup("b", "r1/n2"), backup("c", "r2/n3")], "a", ["r1/n1"]),
        {"c"},
    ),
    "another machine, if all are in one rack": (
        chosen([backup("b", "r1/n1"), backup("c", "r1/n2")], "a", ["r1/n1"]),
        {"c"},
    ),
    "the rack with fewer of them, if all have one": (
        chosen(
            [backup(n, p) for n, p in [("x", "r1/4"), ("y", "r2/5")]],
            "abc",
            ["r1/1", "r1/2", "r2/3"],
            4,
        ),
        {"y"},
    ),
    "a machine without a rack is one": (
        chosen([backup("b", "r1/n2"), backup("c", "n3")], "a", ["r1/n1"]),
        {"c"},
    ),
    "another rack than the owner's": (
        chosen([backup("a", "r1/n1"), backup("b", "r2/n2")], home="r1/n3"),
        {"b"},
    ),
    "beside no replica rather than outside the owner's rack": (
        chosen([backup("b", "r1/n2"), backup("c", "r2/n3")], "a", ["r1/n1"], home="r2/n4"),
        {"c"},
    ),
    "a group of which none is on the owner's machine": (
        chosen([backup(n) for n in "abcd"], groups=["ab", "cd"], home="node of a"),
        {"c", "d"},
    ),
    "a group of which enough are on other machines": (
        chosen([backup(n) for n in "abcde"], groups=["abc", "de"], home="node of a"),
        {"b", "c", "d", "e"},
    ),
    "the group of the first, though the next is on the owner's machine": (
        chosen([backup(n) for n in "acd"], "b", groups=["ab", "cd"], home="node of a"),
        {"a"},
    ),
    "the one with fewer of mine": (chosen([backup("a", mine=3), backup("b", mine=1)]), {"b"}),
    "the one that is faster": (
        chosen([backup("a", bytes_per_s=1e8), backup("b", bytes_per_s=2e8)]),
        {"b"},
    ),
    "fewer on a slow one can take longer": (
        chosen([backup("a", mine=1, bytes_per_s=1e7), backup("b", mine=9, bytes_per_s=1e8)]),
        {"b"},
    ),
    "one that was not measured counts as the others do": (
        chosen([backup("a", mine=1, bytes_per_s=1e8), backup("b", mine=0)]),
        {"b"},
    ),
    "the first of a segment: in some group": (
        chosen([backup(n) for n in "abcde"], groups=["ab", "cd"]),
        {"a", "b", "c", "d"},
    ),
    "the next: in the group of the first": (
        chosen([backup(n) for n in "bcde"], "a", groups=["ab", "cd"]),
        {"b"},
    ),
    "a group that lacks a member: anywhere": (
        chosen([backup(n) for n in "cde"], "a", groups=["ab", "cd"]),
        {"c", "d", "e"},
    ),
    "more replicas than a group has members: anywhere": (
        chosen([backup(n) for n in "abcd"], replicas=3, groups=["ab", "cd"]),
        {"a", "b", "c", "d"},
    ),
    "fewer backups than a group: anywhere": (chosen(PLAIN, groups=[]), {"a", "b", "c"}),
    "a group whose member is full is passed over": (
        chosen(
            [backup("a"), backup("b", has_room=False), backup("c"), backup("d")],
            groups=["ab", "cd"],
        ),
        {"c", "d"},
    ),
    "replicas of two groups: anywhere": (
        chosen([backup(n) for n in "bde"], "ac", replicas=3, groups=["ab", "cd"]),
        {"b", "d", "e"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_choice_of_a_backup(case: str) -> None:
    """Each rule by itself."""
    found, expected = CASES[case]
    assert found == expected


def test_five_draws_spread_segments_nearly_evenly() -> None:
    """Best of five: no backup of a hundred has half as many again as the mean; of one, some do."""
    mine: Counter[str] = Counter()
    rng = random.Random(7)
    names = [f"{number:03d}" for number in range(100)]
    for _ in range(5000):
        candidates = [backup(name, mine=mine[name]) for name in names]
        found = choose_backup(
            candidates, (), (), replicas=1, size_bytes=SEGMENT, groups=(), home=Place(""), rng=rng
        )
        mine[str(found)] += 1
    assert max(mine.values()) < 1.2 * 50
    assert min(mine.values()) > 0.8 * 50
    alone = Counter(rng.choice(names) for _ in range(5000))
    assert max(alone.values()) > 1.2 * 50


def test_a_backup_that_reads_at_a_third_of_the_rate_gets_a_third() -> None:
    """Shares follow what was measured."""
    mine: Counter[str] = Counter()
    rng = random.Random(8)
    for _ in range(3000):
        candidates = [backup(n, mine=mine[n], bytes_per_s=1e8 if n == "a" else 3e8) for n in "abcd"]
        found = choose_backup(
            candidates, (), (), replicas=1, size_bytes=SEGMENT, groups=(), home=Place(""), rng=rng
        )
        mine[str(found)] += 1
    assert mine["a"] == pytest.approx(300, rel=0.1)


def test_what_is_expected_of_a_backup() -> None:
    """(mine + 1) × size ÷ rate; the median of the others where nothing was measured."""
    known = [backup("a", bytes_per_s=1e8), backup("b", bytes_per_s=3e8), backup("c")]
    assert usual_rate(known) == 2e8
    assert usual_rate([backup("a")]) == USUAL_BYTES_PER_S
    assert expected_s(backup("c", mine=3), 1000, 2e8) == 4 * 1000 / 2e8


HOME = "node of h"
MOVES: dict[str, tuple[str, str, Sequence[str], Misplaced | None]] = {
    "all in one group": ("ab", "abcd", ["ab", "cd"], None),
    "one outside": ("ac", "abcd", ["ab", "cd"], Misplaced(ServerUuid("c"), ServerUuid("b"))),
    "no groups": ("ac", "abcd", [], None),
    "no group has enough of them": ("ac", "acd", ["ab"], None),
    "both outside, one after the other": (
        "ef",
        "abef",
        ["ab"],
        Misplaced(ServerUuid("e"), ServerUuid("a")),
    ),
    "rather a group of other machines than one that needs the owner's": (
        "ac",
        "abcdh",
        ["ah", "bd"],
        Misplaced(ServerUuid("a"), ServerUuid("b")),
    ),
    "to the owner's machine, if no other group fits": (
        "ac",
        "ach",
        ["ah"],
        Misplaced(ServerUuid("c"), ServerUuid("h")),
    ),
    "a group of other machines that is large enough without the owner's": (
        "ac",
        "abcdh",
        ["hab", "dh"],
        Misplaced(ServerUuid("c"), ServerUuid("b")),
    ),
    "the group that has most of them": (
        "abe",
        "abcdef",
        ["abc", "def"],
        Misplaced(ServerUuid("e"), ServerUuid("c")),
    ),
}


@pytest.mark.parametrize("case", MOVES)
def test_what_is_moved_into_a_group(case: str) -> None:
    """The next step, or none."""
    holders, live, groups, expected = MOVES[case]
    candidates = [backup(name) for name in live]
    found = misplaced(group(holders), candidates, [group(each) for each in groups], SEGMENT, HOME)
    assert found == expected


def test_moves_end_with_every_segment_in_one_group() -> None:
    """From any places, in as many steps as replicas are outside."""
    groups = [group("abc"), group("def"), group("ghi")]
    candidates = [backup(name) for name in "abcdefghi"]
    rng = random.Random(3)
    for _ in range(200):
        holders = [ServerUuid(name) for name in rng.sample("abcdefghi", 3)]
        for _ in range(4):
            move = misplaced(holders, candidates, groups, SEGMENT, "node of a")
            if move is None:
                break
            assert move.target not in holders
            holders[holders.index(move.source)] = move.target
        assert any(set(holders) == set(each) for each in groups)


def test_no_replica_is_beside_its_owner_or_another_one_where_machines_are_enough() -> None:
    """Whatever the machines are, with or without groups; with too few, all that there are have one,
    and the owner's only if the others have not enough."""
    rng = random.Random(4)
    for _ in range(500):
        machines = [f"m{number}" for number in range(rng.randrange(1, 6))]
        candidates = [backup(name, rng.choice(machines)) for name in "abcdefgh"]
        nodes = {each.uuid: each.node for each in candidates}
        others = {*nodes.values()} - {"m0"}
        used: list[ServerUuid] = []
        for _ in range(3):
            free = [each for each in candidates if each.uuid not in used]
            found = choose_backup(
                free,
                used,
                [Place(nodes[uuid]) for uuid in used],
                replicas=3,
                size_bytes=SEGMENT,
                groups=(),
                home=Place("m0"),
                rng=rng,
            )
            assert found is not None
            used.append(found)
        on = [nodes[uuid] for uuid in used]
        assert len({*on}) == min(3, len({*nodes.values()}))
        assert "m0" not in on or len(others) < 3


class _Log:
    """What placement asks of a log: backups a to f, each on a node of its own, in two groups."""

    def __init__(self, leaving: str = "") -> None:
        infos = [
            SimpleNamespace(uuid=ServerUuid(name), place=Place(f"node of {name}"))
            for name in "abcdef"
        ]
        self.runtime = SimpleNamespace(
            identity=SimpleNamespace(node="home"), rack="", rng=random.Random(1)
        )
        self.settings = SimpleNamespace(segment_bytes=1000)
        self.traffic = SimpleNamespace(upkeep=SimpleNamespace(placed={}))
        self.members = SimpleNamespace(
            backups=lambda medium: infos,
            load_of=lambda uuid, medium: None,
            find=lambda uuid: next(each for each in infos if each.uuid == uuid),
            retiring=frozenset(leaving),
            leaving_backups=frozenset(leaving),
            shunned=frozenset(),
            copysets=(group("abc"), group("def")),
        )


def test_a_move_into_a_group_goes_to_no_target_that_failed_of_late() -> None:
    """The best one is the same each time: the segment would be copied again and again. Where no
    other is left the move waits."""
    log: Any = _Log()
    holders, media = list(group("abd")), ("disk",) * 3
    assert next_move(log, media, holders, ()) == Misplaced(*group("dc"))
    other = next_move(log, media, holders, group("ca"))
    assert other is not None
    assert other.target in group("ef")
    assert next_move(log, media, holders, group("cef")) is None


def test_a_move_off_a_leaving_backup_goes_to_no_target_that_failed_of_late() -> None:
    """Nobody waits for it: the backup that leaves is there until all have moved."""
    log: Any = _Log(leaving="a")
    replicas = [SimpleNamespace(medium="disk", backup=uuid) for uuid in group("abc")]
    for name in "def":
        failed = [uuid for uuid in group("def") if uuid != name]
        assert next_to_leave(log, replicas, failed) == Misplaced(*group("a" + name))
    assert next_to_leave(log, replicas, group("def")) is None
