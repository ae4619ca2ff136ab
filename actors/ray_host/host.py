"""What turns a server into a Ray actor: the only place that applies ``ray.remote`` to one.

The constructor stores its plan and starts the server in the background; it never fails for passing
trouble (Ray would take the actor for dead for good), but tries again. Ray restarts the process
when it dies (``max_restarts=-1``) and never repeats a call (``max_task_retries=0``). When a
background task of the server fails, the process ends: a restart from the disk is the one way back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.cas_store.opening import open_backend
from stelae.actors.ray_host.exit_hook import at_exit
from stelae.actors.ray_host.kept_files import FileKeeper, KeptFiles
from stelae.actors.ray_host.node_selector import node_options
from stelae.actors.ray_host.own_log import link_own_log, title_as
from stelae.actors.ray_host.recovery_spans import RecoverySpans
from stelae.actors.ray_host.runtime import RayMetrics, RayObjects
from stelae.actors.ray_host.spark_plan import SparkPlan
from stelae.core import tracing
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.errors import AlreadyRunning, StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.tasks import Tasks
from stelae.recovery.engine import EnginePolicy
from stelae.runtime.allocator import give_freed_memory_back
from stelae.runtime.files import LocalDisk
from stelae.runtime.logs import log_also, log_as
from stelae.runtime.processes import calm_collector, in_modest_thread, use_small_pages
from stelae.runtime.real import RealRuntime, end_process_on_broken_invariant
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from stelae.runtime.traces import trace_as

logger = logging.getLogger(__name__)

NAMESPACE = "stelae"
RETRY_PAUSE_S = 0.25
LOOK_FOR_SERVERS_S = 10.0
"""Between a master's looks at which servers there are, to be told of their deaths."""
EXIT_FAILED = 71
MEASURE_PERIOD_S = 2.0
WATCHED = tuple(kind.value for kind in ServerKind if kind is not ServerKind.MASTER)
"""Of these kinds masters are told of deaths."""


@dataclass(frozen=True)
class ServerPlan:
    """Everything a server's process needs to know; the same at every restart."""

    kind: ServerKind
    name: str
    cluster: str
    secret: bytes = field(repr=False)
    folder: str
    """Its data directory, absolute."""
    host: str
    port: int
    """0: any free one."""
    masters: Mapping[str, Address]
    settings: Settings
    memory_limit_bytes: int = 0
    media: tuple[MediumSpec, ...] = ()
    engine: EnginePolicy = "auto"
    spark: SparkPlan | None = None
    """For masters, where the cluster has Spark."""
    cas_store_url: str = ""
    """Where the configuration store keeps its rows; empty: the masters are the store."""
    machine: str = ""
    """The machine that it stays on, if it was put on one; then it listens on that machine's address
    in Ray's network, else on ``host``. A master's is in ``host``: others know it by that."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Of the nodes that Ray may start it on (`node_selector`); empty: any."""
    rack_label: str = ""
    """Label of Ray's nodes whose values are the racks; empty: each node is one."""
    joining: bool = False
    """Of a master: it waits to be added, and founds nothing."""
    traces_endpoint: str = ""
    """Of the collector of traces; empty: the file names none."""
    peer_tls: PeerTls = OFF
    """TLS of its connections with other processes."""


class Server(Protocol):
    """What a host asks of a server."""

    tasks: Tasks

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """A server that tells the metrics how it is when it is asked to."""

    def measure(self) -> None: ...


