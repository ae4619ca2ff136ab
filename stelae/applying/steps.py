"""What each step of an apply does on Ray. Each may be done again, from wherever it was left.

A server's values are those of its actor: one that is to run with others is stopped in order and
made anew under its name, in its folder. Folders of servers that were taken out stay.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors, create_actor
from stelae.applying.front import change_front, change_spark, spark_text, traces_text
from stelae.applying.replacing import empty_folders, half_replaced
from stelae.coordinator.apply.plan import SPARK, Act, Step
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.units import format_size
from stelae.core.errors import (
    AlreadyRunning,
    InvalidArgument,
    NotEnoughServers,
    RetryLater,
    StelaeError,
    Unavailable,
)
from stelae.core.records.records import ServerKind
from stelae.deploy import launcher, locks
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.cluster_files import publish
from stelae.deploy.masters import add_master, end_stray, list_masters, remove_master
from stelae.deploy.restarts import HAND_OVER_S, TAKES_PART, what_is_missing
from stelae.deploy.revoked_tokens import drop_revoked

if TYPE_CHECKING:
    from stelae.core.messages.operators import ServerProgress

POLL_S = 0.3
START_TIMEOUT_S = 60.0
KINDS = tuple(kind.value for kind in ServerKind)


def server_actors(actors: Mapping[str, Any]) -> dict[str, Any]:
    """Of a cluster's actors those that are servers: not Spark's."""
    return {n: a for n, a in actors.items() if n.rpartition("-")[0] in KINDS}


def traits_of(plan: ServerPlan) -> dict[str, str]:
    """What a server of this kind is made anew for, by the names of the file."""
    settings, kind = plan.settings, plan.kind
    found: dict[str, object] = {
        "timings.heartbeat": settings.heartbeat_s,
        "timings.lease": settings.lease_s,
        "timings.dead_after": settings.dead_after_s,
        "timings.call_timeout": settings.call_timeout_s,
    }
    found |= traces_text(plan.traces_endpoint)
    if kind is ServerKind.TSERVER:
        found |= {
            "tservers.memory": format_size(plan.memory_limit_bytes),
            "tservers.quarantine_keep": settings.quarantine_keep_s,
            "backups.rereplication": format_size(settings.rereplication_bytes_per_s),
            "recovery.metadata_first": settings.metadata_first,
            "recovery.load_rate": format_size(int(settings.load_bytes_per_s)),
        }
    elif kind is ServerKind.BACKUP:
        found |= {
            f"media.{each.name}": " ".join(
                str(value) for value in (each.path, each.sync, each.size_bytes) if value is not None
            )
            for each in plan.media
        }
    elif kind is ServerKind.SAFEKEEPER:
        found |= {
            "safekeepers.evict_after": settings.evict_after_s,
            "safekeepers.evict_copies": settings.evict_copies,
        }
    elif kind is ServerKind.MASTER:
        found |= {
            "recovery.engine": plan.engine,
            "recovery.metadata_first": settings.metadata_first,
            "recovery.split_above": settings.split_above_bytes,
            "recovery.split_above_rows": settings.split_above_rows,
            "backups.copysets": settings.copyset_size,
            "spark": spark_text(plan.spark),
        }
    return {name: str(value) for name, value in found.items()}


def what_is_unwell(status: Mapping[str, Any]) -> str:
    """Why no server may be ended just now; empty: one may. Pure.

    A tablet that lacks a replica anywhere, of a segment or of itself, has not what it was promised.
    """
    if status.get("heard_all") is False:
        return "the leader master has just begun to hear the servers"
    offline = sum(tablet["state"] != "running" for tablet in status["tablets"])
    if offline:
        return f"{offline} tablets are not served yet"
    silent = sum(tablet.get("reported") is False for tablet in status["tablets"])
    if silent:
        return f"it is not known yet what {silent} tablets lack: their servers were not heard"
    if status["shortages"]:
        return f"{len(status['shortages'])} tablets have segments that lack replicas"
    short = sum(bool(tablet.get("under_replicated")) for tablet in status["tablets"])
    if short:
        return f"{short} tablets lack replicas"
    away = sum(
        replica["role"] not in TAKES_PART or replica.get("heard") is False
        for tablet in status["tablets"]
        for replica in tablet.get("replicas", ())
        if replica["member"] != "none"
    )
    return f"{away} replicas do not take part yet" if away else ""


def others_are_away(status: Mapping[str, Any], name: str) -> str:
    """Which masters beside this one do not live: with it, a majority might be gone. Pure."""
    away = [
        server["id"]
        for server in status["servers"]
        if server["kind"] == "master" and server["state"] != "live" and server["id"] != name
    ]
    return f"masters that do not live: {', '.join(away)}" if away else ""


def timelines_of(status: Mapping[str, Any], safekeeper_id: int) -> int:
    """How many tablets' logs name a safekeeper, by the catalog: of one that says nothing. Pure."""
    count = 0
    for tablet in status["tablets"]:
        timeline = tablet.get("timeline") or {}
        sets = (timeline.get("sk_set") or (), timeline.get("new_sk_set") or ())
        count += any(safekeeper_id in members for members in sets)
    return count


