"""Probabilities as logarithms, and the fullest of many bins."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.planner.chance import (
    NEVER,
    Chance,
    busiest,
    ln_choose,
    ln_distinct,
    ln_subset,
    ln_sum,
)


@given(st.lists(st.floats(1e-12, 0.999), max_size=6))
def test_any_of_some_things_is_one_minus_none_of_them(chances: list[float]) -> None:
    """1 - Π (1 - p), wherever a float can hold it."""
    expected = 1.0 - math.prod(1.0 - p for p in chances)
    found = Chance.any_of(Chance(math.log(p)) for p in chances).value
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-12)


@given(st.floats(-5000, 700))
def test_no_rate_underflows(ln_rate: float) -> None:
    """What is too rare for a float still has a logarithm, and so compares; what is nearly certain
    does not become more than certain."""
    chance = Chance.of_rate(ln_rate)
    assert math.isfinite(chance.ln)
    assert chance.ln <= 0.0
    assert Chance.of_rate(ln_rate - 1.0) <= chance
    if ln_rate < -40:
        assert chance.ln == ln_rate
        assert Chance.of_rate(ln_rate - 1.0) < chance
        assert Chance.any_of([chance, chance]).ln == pytest.approx(ln_rate + math.log(2))


def test_small_chances_are_written_as_powers_of_ten() -> None:
    """Percent while that can be read, then powers of ten, far below what a float can hold."""
    assert str(Chance(math.log(0.25))) == "25 %"
    assert str(Chance(-500 * math.log(10) + math.log(2))) == "2.0e-500"
    assert str(Chance(NEVER)) == "0"
    assert Chance(-1e4).value == 0.0


@given(st.integers(1, 60), st.data())
def test_subsets_are_counted_exactly(outer: int, data: st.DataObject) -> None:
    """P(k of ``outer`` lie in ``inner``) = C(inner, k) / C(outer, k)."""
    inner = data.draw(st.integers(0, outer))
    k = data.draw(st.integers(0, outer))
    exact = Fraction(math.comb(inner, k), math.comb(outer, k))
    found = ln_subset(inner, outer, k)
    assert math.exp(found) == pytest.approx(float(exact), rel=1e-9)
    assert math.exp(ln_choose(outer, k)) == pytest.approx(math.comb(outer, k), rel=1e-9)


@pytest.mark.parametrize(("kinds", "draws"), [(1, 5), (6, 3), (6, 40), (1000, 1000)])
def test_distinct_kinds_are_as_many_as_dice_show(kinds: int, draws: int) -> None:
    """The expected number of different outcomes, against drawing them."""
    dice = random.Random(4)
    runs = [len({dice.randrange(kinds) for _ in range(draws)}) for _ in range(400)]
    assert math.exp(ln_distinct(math.log(kinds), draws)) == pytest.approx(
        sum(runs) / len(runs), rel=0.03
    )


def test_of_very_many_kinds_every_draw_is_another() -> None:
    """C(10^6, 10) sets and a million segments: no cancellation makes them none, or infinitely
    many."""
    assert ln_distinct(ln_choose(10**6, 10), 10**6) == pytest.approx(math.log(10**6), rel=1e-6)
    assert ln_distinct(5.0, 0) == NEVER


@pytest.mark.parametrize(
    ("items", "bins"), [(8192, 8192), (8192, 1000), (100, 2), (3, 1000), (50, 7), (5000, 3)]
)
def test_the_fullest_bin_is_as_full_as_dice_show(items: int, bins: int) -> None:
    """About the median of the maximum, within one and 3 % of it."""
    dice = random.Random(5)
    fullest = []
    for _ in range(61):
        loads = [0] * bins
        for _ in range(items):
            loads[dice.randrange(bins)] += 1
        fullest.append(max(loads))
    median = sorted(fullest)[30]
    assert abs(busiest(items, bins) - median) <= 1 + 0.03 * median


@given(st.integers(0, 20_000), st.integers(1, 2000))
def test_more_bins_never_make_the_fullest_fuller(items: int, bins: int) -> None:
    """And it has at least its even share, at most everything."""
    found = busiest(items, bins)
    assert busiest(items, bins + 1) <= found
    assert items / bins <= found + 1e-9
    assert found <= items


def test_sums_of_logarithms_keep_what_is_small() -> None:
    """ln(e^a + e^b), also of nothing and of what is far below a float."""
    assert ln_sum([]) == NEVER
    assert ln_sum([-2000.0, -2000.0]) == pytest.approx(-2000 + math.log(2))
    assert ln_sum([0.0, NEVER]) == 0.0
