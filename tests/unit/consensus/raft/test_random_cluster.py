"""Random lives of groups of the pure core (`random_cluster`) keep every promise.

That its checks see what they look for is shown in `test_random_bugs`.
"""

from __future__ import annotations

import pytest

from tests.unit.consensus.raft.copying_cluster import Copying
from tests.unit.consensus.raft.random_cluster import Cluster, NoProgress, live


@pytest.mark.parametrize("first_seed", range(0, 30, 6))
def test_random_lives_keep_every_promise(first_seed: int) -> None:
    """Raft figure 3 holds under loss, duplication, reordering, crashes and partitions."""
    for seed in range(first_seed, first_seed + 6):
        try:
            live(Cluster(seed))
        except (AssertionError, NoProgress) as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("first_seed", range(0, 24, 6))
def test_members_change_at_random_and_every_promise_is_kept(first_seed: int) -> None:
    """The same with servers added, promoted and removed, the leader among them, at any moment."""
    changes = taken_back = 0
    for seed in range(first_seed, first_seed + 6):
        cluster = Cluster(seed, changing=True)
        try:
            live(cluster)
        except (AssertionError, NoProgress) as error:
            error.add_note(f"seed {seed}")
            raise
        changes += cluster.changes
        taken_back += cluster.taken_back
    assert changes > 30, "the members hardly changed"
    assert taken_back > 0, "no change was taken back"


@pytest.mark.parametrize("first_seed", range(0, 30, 6))
def test_hosts_copy_state_at_random_and_every_promise_is_kept(first_seed: int) -> None:
    """With copies that come late, break, and race with elections; half with changing members."""
    copies = 0
    for seed in range(first_seed, first_seed + 6):
        cluster = Copying(seed, changing=seed % 2 == 1)
        try:
            live(cluster)
        except (AssertionError, NoProgress) as error:
            error.add_note(f"seed {seed}")
            raise
        copies += cluster.copies
    assert copies > 3, "hardly anything was copied"


def test_the_random_lives_do_what_they_claim() -> None:
    """Leaders change, snapshots travel, reads of both kinds happen: the test is not idle."""
    clusters = [Cluster(seed) for seed in range(6)]
    for cluster in clusters:
        live(cluster)
    assert sum(len(cluster.leaders) for cluster in clusters) > 15
    assert sum(cluster.lease_reads for cluster in clusters) > 50
    assert sum(cluster.index_reads for cluster in clusters) > 50
    restored = [n for c in clusters for n in c.nodes.values() if n.saved.snapshot is not None]
    assert len(restored) > 5
