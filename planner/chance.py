"""Chance, kept as logarithms: probabilities that no float could hold, and sums without loss.

Pure arithmetic, no dice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

NEVER = -math.inf


@dataclass(frozen=True, slots=True, order=True)
class Chance:
    """A probability by its natural logarithm: 1e-400 is one, and differs from 1e-500."""

    ln: float

    @staticmethod
    def of_rate(ln_rate: float) -> Chance:
        """That something happens at least once which is expected ``exp(ln_rate)`` times."""
        if ln_rate < -30:  # 1 - exp(-x) is x, to the last digit
            return Chance(ln_rate)
        expected = math.exp(min(ln_rate, 700.0))
        return Chance(math.log(-math.expm1(-expected)))

    @staticmethod
    def any_of(chances: Iterable[Chance]) -> Chance:
        """That at least one of independent things happens: 1 - Π (1 - p)."""
        rates = [each.ln_expected for each in chances]
        return Chance.of_rate(ln_sum(rates)) if rates else Chance(NEVER)

    @property
    def ln_expected(self) -> float:
        """Logarithm of -ln(1 - p): of how often it happens, if it may happen again."""
        if self.ln >= 0.0:
            return math.inf
        if self.ln < -30:
            return self.ln
        return math.log(-math.log1p(-math.exp(self.ln)))

    @property
    def value(self) -> float:
        """As a float; 0 if it is smaller than any."""
        return math.exp(self.ln) if self.ln > NEVER else 0.0

    @property
    def log10(self) -> float:
        return self.ln / math.log(10)

    def __str__(self) -> str:
        """As people write it: percent, or a power of ten."""
        if self.ln == NEVER:
            return "0"
        if self.log10 >= -4:
            return f"{100 * self.value:.3g} %"
        whole = math.floor(self.log10)
        return f"{10 ** (self.log10 - whole):.1f}e{whole}"


def ln_sum(lns: Iterable[float]) -> float:
    """ln Σ exp(x)."""
    terms = [x for x in lns if x > NEVER]
    if not terms:
        return NEVER
    top = max(terms)
    return top if math.isinf(top) else top + math.log(sum(math.exp(x - top) for x in terms))


def ln_choose(n: int, k: int) -> float:
    """ln of the number of k-subsets of n; -inf if there is none."""
    if not 0 <= k <= n:
        return NEVER
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def ln_subset(inner: int, outer: int, k: int) -> float:
    """ln of the chance that k of ``outer``, drawn at once, all lie within given ``inner`` of them.

    Π (inner - i) / (outer - i): exact also where binomials would cancel.
    """
    if k > inner:
        return NEVER
    return sum(math.log(inner - i) - math.log(outer - i) for i in range(k))


def ln_distinct(ln_kinds: float, draws: int) -> float:
    """ln of how many distinct kinds are expected of ``draws`` among exp(ln_kinds) equal ones:
    C × (1 - (1 - 1/C)^n)."""
    if draws == 0:
        return NEVER
    if ln_kinds <= 1e-9:
        return 0.0
    missed = draws * math.log1p(-math.exp(-ln_kinds))
    if missed > -1e-12:  # so many kinds that each draw is another one
        return math.log(draws)
    return ln_kinds + math.log(-math.expm1(missed))


@functools.lru_cache(maxsize=1024)
def busiest(items: int, bins: int) -> int:
    """Items in the fullest of ``bins``, if each falls into one at random: about the median.

    The least x for which bins × P(Binomial(items, 1/bins) > x) <= 1/2. The seed counts items/bins.
    """
    if items == 0 or bins == 1:
        return items
    mean = items / bins
    if mean > 1e5:  # by the normal distribution: the fullest is a percent above the mean
        return math.ceil(mean + math.sqrt(2 * mean * math.log(bins)))
    ln_p, ln_q = -math.log(bins), math.log1p(-1 / bins)
    tails: list[float] = []
    x = math.floor(mean)
    while x < items:
        x += 1
        ln = ln_choose(items, x) + x * ln_p + (items - x) * ln_q
        tails.append(math.exp(ln))
        if bins * tails[-1] < 1e-9:
            break
    # P(> y) is the sum of what lies above y: from the far end back, to keep what is small.
    above = 0.0
    for y in range(x, x - len(tails), -1):
        above += tails[y - x - 1]
        if bins * above > 0.5:
            return y
    return max(1, math.floor(mean))
