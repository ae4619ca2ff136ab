"""Starts servers of a machine that stays away on other machines: looks, and takes one step.

`stelae.coordinator.apply.away` decides; this executes on Ray. Each look is level-triggered: what a
killed process has left half done is seen in the catalog (a fence without a successor) and carried
on. Rules:

- R1: nothing is waited for within the cluster's turn. A step is begun, and a later look sees what
  has become of it.
- R2: what is decided before the turn is decided again in it, by the spec that was asked for last.
- R3: the target is checked as for a server that is added, before anything is given up, and before
  the turn: machines that do not answer would hold it for long. A look within the turn sees whether
  the target is still there. What fails is not tried again for a while, and others go on.
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
from stelae.actors.server.instance import INSTANCE_FILE, decode_instance
from stelae.applying.spec_operations import RaySpecs
from stelae.coordinator.apply.away import Look, Next, Verdict, replacements, since_when
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.config.store_url import POSTGRESQL
from stelae.core.errors import AlreadyRunning, CorruptData, Unavailable
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.deploy import launcher, machines, node_checks, nodes
from stelae.deploy.asked import kept_spec
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.cluster_files import home_of, publish, refresh
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.deploy.locks import is_locked

logger = logging.getLogger(__name__)

ASIDE = "replaced"
STAMP = "%Y%m%dT%H%M%SZ"
"""Of a folder that was set aside: when, in UTC, so that later ones sort behind."""
PAUSE_S = 10.0
"""Seconds after the first failure of a step, in which others go on; doubled with each one more. The
looks have jitter."""
PAUSE_MAX_S = 300.0
ENDS_POLL_S = 0.2
"""Seconds between looks at a process that ends."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A step that failed, and is not tried again for a while."""

    why: str
    until: float
    length_s: float


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
        self._live: dict[str, str] = {}
        """Machines that Ray has, by the last look, with their addresses."""
        self._away: dict[str, float] = {}
        self._nodes_seen_at = now()
        """When Ray said last which nodes it has: time without that does not count as away."""
        self._starting: dict[str, float] = {}
        self._status_seen_at = now()
        """When masters said last which servers are half replaced."""
        self._half: list[str] | None = None
        """Servers that are half replaced, by the last look; None: masters were not asked yet."""
        self._failed: dict[str, tuple[str, ...]] = {}
        """Machines on which a server did not start, by its name."""
        self._pauses: dict[tuple[str, Next], Pause] = {}
        """By server and step. Those that are over say how long the next one is."""
        self._told: dict[str, str] = {}
        self.verdicts: list[Verdict] = []
        """Of the last look."""
        self.away_since: dict[str, float] = {}
        """The same as people read it, in seconds since 1970."""
        self.there: dict[str, list[str]] = {}
        """The servers of each machine that is away, masters too."""

    def step(
        self, cluster: str, connect: Callable[[], AbstractContextManager[ChangedCluster]]
    ) -> None:
        """Look, and take the step that is due, if any. ``connect`` opens the cluster.

        Raises StelaeError, RayError: the next step begins again.
        """
        with home_of(cluster, (self._data_dir,)) as home:
            known = known_at(home)
            if known is None:
                self._away, self.verdicts, self.away_since, self.there = {}, [], {}, {}
                return
            self._look_at_nodes(known)  # also while no master leads
            if self._half == [] and (not self._away or _replace_after(known) is None):
                self.verdicts = []  # masters are asked only if something may be due
                return
            with connect() as database:
                self._step(database, home, known)

    def _step(self, database: ChangedCluster, home: Path, known: Known) -> None:
        due = self._due(database, known)
        if due is None:
            return
        try:
            target = self._target(known, due)
        except Unavailable as error:
            self._pause(due.name, due.next, error)
            return
        with database.turn(f"replacement of {due.name}", tries_again=True) as sure:
            # R2: meanwhile somebody may have asked for something else, or have moved it.
            refresh(home, database.cluster)
            again = known_at(home)
            if again is None or again.stamp != known.stamp:
                return
            self._look_at_nodes(again)
            now_due = self._due(database, again)
            is_same = now_due is not None and _step_of(now_due) == _step_of(due)
            is_placed_same = again.state.machines == known.state.machines
            if not is_same or not is_placed_same or target not in self._live:
                return  # the next look chooses again
            sure()
            self._take(database, home, again, due, target)

    def _pause(self, name: str, step: Next, error: Unavailable) -> None:
        """Show why a step failed, and let others go before it is tried again."""
        before, why = self._pauses.get((name, step)), str(error)
        length_s = PAUSE_S if before is None else min(PAUSE_MAX_S, 2 * before.length_s)
        self._pauses[name, step] = Pause(why, self._now() + length_s, length_s)
        self.verdicts = [
            Verdict(name, Next.WAIT, why) if each.name == name else each for each in self.verdicts
        ]

    # ---- looking ----------------------------------------------------------------------------

    def _due(self, database: ChangedCluster, known: Known) -> Verdict | None:
        look = self._look(database, known)
        self.verdicts = replacements(look)
        self._told = {n: w for n, w in self._told.items() if n in {v.name for v in self.verdicts}}
        for each in self.verdicts:
            told = self._told.get(each.name, "")
            if each.next is not Next.WAIT:
                continue  # logged once it is taken
            if without_numbers(each.why) != without_numbers(told):
                logger.warning("%s, of a machine that is away, waits: %s", each.name, each.why)
            self._told[each.name] = each.why
        return next((each for each in self.verdicts if each.next is not Next.WAIT), None)

    def _look_at_nodes(self, known: Known) -> None:
        """See which machines are away, by Ray alone."""
        assert known.spec.placement is not None
        self._live = machines.live_machines(known.spec.placement.machine_label)
        away = set(placed_servers(known).values()) - self._live.keys()
        now = self._now()
        # The time of a spec that asks for none does not count.
        before = {} if _replace_after(known) is None else self._away
        self._away = since_when(before, away, now, self._nodes_seen_at)
        self._nodes_seen_at = now
        wall = time.time()
        self.away_since = {machine: wall - (now - since) for machine, since in self._away.items()}
        everyone = sorted(known.state.machines.items())
        self.there = {m: [name for name, on in everyone if on == m] for m in self._away}

    def _look(self, database: ChangedCluster, known: Known) -> Look:
        spec, placed = known.spec, placed_servers(known)
        status = masters_status(database)
        actors = cluster_actors(database.cluster)
        half, now = half_replaced(status), self._now()
        self._half = half
        starting = [n for n in half if placed.get(n) in self._live]
        self._starting = since_when(self._starting, starting, now, self._status_seen_at)
        self._status_seen_at = now
        self._failed = {n: tried for n, tried in self._failed.items() if n in half}
        concerned = {*half, *(n for n, machine in placed.items() if machine in self._away)}
        self._pauses = {step: p for step, p in self._pauses.items() if step[0] in concerned}
        records = database._loop.run(database._database.tables(own=True))
        used = [d for r in records for d in (r.durability, r.becoming) if d is not None]
        return Look(
            wanted=tuple(placed),
            placed=placed,
            away_s={machine: now - since for machine, since in self._away.items()},
            status=status,
            replace_after_s=_replace_after(known),
            copies=max((len(media_of(each)) for each in used), default=0),
            store_moves=moves_store(spec),
            has_lone_blobs=has_lone_blobs(spec),
            there=tuple(actors),
            starting_s={name: now - since for name, since in self._starting.items()},
            paused={step: each.why for step, each in self._pauses.items() if now < each.until},
        )

    # ---- doing ------------------------------------------------------------------------------

    def _take(
        self, database: ChangedCluster, home: Path, known: Known, due: Verdict, machine: str
    ) -> None:
        name, state = due.name, known.state
        logger.warning("%s is replaced: %s", name, due.why)
        if due.next is Next.MOVE:
            self._half = None  # also if what follows fails
            for uuid in due.uuids:
                _fence(database, uuid)  # R4: from here on nothing else has its name
            actor = cluster_actors(database.cluster).get(name)
            if actor is not None:
                ray.kill(actor)
            state = replace(load_state(home), machines={**state.machines, name: machine})
            state.save()
            publish(home, database.cluster)
            self._starting.pop(name, None)
        (plan,) = [p for p in launcher.plans(known.spec, state) if p.name == name]
        try:
            empty_folders(plan)
            create_actor(plan)
        except Unavailable as error:
            self._pause(name, Next.START, error)
            return
        except AlreadyRunning:  # the name is not free yet: the next look starts it
            logger.info("%s: its former actor is still ending", name)
            return
        logger.warning("%s is started on machine %s, empty", name, machine)

    def _target(self, known: Known, due: Verdict) -> str:
        """The machine with the fewest servers of its kind that has what it needs. Raises
        Unavailable: none has."""
        spec, state, name = known.spec, known.state, due.name
        if due.next is Next.START:
            return state.machines[name]
        assert spec.placement is not None
        label, live = spec.placement.machine_label, self._live
        racks = machines.live_racks(label, spec.placement.rack_label)
        if state.machines[name] in live:  # it did not start there
            tried_there = (*self._failed.get(name, ()), state.machines[name])
            self._failed[name] = tuple(dict.fromkeys(tried_there))
        tried = self._failed.get(name, ())
        left = [m for m in live if m not in tried] or list(live)
        if len(tried) >= len(live):
            self._failed.pop(name, None)  # all were tried: begin again
        return machine_with_room(spec, state, name, left, racks)