class Steps:
    """Takes steps, one at a time, until a deadline."""

    def __init__(
        self,
        database: ChangedCluster,
        spec: ClusterSpec,
        plans: Sequence[ServerPlan],
        tell: Callable[[str], None],
        deadline: float,
        is_next: Callable[[Step], bool] = lambda step: True,
        *,
        home: Path | None = None,
        sure: Callable[[], None] = lambda: None,
    ) -> None:
        """``is_next``: by a new look, whether a step is still the first to be taken. ``home``: a
        folder with the cluster's files, if that is not the data_dir. ``sure`` raises if somebody
        else changes the cluster by now; ``tell`` may be called by the database's own thread."""
        self._database = database
        self._is_next = is_next
        self._spec = spec
        self._plans = {plan.name: plan for plan in plans}
        self._tell = tell
        self._sure = sure
        self._deadline = deadline
        self._files = home

    @property
    def _left_s(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    @property
    def _data_dir(self) -> Path:
        """All servers' folders are there, by their names."""
        return Path(next(iter(self._plans.values())).folder).parent

    @property
    def _home(self) -> Path:
        return self._files or self._data_dir

    def take(self, step: Step) -> bool:
        """False: by now it is not the step to take. Raises StelaeError: what keeps it from being
        done; it may be taken again."""
        if step.act in (Act.RESTART, Act.DRAIN, Act.REMOVE) and not self._is_due(step):
            return False
        match step.act:
            case Act.KEEP:
                self._keep(step)
            case Act.ADD:
                self._add(step)
            case Act.RESTART:
                self._restart(step)
            case Act.CHANGE:
                self._change(step)
            case Act.DRAIN:
                self._drain(step)
            case Act.REMOVE:
                self._remove(step)
        return True

    def _is_due(self, step: Step) -> bool:
        """Once no server is missed, so that the next may go, whether it is this one still.

        That may take hours, in which a mark was taken back, or a table made: the look that the step
        came from says nothing any more.
        """
        self._wait(what_is_unwell, step)
        return self._is_next(step)

    def _keep(self, step: Step) -> None:
        if step.kind == ServerKind.SAFEKEEPER.value:
            self._database.set_safekeeper_status(step.name, "active")
        else:
            self._database.retire_server(step.name, cancel=True)

    def _add(self, step: Step) -> None:
        if step.kind == ServerKind.MASTER.value:
            self._add_master(step)
            return
        plan = self._plans[step.name]
        if step.name in half_replaced(masters_status(self._database)) and (
            step.name not in cluster_actors(plan.cluster)
        ):
            # What is in its folder on that machine is of the server that was fenced.
            empty_folders(plan)
        self._start(plan)
        self._wait(lambda status: "" if _live(status, step.name) else "it does not live yet", step)

    def _add_master(self, step: Step) -> None:
        """A new one, or one that waits; or a process anew for one of the set, in its folder."""
        members = {m["name"]: m["uuid"] for m in list_masters(self._database)}
        if step.name not in members:
            add_master(self._database, step.name or None)
            return
        plan = self._plans.get(step.name)
        if plan is None:  # it is not known where it listened: another takes its place
            remove_master(self._database, step.name)
            return
        self._start(_joining(plan))
        uuid = members[step.name]
        self._wait(lambda status: what_is_missing(status, uuid, -1), step)

    def _start(self, plan: ServerPlan) -> None:
        """Make the actor, and see that it listens; one that is there is waited for. Raises
        NotEnoughServers: Ray has no room."""
        until = time.monotonic() + min(START_TIMEOUT_S, self._left_s)
        is_mine = False
        while True:
            try:
                actor: Any = cluster_actors(plan.cluster).get(plan.name)
                if actor is None:
                    actor, is_mine = create_actor(plan), True
                ray.get(actor.ready.remote(START_TIMEOUT_S), timeout=START_TIMEOUT_S)
                return
            except (AlreadyRunning, ray.exceptions.RayActorError):
                # another apply made it just now, or it ends just now, and its name is free soon
                if time.monotonic() > until:
                    raise Unavailable(plan.name, "its process ends as it starts") from None
                time.sleep(POLL_S)
            except ray.exceptions.GetTimeoutError:
                break
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, StelaeError) else error) from None
        if is_mine:
            ray.kill(actor)
        raise NotEnoughServers(
            f"apply (Ray could not place {plan.name} with "
            f"{format_size(plan.memory_limit_bytes)} of its memory)",
            *(1, "server", 0),
        )

    def _restart(self, step: Step) -> None:
        """End it in order and make it anew with other values."""
        if step.kind == ServerKind.MASTER.value:
            self._wait(lambda status: others_are_away(status, step.name), step)
        actor = cluster_actors(self._database.cluster).get(step.name)
        if actor is None:
            return  # it has ended meanwhile: the next look says what is to be done
        seen = _live(masters_status(self._database), step.name)
        if step.kind in (ServerKind.TSERVER.value, ServerKind.MASTER.value):
            with contextlib.suppress(ray.exceptions.RayError):  # it may be dead; then others lead
                ray.get(actor.hand_over.remote(HAND_OVER_S), timeout=2 * HAND_OVER_S)
        plan = self._plans[step.name]
        self._end(step.name, actor)
        self._start(_joining(plan))
        uuid, before = (seen["uuid"], seen["incarnation"]) if seen else ("", -1)

        def missing(status: Mapping[str, Any]) -> str:
            back = _live(status, step.name)
            if back is None or (back["uuid"] == uuid and back["incarnation"] <= before):
                return "it does not live yet"
            if step.kind == ServerKind.MASTER.value:
                return what_is_missing(status, back["uuid"], before)
            return what_is_unwell(status)

        self._wait(missing, step)

    def _change(self, step: Step) -> None:
        if step.kind == SPARK:
            change_spark(self._spec, self._home)
            return
        drop_revoked(self._database, self._home)
        change_front(self._spec, self._home)
        publish(self._home, self._spec.cluster)

    def _drain(self, step: Step) -> None:
        """Until nothing is left there; one that is dead is marked only: it says nothing."""
        if step.kind in (ServerKind.TSERVER.value, ServerKind.BACKUP.value):
            what = "tablets" if step.kind == ServerKind.TSERVER.value else "segments"

            def progress(seen: ServerProgress) -> None:
                left = seen.replicas + seen.tablets + seen.indexlets + seen.segments
                why = f": {seen.problem}" if seen.problem else ""
                self._tell(f"{step}: {left} {what} are left{why}")

            dead = _dead_uuid(masters_status(self._database), step.name)
            wait, server = not dead or step.kind == ServerKind.TSERVER.value, dead or step.name
            self._database.retire_server(server, wait=wait, progress=progress, timeout=self._left_s)
            return
        if step.kind != ServerKind.SAFEKEEPER.value:
            raise InvalidArgument(f"{step.name} cannot be drained")
        self._database.set_safekeeper_status(step.name, "decommissioned")

        def left(status: Mapping[str, Any]) -> str:
            known = [server for server in status["servers"] if server["id"] == step.name]
            seen = _live(status, step.name)
            count = None if seen is None else seen["timelines"]
            if seen is None and len(known) == 1:
                count = timelines_of(status, known[0]["safekeeper_id"])
            if count is None:
                return "it is not known what is left"
            return f"{count} logs are left" if count else ""

        self._wait(left, step)

    def _remove(self, step: Step) -> None:
        if step.kind == ServerKind.MASTER.value:
            if any(m["name"] == step.name for m in list_masters(self._database)):
                remove_master(self._database, step.name)
            else:
                end_stray(self._database, step.name)
            return
        actor = cluster_actors(self._database.cluster).get(step.name)
        if actor is not None:
            self._end(step.name, actor)

    def _end(self, name: str, actor: Any) -> None:
        """Stop a server in order, and wait until its process is gone. It is not asked for anything:
        it may be waiting for room in Ray."""
        launcher.kill_servers({name: actor})
        if locks.wait_ended([self._data_dir / name]):
            raise StelaeError(f"{name} was told to end, and its process does not")

    # ---- waiting ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Until nothing is missing, at the end. Raises RetryLater: not in time."""
        self._wait(what_is_unwell, "the end")

    def _wait(self, missing: Callable[[Mapping[str, Any]], str], step: Step | str) -> None:
        """Until nothing is missing. Raises RetryLater: not in time; the text says what is."""
        while True:
            try:
                why = missing(masters_status(self._database))
            except StelaeError as error:
                why = str(error)
            if not why:
                return
            if time.monotonic() > self._deadline:
                raise RetryLater(f"{step}: {why}; apply again, which goes on where this was")
            self._tell(f"{step}: {why}")
            self._sure()
            time.sleep(POLL_S)


def _joining(plan: ServerPlan) -> ServerPlan:
    """A master that is made anew founds nothing: without its files it waits to be added."""
    return replace(plan, joining=True) if plan.kind is ServerKind.MASTER else plan


def _dead_uuid(status: Mapping[str, Any], name: str) -> str:
    """Of a server that does not live; empty: it does, or is not known."""
    uuids = [server["uuid"] for server in status["servers"] if server["id"] == name]
    return uuids[0] if uuids and _live(status, name) is None else ""


def _live(status: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    for server in status["servers"]:
        if server["id"] == name and server["state"] == "live":
            found: Mapping[str, Any] = server
            return found
    return None
