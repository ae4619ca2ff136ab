"""The risk of losing data: against published figures, exact chains, dice, and by its rules."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument
from stelae.planner.chance import NEVER
from stelae.planner.hardware import SERVER
from stelae.planner.layout import Layout, Medium, Scatter
from stelae.planner.risk import (
    YEAR_S,
    Failures,
    bytes_lost,
    independent,
    lost_at_once,
    risk_of,
)
from tests.unit.planner.layouts import GB, layout

FAILURES = Failures()
RAMCLOUD = layout(5000, replicas=3, data_bytes=5000 * 64 * GB)


def test_the_copysets_paper_is_met() -> None:
    """5,000 machines of 64 GB, k = 3, 1 % stay away after a power failure: a loss is certain with
    random placement, 0.15 % with min-copysets, and comes every 625 years with one such a year."""
    assert lost_at_once(RAMCLOUD, 0.01).value > 0.9999
    grouped = RAMCLOUD.with_changes(scatter=Scatter(3))
    assert lost_at_once(grouped, 0.01).value == pytest.approx(0.0015, rel=0.15)
    assert risk_of(SERVER, grouped, FAILURES).years_between == pytest.approx(625, rel=0.1)


def test_what_is_lost_rarely_is_lost_in_large_pieces() -> None:
    """Groups lose about a server's worth at a time, random placement a few segments; the mean over
    all power failures is the same."""
    grouped = RAMCLOUD.with_changes(scatter=Scatter(3))
    large, small = bytes_lost(grouped, 0.01), bytes_lost(RAMCLOUD, 0.01)
    assert 100 * GB < large < 1000 * GB
    assert small < 1 * GB
    mean = large * lost_at_once(grouped, 0.01).value
    assert mean == pytest.approx(small * lost_at_once(RAMCLOUD, 0.01).value, rel=0.01)


def chain_time_s(copies: int, failure_rate: float, repair_rate: float) -> float:
    """Mean time until all copies are away at once, of the Markov chain with parallel repairs."""
    total = step = 0.0
    for away in range(copies):
        # Time from `away` to `away + 1`: 1/up + (down/up) × time of the step below.
        up, down = (copies - away) * failure_rate, away * repair_rate
        step = 1 / up + (down / up) * step
        total += step
    return total


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_independent_failures_are_those_of_the_markov_chain(replicas: int) -> None:
    """One server with one segment on k disks, all k + 1 copies alike: the exact mean time between
    losses, within 1 %."""
    mttf_s, window_s = YEAR_S / 50, 600.0
    failures = Failures(server_mttf_s=mttf_s, disk_mttf_s=mttf_s)
    shape = layout(
        replicas + 1,
        servers=1,
        backups=replicas,
        replicas=replicas,
        data_bytes=1e6,
        tablets_per_server=1,
    )
    found = independent(shape, failures, window_s, window_s)
    exact_s = chain_time_s(replicas + 1, 1 / mttf_s, 1 / window_s)
    assert YEAR_S / math.exp(found.ln_expected) == pytest.approx(exact_s, rel=0.01)


@pytest.mark.parametrize("group", [0, 2, 3, 5])
def test_power_failures_are_those_that_dice_show(group: int) -> None:
    """Ten machines, 24 segments of two replicas, a fifth of the machines away: 4,000 times."""
    shape = layout(
        10, replicas=2, data_bytes=24e6, servers=1, segment_bytes=10**6, scatter=Scatter(group)
    )
    assert shape.segments_per_server == 24
    dice, lost, size = random.Random(9), 0, group or 10
    usable = [range(start, start + size) for start in range(0, 10 - size + 1, size)]
    each = round(24 / len(usable))
    for _ in range(4000):
        away = {machine for machine in range(10) if dice.random() < 0.2}
        placed = (dice.sample(members, 2) for members in usable for _ in range(each))
        lost += any(away.issuperset(pair) for pair in placed)
    assert lost_at_once(shape, 0.2).value == pytest.approx(lost / 4000, abs=0.03)


@settings(max_examples=100, deadline=None)
@given(
    machines=st.integers(6, 2000),
    data=st.sampled_from([1e8, 1e11, 1e14]),
    replicas=st.integers(1, 5),
    share=st.sampled_from([0.001, 0.01, 0.1]),
)
def test_risk_falls_with_k(machines: int, data: float, replicas: int, share: float) -> None:
    """One more replica never makes a loss likelier, whichever way it comes."""
    fewer = layout(machines, data_bytes=data, replicas=replicas)
    more = fewer.with_changes(replicas=replicas + 1)
    failures = replace(FAILURES, power_loss_share=share)
    before, after = risk_of(SERVER, fewer, failures), risk_of(SERVER, more, failures)
    assert after.at_once.ln <= before.at_once.ln + 1e-9
    assert after.independent < before.independent
    assert after.year.ln <= before.year.ln + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    machines=st.sampled_from([840, 1680, 8400]),
    data=st.sampled_from([1e11, 1e13, 1e15]),
    replicas=st.integers(2, 3),
    sizes=st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_smaller_groups_are_safer_when_power_fails(
    machines: int, data: float, replicas: int, sizes: list[int]
) -> None:
    """The fewer sets of machines hold something together, the rarer one of them goes: groups of k,
    then larger ones, then any k machines. (The machines are divided by each size up to 8.)"""
    shape = layout(machines, data_bytes=data, replicas=replicas)
    small, large = (Scatter(replicas + extra) for extra in sizes)
    in_small = lost_at_once(shape.with_changes(scatter=small), 0.01).ln
    in_large = lost_at_once(shape.with_changes(scatter=large), 0.01).ln
    assert in_small <= in_large + 1e-6
    assert in_large <= lost_at_once(shape, 0.01).ln + 1e-6


def test_min_copysets_lower_both_risks() -> None:
    """As against random placement of the same data."""
    for machines in (30, 300, 3000):
        shape = layout(machines, replicas=3)
        random_place = risk_of(SERVER, shape, FAILURES)
        grouped = risk_of(SERVER, shape.with_changes(scatter=Scatter(3)), FAILURES)
        assert grouped.at_once < random_place.at_once
        assert grouped.independent <= random_place.independent
        assert grouped.ln_copysets < random_place.ln_copysets


def test_sixteen_replicas_do_not_underflow() -> None:
    """What no float can hold is still a number, and still falls with the time to failure."""
    shape = layout(100, replicas=16)
    seldom = Failures(disk_mttf_s=1e30, server_mttf_s=1e30, power_failures_per_year=0.0)
    risk, rarer = risk_of(SERVER, shape, seldom), Failures(disk_mttf_s=1e40, server_mttf_s=1e30)
    assert risk.year.value == 0.0
    assert math.isfinite(risk.year.ln)
    assert risk.years_between == math.inf
    assert risk_of(SERVER, shape, rarer).independent < risk.independent


def test_replicas_in_memory_are_gone_when_power_fails() -> None:
    """All of them, with whatever k; and rows without replicas likewise."""
    for changes in ({"medium": Medium.RAM, "replicas": 4}, {"replicas": 0}):
        shape = layout(10, **changes)
        assert lost_at_once(shape, 0.01).value == 1.0
        assert bytes_lost(shape, 0.01) == shape.log_bytes


def one_machine() -> Layout:
    return layout(1, servers=3, backups=3)


def test_replicas_on_one_machine_are_one_copy() -> None:
    """The loss of the only machine loses all, whatever k says."""
    risk = risk_of(SERVER, one_machine(), FAILURES)
    assert risk.independent.value == pytest.approx(1 - math.exp(-1 / 25))
    assert risk.at_each_power_failure.value == pytest.approx(0.01)


def test_without_rows_nothing_is_lost() -> None:
    """And without power failures nothing by those."""
    empty = risk_of(SERVER, layout(10, data_bytes=0.0), FAILURES)
    assert empty.year.ln == NEVER
    assert empty.years_between == math.inf
    calm = Failures(power_failures_per_year=0.0)
    assert risk_of(SERVER, layout(10), calm).at_once.ln == NEVER


@pytest.mark.parametrize(
    "wrong", [{"server_mttf_s": 0.0}, {"power_loss_share": 1.5}, {"replace_s": -1.0}]
)
def test_impossible_failures_are_refused(wrong: dict[str, float]) -> None:
    """Mean times are above zero, shares at most one."""
    with pytest.raises(InvalidArgument):
        Failures(**wrong)