def machine_with_room(
    spec: ClusterSpec,
    state: ClusterState,
    name: str,
    among: Sequence[str],
    racks: Mapping[str, str],
) -> str:
    """Return the machine with the fewest servers of a server's kind that has what it needs.

    ``among``: machines that Ray has. Raises Unavailable: none of them has.
    """
    assert spec.placement is not None
    label = spec.placement.machine_label
    others = {n: m for n, m in state.machines.items() if n != name}
    left, problems = list(among), list[str]()
    while left:
        target = machines.assigned([*others, name], others, left, racks)[name]
        checked = node_checks.check_nodes(label, needs_on(spec, {**others, name: target}, name))
        if not checked.problems and not checked.unchecked:
            return target
        problems += [*checked.problems, *checked.unchecked]
        left.remove(target)
    raise Unavailable(name, f"no machine can take it: {'; '.join(problems) or 'there is no other'}")


def has_lone_blobs(spec: ClusterSpec) -> bool:
    """Whether evicted ends of logs are on one backup each. Pure."""
    settings = spec.settings()
    return bool(spec.safekeepers.count and settings.evict_after_s and settings.evict_copies < 2)


def moves_store(spec: ClusterSpec) -> bool:
    """Whether the configuration store keeps its rows in a database elsewhere. Pure."""
    return spec.cas_store is not None and spec.cas_store.url.startswith(POSTGRESQL)


