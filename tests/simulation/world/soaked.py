"""Scenarios for the tests of the soak: one that holds, one that fails, one that ends its process,
one that never ends, one that needs a fresh process. None of them starts a server."""

from __future__ import annotations

import asyncio
import itertools
import os

from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World

EXIT_CODE = 7
VIRTUAL_S = 36.0
USES: list[str] = []
"""Seeds that `need_fresh_process` has run in this process."""


async def hold(world: World, bug: str = "") -> None:
    """Let virtual time pass."""
    await asyncio.sleep(VIRTUAL_S)


async def fail(world: World, bug: str = "") -> None:
    """Break a rule in every seed; the error has two lines."""
    await asyncio.sleep(VIRTUAL_S)
    raise AssertionError(f"row 1 of seed {world.seed} is lost\nsecond line")


async def die(world: World, bug: str = "") -> None:
    """End the worker process, as a segmentation fault does."""
    os._exit(EXIT_CODE)


async def need_fresh_process(world: World, bug: str = "") -> None:
    """Break a rule unless this is the first seed of the process."""
    USES.append(world.seed)
    assert len(USES) == 1, f"the process has run {len(USES)} seeds"


async def hang(world: World, bug: str = "") -> None:
    """Occupy the worker process without an end."""
    for _ in itertools.count():
        pass


def calm(seed: int) -> Options:
    """Draw no faults."""
    return Options()


HOLDS = Scenario("tests/simulation/world/soaked.py:HOLDS", hold, calm)
FAILS = Scenario("tests/simulation/world/soaked.py:FAILS", fail, calm)
DIES = Scenario("tests/simulation/world/soaked.py:DIES", die, calm)
HANGS = Scenario("tests/simulation/world/soaked.py:HANGS", hang, calm)
FRESH = Scenario("tests/simulation/world/soaked.py:FRESH", need_fresh_process, calm)
