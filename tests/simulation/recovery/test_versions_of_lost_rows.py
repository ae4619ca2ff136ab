"""Versions of rows that are lost without anybody's fault: none is given again."""

from __future__ import annotations

import pytest

from stelae.core.schema.durability import Durability, segments
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.backups.media_cluster import MediaFixture, tell
from tests.simulation.tables.planted import planted


@pytest.mark.parametrize("durability", [segments(), segments("flash")], ids=str)
def test_rows_that_their_durability_does_not_keep_leave_their_versions_behind(
    durability: Durability,
) -> None:
    """In a server's memory only, or on a disk that had not synced when power was lost: the row that
    comes next has a version that no client has seen."""

    async def story(here: MediaFixture) -> None:
        table = await here.create(durability)
        seen = 0
        for number in range(3):
            for key in range(5):
                (version,) = await table.upsert({"id": key, "text": f"{number}"}, timeout=20.0)
                assert version > seen
                seen = int(version)
            for name in [*here.cluster.backups, *here.cluster.tservers]:
                here.world.crash(name)

    tell(story)


async def deleted_last(here: MediaFixture) -> None:
    """The last that happens before a server dies is that a row is deleted."""
    table = await here.create(segments("disk", "disk"))
    for _ in range(3):
        await table.upsert({"id": 1, "text": "x"}, timeout=20.0)
    (deleted,) = await table.delete(1, timeout=20.0)
    here.world.crash(here.owner())
    (version,) = await table.insert({"id": 1, "text": "anew"}, timeout=20.0)
    assert int(version) > int(deleted), "a version is given twice"


def test_a_row_that_is_made_anew_has_a_later_version_than_its_deletion() -> None:
    """Though the end of the log has nothing but tombstones, and no head tells the versions before.
    With the bug, of rows alone, a client that knows one of both takes it for the other."""
    tell(deleted_last)
    bug = "tombstones_raise_no_version"
    with planted(bug), pytest.raises(SimulationFailure, match="given twice"):
        tell(deleted_last)
