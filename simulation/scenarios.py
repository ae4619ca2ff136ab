"""Scenarios by name: what a seed is run through.

A scenario is an async function ``(world, bug) -> None`` that starts servers, lets clients work
under faults, and judges the outcome. ``bug`` names a planted bug that the scenario's servers then
have; it is "" in ordinary runs. Names in `SCENARIOS` are loaded when asked for, so that this
package imports no server; a scenario that lives in a file is named ``path/to/file.py:ATTRIBUTE``.

Each scenario has a second name, ``gray_…``: the same under gray faults in addition
(`stelae.simulation.nemesis`). The runs of the first name do not depend on the second.

Those of `ON_NODES` have a third name, ``nodes_…``: the same with their servers spread over nodes
that fail as a whole. Others have none: in ``kv``, ``members``, ``safekeepers`` and ``timelines``
there is no cluster that could place anything, and the rest brings its own faults, without a
nemesis.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stelae.core.errors import InvalidArgument
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World

Run = Callable[[World, str], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """How to run a seed.

    Args:
        name: as in `SCENARIOS`, or ``path:ATTRIBUTE``: the replay command says it.
        run: the scenario.
        options: seed -> options; scenarios bound here what their servers do not promise to survive.
        limit_s: of virtual time.
    """

    name: str
    run: Run
    options: Callable[[int], Options] = Options.draw
    limit_s: float = 3600.0


GRAY = "gray_"
"""Begin of the name of a scenario with gray faults."""
PLAIN: dict[str, str] = {
    "blackouts": "tests/simulation/recovery/loading.py:BLACKOUTS",
    "cleaning": "tests/simulation/tables/cleaning.py:SCENARIO",
    "applied": "tests/simulation/applied/applying.py:SCENARIO",
    "alters": "tests/simulation/successions/alters.py:SCENARIO",
    "cold_starts": "tests/simulation/recovery/cold_starts.py:SCENARIO",
    "entries": "tests/simulation/indexes/entries.py:SCENARIO",
    "durabilities": "tests/simulation/successions/durabilities.py:SCENARIO",
    "engines": "tests/simulation/recovery/engines.py:SCENARIO",
    "indexes": "tests/simulation/indexes/indexes.py:SCENARIO",
    "loading": "tests/simulation/recovery/loading.py:SCENARIO",
    "kv": "tests/simulation/world/register.py:SCENARIO",
    "counter": "tests/simulation/world/counter.py:SCENARIO",
    "members": "tests/simulation/raft/members.py:SCENARIO",
    "masters": "tests/simulation/masters/masters.py:SCENARIO",
    "reformed": "tests/simulation/masters/master_members.py:SCENARIO",
    "media": "tests/simulation/backups/media.py:SCENARIO",
    "offers": "tests/simulation/recovery/engines.py:OFFERS",
    "replicas": "tests/simulation/replicated/replicas.py:SCENARIO",
    "retired": "tests/simulation/backups/retirements.py:SCENARIO",
    "safekeepers": "tests/simulation/wal/safekeepers.py:SCENARIO",
    "splits": "tests/simulation/splits/splits.py:SCENARIO",
    "strikes": "tests/simulation/tables/tables.py:STRUCK",
    "tables": "tests/simulation/tables/tables.py:SCENARIO",
    "timelines": "tests/simulation/wal/timelines.py:SCENARIO",
    "unindexed_splits": "tests/simulation/splits/splits.py:UNINDEXED",
    "wal": "tests/simulation/wal/wal_tables.py:SCENARIO",
}
"""Name -> ``module:ATTRIBUTE`` or ``path.py:ATTRIBUTE`` of a `Scenario`."""
BELIEVED_S = 30.0
"""Time in which owners notice what backups of a healed cluster do not have."""
NODES = "nodes_"
"""Begin of the name of a scenario whose servers are spread over nodes."""
ON_NODES = (
    "alters",
    "cleaning",
    "cold_starts",
    "counter",
    "durabilities",
    "entries",
    "indexes",
    "masters",
    "media",
    "reformed",
    "replicas",
    "retired",
    "strikes",
    "tables",
    "wal",
)
"""Scenarios with a whole cluster and a nemesis."""
SCENARIOS = (
    PLAIN
    | {GRAY + name: place for name, place in PLAIN.items()}
    | {NODES + name: PLAIN[name] for name in ON_NODES}
)
"""The same with the names of gray scenarios, and of those on nodes."""


def load_scenario(name: str) -> Scenario:
    """Find a scenario by its name in `SCENARIOS`, or by ``module_or_path:ATTRIBUTE``.

    Raises:
        InvalidArgument: there is none.
    """
    place = SCENARIOS.get(name, name)
    where, colon, attribute = place.rpartition(":")
    if not colon:
        known = ", ".join(sorted(SCENARIOS))
        raise InvalidArgument(f"no scenario {name!r}; there are {known}, or path.py:ATTRIBUTE")
    module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, attribute, None)
    if not isinstance(found, Scenario):
        raise InvalidArgument(f"{place} is not a Scenario")
    if name in SCENARIOS and name.startswith(GRAY):
        return gray(found)
    return on_nodes(found) if name in SCENARIOS and name.startswith(NODES) else found


def gray(scenario: Scenario) -> Scenario:
    """The same scenario under gray faults in addition."""
    return replace(
        scenario,
        name=GRAY + scenario.name,
        options=lambda seed: scenario.options(seed).gray(seed),
    )


def on_nodes(scenario: Scenario) -> Scenario:
    """The same scenario on nodes that fail as a whole; copies have to be on different ones."""
    from stelae.simulation.spread import judged  # it knows the servers

    async def run(world: World, bug: str) -> None:
        with judged():
            await scenario.run(world, bug)
            await world.wait_until(
                world.holds_what_is_believed, BELIEVED_S, "backups have what owners believe"
            )
            await world.wait_until(
                lambda: not world.formers(), BELIEVED_S, "servers that were replaced end themselves"
            )

    return replace(
        scenario,
        name=NODES + scenario.name,
        run=run,
        options=lambda seed: scenario.options(seed).on_nodes(seed),
    )


def _load_file(path: Path) -> Any:
    if not path.exists():
        raise InvalidArgument(f"no file {path}; run this from the root of the checkout")
    module_name = f"stelae_scenario_{path.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
