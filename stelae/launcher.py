"""Standing a cluster up on Ray, finding one that stands, and taking it down.

A cluster's ``data_dir`` holds the servers' folders, the cluster's secret and admin token (both
0600) and ``cluster.json``: where the masters listen, so that they listen there again. The process
that holds a cluster in a Ray of its own has ``launch.lock`` for as long.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host import ServerPlan, cluster_actors, create_actor
from stelae.actors.spark_host import SPARK_NAME, SparkPlan, spark_actor
from stelae.core.errors import (
    AlreadyRunning,
    InvalidArgument,
    NotEnoughServers,
    StelaeError,
    Unavailable,
)
from stelae.core.ids import Address
from stelae.core.records import ServerKind
from stelae.core.spec import ClusterSpec
from stelae.core.store_url import POSTGRESQL
from stelae.recovery.spark_session import SessionSize
from stelae.runtime.files import LOCK_FILE as SERVER_LOCK_FILE
from stelae.runtime.handshake import SECRET_BYTES
from stelae.storage.frames import MediumSpec

STATE_FILE = "cluster.json"
SECRET_FILE = "secret"
LOCK_FILE = "launch.lock"
ADMIN_TOKEN_FILE = "admin-token"
"""Made by `stelae.serve.tokens`, which is not imported before it is needed."""
PSYCOPG = "pip install 'stelae[postgres]'"
MASTER_PORTS = range(20_000, 32_000)
START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 15.0
FIND_TIMEOUT_S = 5.0
POLL_S = 0.02


@dataclass(frozen=True)
class ClusterState:
    """What `connect` needs to know of a cluster; kept in ``cluster.json``."""

    cluster: str
    data_dir: str
    masters: dict[str, str]
    ray_address: str = ""
    """Of the Ray that it runs in, while it runs."""
    http: str = ""
    """URL of its HTTP front, while it runs."""
    cas_store: str = ""
    """Origin of its configuration store, for ever; empty: its masters."""
    started_serve: bool = False
    """Whether Serve was started for it, and nobody else's applications were there."""
    keeper_pid: int = 0
    """Process that holds it for `stelae up`, while it runs."""

    @property
    def secret(self) -> bytes:
        return (Path(self.data_dir) / SECRET_FILE).read_bytes()

    def save(self) -> None:
        path = Path(self.data_dir) / STATE_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(temporary, path)


