"""The simulated recovery: it agrees with the formulas, replays from its seed, shows stragglers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument
from stelae.planner import envelope
from stelae.planner.hardware import SEED, SERVER, Hardware
from stelae.planner.layout import Layout, Lost
from stelae.planner.recovery import recovery_times
from stelae.planner.simulated import Chances, simulate
from tests.unit.planner.layouts import GB, hardware_of_many_kinds, layout, layouts

FACTOR = 2.0
"""Formulas and simulation agree at least so well, without what both have in common: detection and
planning. Mostly it is within a tenth; apart are layouts with a segment or two for each disk."""
THOUSAND = layout(1000, data_bytes=1000 * 64 * GB, tablets_per_server=1000, lost=Lost.MACHINE)


@settings(max_examples=100, deadline=None)
@given(hardware_of_many_kinds, layouts(60), st.integers(0, 3))
def test_formulas_and_simulation_agree_within_a_factor_of_two(
    hardware: Hardware, shape: Layout, seed: int
) -> None:
    """Whatever limits: disks, links, cores, fetches or tablets."""
    predicted = recovery_times(hardware, shape).overlapped_s
    run = simulate(hardware, shape, Chances(seed=seed))
    simulated = run.serves_again_s - run.planned_s
    assert predicted / FACTOR <= simulated + 1e-9
    assert simulated <= predicted * FACTOR + 1e-9


def test_a_thousand_servers_agree_closely() -> None:
    """With many segments chance evens out: within 15 % of the formulas, for ten seeds."""
    predicted = recovery_times(SERVER, THOUSAND).serves_again_s
    for seed in range(10):
        run = simulate(SERVER, THOUSAND, Chances(seed=seed))
        assert run.serves_again_s == pytest.approx(predicted, rel=0.15)
        assert len(run.tablets_s) == 1000
        assert run.segments == THOUSAND.lost_segments


def test_the_seeds_example_takes_82_seconds() -> None:
    """10.24 GB into one server over 1 Gb/s, event by event: not 5.49 s."""
    run = simulate(SEED, envelope.LAYOUT)
    assert run.serves_again_s == pytest.approx(81.92, rel=0.01)
    assert run.last_read_s < 1.0


def test_the_same_seed_gives_the_same_run() -> None:
    """And another one another."""
    chances = Chances(seed=7, slow_share=0.05)
    first = simulate(SERVER, THOUSAND, chances)
    assert simulate(SERVER, THOUSAND, chances) == first
    assert simulate(SERVER, THOUSAND, replace(chances, seed=8)) != first


@settings(max_examples=40, deadline=None)
@given(hardware_of_many_kinds, layouts(40), st.integers(0, 3))
def test_stragglers_cost_time_and_no_more_than_their_slowness(
    hardware: Hardware, shape: Layout, seed: int
) -> None:
    """If all machines are slow, nothing takes longer than so many times; and nothing is faster by
    more than another order in the queues explains."""
    even = simulate(hardware, shape, Chances(seed=seed))
    slow = simulate(hardware, shape, Chances(seed=seed, slow_share=1.0, slowness=3.0))
    assert slow.slow_machines == shape.living_machines
    before, after = even.serves_again_s - even.planned_s, slow.serves_again_s - slow.planned_s
    assert 0.8 * before <= after <= 3.0 * before * 1.25 + 1e-9


def test_one_slow_machine_of_a_thousand_sets_the_end_and_not_the_middle() -> None:
    """Its tablets come last; half of the others are as soon back as without it."""
    even = simulate(SERVER, THOUSAND)
    slow = simulate(SERVER, THOUSAND, Chances(slow_share=0.001, slowness=10.0))
    assert slow.slow_machines == 1
    assert slow.serves_again_s > 1.2 * even.serves_again_s
    assert slow.tablet_percentile_s(0.5) == pytest.approx(even.tablet_percentile_s(0.5), rel=0.05)


def test_a_choice_of_backups_evens_the_disks() -> None:
    """The least loaded of five candidates, as RAMCloud places primaries, against any replica."""
    disks = replace(SERVER, disk_read_bytes_per_s=150e6, disk_seek_s=0.008)
    any_one = simulate(disks, THOUSAND)
    of_five = simulate(disks, THOUSAND, Chances(candidates=5))
    assert of_five.busiest_disk < any_one.busiest_disk
    assert of_five.serves_again_s < any_one.serves_again_s


def test_more_servers_bring_it_back_sooner() -> None:
    """64 GB over 10, 100 and 1,000 machines, beyond detection and planning."""
    taken = []
    for machines in (10, 100, 1000):
        shape = layout(machines, data_bytes=machines * 64 * GB, tablets_per_server=1000)
        run = simulate(SERVER, shape)
        taken.append(run.serves_again_s - run.planned_s)
    assert taken[0] > 5 * taken[1] > 5 * taken[2]


def test_tablets_without_rows_are_handed_over_all_the_same() -> None:
    """Nothing to read: one tablet after the other on each taker."""
    shape = layout(3, data_bytes=0.0, tablets_per_server=8)
    run = simulate(SERVER, shape)
    assert len(run.tablets_s) == 8
    assert run.serves_again_s == pytest.approx(run.planned_s + 4 * SERVER.tablet_s)


def test_what_would_take_too_long_is_refused() -> None:
    """In words, before it begins."""
    with pytest.raises(InvalidArgument, match="too many to simulate"):
        simulate(SERVER, layout(2, data_bytes=1e15, segment_bytes=10**5))
    for wrong in ({"slow_share": 2.0}, {"slowness": 0.5}, {"candidates": 0}):
        with pytest.raises(InvalidArgument):
            Chances(**wrong)
