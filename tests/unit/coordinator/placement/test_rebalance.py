"""`stelae.coordinator.placement.rebalance`: single steps, and where all steps lead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.placement.rebalance import (
    Placed,
    may_move,
    next_move,
    next_separation,
    next_transfer,
)
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove

S = ServerUuid


def placed(*words: str) -> list[Placed]:
    """Of words like ``t:abc7``: a tablet of table t on a, b, c, led by the first, of 7 bytes."""
    found = []
    for number, word in enumerate(words):
        members = [c for c in word[2:] if c.isalpha()]
        size_bytes = int(word[2 + len(members) :] or 0)
        found.append(
            Placed(
                TabletId(str(number)),
                TableId(word[0]),
                tuple(S(c) for c in members),
                S(members[0]),
                size_bytes,
            )
        )
    return found


def on_nodes(*words: str) -> dict[ServerUuid, Place]:
    """Of words like ``a1``: server a on node 1; ``a1r``: and in rack r."""
    return {S(word[0]): Place(word[1], word[2:]) for word in words}


FOUR = on_nodes("a1", "b2", "c3", "d4")


def test_an_empty_server_gets_followers_of_the_most_uneven_table() -> None:
    """Before leaders, which would have to hand over first."""
    tablets = placed("t:abc", "t:bac", "t:cab", "u:abc")
    found = next_move(tablets, FOUR)
    assert found is not None
    tablet_id, move = found
    assert tablet_id != "3"
    assert move.target == "d"
    assert move.source != tablets[int(tablet_id)].leader


def test_an_even_cluster_is_left_alone() -> None:
    """Differences of one cannot be helped."""
    assert next_move(placed("t:abc", "t:bcd"), FOUR) is None
    assert next_move([], FOUR) is None
    assert next_transfer(placed("t:abc", "t:bcd"), FOUR) is None


def test_tables_that_are_even_are_moved_for_the_cluster_if_they_stay_even() -> None:
    """Three tables of one tablet each: the fourth server gets one of them."""
    found = next_move(placed("t:abc", "u:abc", "v:abc"), FOUR)
    assert found is not None
    assert found[1].target == "d"


def test_replicas_do_not_come_together_on_one_node() -> None:
    """Unless they are together already."""
    nodes = on_nodes("a1", "b2", "c3", "d3")
    tablets = placed("t:abc", "t:abc", "t:abc")
    found = next_move(tablets, nodes)
    assert found is not None
    assert found[1] == ReplicaMove(S("c"), S("d"))


def test_replicas_do_not_come_together_in_one_rack() -> None:
    """Nor from one rack onto one node; within a rack they may move."""
    nodes = on_nodes("a1r", "b2s", "c3t", "d4r", "e5t", "f1r")
    (tablet,) = placed("t:abc")
    allowed = [
        (source, target)
        for source in "abc"
        for target in "def"
        if may_move(tablet, S(source), S(target), nodes)
    ]
    assert allowed == [("a", "d"), ("a", "f"), ("c", "e")]


@pytest.mark.parametrize(
    ("tablets", "nodes", "rooms", "step"),
    [
        ("t:abc", "a1r b2s c3t", {}, None),
        ("t:ab", "a1r b2r c3r", {}, None),
        ("t:ab", "a1r b2r c3s", {}, "b>c"),
        ("t:ab", "a1 b1 c2", {}, "b>c"),
        ("t:ab", "a1r b2r c3s", {"c": 10}, "b>c"),
        ("t:abc", "a1r b1r c2r d3r e4s", {}, "b>e"),
        ("t:abc", "a1r b2r c3s d4s", {}, None),
        ("t:abc u:ab", "a1r b2r c3s d4s", {}, "b>c"),
        ("t:ab u:ab", "a1r b1r c2r", {}, "b>c"),
    ],
)
def test_replicas_that_share_a_node_or_a_rack_are_separated(
    tablets: str, nodes: str, rooms: dict[str, int], step: str | None
) -> None:
    """To where they share least, followers first."""
    found = next_separation(
        placed(*tablets.split()),
        on_nodes(*nodes.split()),
        {S(name): size_bytes for name, size_bytes in rooms.items()},
    )
    assert (None if found is None else f"{found[1].source}>{found[1].target}") == step


def test_no_replica_is_separated_onto_a_server_that_may_not_take_it() -> None:
    """As one where it failed and is paused."""
    nodes = on_nodes("a1r", "b2r", "c3s", "d4s")
    found = next_separation(
        placed("t:ab"), nodes, {}, may_take=lambda tablet, target: target != "c"
    )
    assert found is not None
    assert found[1].target == "d"


def test_servers_that_may_hold_nothing_new_are_no_targets() -> None:
    """Nor sources: whoever retires them does that."""
    tablets = placed("t:abc", "t:abc", "t:abc")
    assert next_move(tablets, on_nodes("a1", "b2", "c3")) is None
    found = next_move(tablets, on_nodes("a1", "b2", "d4"))
    assert found is not None
    assert found[1].source in ("a", "b")


def test_leaders_are_spread_over_the_voters() -> None:
    """From the server with most leaders of the table to one with least."""
    assert next_transfer(placed("t:abc", "t:acb", "t:abc"), FOUR) == ("0", "b")


TWO = on_nodes("a1", "b2")
SIZES: list[tuple[str, dict[str, int], str, str]] = [
    # the tablets, what servers may hold, the move (tablet, from, to), why
    ("t:a9 t:b1", {}, "", "an exchange of two that are all there is helps nobody"),
    ("t:a9 t:a5 t:b1 t:b1", {}, "0ab", "a big one goes where a small one can come back"),
    ("t:a9 t:a9 t:b1 t:b1", {}, "0ab", "of each kind one"),
    ("t:a9 u:b1", {}, "", "counts of tables are kept: nothing of this one can come back"),
    ("t:a9 t:a5 t:b1", {}, "1ab", "the one more of the table, and of all, changes sides"),
    ("t:a9 t:a3 t:a2 t:b1", {}, "0ab", "counts first; of equal steps the one that evens sizes"),
    ("t:a9 t:a8 t:b8 t:b8", {}, "", "a tenth is even enough"),
    ("t:a0 t:a0 t:b0 t:b0", {}, "", "nothing weighs nothing"),
    ("t:a9 t:a9 t:b9 t:b9", {"a": 10, "b": 40}, "", "an exchange of equals helps nobody"),
    ("t:a9 t:a9 t:b1 t:b1", {"a": 90, "b": 10}, "", "a bigger server may have more"),
    ("t:a5 t:a5 t:b3 t:b3", {"a": 10, "b": 40}, "0ab", "a smaller one is full sooner"),
    ("t:a5 t:a5 t:b3 t:b3", {"a": 10, "b": 0}, "0ab", "what is not known of all counts for none"),
]


@pytest.mark.parametrize(("tablets", "rooms", "move", "why"), SIZES, ids=[c[3] for c in SIZES])
def test_sizes_are_made_even_where_counts_stay_so(
    tablets: str, rooms: dict[str, int], move: str, why: str
) -> None:
    """The table of cases above is what rebalancing by size does, on two servers."""
    found = next_move(placed(*tablets.split()), TWO, {S(name): r for name, r in rooms.items()})
    assert ("" if found is None else found[0] + found[1].source + found[1].target) == move, why


def test_an_exchange_is_two_moves_and_then_there_is_rest() -> None:
    """What comes back is no longer what went: the first step is not undone by the second."""
    tablets = placed("t:a9", "t:a5", "t:b1", "t:b1")
    done = []
    for _ in range(2):
        found = next_move(tablets, TWO)
        assert found is not None
        number, to = int(found[0]), found[1].target
        done.append(f"{number}{to}")
        tablets[number] = replace(tablets[number], members=(to,), leader=to)
    assert done == ["0b", "2a"]
    assert next_move(tablets, TWO) is None


def test_leaders_of_big_tablets_are_spread_before_those_of_small_ones() -> None:
    """Of leaderships that could be handed over, all equally good by number."""
    assert next_transfer(placed("t:ab1", "t:ab7", "t:ab2"), TWO) == ("1", "b")


CLUSTERS = st.lists(
    st.tuples(
        st.sampled_from("tuv"),
        st.permutations("abcde").map(lambda p: "".join(p[:3])),
        st.sampled_from([0, 1, 2, 7, 50]),
    ),
    max_size=12,
).map(lambda found: placed(*(f"{table}:{members}{size}" for table, members, size in found)))
ROOMS = st.sampled_from([{}, dict(zip("abcde", (10, 10, 20, 40, 80), strict=True))])
NODES = st.sampled_from(
    [
        on_nodes("a1", "b2", "c3", "d4", "e5"),
        on_nodes("a1", "b1", "c2", "d2", "e3"),
        on_nodes("a1", "b2", "c3", "d4"),
        on_nodes("a1r", "b2r", "c3r", "d4s", "e5s"),
        on_nodes("a1r", "b2r", "c3s", "d4t", "e4t"),
    ]
)


def spread(tablets: list[Placed], nodes: dict[ServerUuid, Place]) -> int:
    """The difference between the fullest and the emptiest server."""
    counts = [sum(s in tablet.members for tablet in tablets) for s in nodes]
    return max(counts) - min(counts)


def units(members: tuple[ServerUuid, ...], nodes: dict[ServerUuid, Place]) -> tuple[int, int]:
    """On how many nodes, and in how many racks, servers are; one that is unknown is alone."""
    places = [nodes.get(member, Place(f"? {member}")) for member in members]
    racks, found = (len({place.units[n] for place in places}) for n in (0, 1))
    return found, racks


@given(CLUSTERS, NODES, ROOMS)
def test_all_steps_come_to_an_end_at_an_even_cluster(
    tablets: list[Placed], nodes: dict[ServerUuid, Place], rooms: dict[ServerUuid, int]
) -> None:
    """Every tablet keeps as many replicas, on as many nodes and in as many racks, and at the end
    they are in as many as there are; leaders as well."""
    for _ in range(400):
        found = next_separation(tablets, nodes, {}) or next_move(tablets, nodes, rooms)
        if found is None:
            break
        tablet_id, move = found
        old = tablets[int(tablet_id)]
        members = tuple(move.target if m == move.source else m for m in old.members)
        assert len(set(members)) == 3
        assert units(members, nodes) >= units(old.members, nodes)
        leader = members[0] if old.leader == move.source else old.leader
        tablets[int(tablet_id)] = replace(old, members=members, leader=leader)
    else:
        raise AssertionError("replicas are moved for ever")
    if len(nodes) == 5:
        racks = len({place.units[0] for place in nodes.values()})
        nodes_count = len({place.node for place in nodes.values()})
        for tablet in tablets:
            assert units(tablet.members, nodes) == (min(3, nodes_count), min(3, racks))
    if len({place.units[0] for place in nodes.values()}) == 5:
        for table in "tuv":
            assert spread([t for t in tablets if t.table_id == table], nodes) <= 1
    for _ in range(200):
        step = next_transfer(tablets, nodes)
        if step is None:
            return
        tablet_id, target = step
        assert target in tablets[int(tablet_id)].members
        tablets[int(tablet_id)] = replace(tablets[int(tablet_id)], leader=target)
    raise AssertionError("leaders are moved for ever")
