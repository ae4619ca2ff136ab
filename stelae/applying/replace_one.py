"""Replaces one server by a new, empty one of its name, by an operator's word, on Ray.

`stelae.coordinator.apply.replaces` decides from a look at the catalog; this executes the step that
is due, and looks again. So a replacement that was interrupted goes on when it is given again:
what was done is in the catalog (marks and fences). Rules:

- R1: a step is taken within the cluster's turn, by a look that was made within it: at the status,
  at the spec that was asked for last, and at where servers are.
- R2: the turn is held for the steps alone. A drain, copies that the masters make, and the end are
  waited for without it, as they may take hours.
- R3: end the actor, fence, choose the machine, set the folders aside, start. The fence is in the
  catalog before another process has the name, and folders are renamed, never deleted.
- R4: what keeps a server from being started is looked at before its data is given up.
- R5: it is done once the new server lives and nothing lacks (`Replacement`), and not before.
- R6: a server of which the masters know no UUID is not fenced. So its process is ended, and its
  folder set aside, on a machine that is there, before the new one starts. So is one of which they
  know UUIDs by operators' marks alone: a fence of these may be of an earlier server of the name.

Masters are replaced by `stelae.applying.replace_master`. Decisions §81.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors
from stelae.applying.one_server import (
    DESCRIBE_TIMEOUT_S,
    Told,
    end_process,
    hand_over,
    joined,
    name_of,
)
from stelae.applying.processes import Deployment
from stelae.applying.replace_master import replace_master
from stelae.applying.replacement import Replacement, ReplaceOrder, placed
from stelae.applying.replacing import (
    empty_folders,
    has_lone_blobs,
    machine_with_room,
    moves_store,
    without_numbers,
)
from stelae.applying.steps import Steps, what_is_unwell
from stelae.client.admin.operators import CALL_TIMEOUT_S
from stelae.coordinator.apply.plan import Act, Step, TableIs
from stelae.coordinator.apply.replaces import (
    Kept,
    ReplaceAct,
    ReplaceLook,
    ReplaceStep,
    count_left,
    former_of,
    is_unknown,
    kind_of,
    known_as,
    leaves,
    next_of_replacement,
    not_heard,
    quiet_s,
    refusals_of_replacement,
)
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import (
    AlreadyRunning,
    InvalidArgument,
    NotEnoughServers,
    RetryLater,
    StelaeError,
    Unavailable,
)
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind, TableRecord
from stelae.core.schema.durability import media_of
from stelae.deploy import machines
from stelae.deploy.asked import kept_spec
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.cluster_files import publish, refresh
from stelae.deploy.cluster_state import load_state
from stelae.deploy.restarts import what_would_go

if TYPE_CHECKING:
    from stelae.actors.backup.frames import MediumSpec

POLL_S = 0.5
TURN_S = 45.0
"""Seconds for which a step is waited for within the turn, at most."""
START_S = 60.0
STUCK_S = 120.0
"""Seconds after which a replacement ends while the same is waited for, where nothing is drained."""
DRAIN_STUCK_S = 1800.0
"""Seconds after which the wait for a drain ends in which nothing more has left the server, and any
wait after a drain in which the same lacks. The drain goes on."""
STEPS = (ReplaceAct.DRAIN, ReplaceAct.END, ReplaceAct.FENCE, ReplaceAct.START)


def replace_server(
    database: ChangedCluster,
    server: str,
    *,
    drain: bool = True,
    elsewhere: bool = False,
    progress: Told = lambda text: None,
    timeout: float,
) -> Replacement:
    """Give a server's name to a new, empty one; see `Database.replace_server`."""
    deadline = time.monotonic() + timeout
    with joined(database) as known:
        status = masters_status(database)
        name = name_in(status, server, known)
        order = ReplaceOrder(database, known, name, elsewhere, progress, deadline)
        if kind_of(name) == ServerKind.MASTER.value:
            return replace_master(order)
        return _Replace(order, drains=drain).run(server)


