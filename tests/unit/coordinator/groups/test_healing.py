"""`stelae.coordinator.groups.healing`: which step a group takes, case by case, and where steps
lead."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.groups.healing import (
    Add,
    Evict,
    HandOn,
    Health,
    Member,
    Step,
    majority,
    next_step,
)
from stelae.core.ids import ServerUuid

HEALTH = {"h": Health.HEALTHY, "u": Health.UNKNOWN, "f": Health.FAILED, "b": Health.BROKEN}


def members(text: str) -> list[Member]:
    """Of words like ``Ah`` (voter A, healthy), ``df`` (non-voter d, failed); ``-`` after it: to
    be left; ``!``: it should not lead."""
    return [
        Member(
            ServerUuid(word[0].lower()),
            word[0].isupper(),
            HEALTH[word[1]],
            leaving="-" in word[2:],
            may_lead="!" not in word[2:],
        )
        for word in text.split()
    ]


def shown(step: Step | None) -> str:
    match step:
        case Add():
            return "add"
        case Evict(uuid, _):
            return f"evict {uuid}"
        case HandOn(target):
            return f"hand on to {target}"
        case None:
            return ""


CASES: list[tuple[str, int, str, str]] = [
    # the members (the first one leads), how many voters are wanted, the step, why
    ("Ah Bh Ch", 3, "", "all is well"),
    ("Ah Bh Cu", 3, "", "a voter that is not heard for a moment is waited for"),
    ("Ah Bh Cf", 3, "add", "a lost voter is replaced before it is let go"),
    ("Ah Bh Cb", 3, "add", "so is a broken one"),
    ("Ah Bh Cf du", 3, "", "the replacement is on its way"),
    ("Ah Bh Cf dh", 3, "", "and is promoted by the leader, not from here"),
    ("Ah Bh Cf Dh", 3, "evict c", "it is a voter: the lost one goes"),
    ("Ah Bh Cf Du", 3, "evict c", "even if the replacement is not heard for a moment"),
    ("Ah Bh Cb Dh", 3, "evict c", "the same for a broken one"),
    ("Ah Bh Cf df", 3, "evict d", "a replacement that was lost itself goes first"),
    ("Ah Bh Ch dh", 3, "evict d", "the lost one came back: the replacement is not needed"),
    ("Ah Bh Ch du", 3, "evict d", "whether it was copied or not"),
    ("Ah Bh Ch Dh", 3, "evict b", "the same, after it was promoted; the leader stays"),
    ("Ah Bh Cu Dh", 3, "evict c", "of four voters the one that is not heard goes"),
    ("Ah Bh Cu Du", 3, "", "with two in doubt nobody goes: it may be the wrong one"),
    ("Ah Bf Cf", 3, "", "without a majority nothing could be committed"),
    ("Ah Bu Cf", 3, "", "nor with one that may be there"),
    ("Ah Bh Cf Df", 3, "evict c", "three voters with two good ones are better than four"),
    ("Ah Bu Cf Df", 3, "", "one good voter of four changes nothing"),
    ("Ah", 1, "", "a single replica"),
    ("Ah bu", 1, "evict b", "a single replica needs no second"),
    ("Ah Bh", 1, "evict b", "fewer replicas are wanted now"),
    ("Ah Bh Ch", 1, "evict b", "one at a time"),
    ("Ah Bh Ch", 5, "add", "more replicas are wanted now"),
    ("Ah Bh Ch du", 5, "add", "and the next"),
    ("Ah Bh Ch du eu", 5, "", "both are on their way"),
    ("Ah Bh Ch Df Ef", 5, "add", "two of five are lost"),
    ("Ah Bh Ch Df Ef gu", 5, "add", "each is replaced"),
    ("Ah Bh Ch Df Ef gu hu", 5, "", "at the same time"),
    ("Ah Bh Ch Df Ef Gh hu", 5, "evict d", "the first replacement is there"),
    ("Ah Bh Ch Dh Eh", 3, "evict b", "three of five are wanted now"),
    ("Ah Bh Ch Df Eh", 3, "evict d", "the one that is lost goes first"),
    ("Ah Bh Cu Dh Eu", 3, "evict c", "then one that is not heard"),
    ("Ah Bh Cu Du Eu", 3, "", "but without a majority nobody goes"),
    ("Ah Bh Ch- Dh Eh", 3, "evict c", "of equals one that is to leave"),
    ("Ah Bh Ch du eu", 3, "evict d", "three are wanted again before there were five"),
    ("Ah Bh Ch-", 3, "add", "a voter that is to leave is replaced first"),
    ("Ah Bh Ch- du", 3, "", "while its replacement is copied it stays"),
    ("Ah Bh Ch- Dh", 3, "evict c", "and goes when that is a voter"),
    ("Ah Bu Ch- Dh", 3, "", "but not while another is in doubt"),
    ("Ah- Bh Ch", 3, "add", "a leader that is to leave is replaced first"),
    ("Ah- Bh Ch du", 3, "", "and leads meanwhile"),
    ("Ah- Bh Ch Dh", 3, "hand on to b", "then it hands on, and is evicted by the next one"),
    ("Ah Bh- Ch- Dh", 3, "evict b", "two are to leave: one goes as soon as there are four"),
    ("Ah Bh Ch dh-", 3, "evict d", "a non-voter on a server that is to be left"),
    ("Ah-", 1, "add", "a single replica that is to leave gets a second one"),
    ("Ah- bu", 1, "", "leads while that is copied"),
    ("Ah- Bh", 1, "hand on to b", "hands on to it"),
    ("Ah Bh-", 1, "evict b", "and goes"),
    ("Ah Bf", 2, "", "of two the one that is left can commit nothing"),
    ("Ah Bh", 3, "add", "a voter is missing"),
    ("Ah Bb Cf du", 3, "", "a replacement that is copied makes no majority"),
    ("Ah Bh Cb db", 3, "evict d", "a broken replacement goes before the broken voter"),
    ("Ah! Bh Ch", 3, "hand on to b", "a leader on a server in maintenance hands on at once"),
    ("Ah! Bu Ch!", 3, "", "if there is anybody to hand on to"),
    ("Ah! Bh Cf", 3, "hand on to b", "which comes before healing"),
]


@pytest.mark.parametrize(("group", "wanted", "step", "why"), CASES, ids=[c[3] for c in CASES])
def test_each_group_takes_this_step(group: str, wanted: int, step: str, why: str) -> None:
    """The table of cases above is what healing does."""
    found = members(group)
    assert shown(next_step(found, found[0].uuid, wanted, has_spare=True)) == step, why


def test_of_equals_the_one_that_is_placed_worst_goes() -> None:
    """Beside another member on its node, then in its rack, then on the server with most replicas;
    health is first."""

    def evicted(group: str, burdens: dict[str, tuple[int, int, int]]) -> str:
        found = [
            dataclasses.replace(member, burden=burdens.get(member.uuid, (0, 0, 0)))
            for member in members(group)
        ]
        return shown(next_step(found, found[0].uuid, 3, has_spare=True))

    five = "Ah Bh Ch Dh Eh"
    assert evicted(five, {"d": (1, 1, 0), "e": (0, 2, 9)}) == "evict d"
    assert evicted(five, {"d": (0, 1, 0), "e": (0, 0, 9)}) == "evict d"
    assert evicted(five, {"c": (0, 0, 5), "e": (0, 0, 9)}) == "evict e"
    assert evicted(five, {"a": (3, 3, 9)}) == "evict b"
    assert evicted("Ah Bh Ch Dh Ef", {"d": (1, 1, 9)}) == "evict e"


def test_a_broken_replica_goes_first_only_where_no_server_is_left() -> None:
    """On three servers a damaged replica is made anew in its place; a lost server is waited for."""
    for group, step in [("Ah Bh Cb", "evict c"), ("Ah Bh Cf", "add"), ("Ah Bu Cb", "")]:
        found = members(group)
        assert shown(next_step(found, found[0].uuid, 3, has_spare=False)) == step


GROUPS = st.lists(
    st.tuples(st.booleans(), st.sampled_from("huuffb"), st.booleans(), st.booleans()),
    max_size=7,
).map(
    lambda rest: [
        Member(ServerUuid("0"), True, Health.HEALTHY),
        *(
            Member(ServerUuid(str(number)), voter, HEALTH[health], leaving, may_lead)
            for number, (voter, health, leaving, may_lead) in enumerate(rest, 1)
        ),
    ]
)


def after(group: list[Member], step: Step) -> list[Member]:
    """The members once a step is done, and a new one was copied and promoted."""
    match step:
        case Add():
            number = max(int(member.uuid) for member in group) + 1
            return [*group, Member(ServerUuid(str(number)), True, Health.HEALTHY)]
        case Evict(uuid, _):
            return [member for member in group if member.uuid != uuid]
        case HandOn():
            return group


@given(GROUPS, st.sampled_from([1, 3, 5]), st.booleans())
def test_no_step_makes_a_group_worse_and_all_steps_come_to_an_end(
    group: list[Member], wanted: int, has_spare: bool
) -> None:
    """Good voters are never let go below the number wanted, a majority of the voters left is
    good, the leader stays; and whoever has a majority ends with as many good voters as wanted."""
    leader = ServerUuid("0")
    had_majority = sum(m.voter and m.health is Health.HEALTHY for m in group) >= majority(
        sum(m.voter for m in group)
    )
    for _ in range(30):
        step = next_step(group, leader, wanted, has_spare=has_spare)
        if step is None or isinstance(step, HandOn):
            break
        left = after(group, step)
        good = [m for m in group if m.voter and m.health is Health.HEALTHY]
        good_left = [m for m in left if m.voter and m.health is Health.HEALTHY]
        voters_left = [m for m in left if m.voter]
        assert len(good_left) >= min(len(good), wanted)
        assert len(good_left) >= majority(len(voters_left))
        assert any(m.uuid == leader for m in left)
        group = left
    else:
        raise AssertionError("it goes on for ever")
    doubtful = any(m.health is Health.UNKNOWN or not m.voter for m in group)
    if had_majority and has_spare and step is None and not doubtful:
        assert sum(m.voter and m.health is Health.HEALTHY and not m.leaving for m in group) >= (
            wanted
        )


@pytest.mark.parametrize(
    ("refused", "step"),
    [
        ({}, "hand on to b"),
        ({"b": 5.0}, "hand on to c"),
        ({"b": 15.0, "c": 5.0}, "hand on to c"),
        ({"b": 9.0, "c": 8.0}, "hand on to c"),
        ({"b": 15.0, "c": 15.0}, ""),
    ],
)
def test_leadership_goes_last_to_those_that_did_not_take_it(
    refused: dict[str, float], step: str
) -> None:
    """At 10 s: in the order in which their pauses ended, and not before that."""
    found = [
        dataclasses.replace(member, refused_until=refused.get(member.uuid))
        for member in members("Ah! Bh Ch")
    ]
    assert shown(next_step(found, found[0].uuid, 3, has_spare=True, now=10.0)) == step
