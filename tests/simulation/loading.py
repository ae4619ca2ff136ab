"""The ``loading`` scenario: tablet servers die again and again, and rows follow slowly.

Many keys, most of them written once, so that what is read lies in segments that are not here; their
owners die, with backups and without, while the rows are on their way. The rules are those of
``tables``.
"""

from __future__ import annotations

import random
from dataclasses import replace

from stelae.simulation.options import Limits, Options
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world import World
from tests.simulation.planted_loading import planted
from tests.simulation.tables import run_tables, struck_options

LOADING_S = 25.0
"""So long the rows of a whole run would take to follow a recovery."""
ROW_BYTES = 250
KINDS = ("kill", "stall", "cut", "bounce")


async def run(world: World, bug: str = "") -> None:
    """Tables under strikes, with rows that take as long to come as the next strike."""
    work, rng = world.options.workload, world.rng("kinds of strikes")
    size_bytes = work.clients * work.operations * (work.value_bytes + ROW_BYTES)
    with planted(bug):
        await run_tables(
            world,
            rng.sample(KINDS, 2),
            longest_gap_s=3.0,
            metadata_first=True,
            load_bytes_per_s=size_bytes / LOADING_S,
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
