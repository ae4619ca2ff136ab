"""Seeds of servers that die while rows are on their way back, and bugs that these must find."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.core.errors import StelaeError
from stelae.simulation.runner import derive_seeds, find_bug, kept_seeds, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.world import World
from tests.simulation.recovery.loading_story import FETCHED
from tests.simulation.recovery.planted_loading import BLACKOUT_BUGS, BUGS

SEEDS = 2
BLACKOUT_SEEDS = 1
BUG_SEEDS = 80


def test_crashes_fall_into_the_loading_of_rows_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kept seeds and a fixed few; servers die while rows are elsewhere that readers need."""
    died_loading = fetched = loaded = 0
    crash = World.crash

    def counted(world: World, name: str, **how: Any) -> None:
        nonlocal died_loading
        server = world.server(name) if name.startswith("tserver") else None
        if server is not None:
            died_loading += any(tablet.is_loading for tablet in server._tablets.values())
        crash(world, name, **how)

    monkeypatch.setattr(World, "crash", counted)
    scenario = load_scenario("loading")
    for seed in [*kept_seeds("loading"), *derive_seeds("loading", SEEDS)]:
        world = World(seed, scenario.options(seed))
        world.run(scenario.run(world, ""), limit_s=scenario.limit_s)
        counts = [metrics.counts for metrics in world.metrics.values()]
        fetched += int(sum(each.get(name, 0.0) for each in counts for name in FETCHED))
        loaded += int(sum(each.get("segments_loaded", 0.0) for each in counts))
    assert min(died_loading, fetched, loaded) >= 3, (died_loading, fetched, loaded)


def test_every_strategy_outlives_losses_of_all_power() -> None:
    """A few seeds: rows and their index, whatever the media."""
    run_seeds(load_scenario("blackouts"), BLACKOUT_SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "bug"),
    [
        *[("loading", bug) for bug in sorted(BUGS)],
        *[("blackouts", bug) for bug in sorted(BLACKOUT_BUGS)],
    ],
)
def test_a_planted_bug_is_found(name: str, bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario(name)
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
