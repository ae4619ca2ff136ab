"""`launch` and `connect`: from a ``cluster.yaml`` or a name to a `Database`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, overload

import ray

from stelae.actors.ray_host.host import cluster_actors
from stelae.applying.http_start import HttpStart, LaunchFront
from stelae.applying.replacing import start_again_empty, start_applier
from stelae.core.config.settings import Settings
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument, NotEnoughServers, Unavailable
from stelae.core.ids import Address
from stelae.core.records.records import ServerKind, ServerState
from stelae.database.api import Database
from stelae.database.origins import ClusterOrigin, HttpOrigin
from stelae.database.progress import words_bar
from stelae.deploy import cluster_state, launcher, locks, machines, ray_session
from stelae.deploy.asked import keep_spec
from stelae.deploy.cluster_files import publish, take_from_machines, tell_at_rest
from stelae.deploy.masters import scale_masters
from stelae.deploy.node_checks import check_launch
from stelae.keeper_process import start_keeper
from stelae.recovery.engine import EnginePolicy
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_session import stop_session

D = TypeVar("D", bound=Database)

READY_TIMEOUT_S = 60.0
POLL_S = 0.05

Progress = Callable[[str], None]


class LaunchedDatabase(Database):
    """A database whose cluster this process has launched: closing it takes the cluster down.

    In a forked child, closing it ends the child's connections only.
    """

    spec: ClusterSpec
    state: cluster_state.ClusterState
    actors: dict[str, Any]
    owns_ray: bool
    """Whether this process started the Ray that it lives in, for this cluster or for another."""
    lock: locks.LaunchLock
    http: HttpStart
    """The HTTP front, which comes up after the tables: ``http.wait()`` returns its URL."""

    @property
    def http_url(self) -> str:
        """URL of the HTTP front, which is waited for; empty if the spec has none."""
        return self.http.wait()

    @property
    def admin_token(self) -> str:
        """Token for the HTTP front, which is waited for; empty if the spec has none."""
        self.http.wait()
        return launcher.admin_token(self.state)

    def use_engine(self, engine: EnginePolicy) -> None:
        """Recover with this engine from now on: ``native``, ``spark`` or ``auto``.

        It holds until a master's process is replaced; for good it is ``recovery: {engine: …}`` in
        the spec.
        """
        actors = cluster_actors(self.cluster)
        masters = [a for n, a in actors.items() if n.startswith(ServerKind.MASTER.value)]
        ray.get([master.use_engine.remote(engine) for master in masters])

    def close(self) -> None:
        """Stop all servers in order, and Ray if it was started for them. Data stays on disk.

        In a child that was forked since the launch: only end the child's connections.
        """
        if self._connection.is_closed or self.lock.is_of_parent:
            super().close()
            return
        try:
            self.http.settle()
        except BaseException:  # an interrupt: the thread takes the front away by itself (R2)
            self.http.cancel()
            raise
        finally:  # the cluster is taken down after an interrupt too
            super().close()
            try:
                with self.http.alone():
                    self._take_down()
            finally:
                self.lock.release()

    def _take_down(self) -> None:
        if not ray.is_initialized():
            return
        if self.owns_ray and ray_session.is_last() and "raydp" in sys.modules:
            stop_session()  # of Spark: it cannot outlive the Ray that it runs in
        tell = _tell_nobody if self.owns_ray else tell_at_rest
        launcher.take_down(self.state, self.actors, owns_ray=self.owns_ray, tell=tell)

    def leave(self) -> None:
        """End the connections and leave the cluster running in the Ray that it was launched in,
        once its HTTP front has started or failed.

        Raises:
            InvalidArgument: that Ray was started for it, and ends with this process.
        """
        if self.owns_ray:
            raise InvalidArgument("this cluster's Ray ends with this process: close it instead")
        if not self._connection.is_closed:
            self.http.settle()
            super().close()
            self.lock.release()


Spec: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec


@overload
def launch(
    spec: Spec | None = None,
    *,
    progress: Progress | None = None,
    detach: Literal[False] = False,
    **overrides: Any,
) -> LaunchedDatabase: ...


@overload
def launch(
    spec: Spec | None = None,
    *,
    progress: Progress | None = None,
    detach: Literal[True],
    **overrides: Any,
) -> Database: ...


def launch(
    spec: Spec | None = None,
    *,
    progress: Progress | None = None,
    detach: bool = False,
    **overrides: Any,
) -> Database:
    """Stand a cluster up on Ray, and return a database on it once every server is live.

    The HTTP front comes up in the background: ``http.wait()`` of the database returns its URL, or
    raises what kept it from starting. The tables can be used either way.

    ``spec`` is the path of a ``cluster.yaml``, its content as a dict, or a `ClusterSpec`;
    ``overrides`` change single fields (``launch("cluster.yaml", tservers={"count": 5})``). An
    existing ``data_dir`` is used again: what was stored is served again.

    With ``detach`` the cluster outlives this process, as after `stelae up`: a process in the
    background holds its Ray until `stelae down`. It returns a connection, once HTTP answers too.

    Raises:
        InvalidArgument: the spec is wrong; the text names line and field. Or with ``detach``: the
            Ray to join was started by this process, and ends with it.
        AlreadyRunning: the cluster runs, or its data_dir or its HTTP port is in use.
        NotEnoughServers: some server did not come up in time.
    """
    checked = load_spec(spec, **overrides)
    if not detach:
        return _launch_here(checked, progress)
    if checked.ray.address == "local":
        with words_bar(f"launch of {checked.cluster}", progress) as tell:
            start_keeper(checked, tell)
    else:
        if ray_session.is_own():  # before anything starts: `leave` would refuse it afterwards
            raise InvalidArgument(
                f"launch(detach=True) with ray: {{address: {checked.ray.address}}}: the Ray that "
                "this process is connected to was started by it, and ends with it. Write ray: "
                "{address: local}, which gives the cluster a Ray of its own, or launch without "
                "detach"
            )
        database = _launch_here(checked, progress)
        try:
            database.http.wait()
        except BaseException:
            database.close()
            raise
        database.leave()
    return connect(checked.data_dir)


def _launch_here(checked: ClusterSpec, progress: Progress | None) -> LaunchedDatabase:
    """Launch in the Ray of this process, or in one that it joins."""
    if checked.ray.address != "local":
        if not ray.is_initialized():  # else `_launch` counts this cluster in a Ray of our own
            ray_session.start_ray(checked)
        checked = machines.founded_as(checked)
    if checked.placement is not None:  # then each machine may have the files of the cluster
        take_from_machines(checked)
    state, lock = launcher.prepare(checked)
    try:
        with words_bar(f"launch of {checked.cluster}", progress) as tell:
            return _launch(checked, state, lock, tell)
    except BaseException:
        lock.release()
        raise


def _launch(
    spec: ClusterSpec, state: cluster_state.ClusterState, lock: locks.LaunchLock, progress: Progress
) -> LaunchedDatabase:
    progress("starting Ray")
    owns_ray = ray_session.start_ray(spec)
    actors: dict[str, Any] = {}
    front: HttpStart | None = None
    try:
        check_launch(spec, state, [plan.name for plan in launcher.plans(spec, state)])
        state = launcher.place(spec, state)
        progress("starting servers")
        launcher.start_servers(spec, state, actors)
        # Not before: Serve would take the CPU time in which the servers start.
        front = HttpStart(LaunchFront(spec, state))
        return _with_servers(spec, state, lock, front, actors, owns_ray, progress)
    except BaseException:
        with contextlib.nullcontext() if front is None else front.given_up():
            launcher.take_down(state, actors, owns_ray=owns_ray, grace_s=1.0)
        raise


def _with_servers(
    spec: ClusterSpec,
    state: cluster_state.ClusterState,
    lock: locks.LaunchLock,
    http: HttpStart,
    actors: dict[str, Any],
    owns_ray: bool,
    progress: Progress,
) -> LaunchedDatabase:
    progress("waiting for the masters")
    masters = [Address(address) for address in state.masters.values()]
    database: LaunchedDatabase = _attach(
        LaunchedDatabase,
        ClusterLink(spec.cluster, tuple(masters), state.secret, spec.settings(), spec.tls.peer_tls),
        str(state.folder),
    )
    database.spec, database.actors, database.http = spec, actors, http
    database.owns_ray, database.lock = owns_ray, lock
    try:
        status = database.status(timeout=READY_TIMEOUT_S)
        plans = launcher.plans(spec, state)
        start_again_empty(status, plans, actors, time.monotonic() + READY_TIMEOUT_S)
        _wait_live(database, spec, len(state.masters))
        if len(state.masters) != spec.masters.count:
            scale_masters(database, spec.masters.count, progress)
        # masters, with their machines, may have come since this state was read
        state = cluster_state.at_rest(cluster_state.newest(state))
        database.state = launcher.running(state, http_starts=spec.serve is not None)
        database.state.save()
        keep_spec(state.data_dir, spec, is_done=True)
        publish(state.folder, spec.cluster)
        start_applier(spec, state.data_dir)
        http.serve_tables(database)
    except BaseException:
        Database.close(database)
        raise
    return database


def _wait_live(database: Database, spec: ClusterSpec, masters: int) -> None:
    wanted = masters + spec.others_count

    async def all_live() -> None:
        clock = database._database.runtime.clock
        deadline = clock.monotonic() + READY_TIMEOUT_S
        live = 0
        while clock.monotonic() < deadline:
            status = await database._database.status(timeout=READY_TIMEOUT_S)
            live = sum(1 for s in status["servers"] if s["state"] == ServerState.LIVE.value)
            if live >= wanted:
                return
            await clock.sleep(POLL_S)
        raise NotEnoughServers("launch", wanted, "servers", live)

    database._loop.run(all_live())


def _tell_nobody(state: cluster_state.ClusterState) -> None:
    """Of a Ray of its own: all servers are on this machine, and use its one folder."""


def take_down_in_ray(state: cluster_state.ClusterState) -> bool:
    """Take down a cluster that lives in a Ray of others; false if it is not there.

    Raises:
        Unavailable: that Ray does not run.
        StelaeError: some server does not end.
    """
    if not ray.is_initialized():
        ray_session.join_ray(state.ray_address or "auto")
    actors = cluster_actors(state.cluster)
    if actors:
        launcher.take_down(state, actors, owns_ray=False, tell=tell_at_rest)
    return bool(actors)


def connect(
    cluster: str | os.PathLike[str],
    *,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Database:
    """Connect to a running cluster: by name in this Ray, by its data_dir, or by URL over HTTP.

    ``ca_file``: with ``https://``, whose certificates are believed (PEM); those that httpx brings
    along if absent.

    Raises:
        InvalidArgument: neither a cluster's name, nor a data_dir, nor a URL.
        Unavailable: no such cluster runs here; the text says how to launch it again.
    """
    if not isinstance(cluster, str | os.PathLike):
        raise InvalidArgument(f"connect({cluster!r}): a cluster's name, its data_dir, or a URL")
    cluster = os.fspath(cluster)
    if cluster.startswith(("http://", "https://")):
        return _connect_http(cluster, token, ca_file)
    if cluster_state.is_folder(cluster):
        state = cluster_state.load_state(cluster)
        launcher.check_runs(state)
        masters = tuple(Address(address) for address in state.masters.values())
        link = ClusterLink(state.cluster, masters, state.secret, Settings(), state.peer_tls)
        database = _attach(Database, link, os.path.abspath(cluster))
        database.ray_address = state.ray_address or "auto"
        return database
    if not ray.is_initialized():
        try:
            ray_session.join_ray("auto")
        except Unavailable as error:
            raise Unavailable(
                f"cluster {cluster!r}",
                "no Ray runs here in which to look for its name. Connect by its data_dir if it has "
                "a Ray of its own, or launch it again: stelae.launch, or `stelae up`",
            ) from error
    plan, found = launcher.find_cluster(cluster)
    link = ClusterLink(cluster, tuple(found), plan.secret, plan.settings, plan.peer_tls)
    return _attach(Database, link)


def _connect_http(url: str, token: str | None, ca_file: str | os.PathLike[str] | None) -> Database:
    if token is None:
        raise InvalidArgument("connecting over HTTP needs token=; launch wrote one to its data_dir")
    path = None if ca_file is None else os.path.abspath(ca_file)
    return Database.open(HttpOrigin(url, token, path), url)


def _attach(kind: type[D], link: ClusterLink, home: str = "") -> D:
    return kind.open(ClusterOrigin(link, home), link.cluster)
