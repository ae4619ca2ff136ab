"""Tables with ``wal(3)`` on real Ray: servers of every kind are killed, while logs move."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from stelae import Database
from stelae.actors.ray_host.host import cluster_actors
from tests.cluster.row_clients import WELL_WITHIN_S, check_by_command
from tests.cluster.running import ClusterFixture
from tests.cluster.wal_faults import (
    SPEC,
    LoadedTable,
    Mover,
    check_history,
    seen_of_migrations,
    wait_whole,
)
from tests.until import NO_LEADER, until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

KILL_EVERY_S, KILLED_FOR_S = 4.0, 60.0
REPLACED_WITHIN_S = 60.0


def test_restarts_under_load_lose_and_double_nothing(
    launch_small: Callable[..., Database], ray_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Safekeepers and tablet servers are killed in turn, a backup too, while clients write and
    logs move: every acknowledged row is there once, and every log has its whole set again. One
    that stays away is replaced by itself."""
    db = launch_small("killed", **SPEC)
    cluster, rng = ClusterFixture(db), random.Random(3)
    loaded = LoadedTable(cluster, 3)
    mover = Mover(db, loaded.tablets)
    mover.start()
    turns = itertools.chain(
        ["safekeeper", "tserver", "backup"], itertools.cycle(["safekeeper", "tserver"])
    )
    began, killed = time.monotonic(), []
    while time.monotonic() - began < KILLED_FOR_S:
        time.sleep(KILL_EVERY_S)
        killed.append(cluster.servers.kill_any(next(turns), rng))
    mover.end()
    cluster.load.wait_writes("after the kills")

    lost = stay_away(cluster, loaded)
    cluster.load.wait_writes("after the replacement")
    text = loaded.end()
    db.set_safekeeper_status(lost, "decommissioned")  # what it holds is not waited for any more
    views = wait_whole(db, loaded.tablets)
    for view in views:
        check_history(view.history)
        assert lost not in view.configuration.members
    assert not db.migrations().running
    cluster.check_whole(WELL_WITHIN_S)
    code, document = check_by_command(ray_folder / "killed")
    assert code == 0, document["findings"]
    with capsys.disabled():
        kills = f"{sum(map(bool, killed))} kills, {mover.moved} moves"
        print(f"\n{kills} ({len(mover.problems)} not carried out); {text}")
    assert sum(map(bool, killed)) >= KILLED_FOR_S / KILL_EVERY_S / 2
    assert mover.moved >= 5, mover.problems


def stay_away(cluster: ClusterFixture, loaded: LoadedTable) -> int:
    """A member of a log is killed for good, and its place taken by another; its id."""
    db = cluster.database
    cluster.servers.wait_live("safekeeper", 4)
    lost = db.locate_timeline(loaded.tablets[0]).configuration.sk_set[0]
    (name,) = (one.record.name for one in db.safekeepers() if one.record.safekeeper_id == lost)
    ray.kill(cluster_actors(db.cluster)[name], no_restart=True)
    cluster.load.wait_writes("while it is away")

    def is_replaced() -> bool:
        views = [db.locate_timeline(tablet) for tablet in loaded.tablets]
        return not any(lost in view.configuration.members for view in views)

    def what() -> str:
        return f"{name} is replaced{seen_of_migrations(db, loaded.tablets)}"

    until(is_replaced, REPLACED_WITHIN_S, what, retried=NO_LEADER)
    return int(lost)
