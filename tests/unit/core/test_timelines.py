"""Quorums of one member set and of joint configurations, against counting by hand."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stelae.core.records.timelines import (
    SafekeeperId,
    TimelineConfiguration,
    has_majority,
    majority_lsn,
    term_text,
)

IDS = [SafekeeperId(number) for number in range(1, 8)]
member_sets = st.lists(st.sampled_from(IDS), unique=True, min_size=1, max_size=7)
lsns = st.dictionaries(st.sampled_from(IDS), st.integers(0, 9))


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(map(SafekeeperId, numbers))


def test_any_two_majorities_of_one_set_meet() -> None:
    """That is what makes them quorums."""
    for size in range(1, 6):
        members = IDS[:size]
        subsets = [
            set(chosen)
            for count in range(size + 1)
            for chosen in itertools.combinations(members, count)
            if has_majority(members, chosen)
        ]
        assert subsets
        assert all(one & other for one in subsets for other in subsets)


def test_a_joint_configuration_needs_both_majorities() -> None:
    """AC and BD are majorities of ABC and of ABD; neither is enough for the joint one."""
    joint = TimelineConfiguration(2, ids(1, 2, 3), ids(1, 2, 4))
    assert joint.is_joint
    assert joint.members == ids(1, 2, 3, 4)
    assert not joint.agreed(ids(1, 3))
    assert not joint.agreed(ids(2, 4))
    assert joint.agreed(ids(1, 2))
    assert joint.agreed(ids(1, 3, 4))


def test_an_outsider_counts_for_nothing() -> None:
    """Whoever is no member may say what it likes."""
    assert not has_majority(ids(1, 2, 3), ids(1, 7, 6, 5))
    assert majority_lsn(ids(1, 2, 3), {SafekeeperId(1): 5, SafekeeperId(7): 9}) == 0


@given(member_sets, lsns)
def test_the_lsn_of_a_majority_is_the_highest_that_more_than_half_has(
    members: list[SafekeeperId], reached: dict[SafekeeperId, int]
) -> None:
    """Counted anew for each candidate."""
    candidates = [0, *reached.values()]
    expected = max(
        lsn
        for lsn in candidates
        if lsn == 0 or 2 * sum(reached.get(member, 0) >= lsn for member in members) > len(members)
    )
    assert majority_lsn(members, reached) == expected


@given(member_sets, st.none() | member_sets, lsns)
def test_the_agreed_lsn_is_agreed_and_the_next_one_is_not(
    members: list[SafekeeperId],
    new_members: list[SafekeeperId] | None,
    reached: dict[SafekeeperId, int],
) -> None:
    """For single and joint configurations alike."""
    new_set = None if new_members is None else tuple(new_members)
    configuration = TimelineConfiguration(1, tuple(members), new_set)
    lsn = configuration.agreed_lsn(reached)
    assert configuration.agreed([one for one in IDS if reached.get(one, 0) >= lsn])
    assert not configuration.agreed([one for one in IDS if reached.get(one, 0) > lsn])


def test_a_term_is_read_as_the_tablets_term_and_the_campaign_in_it() -> None:
    """A timeline's term is far too long a number for people."""
    assert [term_text(term) for term in (0, (1 << 32) + 5, (7 << 32) + 1)] == ["0", "1.5", "7.1"]
