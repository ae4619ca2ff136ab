"""Tables with ``wal(n, …)`` under load, migrations and every kind of fault: many seeds."""

from __future__ import annotations

import pytest

from stelae.simulation import World
from stelae.simulation.runner import run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.wal.wal_tables import Tally, options, run_wal

SEEDS = 1
COUNTED_SEEDS = 10


def test_wal_tables_come_through_everything_whole() -> None:
    """A few seeds: nothing is lost or doubled, and everything is in order in the end."""
    run_seeds(load_scenario("wal"), SEEDS)


def _tally(seed: int) -> Tally:
    world = World(seed, options(seed))
    return world.run(run_wal(world), limit_s=1200.0)


@pytest.mark.soak
def test_in_these_worlds_something_happens() -> None:
    """Clients succeed mostly; owners and members change, timelines are copied, and every order of
    operators is carried out somewhere."""
    tallies = [_tally(seed) for seed in range(COUNTED_SEEDS)]

    def often(*shares: bool, of: float = 0.5) -> bool:
        return sum(shares) >= COUNTED_SEEDS * of

    assert sum(t.answered for t in tallies) > 0.85 * sum(t.operations for t in tallies)
    assert often(*[tally.terms > 0 for tally in tallies], of=0.8)
    assert often(*[tally.generations > 2 for tally in tallies])
    assert often(*[tally.counts.get("timelines_pulled", 0) > 0 for tally in tallies])
    for order in ("move", "move all", "empty", "abort", "status", "scrub", "strike", "create"):
        assert any(tally.done.get(order) for tally in tallies), f"nobody could {order}"
