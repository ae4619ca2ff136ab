"""Stops and starts one server by an operator's word, whatever its kind, on Ray.

A stopped server has no actor: Ray does not start it again, and its folder and UUID stay. That is
all there is to know of it, so nothing is written down. `start_server` and `stelae apply` both see a
server of the spec without an actor, and start it. Rules:

- R1: under the cluster's turn, and by a look that was made within it.
- R2: nothing that serves is ended while a tablet lacks anything (`what_is_unwell`), nor where it
  would take a table below what it needs (`stelae.coordinator.apply.stops`), nor where it is the
  only one that has something (`what_would_go`).
- R3: leaderships go first.
- R4: a server that is dead serves nothing: its actor is ended without more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors
from stelae.applying.processes import Deployment, deployment_of
from stelae.applying.steps import Steps, what_is_unwell
from stelae.coordinator.apply.plan import Act, Step, TableIs
from stelae.coordinator.apply.stops import refusals_of_stop
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.records.records import ServerKind
from stelae.deploy import launcher, locks, machines, ray_session
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.masters import list_masters
from stelae.deploy.restarts import HAND_OVER_S, LEADING, what_is_missing, what_would_go

POLL_S = 0.3
DESCRIBE_TIMEOUT_S = 15.0
Told = Callable[[str], None]


def stop_server(
    database: ChangedCluster, server: str, *, progress: Told = lambda text: None, timeout: float
) -> None:
    """End a server in order, until it is started again; see `Database.stop_server`."""
    with joined(database) as known:
        _Stop(database, known, server, progress, time.monotonic() + timeout).run()


def start_server(
    database: ChangedCluster, server: str, *, progress: Told = lambda text: None, timeout: float
) -> None:
    """Start a server that was stopped, in its folder; see `Database.start_server`."""
    deadline = time.monotonic() + timeout
    with joined(database) as known:
        name = name_of(masters_status(database), server, known.plans)
        plan = _startable(database, known, name)
        with database.turn(f"server start {name}") as sure:
            steps = Steps(
                *(database, known.spec, list(known.plans.values()), progress, deadline),
                home=known.home,
                sure=sure,
            )
            progress(f"{name} starts")
            steps.take(Step(Act.ADD, plan.kind.value, name))

            def missing() -> str:
                status = masters_status(database)
                found = _newest(status, name)
                return what_is_missing(status, found["uuid"], -1) if found else "it is not heard"

            wait_until(missing, f"{name} is not back", progress, deadline, sure)


def _startable(database: ChangedCluster, known: Deployment, name: str) -> ServerPlan:
    """The plan by which a server starts. Raises InvalidArgument."""
    plan = known.plans.get(name)
    if plan is None:
        raise InvalidArgument(
            f"{name} is no server of the spec of cluster {database.cluster!r}: a larger count in "
            "cluster.yaml and `stelae apply` add one"
        )
    is_master = plan.kind is ServerKind.MASTER
    if is_master and name not in {member["name"] for member in list_masters(database)}:
        raise InvalidArgument(f"{name} is no master of the set: `stelae master add` adds one")
    return plan


def name_of(status: Mapping[str, Any], server: str, plans: Mapping[str, ServerPlan]) -> str:
    """The name of a server that is given by name or UUID. Raises InvalidArgument. Pure."""
    names: dict[str, None] = dict.fromkeys(
        each["id"] for each in status["servers"] if server in (each["id"], each["uuid"])
    )
    if server in plans:
        names[server] = None
    if len(names) != 1:
        raise InvalidArgument(f"{server!r} is no server (`stelae server list` shows all)")
    return next(iter(names))


class _Stop:
    """One stop, from the first look to the end of the process."""

    def __init__(
        self,
        database: ChangedCluster,
        known: Deployment,
        server: str,
        progress: Told,
        deadline: float,
    ) -> None:
        self._database = database
        self._known = known
        self._name = name_of(masters_status(database), server, known.plans)
        self._progress = progress
        self._deadline = deadline
        self._sure: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Raises InvalidArgument: all reasons why not; nothing has changed. RetryLater."""
        self._refuse(self._look())  # before others wait for the turn
        with self._database.turn(f"server stop {self._name}") as self._sure:
            seen = self._look()
            if seen is not None:
                self._stop_live()
            actor = cluster_actors(self._database.cluster).get(self._name)
            if actor is not None:
                self._progress(f"{self._name} ends")
                end_process(self._known, self._name, actor)
            self._wait_served()

    def _stop_live(self) -> None:
        self._settle()
        self._refuse(self._look())  # R1: what has changed since, also while it was waited for
        self._sure()
        actor = cluster_actors(self._database.cluster).get(self._name)
        if actor is not None:
            hand_over(self._name, actor, self._progress)

    def _look(self) -> Mapping[str, Any] | None:
        """The server, if it lives, as a new status document has it."""
        self._status = masters_status(self._database)
        found = _newest(self._status, self._name)
        return found if found is not None and found["state"] == "live" else None

    def _refuse(self, seen: Mapping[str, Any] | None) -> None:
        """R2. Raises InvalidArgument."""
        if seen is None:
            return
        records = self._database._loop.run(self._database._database.tables(own=True))
        tables = [TableIs(r.name, r.durability, r.becoming) for r in records]
        why = refusals_of_stop(seen, self._status, tables)
        actor = cluster_actors(self._database.cluster).get(self._name)
        if actor is None:
            raise InvalidArgument(f"{self._name} does not run in this Ray")
        plan: ServerPlan = ray.get(actor.describe.remote(), timeout=DESCRIBE_TIMEOUT_S)
        why += filter(None, [what_would_go(seen, self._status["tablets"], plan.media, records)])
        if why:
            raise InvalidArgument(f"{self._name} is not stopped: {'; '.join(why)}")

    def _settle(self) -> None:
        """R2."""

        def missing() -> str:
            return what_is_unwell(masters_status(self._database))

        what = f"{self._name} is not stopped yet"
        wait_until(missing, what, self._progress, self._deadline, self._sure)

    def _wait_served(self) -> None:
        """Until the masters know that it is away, and what it had is served elsewhere."""

        def missing() -> str:
            status = masters_status(self._database)
            seen = _newest(status, self._name)
            if seen is not None and seen["state"] == "live":
                return "the masters have not noticed yet"
            offline = sum(tablet["state"] != "running" for tablet in status["tablets"])
            return f"{offline} tablets are being recovered" if offline else ""

        what = f"{self._name} is stopped"
        wait_until(missing, what, self._progress, self._deadline, self._sure)