def full_disk(error: BaseException, folder: str) -> str:
    """What a server says that ended for want of disk space; empty: ``error`` is another one."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    try:
        usage = shutil.disk_usage(folder)
        left = f"{usage.free / 1e6:,.1f} MB of {usage.total / 1e6:,.1f} MB are free"
    except OSError as unknown:
        left = f"what is free is not known: {unknown}"
    return (
        f"the disk of {folder} is full ({left}). Free some: the server then starts by itself, with "
        "all that it had"
    )


class ServerHost:
    """The actor class. Its methods are control calls; data goes over the server's own TCP port."""

    def __init__(self, plan: ServerPlan) -> None:
        log_as(cluster=plan.cluster, kind=plan.kind.value, server=plan.name)
        if ray.is_initialized():
            link_own_log(plan.cluster, plan.name)
        whose = {"cluster": plan.cluster, "kind": plan.kind.value, "server": plan.name}
        trace_as(plan.traces_endpoint, **whose)
        if not use_small_pages():
            logger.warning("%s: huge pages stay on, recovery may take longer", plan.name)
        self._plan = plan
        self._server: Server | None = None
        self._runtime: RealRuntime | None = None
        self._objects: RayObjects | None = None
        self._files = FileKeeper(Path(plan.folder).parent, plan.secret)
        self._started = asyncio.Event()
        self._problem = "not started yet"
        self._noted = ""
        context = ray.get_runtime_context() if ray.is_initialized() else None
        self._is_restart = context is not None and context.was_current_actor_reconstructed
        loop = asyncio.get_running_loop()
        self._life = loop.create_task(self._live())
        self._no_farewell = at_exit(loop, self._farewell)

    def __repr__(self) -> str:
        return f"Stelae({self._plan.name})"

    async def ready(self, timeout_s: float) -> str:
        """Wait until the server listens; return its address, or what keeps it from starting."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._started.wait()
        except TimeoutError:
            raise AlreadyRunning(f"{self._plan.name} does not start: {self._problem}") from None
        assert self._runtime is not None
        return str(self._runtime.peers.address)

    async def describe(self) -> ServerPlan:
        """The plan, for whoever connects by the cluster's name. Ray's own rights guard it."""
        return self._plan

    async def kept(self) -> KeptFiles | None:
        """The cluster's files as this server has them, for whoever has none, or older ones."""
        return await asyncio.to_thread(self._files.kept)

    async def keep(self, files: KeptFiles) -> int:
        """Keep them on this machine, unless newer ones are here; the version of those that are."""
        return await asyncio.to_thread(self._files.keep, files)

    async def run(self) -> tuple[ServerUuid, int]:
        """Which run of which server, but for masters, this process is: (uuid, incarnation)."""
        await self._started.wait()
        info: ServerInfo = self._server.info  # type: ignore[union-attr]
        return info.uuid, info.incarnation

    async def until_death(self) -> None:
        """Never return: the caller learns of this process's death by the call's failure."""
        await asyncio.Event().wait()

    async def lend(self, key: str) -> list[Any]:
        """References to what this server shares by that key: one, or none any more."""
        return [] if self._objects is None else self._objects.lend(key)

    async def use_engine(self, policy: EnginePolicy) -> None:
        """Of a master: recover with this engine from now on, until its process ends."""
        await self._started.wait()
        self._server.use_engine(policy)  # type: ignore[union-attr]

    async def hand_over(self, timeout_s: float) -> int:
        """Of a tserver or master that is to end while others go on: let these lead what it leads.
        Returns how many groups have no other leader yet. May be asked again at any time."""
        await self._started.wait()
        left: int = await self._server.hand_over(timeout_s)  # type: ignore[union-attr]
        return left

    async def _farewell(self, timeout_s: float) -> None:
        """The process was told to end (SIGTERM), by whoever takes its node away."""
        leading = self._plan.kind in (ServerKind.TSERVER, ServerKind.MASTER)
        if leading and self._started.is_set():
            await self._server.hand_over(timeout_s)  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Stop the server in order; the process is then killed by the caller."""
        self._no_farewell()
        self._life.cancel()
        if self._server is not None:
            await self._server.stop()

    async def _live(self) -> None:
        disk: LocalDisk | None = None
        while self._server is None:
            try:
                if self._is_restart:  # then others are recovering what it had: they go first
                    await in_modest_thread(functools.partial(load_server, self._plan.kind))
                # Tservers and safekeepers sync all the time: other calls do not wait for that.
                threads = self._plan.kind in (ServerKind.TSERVER, ServerKind.SAFEKEEPER)
                disk = disk or LocalDisk(self._plan.folder, sync_in_thread=threads)
                await self._start(disk)
            except Exception as error:  # also a bug: it is told by `ready`, not by a silent actor
                self._note_problem(error)
                await asyncio.sleep(RETRY_PAUSE_S)
        calm_collector()
        self._started.set()
        failure = await self._server.tasks.wait_failed()
        if full := full_disk(failure, self._plan.folder):
            logger.critical("%s ends: %s", self._plan.name, full)
        else:
            logger.critical("%s ends: a background task failed", self._plan.name, exc_info=failure)
        os._exit(EXIT_FAILED)

    def _note_problem(self, error: Exception) -> None:
        """Log what keeps the server from starting, once for as long as it is the same."""
        said = str(error) or repr(error)
        problem = full_disk(error, self._plan.folder) or said
        if said != self._noted:  # how much is free differs each time
            foreseen = isinstance(error, StelaeError | OSError)
            name = self._plan.name
            logger.warning("%s does not start yet: %s", name, problem, exc_info=not foreseen)
        self._problem, self._noted = problem, said

    async def _start(self, disk: LocalDisk) -> None:
        plan = self._plan
        peers = TcpPeers(
            Credentials(plan.cluster, plan.secret, tls=plan.peer_tls),
            on_failure=end_process_on_broken_invariant,
            host=_host(plan),
            port=plan.port,
        )
        objects = RayObjects(f"{plan.cluster}/{plan.name}", NAMESPACE)
        metrics = RayMetrics(cluster=plan.cluster, server=plan.name)
        runtime = RealRuntime(
            peers, disk, objects=objects, metrics=metrics, node=plan.machine, rack=_rack(plan)
        )
        try:
            # Only a launch founds a group of masters: one that comes back without its files waits
            # to be added, also if its plan, made when it was alone, names no other.
            joining = plan.joining or self._is_restart
            server = make_server(dataclasses.replace(plan, joining=joining), runtime)
            await server.start()
        except BaseException:
            await peers.close()
            raise
        self._runtime, self._server, self._objects = runtime, server, objects
        info: ServerInfo = server.info  # type: ignore[attr-defined]
        log_also(uuid=info.uuid, incarnation=info.incarnation)
        logger.info("%s runs at %s as process %d", plan.name, peers.address, os.getpid())
        server.tasks.spawn(_measure(server, metrics, plan), "metrics")
        if plan.kind is ServerKind.MASTER:
            server.tasks.spawn(self._watch_others(server), "death notices")
            if plan.spark is not None:
                self._give_spark(server, plan.spark)

    def _give_spark(self, master: Any, plan: SparkPlan) -> None:
        # Imported by masters with Spark alone: it takes a quarter of a server's start.
        from stelae.actors.ray_host.spark_host import RaySparkEngine

        master.spark_engine = engine = RaySparkEngine(plan)
        master.tasks.spawn(engine.watch(lambda: master.is_leader), "state of Spark")

    async def _watch_others(self, master: Any) -> None:
        """Tell the master what Ray knows of the deaths of other servers' processes, also of those
        that are added, or made anew, later."""
        watched: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                actors = await asyncio.to_thread(cluster_actors, self._plan.cluster)
                for name, handle in actors.items():
                    former = watched.get(name)
                    if name.startswith(WATCHED) and (former is None or former.done()):
                        watched[name] = group.create_task(self._watch_one(master, handle))
                await asyncio.sleep(LOOK_FOR_SERVERS_S)

    async def _watch_one(self, master: Any, handle: Any) -> None:
        """A handle stays good across restarts; calls to a dead actor fail until the next one."""
        run: tuple[ServerUuid, int] | None = None
        while True:
            try:
                run = await handle.run.remote()
                await self._give_files(handle)
                await handle.until_death.remote()
            except (ActorDiedError, ActorUnavailableError) as error:
                if run is not None:
                    master.server_died(*run)
                if isinstance(error, ActorDiedError):
                    return  # for good: it was taken out of the cluster
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _give_files(self, handle: Any) -> None:
        """A machine that was away has older ones. One whose actor was made by a version that knows
        of none is left alone."""
        files = await self.kept()
        if files is None or not hasattr(handle, "keep"):
            return
        try:
            await handle.keep.remote(files)
        except ray.exceptions.RayTaskError as error:  # its disk may be full: others have them
            logger.warning("a machine does not keep the cluster's files: %s", error.cause)


async def _measure(server: Server, metrics: RayMetrics, plan: ServerPlan) -> None:
    """Have the metrics told how the server is, Ray what was counted, and ``ps`` whose process this
    is. Nothing but what people see hangs on it, so a bug in it is logged, and ends no server."""
    problem, recoveries = "", RecoverySpans()
    while True:
        try:
            coordinator = getattr(server, "coordinator", None)
            if coordinator is not None and tracing.active is not None:
                recoveries.tell(tracing.active, coordinator.recoveries.describe())
            metrics.flush()
            metrics.tell_gauges()
            if isinstance(server, Measured):
                server.measure()
            if ray.is_initialized():  # last: another Ray may have no such call
                title_as(plan.cluster, plan.name)
        except Exception as error:
            if repr(error) != problem:
                logger.exception("the metrics are not complete")
            problem = repr(error)
        await asyncio.sleep(MEASURE_PERIOD_S)


SERVER_PACKAGES = {
    ServerKind.MASTER: "master",
    ServerKind.TSERVER: "tserver",
    ServerKind.SAFEKEEPER: "safekeeper",
    ServerKind.BACKUP: "backup",
    ServerKind.CAS_STORE: "cas_store",
}
"""In ``stelae.actors``: the folder of each kind; its module `server` has the class."""


class WithoutPandas(MetaPathFinder):
    """Pandas is not to be had in this process.

    pyarrow imports it, where it is installed, at its first array of NumPy's: half a second or more
    in the midst of a recovery, and 40 MB, for nothing that a tserver or a backup does.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this server does without pandas", name=fullname)
        return None


