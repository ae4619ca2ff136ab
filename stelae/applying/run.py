"""`stelae apply`: makes a running cluster what its file says, one step after the other.

Level-triggered: after every step it looks again at what is, and plans anew. So an apply that was
interrupted goes on when it is given again, by whoever. What is refused has changed nothing. One
apply at a time, by the masters' word (`stelae.deploy.asked`); one server at a time, and the next
only once all tablets serve and lack no replica. What a step does is `stelae.applying.steps`; which
there are, and in which order, is `stelae.coordinator.apply.plan`. Design §1, §12; decisions
§44.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors
from stelae.applying import steps as apply_steps
from stelae.applying.front import others_present, others_wanted, wait_front
from stelae.applying.places import ask_machines, what_is_taken
from stelae.applying.replacing import start_applier
from stelae.coordinator.apply.checks import Asked, Made, refusals
from stelae.coordinator.apply.plan import (
    Difference,
    Present,
    ServerIs,
    Step,
    TableIs,
    Traits,
    Wanted,
    differences,
    plan_steps,
)
from stelae.coordinator.apply.room import room_of
from stelae.core import tracing
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.current import CURRENT
from stelae.core.errors import InvalidArgument, RetryLater, SpecChanged
from stelae.core.records.records import ServerKind
from stelae.deploy import asked, cluster_state, launcher, machines, ray_session
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.cluster_files import home_of, publish, refresh
from stelae.deploy.masters import list_masters
from stelae.deploy.node_checks import log_unchecked
from stelae.runtime.traces import trace_as

LOOK_TIMEOUT_S = 15.0
LOOK_AGAIN_S = 1.0
"""For those that did not answer the last time."""
STEPS_MORE = 32
"""Than were planned at first, before it is given up: somebody else changes the cluster too."""

Progress = Callable[[int, int, str], None]
"""(steps that are done, of so many, what is done now)"""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done, or, of a dry run, would be."""

    differences: tuple[Difference, ...]
    """Between the spec that was asked for before and this one."""
    steps: tuple[Step, ...]
    refused: tuple[str, ...] = ()
    """Of a dry run: why it cannot be done."""
    is_done: bool = False
    generation: int = 0
    """Of the spec that was asked for last; of a dry run, without this one."""

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "differences": [
                {"field": d.field, "before": d.before, "after": d.after} for d in self.differences
            ],
            "steps": [
                {"act": s.act.value, "kind": s.kind, "name": s.name, "why": s.why}
                for s in self.steps
            ],
            "refused": list(self.refused),
            "done": self.is_done,
            "generation": self.generation,
        }


def apply(
    database: ChangedCluster,
    spec: str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec,
    *,
    dry_run: bool,
    progress: Progress,
    timeout: float,
    by: str = "",
    accept_loss: bool = False,
    if_generation: int | None = None,
) -> Applied:
    """See `Database.apply`. ``by``: who asks for it; empty: this process."""
    work = _Apply(database, load_spec(spec), progress, time.monotonic() + timeout)
    work.by, work.accepts_loss, work.if_generation = by, accept_loss, if_generation
    with home_of(database.cluster, (database.home, work.data_dir)) as work.home:
        return _applied(work, dry_run=dry_run)


def _applied(work: _Apply, *, dry_run: bool) -> Applied:
    if not dry_run:  # which only tells what is to be done, and writes nothing
        wait_front(work.home, work.refreshed, work._deadline)
    first = work.judge()
    if dry_run:
        return first
    work.check(first)
    with work._database.turn("apply", work.by) as work.sure:
        first = work.judge()  # what another apply has done meanwhile
        work.check(first)
        if tracing.active is None:
            whose = {"cluster": work.cluster, "kind": "apply", "server": "apply"}
            trace_as(work.traces_endpoint, **whose)
        entry = CURRENT.get()
        with tracing.spanned("apply", "" if entry is None else entry[3]) as work.trace:
            return work.carry_out(first)


