"""`stelae.coordinator.placement.leader_loads` and `spreading`: what moves by load, case by case,
and rest."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.groups.health import Unwell
from stelae.coordinator.groups.spreading import Layout, Step, next_step
from stelae.coordinator.placement.assignment import NO_LIMIT
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.coordinator.placement.leader_loads import COOL_S, LEAST_PER_S, Cooling, leaders_load
from stelae.coordinator.placement.rebalance import Placed
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import LOAD_UNKNOWN
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove

S = ServerUuid


def placed(*words: str) -> tuple[Placed, ...]:
    """Of words like ``t:abc700``: a tablet of table t on a, b, c, led by a, with 700 calls a
    second; ``?``: nobody knows how many."""
    found = []
    for number, word in enumerate(words):
        members = [c for c in word[2:] if c.isalpha()]
        said = word[2 + len(members) :]
        load = LOAD_UNKNOWN if said == "?" else float(said or 0)
        found.append(
            Placed(
                TabletId(str(number)),
                TableId(word[0]),
                tuple(map(S, members)),
                S(members[0]),
                0,
                load,
            )
        )
    return tuple(found)


def step_of(given: Layout, cooling: Cooling, now: float) -> Step | None:
    """Where no step has failed."""
    none = KnownFailures(lambda tablet: {})
    return next_step(given, cooling, now, none, none)


def layout(*words: str, servers: str = "abc", beside: dict[str, float] | None = None) -> Layout:
    return Layout(
        placed(*words),
        {},
        {S(name): Place(name) for name in servers},
        {},
        {S(name): load for name, load in (beside or {}).items()},
        {S(name): NO_LIMIT for name in servers},
    )


def told(step: Step | None) -> str:
    """Like ``0>b``: b is to lead tablet 0; ``0:a>d``: its replica goes from a to d."""
    if step is None:
        return ""
    tablet_id, what = step
    if isinstance(what, ReplicaMove):
        return f"{tablet_id}:{what.source}>{what.target}"
    return f"{tablet_id}>{what}"


CASES: list[tuple[str, Layout, str]] = [
    ("two busy tablets part", layout("t:abc900", "u:abc900", "v:bca", "w:cab"), "0>b"),
    ("nobody can take one that is busy alone", layout("t:abc900", "u:bca", "v:cab"), ""),
    ("small differences are none", layout("t:abc110", "u:bca100", "v:cab90"), ""),
    ("idle tablets go by counts", layout("t:abc", "t:acb", "t:abc"), "0>b"),
    ("hardly any load goes by counts", layout("t:abc9", "t:acb", "t:abc"), "0>b"),
    ("evenly many, unevenly busy",
     layout("t:abc800", "u:abc300", "v:bca10", "w:bca10", "x:cab10", "y:cab10"), "1>b"),
    ("the best is what leaves the hotter one coolest",
     layout("t:abc500", "u:abc400", "v:abc300", "w:bca", "x:cab"), "0>b"),
    ("counts do not undo it", layout("t:abc900", "t:bca300", "t:bac300", "t:bac300",
                                       "t:cab450", "t:cab450"), ""),
    ("counts wait for what is known", layout("t:abc?", "t:acb", "t:abc"), ""),
    ("load waits for what is known", layout("t:abc900", "u:abc900", "v:bca?"), ""),
    ("tablets with segments are load too",
     layout("t:abc300", "u:bca300", "v:cab300", "w:abc300", beside={"b": 900}), "1>c"),
    ("which stays where it is", layout("t:abc300", "v:cab300", beside={"b": 900}), ""),
    ("a server that gets nothing new gets no leader",
     layout("t:abc900", "u:abc900", "v:abc", servers="ac"), "0>c"),
    ("where no voter is cooler, a replica goes first, a follower's",
     layout("t:abc600", "t:bca600", "t:cab600", "t:abc600", "t:bca600", "t:dab", "u:dbc", "v:d",
            "w:d", "x:d", servers="abcd"), "0:b>d"),
    ("but not where counts would be made uneven",
     layout("t:ab300", "t:ab300", "t:ba300", "t:ba300", "t:cd", "t:cd", "t:dc", "t:dc",
            servers="abcd"), ""),
]  # fmt: skip


@pytest.mark.parametrize(("why", "given_", "step"), CASES, ids=[c[0] for c in CASES])
def test_what_moves_is_as_in_the_table(why: str, given_: Layout, step: str) -> None:
    """One step of each case above."""
    assert told(step_of(given_, Cooling(), 0.0)) == step, why


def test_what_was_moved_for_its_load_stays_for_a_while() -> None:
    """However the load swings: after that it may move again."""
    cooling = Cooling()
    before = layout("t:abc900", "u:abc900", "v:bca", "w:cab")
    assert told(step_of(before, cooling, 0.0)) == "0>b"
    swung = layout("t:bac900", "u:abc", "v:bca900", "w:cab")
    assert told(step_of(swung, cooling, 60.0)) == "2>a", "another one of the hot server"
    both = layout("t:bac900", "u:abc", "v:cba100", "w:cab", "x:bac300")
    assert told(step_of(both, cooling, COOL_S - 1)) == "4>a"
    assert told(step_of(both, Cooling(), COOL_S - 1)) == "0>a"


def test_a_step_for_counts_heats_nobody() -> None:
    """Its target keeps well below what would have it give away something for its load."""
    tablets = placed("t:abc400", "t:abc400", "t:bca800", "t:cab700")
    known = leaders_load(tablets, {S(c): Place(c) for c in "abc"}, {})
    assert known is not None
    assert not known.hot()
    assert not known.may_take(tablets[0], S("b"))
    assert known.may_take(replace(tablets[0], load_per_s=0.0), S("b"))


LOADS = st.sampled_from([0, 1, 30, 60, 100, 500, 501, 3000])
CLUSTERS = st.lists(
    st.tuples(st.sampled_from("tuv"), st.permutations("abcd").map(lambda p: "".join(p[:3])), LOADS),
    max_size=14,
).map(lambda found: [f"{table}:{members}{load}" for table, members, load in found])


def carry_out(now: Layout, step: Step) -> Layout:
    tablet_id, what = step
    tablets = list(now.tablets)
    old = tablets[int(tablet_id)]
    if isinstance(what, ReplicaMove):
        assert what.target in now.nodes
        assert what.target not in old.members
        members = tuple(what.target if m == what.source else m for m in old.members)
        leader = members[0] if old.leader == what.source else old.leader
        new = replace(old, members=members, leader=leader)
    else:
        assert what in old.members
        assert what != old.leader
        new = replace(old, leader=what)
    tablets[int(tablet_id)] = new
    return replace(now, tablets=tuple(tablets))


def heat(now: Layout) -> float:
    """The load of the hottest server."""
    known = leaders_load(now.tablets, now.nodes, now.beside)
    assert known is not None
    return max(known.load.values())


@given(CLUSTERS)
def test_under_a_steady_load_all_steps_come_to_an_end(words: list[str]) -> None:
    """Also if nothing is left to cool: no rule undoes what another did; and no server is left too
    hot that a voter could help."""
    now = layout(*words, servers="abcd")
    for _ in range(200):
        step = step_of(now, Cooling(), 0.0)
        if step is None:
            break
        now = carry_out(now, step)
    else:
        raise AssertionError("something is moved for ever")
    known = leaders_load(now.tablets, now.nodes, now.beside)
    assert known is not None
    assert known.next_transfer({}) is None


@given(CLUSTERS, st.integers(0, 1000))
def test_a_load_that_trembles_moves_nothing(words: list[str], seed: int) -> None:
    """By a twentieth up and down, once all is at rest."""
    now = layout(*words, servers="abcd")
    for _ in range(200):
        step = step_of(now, Cooling(), 0.0)
        if step is None:
            break
        now = carry_out(now, step)
    rng, cooling, moved = random.Random(seed), Cooling(), 0
    for minute in range(30):
        shaken = tuple(
            replace(t, load_per_s=t.load_per_s * rng.uniform(0.95, 1.05)) for t in now.tablets
        )
        step = step_of(replace(now, tablets=shaken), cooling, 60.0 * minute)
        if step is not None:
            moved += 1
            now = carry_out(now, step)
    assert moved <= 2 * len(now.tablets), "each tablet at most once, and again for its count"


def test_hand_overs_make_the_hottest_server_cooler() -> None:
    """Eight tablets led by one server, of which a few are busy: it ends with a fair share."""
    now = layout(*[f"{t}:abc{100 * n}" for n, t in enumerate("tuvwxyzq", start=1)])
    first = heat(now)
    steps = 0
    while (step := step_of(now, Cooling(), 0.0)) is not None:
        now, steps = carry_out(now, step), steps + 1
    assert first == 3600
    assert heat(now) <= 1200 * 1.25 + LEAST_PER_S
    assert steps <= 12


def test_calm_is_waited_for_and_begins_anew_with_each_step() -> None:
    """Operators may say never; something to heal ends it."""
    calm = Unwell().calm
    assert [calm.is_over(now, 10.0, is_calm=True) for now in (0.0, 9.0, 10.0, 19.0, 20.0)] == [
        False, False, True, False, True,
    ]  # fmt: skip
    assert not calm.is_over(30.0, 10.0, is_calm=False)
    assert not calm.is_over(31.0, 10.0, is_calm=True)
    assert calm.is_over(41.0, 10.0, is_calm=True)
    assert not calm.is_over(99.0, 0.0, is_calm=True)