def load_server(kind: ServerKind) -> ModuleType:
    """Import what a server of this kind needs, and no more; the module with its class."""
    has_it = any(isinstance(finder, WithoutPandas) for finder in sys.meta_path)
    if kind in (ServerKind.TSERVER, ServerKind.BACKUP) and not has_it:
        sys.meta_path.insert(0, WithoutPandas())
    if kind is ServerKind.TSERVER:
        for kernels in ("stelae.storage.kernels.compiled", "stelae.storage.kernels.index_compiled"):
            importlib.import_module(kernels)  # loads them, or compiles them once on a machine
    return importlib.import_module(f"stelae.actors.{SERVER_PACKAGES[kind]}.server")


def make_server(plan: ServerPlan, runtime: RealRuntime) -> Server:
    """Build the server that a plan asks for."""
    module = load_server(plan.kind)
    masters = list(plan.masters.values())
    if plan.kind is ServerKind.MASTER:
        master: Server = module.Master(
            runtime,
            name=plan.name,
            cluster=plan.cluster,
            masters=dict(plan.masters),
            settings=plan.settings,
            engine=plan.engine,
            joining=plan.joining,
            has_cas_store=bool(plan.cas_store_url),
            is_encrypted=plan.peer_tls.is_on,
        )
        return master
    if plan.kind is ServerKind.BACKUP:
        disks = {
            medium.name: LocalDisk(Path(medium.path) / plan.name)
            for medium in plan.media
            if medium.path is not None and Path(medium.path).is_absolute()
        }
        backup: Server = module.Backup(
            runtime,
            name=plan.name,
            cluster=plan.cluster,
            masters=masters,
            settings=plan.settings,
            media={medium.name: medium for medium in plan.media},
            disks=disks,
        )
        return backup
    if plan.kind is ServerKind.SAFEKEEPER:
        keeper: Server = module.Safekeeper(
            runtime,
            name=plan.name,
            cluster=plan.cluster,
            masters=masters,
            settings=plan.settings,
        )
        return keeper
    if plan.kind is ServerKind.CAS_STORE:
        return _make_cas_store(plan, runtime, module)
    give_freed_memory_back()
    tserver: Server = module.TabletServer(
        runtime,
        name=plan.name,
        cluster=plan.cluster,
        masters=masters,
        settings=plan.settings,
        memory_limit_bytes=plan.memory_limit_bytes,
    )
    return tserver