class _Apply:
    def __init__(
        self, database: ChangedCluster, spec: ClusterSpec, progress: Progress, deadline: float
    ) -> None:
        self._database = database
        self.sure: Callable[[], None] = _nobody_asks
        """Raises AlreadyRunning if somebody else changes the cluster by now."""
        self._progress = progress
        self._deadline = deadline
        self._silent: dict[str, None] = {}
        self._status: Mapping[str, Any] = {}
        self._mine: asked.Kept | None = None
        self._asked_machines: Sequence[str] | None = None
        self.by, self.cluster, self.trace, self.accepts_loss = "", spec.cluster, "", False
        self.if_generation: int | None = None
        self.traces_endpoint = spec.traces_endpoint
        if not ray.is_initialized():
            ray_session.join_ray(database.ray_address)
        self._looked = self._plans()
        known = [plan for plan in self._looked.values() if plan is not None]
        if not known:
            raise RetryLater("no server of the cluster answers: they start, or Ray has no room")
        machines.check_here(known[0].selector)
        self.data_dir = Path(known[0].folder).parent
        """The servers', on their machines."""
        self.home = self.data_dir
        """A folder with the cluster's files."""
        self._kept: asked.Kept | None = None
        if spec.cluster != database.cluster:
            raise InvalidArgument(
                f"this is cluster {database.cluster!r}, and the spec is of {spec.cluster!r}"
            )
        self._spec = spec

    # ---- looking ----------------------------------------------------------------------------

    def _plans(self) -> dict[str, ServerPlan | None]:
        """What each server's process runs with; None: it does not say, as it starts, or as Ray has
        no room for it. Raises InvalidArgument."""
        actors = apply_steps.server_actors(cluster_actors(self._database.cluster))
        if not actors:
            raise InvalidArgument(f"cluster {self._database.cluster!r} does not run in this Ray")
        asked_them = {name: actor.describe.remote() for name, actor in actors.items()}
        again = [answer for name, answer in asked_them.items() if name in self._silent]
        rest = [answer for name, answer in asked_them.items() if name not in self._silent]
        for answers, timeout_s in ((rest, LOOK_TIMEOUT_S), (again, LOOK_AGAIN_S)):
            if answers:
                ray.wait(answers, num_returns=len(answers), timeout=timeout_s)
        found: dict[str, ServerPlan | None] = {}
        for name, answer in asked_them.items():
            try:
                found[name] = ray.get(answer, timeout=0.1)
            except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
                found[name] = None
        self._silent = {name: None for name, plan in found.items() if plan is None}
        return found

    def _state(self) -> cluster_state.ClusterState:
        return cluster_state.load_state(self.home)

    def refreshed(self) -> cluster_state.ClusterState:
        """The newest state that the cluster's servers keep."""
        refresh(self.home, self._database.cluster)
        return self._state()

    def judge(self) -> Applied:
        """What differs, what is to be done, and what keeps it from being done."""
        database = self._database
        self.refreshed()
        self._kept = asked.kept_spec(self.home)
        generation = self._generation()
        members = {member["name"] for member in list_masters(database)}
        self._looked = self._plans()
        others = others_present(database.cluster, self._state())
        status = self._status = masters_status(database)  # after what may take long: it has marks
        present = Present(
            servers_that_are(
                self._looked, members, status, machines.away(self._spec, self._state())
            ),
            others,
        )
        before = asked.spec_of(self._kept, self._spec)
        self._spec = machines.as_founded(self._spec, before)
        made = made_with(self._looked, self.data_dir, None if self._kept is None else before)
        if Path(self._spec.data_dir).resolve() == self.data_dir.resolve():
            made = replace(made, data_dir=self._spec.data_dir)
        steps = plan_steps(wanted_of(self._spec, self._state(), present.others), present)
        records = database._loop.run(database._database.tables(own=True))
        tables = [TableIs(r.name, r.durability, r.becoming) for r in records]
        room = room_of(status, int(ray.available_resources().get("memory", 0)))
        asking = Asked(made, self._spec, steps, present, tables, room, self.accepts_loss)
        why = refusals(replace(asking, room=replace(room, taken=self._taken(asking))))
        changed = differences(before.document(), self._spec.document())
        return Applied(
            tuple(changed), tuple(steps), tuple(why), is_done=not steps, generation=generation
        )

    def _generation(self) -> int:
        """Of the spec that was asked for last. Raises SpecChanged: it was to be another one."""
        kept, wanted = self._kept, self.if_generation
        found = 0 if kept is None else kept.generation
        if wanted is None or wanted == found or kept is None or self._mine is not None:
            return found
        # An apply that was interrupted has asked for this very spec: given again, it goes on.
        if wanted + 1 == found and not kept.is_done and kept.spec == self._spec.document():
            return found
        raise SpecChanged(self.cluster, wanted, found, kept.by)

    def _taken(self, asking: Asked) -> Sequence[str]:
        """Machines are asked once only: what is done then takes places itself."""
        others, made = asking.present.others, asking.made
        if self._spec.placement is None:
            return what_is_taken(self._spec, others, made.media)
        if self._asked_machines is None:
            state = self._state()
            checked = ask_machines(self._spec, state, asking.steps, others, made, asking.silent)
            log_unchecked(checked)
            self._asked_machines = checked.problems
        return self._asked_machines

    def check(self, found: Applied) -> None:
        """Raises InvalidArgument: all reasons why not."""
        if found.refused:
            listed = "".join(f"\n  {reason}" for reason in found.refused)
            raise InvalidArgument(f"this cannot be applied:{listed}")

    # ---- doing ------------------------------------------------------------------------------

    def carry_out(self, first: Applied) -> Applied:
        """Step by step, looking again after each. Raises InvalidArgument, RetryLater, …"""
        kept = self._mine = asked.keep_spec(self.home, self._spec, is_done=False, by=self.by)
        self._publish()
        done: list[Step] = []
        left = first
        for _ in range(len(first.steps) + STEPS_MORE):
            if not left.steps:
                if done:
                    self._steps(len(done), len(done)).settle()
                text = "the cluster is as it was asked for"
                self._progress(len(done), len(done), text)
                start_applier(self._spec, str(Path(self._spec.data_dir).absolute()))
                asked.note_done(self.home, kept)  # last: who is told may want it to end
                self._publish()
                return Applied(
                    first.differences, tuple(done), is_done=True, generation=kept.generation
                )
            if self._take(left.steps[0], len(done), len(done) + len(left.steps)):
                done.append(left.steps[0])
            left = self._look_again()
        raise RetryLater(f"after {len(done)} steps there is still to do: {left.steps[0]}")

    def _look_again(self) -> Applied:
        """What is left. Raises InvalidArgument: it cannot be done, or is not what is asked for."""
        left = self.judge()
        kept, mine = self._kept, self._mine
        if kept is not None and mine is not None and kept.stamp != mine.stamp:
            raise InvalidArgument(f"{kept.by} asked for something else meanwhile")
        self.check(left)
        return left

    def _is_next(self, step: Step) -> bool:
        """Whether a step would be chosen again, and no server is missed in that look either."""
        left = self._look_again()
        self.sure()
        return is_first(step, left.steps) and not apply_steps.what_is_unwell(self._status)

    def _take(self, step: Step, number: int, count: int) -> bool:
        self._progress(number, count, str(step))
        self.sure()
        about = {"stelae.server": step.name, "stelae.why": step.why}
        with tracing.spanned(f"apply {step.act.value} {step.kind}", self.trace, **about):
            return self._steps(number, count).take(step)

    def _steps(self, number: int, count: int) -> apply_steps.Steps:
        def tell(text: str) -> None:
            self._progress(number, count, text)

        before = self._state()
        state = launcher.place(self._spec, before)
        if state != before:
            self._publish()
        plans = launcher.plans(self._spec, state)
        database, spec = self._database, self._spec
        return apply_steps.Steps(
            database,
            spec,
            plans,
            tell,
            self._deadline,
            self._is_next,
            home=self.home,
            sure=self.sure,
        )

    def _publish(self) -> None:
        publish(self.home, self.cluster)


