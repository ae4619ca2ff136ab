"""The ``loading`` and ``blackouts`` scenarios: tablet servers die, and rows follow slowly.

Many keys, most of them written once, so that what is read lies in segments that are not here; their
owners die, with backups and without, while the rows are on their way; in some runs all servers
lose their power at the same moment, and start on their disks (in ``blackouts`` in all, with every
strategy that outlives it). Updates leave a column out, which they need of a row that may not be
here. In most runs there is an index of what is written. The rules are those of ``tables``, and of
indexes those of ``entries``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import StelaeError
from stelae.simulation.cluster import SimCluster
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Limits, Options
from stelae.simulation.world.world import World
from tests.simulation.backups.media import MEDIA, ONE_SURVIVES, SYNCED
from tests.simulation.indexes.index_watch import COLUMN, IndexWatch, in_some_runs
from tests.simulation.recovery.blackouts import GAPS_S, Blackouts
from tests.simulation.recovery.planted_loading import planted
from tests.simulation.tables.remembered_images import remembered_images
from tests.simulation.tables.strikes import LOSING_A_DISK
from tests.simulation.tables.tables import (
    SCHEMA,
    Beside,
    Client,
    cleaning_of,
    run_tables,
    struck_options,
)

LOADING_S = 25.0
"""So long the rows of a whole run would take to follow a recovery."""
ROW_BYTES = 250
KINDS = ("kill", "stall", "cut", "bounce")
LONE_KINDS = tuple([kind for kind in KINDS if kind not in LOSING_A_DISK])
"""Where one replica is synced."""
UPDATE_SHARE = 0.4
"""Of writes of one row."""


class UpdatingClient(Client):
    """Whose rows have a column that follows from their key, and that updates do not name."""

    schema = SCHEMA.append(pa.field("note", pa.string()))

    def row(self, table: AsyncTable, key: int, value: str) -> dict[str, Any]:
        return {"id": key, "value": value, "note": _note(key)}

    def value(self, table: AsyncTable, row: dict[str, Any]) -> str:
        assert row["note"] == _note(row["id"]), f"an update has changed the rest of {row}"
        return super().value(table, row)

    async def _write(self, table: AsyncTable) -> None:
        if self._rng.random() >= UPDATE_SHARE:
            return await super()._write(table)
        key, value = self._key(), self._value()
        operation = self._history.begin(self.name, "write", str(key), value)
        try:
            versions = await table.update({"id": key, "value": value}, timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._seen[key] = int(versions[0])
            self._history.ok(operation, version=int(versions[0]))


def _note(key: int) -> str:
    return f"note of {key}"


async def run(world: World, bug: str = "") -> None:
    """Tables under strikes, with rows that take as long to come as the next strike."""
    rng = world.rng("kinds of strikes")
    cluster = SimCluster(world, **_settings(world))
    indexes, make_beside = in_some_runs(world, Blackouts)
    await _run(world, bug, cluster, indexes, make_beside, ("disk", "disk"), rng.sample(KINDS, 2))


async def run_blackouts(world: World, bug: str = "") -> None:
    """The same of every durability strategy by which a row outlives a loss of all power, always
    with an index, and with such losses."""
    rng = world.rng("strategy")
    media = rng.choice(ONE_SURVIVES)
    strikes: Sequence[str] = KINDS
    if sum(medium in SYNCED for medium in media) < 2:  # the only synced replica must stay
        strikes = LONE_KINDS
        if world.schedule is None:
            world.options = world.options.but(lost_disk_every_s=0.0)
    cluster = SimCluster(world, media=MEDIA, **_settings(world))
    world.note("world", f"segments{media!r}")

    def beside(cluster: SimCluster, database: AsyncDatabase) -> Beside:
        dark = [gap_s for gap_s in GAPS_S if gap_s]
        return IndexWatch(cluster, database, Blackouts(cluster, database, dark))

    await _run(world, bug, cluster, (COLUMN,), beside, media, rng.sample(strikes, 1))


def _settings(world: World) -> dict[str, Any]:
    work = world.options.workload
    size_bytes = work.clients * work.operations * (work.value_bytes + ROW_BYTES)
    slowly = {"metadata_first": True, "load_bytes_per_s": size_bytes / LOADING_S}
    return {**cleaning_of(world), **slowly}


async def _run(
    world: World,
    bug: str,
    cluster: SimCluster,
    indexes: Sequence[str],
    make_beside: Callable[[SimCluster, AsyncDatabase], Beside] | None,
    media: tuple[str, ...],
    strikes: Sequence[str],
) -> None:
    with planted(bug), remembered_images():
        await run_tables(
            world,
            strikes,
            longest_gap_s=3.0,
            make_client=UpdatingClient,
            make_beside=make_beside,
            media=media,
            cluster=cluster,
            indexes=indexes,
        )


def options(seed: int) -> Options:
    """Enough keys for old rows to be read, and small segments."""
    drawn, rng = struck_options(seed), random.Random(f"{seed}/loading")
    work = replace(
        drawn.workload,
        keys=rng.choice([40, 80, 160]),
        clients=rng.choice([4, 6]),
        operations=120,
        value_bytes=rng.choice([40, 200]),
        write_share=rng.choice([0.3, 0.5]),
        read_share=0.6,
        think_s=0.01,
    )
    crashes = rng.choice([0.0, 4.0])
    limits = Limits(segment_size_bytes=rng.choice([1024, 4096]))
    return drawn.but(workload=work, limits=limits, crash_every_s=crashes)


SCENARIO = Scenario("loading", run, options)
BLACKOUTS = Scenario("blackouts", run_blackouts, options)
