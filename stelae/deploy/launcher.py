"""Standing a cluster up on Ray, finding one that stands, and taking it down.

A cluster's ``data_dir`` holds the servers' folders, the cluster's secret and admin token (both
0600) and ``cluster.json``: where the masters listen, so that they listen there again. Each machine
that has a server keeps these files (`stelae.deploy.cluster_files`). The process that holds a
cluster in a Ray of its own has ``launch.lock`` for as long.
"""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.ray_host.host import ServerPlan, cluster_actors, create_actor
from stelae.actors.ray_host.kept_files import read_secret, write_file
from stelae.actors.ray_host.spark_host import spark_actor
from stelae.actors.ray_host.spark_plan import SPARK_NAME, SparkPlan
from stelae.core.addresses import split_address
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.store_url import POSTGRESQL
from stelae.core.errors import (
    AlreadyRunning,
    InvalidArgument,
    NotEnoughServers,
    StelaeError,
    Unavailable,
)
from stelae.core.ids import Address
from stelae.core.records.records import ServerKind
from stelae.deploy import machines, ray_session
from stelae.deploy.cluster_state import (
    ADMIN_TOKEN_FILE,
    SECRET_FILE,
    STATE_FILE,
    ClusterState,
    at_rest,
    load_state,
    newest,
)
from stelae.deploy.left_out import check_left_out
from stelae.deploy.locks import (
    END_TIMEOUT_S,
    ORPHANS_END_S,
    LaunchLock,
    is_locked,
    lock_holder,
    server_holder,
    wait_ended,
)
from stelae.deploy.node_checks import check_http_place, check_master_ports
from stelae.recovery.spark_session import SessionSize
from stelae.runtime.free_ports import free_ports
from stelae.runtime.tcp.handshake import SECRET_BYTES
from stelae.runtime.tcp.tls import tls_problem

PSYCOPG = "pip install 'stelae[postgres]'"
APPLIER = "apply"
"""Name of the actor that applies specs, and that replaces servers of machines that stay away."""
START_TIMEOUT_S = 90.0
FIND_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 1.0
POLL_S = 0.02


def plans(spec: ClusterSpec, state: ClusterState) -> list[ServerPlan]:
    """One plan for each server of the spec."""
    masters = {name: Address(address) for name, address in state.masters.items()}
    common = ServerPlan(
        kind=ServerKind.MASTER,
        name="",
        cluster=spec.cluster,
        secret=state.secret,
        folder="",
        host=machines.LOOPBACK,
        port=0,
        masters=masters,
        settings=spec.settings(),
        engine=spec.recovery.engine,
        cas_store_url="" if spec.cas_store is None else spec.cas_store.url,
        traces_endpoint=spec.traces_endpoint,
        peer_tls=spec.tls.peer_tls,
        rack_label="" if spec.placement is None else spec.placement.rack_label,
    )
    media = tuple(
        MediumSpec(name=name, path=m.path, sync=m.sync or "always", size_bytes=m.size_bytes)
        for name, m in spec.media.items()
    )
    found = []
    spark = spark_plan(spec, state)
    for name, address in masters.items():
        host, port = split_address(address)
        found.append(replace(common, name=name, host=host, port=port, spark=spark))
    backup = replace(common, kind=ServerKind.BACKUP, media=media)
    found += [replace(backup, name=name) for name in _names("backup", spec.backups.count)]
    keeper = replace(common, kind=ServerKind.SAFEKEEPER)
    found += [replace(keeper, name=n) for n in _names("safekeeper", spec.safekeepers.count)]
    store = replace(common, kind=ServerKind.CAS_STORE)
    stores = 0 if spec.cas_store is None else 1
    found += [replace(store, name=n) for n in _names(ServerKind.CAS_STORE.value, stores)]
    memory = spec.tservers.memory_bytes
    tserver = replace(common, kind=ServerKind.TSERVER, memory_limit_bytes=memory)
    found += [replace(tserver, name=name) for name in _names("tserver", spec.tservers.count)]
    return [
        replace(
            plan,
            folder=str(Path(state.data_dir) / plan.name),
            machine=state.machines.get(plan.name, ""),
            selector=machines.selector(spec, state, plan.name),
        )
        for plan in found
    ]