def _nobody_asks() -> None:
    """Nothing is done yet."""


def is_first(step: Step, steps: Sequence[Step]) -> bool:
    """Whether it is the one to take, for whatever reason. Pure."""
    return bool(steps) and replace(steps[0], why="") == replace(step, why="")


def wanted_of(
    spec: ClusterSpec, state: cluster_state.ClusterState, others: Mapping[str, Traits]
) -> Wanted:
    """What a spec asks for. Pure. ``others``: what there is that is no server."""
    plans = launcher.plans(spec, state)
    masters = [plan for plan in plans if plan.kind is ServerKind.MASTER]
    return Wanted(
        servers={
            plan.name: (plan.kind, apply_steps.traits_of(plan))
            for plan in plans
            if plan.kind is not ServerKind.MASTER
        },
        masters=spec.masters.count,
        master_traits=apply_steps.traits_of(masters[0]),
        others=others_wanted(spec, state, others),
    )


def made_with(
    plans: Mapping[str, ServerPlan | None], data_dir: Path, before: ClusterSpec | None
) -> Made:
    """What the servers that answer run with. Pure. ``before``: what was asked for last."""
    known = [plan for plan in plans.values() if plan is not None]
    first = known[0]
    return Made(
        cluster=first.cluster,
        data_dir=str(data_dir),
        segment_size_bytes=first.settings.segment_bytes,
        cas_store=first.cas_store_url,
        tls=first.peer_tls,
        lease_s=max(plan.settings.lease_s for plan in known),
        media={medium.name: medium.path for plan in known for medium in plan.media},
        synced=frozenset(m.name for p in known for m in p.media if m.path and m.sync == "always"),
        memory_bytes={
            plan.name: plan.memory_limit_bytes for plan in known if plan.kind is ServerKind.TSERVER
        },
        sizes={
            plan.name: {medium.name: medium.size_bytes for medium in plan.media}
            for plan in known
            if plan.kind is ServerKind.BACKUP
        },
        ray_address="" if before is None else before.ray.address,
        ray_num_cpus=None if before is None else before.ray.num_cpus,
        serve_tls=None if before is None or before.serve is None else before.serve.tls,
        placement=None if before is None else before.placement,
    )


