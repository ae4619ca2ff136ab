"""A backup in the deterministic world: what it acknowledged survives whatever happens to it.

The runs are those of `tests.simulation.tables.backup_owners`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import pytest

from stelae.simulation.runner import FINDS, SEARCH_SEEDS, last_find
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.backups.planted_backup import BUGS
from tests.simulation.tables.backup_owners import run


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_survives_crashes(seed: int) -> None:
    """After torn writes, crashes in a sync and full disks, exactly the acknowledged is there."""
    run(seed)


def test_a_run_is_worth_its_name() -> None:
    """Over a few seeds appends were torn, and replicas closed, sealed and freed, file grown."""
    counts = [run(seed).metrics["b1"].counts.get("backup_torn_appends", 0) for seed in range(6)]
    assert sum(counts) > 0


def find_failure(seeds: Iterable[int], bug: str) -> SimulationFailure | None:
    """Return the first failure of a run, or None; a long search warns with the line for `FINDS`."""
    for number, seed in enumerate(seeds, 1):
        try:
            run(seed)
        except SimulationFailure as failure:
            if number > SEARCH_SEEDS:
                line = f"backup {seed} {bug}"
                warnings.warn(
                    f"found by seed number {number}; add to {FINDS}: {line}", stacklevel=2
                )
            return failure
    return None


BUG_SEEDS = 2000
"""Most are found in a few; repairs that are left out show in one of some hundred."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shortcut in the storage of a backup makes some seed fail."""
    bug(monkeypatch)
    last = last_find("backup", bug.__name__)
    seeds = sorted(range(BUG_SEEDS), key=lambda seed: seed != last)
    assert find_failure(seeds, bug.__name__) is not None