def _step_of(due: Verdict) -> tuple[str, Next, tuple[str, ...]]:
    """What is to be done, whatever the reason. Pure."""
    return due.name, due.next, due.uuids


def _replace_after(known: Known) -> float | None:
    assert known.spec.placement is not None
    return known.spec.placement.replace_after_s


def without_numbers(text: str) -> str:
    """Return a reason without its numbers: it stays the same while it counts seconds. Pure."""
    return re.sub("[0-9]+", "", text)


def _fence(database: ChangedCluster, uuid: str) -> None:
    database._loop.run(database._database.replace_server(ServerUuid(uuid)))


def known_at(home: Path) -> Known | None:
    """None: all servers of this cluster are on one machine.

    Without a ``replace_after`` what is half replaced is carried on all the same.
    """
    kept = kept_spec(home)
    if kept is None:
        return None
    spec = load_spec(kept.spec)
    return None if spec.placement is None else Known(spec, kept.stamp, load_state(home))


def may_replace(home: Path) -> bool:
    """Whether servers of machines that stay away are started elsewhere."""
    known = known_at(home)
    return known is not None and _replace_after(known) is not None


def placed_servers(known: Known) -> dict[str, str]:
    """The machine of each server of the spec, but masters. Pure."""
    plans = launcher.plans(known.spec, known.state)
    wanted = [plan.name for plan in plans if plan.kind is not ServerKind.MASTER]
    return {name: known.state.machines[name] for name in wanted if name in known.state.machines}


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