def hand_over(name: str, actor: Any, progress: Told) -> None:
    """R3. Of one that ends just now others lead already."""
    if machines.kind_of(name) not in LEADING:
        return
    progress(f"{name} hands its leaderships over")
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(actor.hand_over.remote(HAND_OVER_S), timeout=2 * HAND_OVER_S)


def end_process(known: Deployment, name: str, actor: Any) -> None:
    """End a server's actor in order. Raises StelaeError: its process does not end in time."""
    launcher.kill_servers({name: actor})
    if locks.wait_ended([Path(known.state.data_dir).absolute() / name]):
        raise StelaeError(f"{name} was told to end, and its process does not")


def _newest(status: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The live server of that name, or else one that is away."""
    named = [server for server in status["servers"] if server["id"] == name]
    live = [server for server in named if server["state"] == "live"]
    return next(iter(live or named), None)


def wait_until(
    missing: Callable[[], str],
    what: str,
    progress: Told,
    deadline: float,
    sure: Callable[[], None] = lambda: None,
) -> None:
    """Until nothing is missing. Raises RetryLater: not in time; the text says what is."""
    while True:
        try:
            why = missing()
        except StelaeError as error:  # a leader master that ends is followed by another
            why = str(error)
        if not why:
            return
        if time.monotonic() > deadline:
            raise RetryLater(f"{what}: {why}; the same command again goes on where this was")
        progress(f"{what}: {why}")
        sure()
        time.sleep(POLL_S)


@contextlib.contextmanager
def joined(database: ChangedCluster) -> Iterator[Deployment]:
    """Be connected to the cluster's Ray. Raises InvalidArgument: not from this node."""
    if not ray.is_initialized():
        ray_session.join_ray(database.ray_address)
    machines.check_here(launcher.find_cluster(database.cluster)[0].selector)
    with deployment_of(database.cluster, database.home) as known:
        yield known
