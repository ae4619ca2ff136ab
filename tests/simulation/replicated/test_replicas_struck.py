"""Tables with ``replicas(n)`` under load, operators and every kind of fault: many seeds."""

from __future__ import annotations

import pytest

from stelae.simulation import World
from stelae.simulation.runner import run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.replicated.replicas import Tally, options, run_replicas

SEEDS = 1
COUNTED_SEEDS = 16


def test_replicated_tables_come_through_everything_whole() -> None:
    """A few seeds: nothing is lost or doubled, and everything is in order in the end."""
    run_seeds(load_scenario("replicas"), SEEDS)


def _tally(seed: int) -> Tally:
    world = World(seed, options(seed))
    return world.run(run_replicas(world), limit_s=900.0)


@pytest.mark.soak
def test_in_these_worlds_something_happens() -> None:
    """Clients succeed mostly; leaders change, and tablets are flushed, copied, moved and let go."""
    tallies = [_tally(seed) for seed in range(COUNTED_SEEDS)]

    def often(*shares: bool, of: float = 0.6) -> bool:
        return sum(shares) >= COUNTED_SEEDS * of

    assert sum(t.answered for t in tallies) > 0.9 * sum(t.operations for t in tallies)
    assert often(*[tally.leaders > 4 for tally in tallies], of=0.35)
    assert often(*[tally.counts.get("flushes", 0) > 0 for tally in tallies])
    assert often(*[tally.counts.get("copies_received", 0) > 0 for tally in tallies])
    assert often(*[tally.promoted > 0 for tally in tallies])
    assert often(*[tally.evicted > 0 for tally in tallies])
    assert often(*[tally.old_reads > 0 for tally in tallies])
    for order in ("move", "retire", "maintain", "rebalance", "transfer", "alter", "pass by"):
        assert any(tally.done.get(order) for tally in tallies), f"nobody could {order}"
    assert any(tally.done.get("take a majority down") for tally in tallies)