def load_state(data_dir: str | Path) -> ClusterState:
    """Read ``cluster.json``. Raises InvalidArgument where there is none."""
    path = Path(data_dir) / STATE_FILE
    try:
        return ClusterState(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise InvalidArgument(
            f"{data_dir} is not a cluster's data_dir: it has no {STATE_FILE}"
        ) from None


def at_rest(state: ClusterState) -> ClusterState:
    """The state of a cluster that does not run."""
    return replace(state, ray_address="", http="", started_serve=False, keeper_pid=0)


class LaunchLock:
    """Held by the process that launches a cluster, from before it looks until it is down.

    Raises:
        AlreadyRunning: another process holds it; the text names its pid.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _try_lock(self._descriptor):
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            self.release()
            raise AlreadyRunning(
                f"data_dir {folder} is in use by process {holder or 'unknown'}, which runs the "
                "cluster; take that down first (`stelae down`, or close() in that process), or "
                "give this cluster another data_dir"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go; again is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_holder(folder: str | Path) -> int:
    """Pid of the process that holds a cluster's launch lock; 0 if nobody does."""
    try:
        descriptor = os.open(Path(folder) / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if _try_lock(descriptor):
            return 0
        return int(os.pread(descriptor, 32, 0).decode() or 0)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def plans(spec: ClusterSpec, state: ClusterState) -> list[ServerPlan]:
    """One plan for each server of the spec."""
    masters = {name: Address(address) for name, address in state.masters.items()}
    common = ServerPlan(
        kind=ServerKind.MASTER,
        name="",
        cluster=spec.cluster,
        secret=state.secret,
        folder="",
        host="127.0.0.1",
        port=0,
        masters=masters,
        settings=spec.settings(),
        engine=spec.recovery.engine,
        cas_store_url="" if spec.cas_store is None else spec.cas_store.url,
    )
    media = tuple(
        MediumSpec(name=name, path=m.path, sync=m.sync or "always", size_bytes=m.size_bytes)
        for name, m in spec.media.items()
    )
    found = []
    spark = spark_plan(spec, state)
    for name, address in masters.items():
        port = int(address.rpartition(":")[2])
        found.append(replace(common, name=name, port=port, spark=spark))
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
    return [replace(p, folder=str(Path(state.data_dir) / p.name)) for p in found]


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
    )


def prepare(spec: ClusterSpec) -> tuple[ClusterState, LaunchLock]:
    """Make or read the cluster's data directory, and take hold of it.

    Raises:
        AlreadyRunning: a server of a running cluster uses it, or another process launches it; or
            the port of the HTTP front is taken.
        InvalidArgument: it belongs to another cluster, or is not ours to write to.
    """
    folder = Path(spec.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = LaunchLock(folder)
        try:
            _check_driver(spec)
            state = _read_or_make(spec, folder)
            names = [plan.name for plan in plans(spec, state)]
            if busy := next((name for name in names if _is_locked(folder / name)), None):
                raise AlreadyRunning(
                    f"data_dir {folder} is in use: {busy} of cluster {spec.cluster!r} runs on it"
                )
            _check_http_port(spec)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise InvalidArgument(f"data_dir {folder}: {error.strerror or error}") from error
    return state, lock


def _check_driver(spec: ClusterSpec) -> None:
    """Say what is not installed before anything is started."""
    url = "" if spec.cas_store is None else spec.cas_store.url
    if url.startswith(POSTGRESQL) and importlib.util.find_spec("psycopg") is None:
        raise InvalidArgument(f"cas_store.url {url!r} needs psycopg: {PSYCOPG}")


def _is_locked(folder: Path) -> bool:
    """Whether a server runs on this folder."""
    try:
        descriptor = os.open(folder / SERVER_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def wait_ended(folders: Iterable[Path], timeout_s: float = END_TIMEOUT_S) -> list[str]:
    """Wait until no server runs on these folders; the names of those that still do."""
    deadline = time.monotonic() + timeout_s
    left = list(folders)
    while left := [folder for folder in left if _is_locked(folder)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return [folder.name for folder in left]


def _check_http_port(spec: ClusterSpec) -> None:
    """A Ray of our own has a Serve of its own: its port must be free."""
    if spec.serve is None or spec.serve.port == 0 or spec.ray.address != "local":
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((spec.serve.host, spec.serve.port))
        except OSError as error:
            raise AlreadyRunning(
                f"serve.port {spec.serve.port} on {spec.serve.host} cannot be used: "
                f"{error.strerror}; choose another in cluster.yaml, or 0 for any free one"
            ) from None


def _read_or_make(spec: ClusterSpec, folder: Path) -> ClusterState:
    origin = "" if spec.cas_store is None else spec.cas_store.origin
    secret = folder / SECRET_FILE
    if not secret.exists():
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
    if (folder / STATE_FILE).exists():
        state = load_state(folder)
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
        return at_rest(replace(state, data_dir=str(folder)))
    names = _names("master", spec.masters.count)
    ports = list(free_ports(len(names)))
    masters = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    state = ClusterState(spec.cluster, str(folder), masters, cas_store=origin)
    state.save()
    return state


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(1, count + 1)]


def free_ports(count: int) -> Iterator[int]:
    """Ports for servers that must listen there again after a restart.

    Below those that the system gives to outgoing connections: one of these would keep a master out.
    """
    with contextlib.ExitStack() as sockets:
        found = 0
        for port in random.sample(MASTER_PORTS, len(MASTER_PORTS)):
            each = sockets.enter_context(socket.socket())
            try:
                each.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield port
            found += 1
            if found == count:
                return
    raise AlreadyRunning(
        f"no {count} free ports from {MASTER_PORTS.start} to {MASTER_PORTS.stop - 1} for masters"
    )


def start_servers(spec: ClusterSpec, state: ClusterState, actors: dict[str, Any]) -> None:
    """Create all actors at once, put each into ``actors``, and wait until each listens.

    Raises, and what is in ``actors`` then is the caller's to take down:
        NotEnoughServers: Ray did not place them all in time.
        AlreadyRunning: the cluster runs already, or a server cannot start; the text says why.
        Unavailable: a server's process ended while it started.
    """
    if cluster_actors(spec.cluster):
        raise AlreadyRunning(f"cluster {spec.cluster!r} is running already in this Ray")
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
    file = Path(state.data_dir) / ADMIN_TOKEN_FILE
    return file.read_text().strip() if file.exists() else ""


def running(state: ClusterState, front: HttpFront) -> ClusterState:
    """The state of a cluster that runs, for others to find it by."""
    address = ray.get_runtime_context().gcs_address
    return replace(state, ray_address=address, http=front.url, started_serve=front.started_serve)


@dataclass(frozen=True)
class HttpFront:
    """Where the HTTP front answers; empty: there is none."""

    url: str = ""
    started_serve: bool = False


def start_http(spec: ClusterSpec, state: ClusterState) -> HttpFront:
    """Deploy the HTTP front on Ray Serve, if the spec has one, with an admin token of its own.

    Raises:
        AlreadyRunning: its port is in use.
        RetryLater: no replica became healthy.
    """
    if spec.serve is None:
        return HttpFront()
    from stelae.serve.deployment import GatewayPlan, deploy
    from stelae.serve.tokens import TOKENS_FILE, make_admin_token, read_tokens

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    make_admin_token(state.data_dir)
    made = deploy(
        GatewayPlan(
            spec.cluster,
            tuple(Address(address) for address in state.masters.values()),
            state.secret,
            spec.settings(),
        ),
        read_tokens(Path(state.data_dir) / TOKENS_FILE),
        host=spec.serve.host,
        port=spec.serve.port,
        replicas=spec.serve.replicas,
    )
    return HttpFront(made.url, made.started_serve)


def stop_http(state: ClusterState) -> None:
    """Take the HTTP front away, in a Ray that goes on."""
    from stelae.serve.deployment import undeploy

    undeploy(state.cluster, started_serve=state.started_serve)


def take_down(
    state: ClusterState, actors: dict[str, Any], *, owns_ray: bool, grace_s: float = 5.0
) -> None:
    """End these servers, and Ray if it was started for them; wait until all have ended.

    Only ``actors``, and the Spark that goes with them: a launch that is refused because the cluster
    runs has none, and ends none.

    Raises:
        StelaeError: some server's process does not end; the text names it.
    """
    if actors:  # of masters, those that there are now; and Spark was perhaps started on demand
        found = cluster_actors(state.cluster)
        here = {n: a for n, a in actors.items() if n in found or not _is_master(n)}
        late = {n: a for n, a in found.items() if n == SPARK_NAME or _is_master(n)}
        actors = {**here, **late}
    if state.http and not owns_ray:
        stop_http(state)
    kill_servers(actors, grace_s=grace_s)
    if owns_ray:
        ray.shutdown()
    folder = Path(state.data_dir)
    left = wait_ended(folder / name for name in actors)
    if left:
        raise StelaeError(f"{', '.join(left)} did not end within {END_TIMEOUT_S:g} s")
    if folder.is_dir():
        now = load_state(folder) if (folder / STATE_FILE).exists() else state
        at_rest(replace(state, masters=now.masters)).save()


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
    if not ready:
        raise Unavailable(f"cluster {name!r}", f"no master answers within {FIND_TIMEOUT_S:g} s")
    plans: list[ServerPlan] = ray.get(ready)
    return plans[0], [plan.masters[plan.name] for plan in plans]
