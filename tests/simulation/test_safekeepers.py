"""Real safekeepers under writers, migrations, evictions and faults lose nothing acknowledged."""

from __future__ import annotations

import pytest

from stelae.core.records import ServerKind
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.options import Servers
from stelae.simulation.runner import run_seed, run_seeds
from tests.simulation.safekeepers import SCENARIO, Life, live, options

SEEDS = 25
SLOW_SEEDS = 500
BUG_SEEDS = 150


def test_timelines_lose_nothing_under_faults() -> None:
    """Proposers, safekeepers, backups, drivers and network fail; all ends well once they do not."""
    run_seeds(SCENARIO, SEEDS, budget_s=60)


@pytest.mark.slow
def test_timelines_lose_nothing_under_faults_at_length() -> None:
    """The same, for many seeds."""
    run_seeds(SCENARIO, SLOW_SEEDS, budget_s=600)


def test_a_seed_is_replayed_exactly() -> None:
    """Nothing hash-ordered or of the real clock gets into a run."""
    first, again = (run_seed(SCENARIO, 10) for _ in range(2))
    assert first.digest == again.digest


def test_the_lives_are_worth_their_name() -> None:
    """Over a few seeds there are elections, acknowledgements, trims, pulls and evictions, and in
    some a proposer is elected in the same tablet term as another."""
    lives: list[Life] = []
    for seed in range(12):
        world = World(seed, options(seed))
        lives.append(world.run(live(Life(world))))
    judges = [judge for life in lives for judge in life.judges.values()]
    assert all(judge.elections and judge.acknowledged for judge in judges)
    assert any(judge.trimmed_lsn > 20 for judge in judges)
    for metric in ("timelines_pulled", "timelines_evicted"):
        assert sum(life.count(metric) for life in lives) > 5, metric
    duels = 0
    for judge in judges:
        owners = {(term >> 32, proposer) for term, proposer in judge.winners.items()}
        duels += len(owners) - len({owner for owner, _ in owners})
    assert duels > 5


@pytest.mark.parametrize("bug", ["ack before sync"])
def test_a_planted_bug_is_found(bug: str) -> None:
    """An entry that its writer was told of is not in the log of a later leader. (A vote that is
    told too early is found by `tests/unit/actors/test_safekeeper_crashes.py`.)"""
    for seed in range(BUG_SEEDS):
        failure = run_seed(SCENARIO, seed, bug=bug).failure
        if failure is not None:
            assert "was committed as" in str(failure.error) or "lacks" in str(failure.error)
            return
    raise AssertionError(f"{bug!r} was not found")


def test_a_cluster_starts_safekeepers_and_masters_hear_them() -> None:
    """As many as its options say; all masters know that they live, under their kind."""
    world = World(3, Options(servers=Servers(masters=3, tservers=1, backups=1, safekeepers=3)))

    async def main() -> None:
        cluster = SimCluster(world)
        await cluster.start()
        assert cluster.safekeepers == ["safekeeper-1", "safekeeper-2", "safekeeper-3"]

        def heard() -> bool:
            now = world.loop.time()
            masters = [world.server(name) for name in cluster.masters]
            live = [m.liveness.live(ServerKind.SAFEKEEPER, now) for m in masters]
            return all(len(found) == 3 for found in live)

        await world.wait_until(heard, 20.0, "every master hears of every safekeeper")
        cluster.add_safekeeper()
        await world.wait_ready()

    world.run(main())
