"""Whether what an apply adds finds its place: a port, folders with room, Ray's memory of a machine.

With a placement the machines are asked, once, and those that do not answer are told apart; without
one all of it is on this machine, and is looked at again with each plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stelae.coordinator.apply.checks import Made
from stelae.coordinator.apply.plan import FRONT, Act, Step, Traits
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import AlreadyRunning
from stelae.core.records.records import ServerKind
from stelae.deploy import launcher, machines, node_checks
from stelae.deploy.cluster_state import ClusterState
from stelae.deploy.node_checks import Checked, check_http_place

EVERY_ADDRESS = ("0.0.0.0", "::", "")
"""Hosts that stand for all of a machine's addresses."""


def what_is_taken(
    spec: ClusterSpec, present: Mapping[str, Traits], made: Mapping[str, Any]
) -> list[str]:
    """Why the front cannot listen on this machine where it is to, and new media cannot be where
    they are to be. ``made``: media that backups have already."""
    found = []
    if front_comes(spec, present) and not is_own_place(spec, present):
        try:
            check_http_place(spec)
        except AlreadyRunning as error:
            found.append(str(error))
    for name, medium in spec.media.items():
        if name in made or medium.path is None or not os.path.isabs(medium.path):
            continue
        above = Path(medium.path)
        while not above.exists():
            above = above.parent
        if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            found.append(
                f"media.{name}: {medium.path} cannot be made: {above} cannot be written to"
            )
    return found


def front_comes(spec: ClusterSpec, present: Mapping[str, Traits]) -> bool:
    """Whether the front begins to listen somewhere, that is told. Pure."""
    wanted, there = spec.serve, present.get(FRONT)
    if wanted is None or not wanted.port or (there is not None and "serve.port" not in there):
        return False
    at = (there or {}).get("serve.port"), (there or {}).get("serve.host")
    return at != (str(wanted.port), wanted.host)


def is_own_place(spec: ClusterSpec, present: Mapping[str, Traits]) -> bool:
    """Whether the front that there is has that very port, on one address of several that are meant
    by one of the two: it lets go of it before it is started anew. Pure."""
    wanted, there = spec.serve, present.get(FRONT, {})
    if wanted is None or there.get("serve.port") != str(wanted.port):
        return False
    before = there["serve.host"]
    return before == wanted.host or bool({before, wanted.host} & set(EVERY_ADDRESS))


def ask_machines(
    spec: ClusterSpec,
    state: ClusterState,
    steps: Sequence[Step],
    present: Mapping[str, Traits],
    made: Made,
    silent: Mapping[str, ServerKind],
) -> Checked:
    """The same of the machines of a placement, and whether Ray has memory there for what is added
    or grows. ``silent``: servers that wait already; they keep nobody else. Needs Ray.

    Raises InvalidArgument, NotEnoughServers: no machines can be chosen.
    """
    if spec.placement is None or not state.machines:
        return Checked()  # it is refused as such
    if made.placement is not None and (
        made.placement.machine_label != spec.placement.machine_label
    ):
        return Checked()  # the same
    needs: dict[str, node_checks.Needs] = {}
    new_media = {name for name in spec.media if name not in made.media}
    held, starting = memory_held(spec, steps, made, silent)
    added = [step for step in steps if step.act is Act.ADD]
    if added or starting or new_media:
        names = [plan.name for plan in launcher.plans(spec, state)]
        backups = [n for n in names if machines.kind_of(n) == ServerKind.BACKUP.value]
        placed = placed_with_masters(spec, state, names, added)
        new = [name for name in placed if name not in state.machines]
        old = [step.name for step in added if step.name in state.machines]
        old += [name for name in backups if new_media and name not in (*new, *old)]
        needs = node_checks.needs_of(spec, placed, new, old, new_media)
        node_checks.add_memory(needs, placed, held, starting)
    comes = front_comes(spec, present) and not is_own_place(spec, present)
    front = node_checks.front_needs(spec) if comes else None
    if front is not None and FRONT not in present and _serve_runs():
        front = None  # it goes on that one, wherever it listens
    if not needs and front is None:
        return Checked()
    return node_checks.check_nodes(spec.placement.machine_label, needs, front)


def _serve_runs() -> bool:
    from stelae.serve.deployment import serve_place

    return serve_place() is not None


def placed_with_masters(
    spec: ClusterSpec, state: ClusterState, names: Sequence[str], added: Sequence[Step]
) -> dict[str, str]:
    """The machines that will be chosen, also for masters whose names are found then."""
    found = machines.placed(spec, state, names)
    assert spec.placement is not None, "who has none is not asked"
    nameless = sum(not step.name for step in added)
    masters = [f"{ServerKind.MASTER.value}-new{number}" for number in range(nameless)]
    there = machines.live_machines(spec.placement.machine_label)
    racks = machines.live_racks(spec.placement.machine_label, spec.placement.rack_label)
    chosen = machines.assigned([*state.masters, *masters], found.machines, there, racks)
    return {name: chosen[name] for name in (*chosen, *masters)}


def memory_held(
    spec: ClusterSpec, steps: Sequence[Step], made: Made, silent: Mapping[str, ServerKind]
) -> tuple[dict[str, int], list[str]]:
    """Ray's memory that each tablet server holds while the most are there, as what goes is drained
    last, and those for which it is more than before. Pure."""
    held, starting = dict(made.memory_bytes), []
    for step in steps:
        if step.kind != ServerKind.TSERVER.value or step.name in silent:
            continue
        if step.act in (Act.ADD, Act.RESTART):
            if spec.tservers.memory_bytes > held.get(step.name, 0):
                starting.append(step.name)
            held[step.name] = spec.tservers.memory_bytes
    return held, starting
