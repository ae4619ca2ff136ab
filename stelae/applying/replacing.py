"""Starts servers of a machine that stays away on other machines: looks, and takes one step.

`stelae.coordinator.apply.away` decides; this executes on Ray. Each look is level-triggered: what a
killed process has left half done is seen in the catalog (a fence without a successor) and carried
on. Rules:

- R1: nothing is waited for within the cluster's turn. A step is begun, and a later look sees what
  has become of it.
- R2: what is decided before the turn is decided again in it, by the spec that was asked for last.
- R3: the target is checked as for a server that is added, before anything is given up.
- R4: fence, end the actor, write down the new machine, empty the folder, start. The fence is in the
  catalog before the actor's name is free.
- R5: a folder that is there already is set aside: never old data under a new UUID. One that a
  process holds is not touched, and nothing is started there.

Decisions §69.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors, create_actor
from stelae.applying.spec_operations import RaySpecs
from stelae.coordinator.apply.away import Look, Next, Verdict, replacements, still_away
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.config.store_url import POSTGRESQL
from stelae.core.errors import AlreadyRunning, Unavailable
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.deploy import launcher, machines, node_checks, nodes
from stelae.deploy.asked import kept_spec
from stelae.deploy.changed import ChangedCluster
from stelae.deploy.cluster_files import home_of, publish, refresh
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.deploy.locks import is_locked

logger = logging.getLogger(__name__)

ASIDE = "replaced"


@dataclass(frozen=True, slots=True)
class Known:
    """What a look is made from: the spec that was asked for last, and where servers are."""

    spec: ClusterSpec
    stamp: tuple[str, float]
    state: ClusterState


class Replacing:
    """The steps of one cluster's replacements. Keeps only since when machines have been away, and
    servers have been starting: a process that is started again counts anew."""

    def __init__(self, data_dir: str, now: Callable[[], float] = time.monotonic) -> None:
        self._data_dir = data_dir
        self._now = now
        self._away: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._failed: dict[str, tuple[str, ...]] = {}
        """Machines on which a server did not start, by its name."""
        self._told: dict[str, str] = {}
        self.verdicts: list[Verdict] = []
        """Of the last look."""
        self.away_since: dict[str, float] = {}
        """The same as people read it, in seconds since 1970."""

    def step(
        self, cluster: str, connect: Callable[[], AbstractContextManager[ChangedCluster]]
    ) -> None:
        """Look, and take the step that is due, if any. ``connect`` opens the cluster.

        Raises StelaeError, RayError: the next step begins again.
        """
        with home_of(cluster, (self._data_dir,)) as home:
            known = known_at(home)
            if known is None:
                self._away, self.verdicts, self.away_since = {}, [], {}
                return
            with connect() as database:
                self._step(database, home, known)

    def _step(self, database: ChangedCluster, home: Path, known: Known) -> None:
        due = self._due(database, known)
        if due is None:
            return
        with database.turn(f"replacement of {due.name}") as sure:
            # R2: meanwhile somebody may have asked for something else, or have moved it.
            refresh(home, database.cluster)
            again = known_at(home)
            if again is None or again.stamp != known.stamp:
                return
            due = self._due(database, again)
            if due is not None:
                sure()
                self._take(database, home, again, due)

    # ---- looking ----------------------------------------------------------------------------

    def _due(self, database: ChangedCluster, known: Known) -> Verdict | None:
        look = self._look(database, known)
        self.verdicts = replacements(look)
        told = {each.name: f"{each.next.value}: {each.why}" for each in self.verdicts}
        for name, text in told.items():
            if _without_numbers(text) != _without_numbers(self._told.get(name, "")):
                logger.warning("%s, of a machine that is away: %s", name, text)
        self._told = told
        return next((each for each in self.verdicts if each.next is not Next.WAIT), None)

    def _look(self, database: ChangedCluster, known: Known) -> Look:
        spec, state, now = known.spec, known.state, self._now()
        assert spec.placement is not None
        assert spec.placement.replace_after_s is not None
        wanted = [p.name for p in launcher.plans(spec, state) if p.kind is not ServerKind.MASTER]
        live = machines.live_machines(spec.placement.machine_label)
        placed = {name: m for name, m in state.machines.items() if name in wanted}
        before = self._away
        self._away = still_away(before, placed.values(), live, now)
        self.away_since = {
            machine: self.away_since.get(machine, time.time() - (now - since))
            for machine, since in self._away.items()
        }
        status = database.status()
        actors = cluster_actors(database.cluster)
        half = half_replaced(status)
        started = [n for n in half if n in actors and placed.get(n) in live]
        self._starting = {n: self._starting.get(n, now) for n in started}
        self._failed = {n: tried for n, tried in self._failed.items() if n in half}
        records = database._loop.run(database._database.tables())
        used = [d for r in records for d in (r.durability, r.becoming) if d is not None]
        return Look(
            wanted=wanted,
            placed=placed,
            away_s={machine: now - since for machine, since in self._away.items()},
            status=status,
            replace_after_s=spec.placement.replace_after_s,
            copies=max((len(media_of(each)) for each in used), default=0),
            store_moves=spec.cas_store is not None and spec.cas_store.url.startswith(POSTGRESQL),
            there=tuple(actors),
            starting_s={name: now - since for name, since in self._starting.items()},
        )

    # ---- doing ------------------------------------------------------------------------------

    def _take(self, database: ChangedCluster, home: Path, known: Known, due: Verdict) -> None:
        name, state = due.name, known.state
        logger.warning("%s is replaced: %s", name, due.why)
        machine = state.machines[name]
        if due.next is Next.MOVE:
            if machine not in self._away:  # it did not start there
                self._failed[name] = (*self._failed.get(name, ()), machine)
            machine = self._target(known, name)
            if due.uuid:
                _fence(database, due.uuid)  # R4: from here on nothing else has its name
            actor = cluster_actors(database.cluster).get(name)
            if actor is not None:
                ray.kill(actor)
            state = replace(load_state(home), machines={**state.machines, name: machine})
            state.save()
            publish(home, database.cluster)
            self._starting.pop(name, None)
        (plan,) = [p for p in launcher.plans(known.spec, state) if p.name == name]
        empty_folders(plan)
        try:
            create_actor(plan)
        except AlreadyRunning:  # the name is not free yet: the next look starts it
            logger.info("%s: its former actor is still ending", name)
            return
        logger.warning("%s is started on machine %s, empty", name, machine)

    def _target(self, known: Known, name: str) -> str:
        """The machine with the fewest servers of its kind that has what it needs. Raises
        StelaeError: none has."""
        spec, state = known.spec, known.state
        assert spec.placement is not None
        label = spec.placement.machine_label
        live = machines.live_machines(label)
        racks = machines.live_racks(label, spec.placement.rack_label)
        tried = self._failed.get(name, ())
        others = {n: m for n, m in state.machines.items() if n != name}
        left = [m for m in live if m not in tried] or list(live)
        if len(tried) >= len(live):
            self._failed.pop(name, None)  # all were tried: begin again
        problems: list[str] = []
        while left:
            target = machines.assigned([*others, name], others, left, racks)[name]
            checked = node_checks.check_nodes(label, needs_on(spec, {**others, name: target}, name))
            if not checked.problems and not checked.unchecked:
                return target
            problems += [*checked.problems, *checked.unchecked]
            left.remove(target)
        raise Unavailable(name, f"no machine can take it: {'; '.join(problems)}")


def _without_numbers(text: str) -> str:
    """By which a reason is logged once, and not with each second that it counts."""
    return re.sub("[0-9]+", "", text)


def _fence(database: ChangedCluster, uuid: str) -> None:
    database._loop.run(database._database.replace_server(ServerUuid(uuid)))


def known_at(home: Path) -> Known | None:
    """None: servers of this cluster are not replaced."""
    kept = kept_spec(home)
    if kept is None:
        return None
    spec = load_spec(kept.spec)
    if spec.placement is None or spec.placement.replace_after_s is None:
        return None
    return Known(spec, kept.stamp, load_state(home))


def needs_on(
    spec: ClusterSpec, placed: Mapping[str, str], name: str
) -> dict[str, node_checks.Needs]:
    """What a server needs on its machine: the folders of a new one, and Ray's memory for it and
    all tablet servers that are there. Pure."""
    needs = node_checks.needs_of(spec, placed, [name])
    tserver = ServerKind.TSERVER.value
    held = {n: spec.tservers.memory_bytes for n in placed if machines.kind_of(n) == tserver}
    node_checks.add_memory(needs, placed, held, [name] if name in held else [])
    return needs


def half_replaced(status: Mapping[str, Any]) -> list[str]:
    """Servers that are fenced, and of whose successors none was heard. Pure."""
    return [each["id"] for each in status.get("replaced", ()) if not each["successor"]]


def empty_folders(plan: ServerPlan) -> None:
    """Set aside what is in the folders of a new server on its machine. Raises StelaeError: a
    process holds them, or the machine does not answer."""
    folders = [plan.folder]
    folders += [
        str(Path(medium.path) / plan.name)
        for medium in plan.media
        if medium.path is not None and os.path.isabs(medium.path)
    ]
    told = nodes.ask(set_aside, {plan.name: plan.selector}, {plan.name: (folders,)})
    problem = told.silent.get(plan.name) or told.answers[plan.name]
    if problem:
        raise Unavailable(plan.name, f"it cannot start on {plan.machine}: {problem}")


def set_aside(folders: Sequence[str]) -> str:
    """Rename folders, so that there are none of these names. Runs on their machine.

    Returns what keeps it from being done; empty: it is done. Again is fine.
    """
    there = [Path(folder) for folder in folders if Path(folder).exists()]
    if busy := next((str(folder) for folder in there if is_locked(folder)), ""):
        return f"a server runs on {busy}"
    for folder in there:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{ASIDE}-{number}")).exists():
            number += 1
        folder.rename(aside)
        descriptor = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return ""


def start_applier(spec: ClusterSpec, data_dir: str) -> None:
    """Have the actor that replaces servers, if the spec asks for it. Again is fine."""
    if spec.placement is not None and spec.placement.replace_after_s is not None:
        RaySpecs(spec.cluster, data_dir, machines.node_of_others(spec)).start()