def server_names(spec: ClusterSpec, masters: Iterable[str]) -> list[str]:
    """Names of all servers that `plans` has. ``masters``: their names."""
    counts = {
        ServerKind.BACKUP: spec.backups.count,
        ServerKind.SAFEKEEPER: spec.safekeepers.count,
        ServerKind.CAS_STORE: 0 if spec.cas_store is None else 1,
        ServerKind.TSERVER: spec.tservers.count,
    }
    others = [_names(kind.value, count) for kind, count in counts.items()]
    return [*masters, *(name for each in others for name in each)]


def spark_plan(spec: ClusterSpec, state: ClusterState) -> SparkPlan | None:
    """The plan of the cluster's Spark session; None if the spec has none."""
    if spec.spark is None:
        return None
    wanted = spec.spark
    return SparkPlan(
        cluster=spec.cluster,
        masters=tuple(Address(address) for address in state.masters.values()),
        secret=state.secret,
        settings=spec.settings(),
        size=SessionSize(wanted.executors, wanted.cores, wanted.memory_bytes),
        warm=wanted.warm,
        peer_tls=spec.tls.peer_tls,
    )


def prepare(spec: ClusterSpec) -> tuple[ClusterState, LaunchLock]:
    """Make or read the cluster's data directory, and take hold of it.

    Raises:
        AlreadyRunning: a server of a running cluster uses it, or another process launches it; or
            the port of the HTTP front or of a master is taken.
        InvalidArgument: it belongs to another cluster, has a file that cannot be read, is not ours
            to write to, or has a server with copies of tablets that the spec leaves out.
    """
    folder = Path(spec.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = LaunchLock(folder)
        try:
            _check_driver(spec)
            state = _read_or_make(spec, folder)
            names = [plan.name for plan in plans(spec, state)]
            if busy := next((name for name in names if is_locked(folder / name)), None):
                raise AlreadyRunning(_in_use(folder, busy, spec.cluster))
            check_left_out(spec, names)
            _check_http_port(spec)
            if spec.placement is None:  # else they may be on other machines
                check_master_ports(state)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise InvalidArgument(f"data_dir {folder}: {error.strerror or error}") from error
    return state, lock


def _in_use(folder: Path, server: str, cluster: str) -> str:
    """What to do about a server on a data_dir that no launching process holds."""
    pid = server_holder(folder / server)
    return (
        f"data_dir {folder} is in use: {server} of cluster {cluster!r} (process {pid or 'unknown'} "
        "of its machine) runs on it. If its Ray runs, change the cluster with `stelae apply`, or "
        "take it down with `stelae down`. If the process that launched it was killed, its servers "
        f"end by themselves, usually within {ORPHANS_END_S:g} s: launch again then, or end that "
        "process"
    )


def _check_driver(spec: ClusterSpec) -> None:
    """Say what is not installed before anything is started."""
    url = "" if spec.cas_store is None else spec.cas_store.url
    if url.startswith(POSTGRESQL) and importlib.util.find_spec("psycopg") is None:
        raise InvalidArgument(f"cas_store.url {url!r} needs psycopg: {PSYCOPG}")
    if problem := tls_problem(spec.tls.peer_tls):
        raise InvalidArgument(f"cluster {spec.cluster!r} cannot come up: {problem}")


def _check_http_port(spec: ClusterSpec) -> None:
    """A Ray of our own has a Serve of its own: its port must be free."""
    if spec.ray.address == "local":
        check_http_place(spec)


def _read_or_make(spec: ClusterSpec, folder: Path) -> ClusterState:
    origin = "" if spec.cas_store is None else spec.cas_store.origin
    if (folder / STATE_FILE).exists():
        state = load_state(folder)
        read_secret(folder)
        if state.cluster != spec.cluster:
            raise InvalidArgument(
                f"data_dir {folder} holds cluster {state.cluster!r}, not {spec.cluster!r}"
            )
        if state.cas_store != origin:
            raise InvalidArgument(
                f"cas_store: cluster {spec.cluster!r} keeps the configurations of its timelines in "
                f"{state.cas_store or 'its masters'}, not in {origin or 'its masters'}; this is "
                "chosen when a cluster is made, and they cannot be moved"
            )
        return at_rest(replace(state, data_dir=str(folder)))  # it may have been moved
    names = _names("master", spec.masters.count)
    ports = list(free_ports(len(names)))
    hosts = [f"{machines.LOOPBACK}:{port}" for port in ports]  # until they are placed
    masters = dict(zip(names, hosts, strict=True))
    secret = folder / SECRET_FILE
    # A whole one may be that of a running cluster whose state is lost; one that a crash cut is
    # nobody's, as the state is written after it.
    if not secret.exists() or secret.stat().st_size < SECRET_BYTES:
        write_file(secret, secrets.token_bytes(SECRET_BYTES))
    state = ClusterState(spec.cluster, str(folder), masters, cas_store=origin)
    state.save()
    return state


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(1, count + 1)]