def name_in(status: Mapping[str, Any], server: str, known: Deployment) -> str:
    """The name of the server that is meant, by name or UUID, former ones too. Raises
    InvalidArgument. Pure."""
    fenced = {each["uuid"]: each["id"] for each in [*not_heard(status), *status["replaced"]]}
    name = fenced.get(server) or name_of(status, server, known.plans)
    if name not in known.plans and kind_of(name) != ServerKind.MASTER.value:
        raise InvalidArgument(
            f"{name} is no server of the spec of this cluster: `stelae server retire {name}` "
            "drains it, and `stelae apply` ends it"
        )
    return str(name)


class _Replace:
    """One replacement, from the first look until nothing lacks."""

    def __init__(self, order: ReplaceOrder, *, drains: bool) -> None:
        self._database = order.database
        self._known = order.known
        self._name = order.name
        self._elsewhere = order.elsewhere
        self._progress = order.progress
        self._deadline = order.deadline
        self._drains = drains
        self._former: tuple[str, ...] = ()
        self._is_unknown = False
        """The UUID of the present server may be none of ``_former``."""
        self._only_ended = False
        self._has_drained = False
        """A drain has begun, by whomever."""
        self._has_started = False
        """The new server was started."""
        self._has_waited = False
        """It is past its beginning, in which a turn of somebody else refuses it."""
        self._target = ""
        """The machine that was chosen; empty: none yet."""
        self._set_aside: list[tuple[str, str]] = []
        """Folders, each with its machine."""
        self._waited: tuple[str, float] = ("", time.monotonic())
        """What is waited for, and since when."""
        self._is_draining = False
        """The last look waited for a drain."""
        self._least = math.inf
        """The least that the drain has ever left on the server."""
        self._drained_at = time.monotonic()
        """When that was reached."""

    def run(self, server: str) -> Replacement:
        """Raises InvalidArgument: all reasons why not, and nothing has changed; AlreadyRunning;
        RetryLater."""
        status = self._heard_status()
        self._former = former_of(status, self._name, server)
        self._is_unknown = is_unknown(status, self._former)
        self._only_ended = self._is_started()
        if not self._only_ended:
            self._check_places()
        self._check_unknown()
        named = ", ".join(self._former) or "the masters know no UUID of it"
        self._progress(f"{self._name} ({named}) is replaced")
        while True:
            step = self._look()
            if step.act is ReplaceAct.DONE:
                return self._done()
            if step.act is ReplaceAct.TAKEN_BACK:
                raise RetryLater(
                    f"{self._name} is not to leave any more: somebody took its drain back "
                    "(`stelae apply`, or `stelae server retire --cancel`)"
                )
            if step.act is ReplaceAct.WAIT:
                self._pause(step.why)
            elif time.monotonic() >= self._deadline:  # a turn would take no step
                raise self._not_yet("the time is over")
            else:
                self._take_turn()

    # ---- looking ----------------------------------------------------------------------------

    def _heard_status(self) -> dict[str, Any]:
        """A status document of a leader that has heard all that live."""
        while (status := masters_status(self._database)).get("heard_all") is not True:
            self._pause("the leader master has just begun to hear the servers")
        return status

    def _look(self) -> ReplaceStep:
        """By a new status document. Raises InvalidArgument: it is refused."""
        try:
            look = self._seen()
        except InvalidArgument:
            raise
        except (StelaeError, ray.exceptions.RayError) as error:
            # A leader master that ends is followed by another; so is an actor.
            return ReplaceStep(ReplaceAct.WAIT, str(error).partition("\n")[0])
        if why := refusals_of_replacement(look):
            raise InvalidArgument(f"{self._name} is not replaced: {'; '.join(why)}")
        step = next_of_replacement(look)
        if self._drains and look.live is not None and leaves(look.live):
            self._has_drained = True  # by an earlier call, or by `stelae server retire`
        waits = step.act is ReplaceAct.WAIT and self._drains
        left = count_left(look) if waits else None
        self._is_draining = left is not None
        if left is None:
            return step
        self._note_left(left)
        return replace(step, why=self._why_left(look, step.why))

    def _note_left(self, left: int) -> None:
        """Count only as progress what was never reached before: what comes to a server may go."""
        if left < self._least:
            self._least, self._drained_at = left, time.monotonic()

    def _why_left(self, look: ReplaceLook, left: str) -> str:
        """What is left, and what keeps it, as the masters say."""
        client = self._database._database
        found = self._database._loop.run(client.servers(look.kind))
        waits = next((e["waits"] for e in found if e["uuid"] in self._former and e["waits"]), "")
        return f"{left}; {waits}" if waits else left

    def _seen(self) -> ReplaceLook:
        database = self._database
        status = masters_status(database)
        records = database._loop.run(database._database.tables(own=True))
        spec, settings = self._known.spec, self._known.spec.settings()
        actor = cluster_actors(database.cluster).get(self._name)
        look = ReplaceLook(
            name=self._name,
            former=self._former,
            status=status,
            tables=[TableIs(r.name, r.durability, r.becoming) for r in records],
            kept=_kept(spec, records),
            has_actor=actor is not None,
            quiet_s=quiet_s(settings.dead_after_s, settings.heartbeat_s),
            drains=self._drains,
            has_drained=self._has_drained,
            unwell=what_is_unwell(status),
            logs_left=self._logs_left(),
            has_started=self._has_started,
        )
        return replace(look, in_memory=self._in_memory(look, actor, records))

    def _in_memory(self, look: ReplaceLook, actor: Any, records: list[TableRecord]) -> str:
        """What is in the live server's memory only. Segments in a backup's memory are drained."""
        live, is_backup = look.live, look.kind == ServerKind.BACKUP.value
        if live is None or (is_backup and (self._drains or actor is None)):
            return ""
        media: Sequence[MediumSpec] = ()
        if is_backup:
            plan: ServerPlan = ray.get(actor.describe.remote(), timeout=DESCRIBE_TIMEOUT_S)
            media = plan.media
        return what_would_go(live, look.status["tablets"], media, records)

    def _logs_left(self) -> int:
        if kind_of(self._name) != ServerKind.SAFEKEEPER.value:
            return 0
        views = self._database._loop.run(self._database._database.safekeepers())
        return sum(view.timelines for view in views if view.record.uuid in self._former)

    def _is_started(self) -> bool:
        """Whether a replacement goes on whose new server was heard."""
        replaced = masters_status(self._database)["replaced"]
        heard = {each["uuid"] for each in replaced if each["successor"]}
        return bool(self._former) and heard.issuperset(self._former)

    def _check_unknown(self) -> None:
        """R6. Raises InvalidArgument."""
        placement = self._known.spec.placement
        if placement is None or not self._is_unknown:
            return
        machine = self._known.state.machines.get(self._name, "")
        if machine not in machines.live_machines(placement.machine_label):
            known = f"no UUID of {self._name} to fence it by"
            if self._former:
                earlier = f"{', '.join(self._former)} may be that of an earlier server of its name"
                known = f"{known} but by an operator's mark ({earlier})"
            where = machines.described(placement.machine_label, machine)
            raise InvalidArgument(
                f"{where} of {self._name} is away, and the masters know {known}: its process could "
                "come back next to a new one. Nothing needs its disk. Give the same command once "
                "the machine is back; or have fewer servers of its kind in cluster.yaml, and apply"
            )

    def _check_places(self) -> None:
        """R4. Raises InvalidArgument, Unavailable: there is no machine for the new server."""
        spec, state = self._known.spec, self._known.state
        if spec.placement is None:
            if self._elsewhere:
                raise InvalidArgument("--elsewhere: all servers of this cluster are on one machine")
            return
        label, machine = spec.placement.machine_label, state.machines.get(self._name, "")
        live = machines.live_machines(label)
        if self._elsewhere:
            racks = machines.live_racks(label, spec.placement.rack_label)
            among = [each for each in live if each != machine]
            self._target = machine_with_room(spec, state, self._name, among, racks)
        elif machine not in live:
            raise InvalidArgument(
                f"{machines.described(label, machine)} of {self._name} is away: say --elsewhere, "
                "and the new server starts on another machine"
            )

    # ---- doing ------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Take the steps that are due now. R1, R2."""
        waits = self._has_drained or self._has_waited
        what = f"server replace {self._name}"
        try:
            with self._database.turn(what, tries_again=waits) as sure:
                self._read_again()
                until = min(self._deadline, time.monotonic() + TURN_S)
                has_ended = False
                while True:
                    step = self._look()
                    if step.act in STEPS and time.monotonic() < until:
                        sure()
                        self._take(step)
                        has_ended = step.act in (ReplaceAct.END, ReplaceAct.FENCE)
                    elif step.act is ReplaceAct.WAIT and has_ended and time.monotonic() < until:
                        self._progress(f"{self._name}: {step.why}")
                        time.sleep(POLL_S)
                    else:
                        return
        except AlreadyRunning as error:
            if not (self._has_drained or self._has_waited):
                raise
            # Somebody began another change meanwhile. The text counts how long the turn lasts.
            self._pause(str(error), without_numbers(str(error)))

    def _read_again(self) -> None:
        """R1: what others have asked for, or moved, meanwhile. Raises InvalidArgument."""
        home = self._known.home
        refresh(home, self._database.cluster)
        kept = kept_spec(home)
        spec = self._known.spec if kept is None else load_spec(kept.spec)
        self._known = Deployment(home, spec, load_state(home))
        if self._name not in self._known.plans:
            raise InvalidArgument(f"{self._name} was taken out of the spec meanwhile")

    def _take(self, step: ReplaceStep) -> None:
        match step.act:
            case ReplaceAct.DRAIN:
                self._drain(*step.uuids)
            case ReplaceAct.END:
                actor = cluster_actors(self._database.cluster).get(self._name)
                if actor is None:
                    raise InvalidArgument(f"{self._name} does not run in this Ray")
                if not self._drains:
                    hand_over(self._name, actor, self._progress)
                self._progress(f"{self._name} ends")
                end_process(self._known, self._name, actor)
            case ReplaceAct.FENCE:
                self._check_unknown()
                self._progress(f"{self._name} is fenced: {', '.join(step.uuids)}")
                actor = cluster_actors(self._database.cluster).get(self._name)
                for uuid in step.uuids:  # R3
                    self._note(uuid, goes_on=True)
                if actor is not None:  # it is dead, and Ray would start it again
                    ray.kill(actor)
            case _:
                self._start()

    def _drain(self, uuid: str) -> None:
        """Begin it; the masters go on by themselves. Raises InvalidArgument: it is refused."""
        self._progress(f"{self._name} is drained")
        client = self._database._database
        retire = client.retire_server
        if kind_of(self._name) == ServerKind.SAFEKEEPER.value:
            retire = client.retire_safekeeper
        try:
            self._database._loop.run(retire(uuid, wait=False, timeout=CALL_TIMEOUT_S))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{error}. Or say --no-drain: then the new server gets what is missing from others"
            ) from None
        self._has_drained = True

    def _start(self) -> None:
        """R3. The masters have never heard the new server: what is in its folders is not needed."""
        plan = self._known.plans[self._name]
        self._check_unknown()
        try:
            self._set_aside += _with_machine(self._emptied(plan), plan)
            if self._elsewhere:
                plan = self._moved()
                self._set_aside += _with_machine(empty_folders(plan), plan)
            self._announce_and_add(plan)
        except NotEnoughServers:
            raise
        except RetryLater as error:  # its former process has not ended yet, or the new one starts
            self._pause(str(error))

    def _announce_and_add(self, plan: ServerPlan) -> None:
        for folder in self._set_aside:
            self._progress(f"what {self._name} had is in {placed(*folder)} now")
        steps = Steps(
            *(self._database, self._known.spec, [plan], self._progress, self._start_deadline),
            home=self._known.home,
        )
        self._progress(f"{self._name} starts, empty")
        self._has_started = True
        steps.take(Step(Act.ADD, plan.kind.value, self._name))

    @property
    def _start_deadline(self) -> float:
        return min(self._deadline, time.monotonic() + START_S)

    def _emptied(self, plan: ServerPlan) -> tuple[str, ...]:
        """Set aside what is on the machine that the server had, if that is there."""
        if not self._elsewhere:
            return empty_folders(plan)
        assert self._known.spec.placement is not None
        live = machines.live_machines(self._known.spec.placement.machine_label)
        if plan.machine in live:
            return empty_folders(plan)
        text = "is away: what is there is not set aside, and no server starts on it any more"
        self._progress(f"machine {plan.machine} {text}")
        return ()

    def _moved(self) -> ServerPlan:
        """Write down the machine that was chosen. Given again it is the same step."""
        known = self._known
        assert known.spec.placement is not None
        if self._target not in machines.live_machines(known.spec.placement.machine_label):
            raise Unavailable(self._name, f"machine {self._target} is away by now")
        moved = {**known.state.machines, self._name: self._target}
        state = replace(load_state(known.home), machines=moved)
        state.save()
        publish(known.home, self._database.cluster)
        self._known = replace(known, state=state)
        return self._known.plans[self._name]

    def _note(self, uuid: str, *, goes_on: bool) -> None:
        work = self._database._database.replace_server(ServerUuid(uuid), goes_on=goes_on)
        self._database._loop.run(work)

    def _done(self) -> Replacement:
        status = masters_status(self._database)
        begun = [each for each in status["replaced"] if each["id"] == self._name]
        for each in begun:
            if each.get("goes_on"):
                self._note(each["uuid"], goes_on=False)
        live = [s for s in known_as(status, self._name) if s["state"] == "live"]
        return Replacement(
            *(self._name, self._former, str(live[0]["uuid"]) if live else ""),
            machine=self._known.state.machines.get(self._name, ""),
            set_aside=tuple([folder for folder, _ in self._set_aside]),
            set_aside_on=tuple([machine for _, machine in self._set_aside]),
            only_ended=self._only_ended,
        )

    # ---- waiting ----------------------------------------------------------------------------

    def _pause(self, why: str, same: str = "") -> None:
        """Raises RetryLater: the time is over, or nothing changes. ``same``: the text by which the
        wait is the same as before; empty: ``why``, of which the numbers count as well."""
        self._has_waited = True
        now = time.monotonic()
        if (same or why) != self._waited[0]:
            self._waited = same or why, now
        if now > self._deadline:
            raise self._not_yet(why)
        limit_s = DRAIN_STUCK_S if self._has_drained else STUCK_S
        since = self._drained_at if self._has_drained and self._is_draining else self._waited[1]
        if now - since > limit_s:
            goes_on = "; the drain goes on by itself" * self._is_draining
            raise self._not_yet(f"{why}. No progress for {limit_s / 60:g} min{goes_on}")
        self._progress(f"{self._name}: {why}")
        time.sleep(POLL_S)

    def _not_yet(self, why: str) -> RetryLater:
        if not self._former and self._has_started:  # nothing is noted by which it would go on
            return RetryLater(
                f"{self._name} was started as a new, empty server, and is not whole yet: {why}. "
                "`stelae check` says what lacks. Do not give this command again once "
                "`stelae server list` shows it live: that would replace the new server"
            )
        named = self._former[0] if self._former else self._name
        return RetryLater(
            f"{self._name} is not replaced yet: {why}; `stelae server replace {named}` goes on "
            "where this was"
        )


def _with_machine(folders: Sequence[str], plan: ServerPlan) -> list[tuple[str, str]]:
    return [(folder, plan.machine) for folder in folders]


def _kept(spec: ClusterSpec, records: list[TableRecord]) -> Kept:
    used = [d for r in records for d in (r.durability, r.becoming) if d is not None]
    return Kept(
        copies=max((len(media_of(each)) for each in used), default=0),
        store_moves=moves_store(spec),
        has_lone_blobs=has_lone_blobs(spec),
    )