def start_again_empty(
    status: Mapping[str, Any],
    plans: Sequence[ServerPlan],
    actors: dict[str, Any],
    deadline: float,
) -> None:
    """Start half replaced servers again that a launch has started on the disk of a fenced one.

    A launch knows only once masters run which UUIDs are fenced. ``actors`` gets the new ones.
    Raises AlreadyRunning, Unavailable: its process did not end in time.
    """
    fenced = [str(each["uuid"]) for each in status.get("replaced", ())]
    half = half_replaced(status)
    for plan in plans:
        if plan.name not in half:
            continue
        ray.kill(actors[plan.name])
        while True:
            try:
                empty_folders(plan, fenced)
                actors[plan.name] = create_actor(plan)
                break
            except (AlreadyRunning, Unavailable):  # its process, or its name, is there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(ENDS_POLL_S)


@dataclass(frozen=True, slots=True)
class SetAside:
    """What has come of it on one machine."""

    folders: tuple[str, ...] = ()
    """Where they are now, of those that were moved by this call."""
    problem: str = ""
    """What keeps it from being done; empty: it is done."""


def empty_folders(plan: ServerPlan, only_of: Sequence[str] = ()) -> tuple[str, ...]:
    """Set aside what is in the folders of a new server on its machine, and return where it is now;
    see `set_aside`. Raises StelaeError: a process holds them, or the machine does not answer."""
    folders = [plan.folder]
    folders += [
        str(Path(medium.path) / plan.name)
        for medium in plan.media
        if medium.path is not None and os.path.isabs(medium.path)
    ]
    stamp = time.strftime(STAMP, time.gmtime())
    given = (folders, stamp, only_of)
    told = nodes.ask(set_aside, {plan.name: plan.selector}, {plan.name: given})
    done = told.answers.get(plan.name, SetAside())
    if problem := told.silent.get(plan.name) or done.problem:
        where = f" on {plan.machine}" if plan.machine else ""
        raise Unavailable(plan.name, f"it cannot start{where}: {problem}")
    return done.folders


def set_aside(folders: Sequence[str], stamp: str, only_of: Sequence[str] = ()) -> SetAside:
    """Rename folders, so that there are none of these names. Runs on their machine.

    ``stamp``: what the new names end with. ``only_of``: UUIDs. If there are any, folders of another
    server stay: the first one says whose they are, and is therefore renamed last. Again is fine.
    """
    there = [Path(folder) for folder in folders if Path(folder).exists()]
    if busy := next((str(folder) for folder in there if is_locked(folder)), ""):
        return SetAside(problem=f"a server runs on {busy}")
    if only_of:
        try:
            whose = decode_instance((Path(folders[0]) / INSTANCE_FILE).read_bytes()).server_uuid
        except FileNotFoundError:  # it has not begun
            return SetAside()
        except CorruptData as error:
            return SetAside(problem=str(error))
        if whose not in only_of:
            return SetAside()
    moved = []
    for folder in reversed(there):
        ending, number = stamp, 1
        while (aside := folder.with_name(f"{folder.name}.{ASIDE}-{ending}")).exists():
            number += 1
            ending = f"{stamp}-{number}"
        folder.rename(aside)
        moved.append(str(aside))
        descriptor = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return SetAside(tuple(reversed(moved)))


def start_applier(spec: ClusterSpec, data_dir: str) -> None:
    """Have the actor that replaces servers, if the spec asks for it. Again is fine."""
    if spec.placement is not None and spec.placement.replace_after_s is not None:
        RaySpecs(spec.cluster, data_dir, machines.node_of_others(spec)).start()