def place(spec: ClusterSpec, state: ClusterState) -> ClusterState:
    """Choose machines for servers that have none, and keep that; see `machines.placed`."""
    found = machines.placed(spec, state, [plan.name for plan in plans(spec, state)])
    if found != state:
        found.save()
    return found


def start_servers(spec: ClusterSpec, state: ClusterState, actors: dict[str, Any]) -> None:
    """Create all actors at once, put each into ``actors``, and wait until each listens.

    Raises, and what is in ``actors`` then is the caller's to take down:
        NotEnoughServers: Ray did not place them all in time.
        AlreadyRunning: the cluster runs already, or a server cannot start; the text says why.
        Unavailable: a server's process ended while it started.
    """
    if cluster_actors(spec.cluster):
        raise AlreadyRunning(f"cluster {spec.cluster!r} is running already in this Ray")
    # Before the first one listens: whoever connects by the data_dir learns from it how.
    known, tls = newest(state), spec.tls.peer_tls.document()
    if known.tls != tls:
        replace(known, tls=tls).save()
    for plan in plans(spec, state):
        actors[plan.name] = create_actor(plan)
    waits = [actor.ready.remote(START_TIMEOUT_S) for actor in actors.values()]
    try:
        ray.get(waits, timeout=START_TIMEOUT_S + 10.0)
    except ray.exceptions.GetTimeoutError:
        ready = len(ray.wait(waits, num_returns=len(waits), timeout=0)[0])
        raise NotEnoughServers(
            "launch (Ray could not place the others: tservers.memory counts against Ray's memory, "
            f"{ray.cluster_resources().get('memory', 0) / 2**30:.1f} GiB)",
            *(len(waits), "servers", ready),
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, StelaeError) else error) from None
    except ray.exceptions.RayActorError as error:
        raise Unavailable("a server of the cluster", f"its process ended: {error}") from error
    spark = spark_plan(spec, state)
    if spark is not None and spark.warm:
        actors[SPARK_NAME] = spark_actor(spark)


def admin_token(state: ClusterState) -> str:
    """The token that was made for the HTTP front; empty if none was."""
    file = state.folder / ADMIN_TOKEN_FILE
    return file.read_text().strip() if file.exists() else ""


def running(state: ClusterState, *, http_starts: bool) -> ClusterState:
    """The state of a cluster that runs, for others to find it by. Its HTTP front follows."""
    address = ray.get_runtime_context().gcs_address
    return replace(state, ray_address=address, http_starts=http_starts)


@dataclass(frozen=True)
class HttpFront:
    """Where the HTTP front answers; empty: there is none."""

    url: str = ""
    started_serve: bool = False


def stop_http(state: ClusterState) -> None:
    """Take the HTTP front away, in a Ray that goes on."""
    from stelae.serve.deployment import undeploy

    undeploy(state.cluster, started_serve=state.started_serve)