def servers_that_are(
    plans: Mapping[str, ServerPlan | None],
    members: Collection[str],
    status: Mapping[str, Any],
    away: Collection[str] = (),
) -> list[ServerIs]:
    """All that have a process, and masters of the set that have none. Pure.

    ``plans``: by the processes' names; None: it does not answer. ``members``: of the masters' set.
    ``away``: servers whose machine Ray does not have.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for each in status["servers"]:
        if each["state"] == "live" or each["id"] not in newest:
            newest[each["id"]] = each
    is_well = not apply_steps.what_is_unwell(status)
    found = []
    for name, plan in plans.items():
        kind, seen = ServerKind(name.rpartition("-")[0]), newest.get(name)
        is_member = kind is not ServerKind.MASTER or name in members
        each = _server_is(kind, name, plan, seen, is_member=is_member)
        each = replace(each, is_away=name in away)
        if is_well and seen is None:
            each = replace(each, is_lost=True)
        elif is_well and seen is not None and not each.live:
            each = replace(each, left=_left_on_dead(kind, seen, status))
        found.append(each)
    lost = [name for name in sorted(members) if name not in plans]
    found += [ServerIs(ServerKind.MASTER, n, live=False, has_process=False) for n in lost]
    return found


def _server_is(
    kind: ServerKind,
    name: str,
    plan: ServerPlan | None,
    seen: Mapping[str, Any] | None,
    *,
    is_member: bool,
) -> ServerIs:
    """A server with a process, as the masters see it; None: they do not, just now."""
    made = ServerIs(
        kind,
        name,
        {} if plan is None else apply_steps.traits_of(plan),
        live=False,
        answers=plan is not None,
        is_member=is_member,
    )
    if seen is None:
        return replace(made, is_known=False)
    retiring, left = bool(seen.get("retiring")), 1
    if kind is ServerKind.TSERVER:
        left = seen["tablets"] + seen["indexlets"]
    elif kind is ServerKind.BACKUP:
        left = 0 if seen["drained"] else max(1, seen["segments"])
    elif kind is ServerKind.SAFEKEEPER:
        retiring = seen["status"] == "decommissioned"
        left = 1 if seen["timelines"] is None else seen["timelines"]
    live, leads = seen["state"] == "live", seen.get("role") == "leader"
    return replace(made, live=live, retiring=retiring, left=left, leads=leads)


def _left_on_dead(kind: ServerKind, seen: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """What is yet to go elsewhere of a server that is dead while nothing is missed. Pure.

    What is on its disk was made anew; a safekeeper has to leave the timelines that name it.
    """
    if kind is ServerKind.TSERVER:
        return int(seen["tablets"] + seen["indexlets"])
    if kind is not ServerKind.SAFEKEEPER:
        return 0
    return apply_steps.timelines_of(status, seen["safekeeper_id"])