def _make_cas_store(plan: ServerPlan, runtime: RealRuntime, module: ModuleType) -> Server:
    store: Server = module.CasStore(
        runtime,
        open_backend(plan.cas_store_url, runtime, Path(plan.folder), plan.cluster),
        name=plan.name,
        cluster=plan.cluster,
        masters=list(plan.masters.values()),
        settings=plan.settings,
    )
    return store


def _host(plan: ServerPlan) -> str:
    if not plan.machine or plan.kind is ServerKind.MASTER:
        return plan.host
    return str(ray.util.get_node_ip_address())


def _rack(plan: ServerPlan) -> str:
    """Of the node that this process runs on; empty: it has none."""
    if not plan.rack_label:
        return ""
    return str(ray.get_runtime_context().get_node_labels().get(plan.rack_label, ""))


def create_actor(plan: ServerPlan) -> Any:
    """Start a server's actor: detached, named, restarted for ever, its calls never repeated.

    Raises:
        AlreadyRunning: an actor of that name is there.
    """
    name = f"{plan.cluster}/{plan.name}"
    actor = ray.remote(ServerHost).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1000,
        enable_task_events=False,
        memory=plan.memory_limit_bytes or None,
        **node_options(plan.selector),
    )
    try:
        return actor.remote(plan)
    except ray.exceptions.ActorAlreadyExistsError as error:
        raise AlreadyRunning(f"cluster {plan.cluster!r} is running already ({name})") from error


def cluster_actors(cluster: str) -> dict[str, Any]:
    """Handles of a cluster's actors, by server name. Raises RayError."""
    found = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        name = entry["name"]
        if entry["namespace"] != NAMESPACE or not name.startswith(f"{cluster}/"):
            continue
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # it ended since it was listed, and so is no actor any more
            continue
        found[name.removeprefix(f"{cluster}/")] = actor
    return dict(sorted(found.items()))