def take_down(
    state: ClusterState,
    actors: dict[str, Any],
    *,
    owns_ray: bool,
    grace_s: float = 5.0,
    tell: Callable[[ClusterState], None] = lambda state: None,
) -> None:
    """End these servers, and Ray if it was started for them; wait until all have ended.

    Only ``actors``, and the Spark that goes with them: a launch that is refused because the cluster
    runs has none, and ends none. ``tell`` is told before they end, while they can hear of it.
    ``owns_ray``: Ray was started by this process; it ends with the last cluster that lives in it.

    Raises:
        StelaeError: some server's process does not end; the text names it.
    """
    state = newest(state)  # the front may have come, or moved, meanwhile
    if actors:  # those that there are now: servers were changed, Spark was started on demand
        # First who starts servers by itself: it would start what is ended.
        applier = cluster_actors(state.cluster).get(APPLIER)
        if applier is not None:
            kill_servers({APPLIER: applier}, grace_s=grace_s)
        actors = cluster_actors(state.cluster) or actors
    try:
        if state.http and not (owns_ray and ray_session.is_last()):
            stop_http(state)
        tell(state)
        kill_servers(actors, grace_s=grace_s)
    finally:
        if owns_ray:
            ray_session.end_ray()
    left = wait_ended(Path(state.data_dir) / name for name in actors)
    if left:
        raise StelaeError(f"{', '.join(left)} did not end within {END_TIMEOUT_S:g} s")
    if state.folder.is_dir():
        at_rest(newest(state)).save()


def kill_servers(actors: dict[str, Any], *, grace_s: float = 5.0) -> None:
    """Stop servers in order, masters last, then end their processes and take their names back."""
    order = sorted(actors, key=lambda name: name.startswith("master"))
    stops = [actors[name].stop.remote() for name in order]
    if stops:
        ray.wait(stops, num_returns=len(stops), timeout=grace_s)
    for name in order:
        ray.kill(actors[name])


def _is_master(name: str) -> bool:
    return name.startswith(ServerKind.MASTER.value)


def check_runs(state: ClusterState) -> None:
    """Raise Unavailable if a cluster definitely does not run: nobody here holds its data_dir, and
    its masters and its Ray refuse connections. Whatever may only be starting is waited for by the
    calls themselves."""
    places = [*state.masters.values(), *([state.ray_address] if state.ray_address else [])]
    with contextlib.suppress(OSError):  # another user's lock: then the places decide
        if lock_holder(state.folder):
            return
    if all(_is_refused(place) for place in places):
        raise Unavailable(
            f"cluster {state.cluster!r} of {state.folder}",
            "it does not run: the process that launched it has ended, or it was taken down. Launch "
            "it again with stelae.launch and the same data_dir, or with `stelae up`: its rows are "
            "kept there. With detach=True it outlives the process that launches it",
        )


def _is_refused(place: str) -> bool:
    """Whether nobody listens there. No answer, or no way to it, says nothing."""
    try:
        socket.create_connection(split_address(place), PROBE_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def find_cluster(name: str) -> tuple[ServerPlan, list[Address]]:
    """The plan of some server of a running cluster (it has the secret), and where masters listen.

    Raises:
        Unavailable: no such cluster runs in this Ray.
    """
    actors = cluster_actors(name)
    masters = [actor for server, actor in actors.items() if _is_master(server)]
    if not masters:
        raise Unavailable(f"cluster {name!r}", "it does not run in this Ray")
    asked = [master.describe.remote() for master in masters]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=FIND_TIMEOUT_S)
    plans: list[ServerPlan] = []
    for each in ready:
        with contextlib.suppress(ray.exceptions.RayActorError):  # its machine is away: others are
            plans.append(ray.get(each))
    if not plans:
        raise Unavailable(f"cluster {name!r}", f"no master answers within {FIND_TIMEOUT_S:g} s")
    return plans[0], [plan.masters[plan.name] for plan in plans]
