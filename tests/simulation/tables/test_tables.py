"""Tables of a whole cluster under load and every kind of fault, many seeds; and planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import derive_seeds, find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.tables.planted import BUGS

SEEDS = 2
COUNTER_SEEDS = 4
BUG_SEEDS = 120
OF_MEDIA = ("short_head_replica",)
"""Found by the scenario ``media``."""


def test_no_acknowledged_write_is_lost_doubled_or_out_of_order() -> None:
    """A few seeds of each test run: what was acknowledged stays, in order, once."""
    run_seeds(load_scenario("tables"), SEEDS)


def test_two_clients_that_compare_and_set_a_counter_lose_no_increment() -> None:
    """Twenty seeds: the sum is exact, whatever fails between a read and its conditional write."""
    run_seeds(load_scenario("counter"), COUNTER_SEEDS)


def test_strikes_where_the_promise_is_thinnest_lose_nothing() -> None:
    """A few seeds: at no moment is a log incomplete on the backups, and all rows survive."""
    run_seeds(load_scenario("strikes"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(bug for bug in BUGS if bug not in OF_MEDIA))
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("strikes")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    """The same seed gives the same trace in interpreters with other string hashes."""
    seed = derive_seeds("tables", 1, "hash seed")[0]
    program = (
        "from stelae.simulation.runner import run_seed\n"
        "from stelae.simulation.scenarios import load_scenario\n"
        f"print(run_seed(load_scenario('tables'), {seed}).digest)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "12345")
    }
    assert len(digests) == 1
