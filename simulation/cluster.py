"""A whole Stelae cluster in the world: real masters, tservers, backups and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.server import CasStore
from stelae.actors.master.leader.migration_runner import RunnerSettings
from stelae.actors.master.server import Master
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.server.replaced import Replaced
from stelae.actors.tserver.server import GivenUp, TabletServer
from stelae.client.database import AsyncDatabase
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.core.runtime import Runtime
from stelae.simulation.replacing import Replacing
from stelae.simulation.world.node import Factory
from stelae.simulation.world.world import World

CLUSTER = "simulated"
MEMORY_LIMIT_BYTES = 64 << 20
WAL_FILE_BYTES = 4096
REPLICAS = 2
"""Number of replicas of a segment in most scenarios, and size of copysets, if there are any."""
LOADING_S = (0.0, 4.0, 12.0, 30.0)
"""How long the rows of a whole run would take to follow a recovery; mostly other faults come in
between. 0: as fast as it goes."""
ROW_BYTES = 250
"""About what a row takes in the log, beside its value."""
HEADS_BYTES = 64 << 10
"""Of a log in which little was written: what heads say, which are closed by faults and alters."""
MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "ram": MediumSpec(name="ram", size_bytes=16 << 20),
}


def _load_rate(world: World) -> float:
    work = world.options.workload
    loading_s = world.rng("loading").choice(LOADING_S)
    size_bytes = work.clients * work.operations * (work.value_bytes + ROW_BYTES) + HEADS_BYTES
    return size_bytes / loading_s if loading_s else 0.0


class SimCluster:
    """Starts a cluster's servers in ``world``, as many of each as its options say.

    ``changes`` are settings that differ from those of other simulated clusters. With ``cas_store``
    the configurations of timelines are kept by a server of their own. ``media``: of all backups.
    """

    def __init__(
        self,
        world: World,
        *,
        cas_store: bool = False,
        migrations: RunnerSettings | None = None,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        media: Mapping[str, MediumSpec] = MEDIA,
        **changes: Any,
    ) -> None:
        self.world = world
        self._memory_limit_bytes = memory_limit_bytes
        self._media = media
        self.cas_store = "cas-store" if cas_store else None
        self._migrations = migrations
        limits = world.options.limits
        common: dict[str, Any] = {
            "segment_bytes": limits.segment_size_bytes,
            "raft_snapshot_entries": limits.snapshot_entries,
            "arrow_rows": 4,
            "append_timeout_s": 0.5,
            "call_timeout_s": 2.0,
            "scan_batch_bytes": 2048,
            "row_piece_bytes": 500,
            "metadata_first": world.rng("metadata first").random() < 0.9,
            "load_bytes_per_s": _load_rate(world),
        }
        if world.options.nodes:  # copysets are for nodes that die together
            common["copyset_size"] = world.rng("copysets").choice([0, 0, REPLICAS])
        self.settings = Settings(**{**common, **changes})
        servers = world.options.servers
        self.masters = [f"master-{n}" for n in range(1, servers.masters + 1)]
        self.tservers = [f"tserver-{n}" for n in range(1, servers.tservers + 1)]
        self.backups = [f"backup-{n}" for n in range(1, servers.backups + 1)]
        self.safekeepers = [f"safekeeper-{n}" for n in range(1, servers.safekeepers + 1)]

    @property
    def addresses(self) -> dict[str, Address]:
        return {name: self.world.address(name) for name in self.masters}

    async def start(self) -> None:
        """Start all servers and wait until each listens."""
        for name in self.masters:
            self.world.start(name, self._master(name), kind="master")
        for name in self.backups:
            self._start_backup(name)
        for name in self.safekeepers:
            self._start_safekeeper(name)
        if self.cas_store is not None:
            make = self._cas_store(self.cas_store)
            self.world.start(self.cas_store, make, kind="cas_store", fixed_port=False)
        for name in self.tservers:
            self._start_tserver(name)
        self.world.leader_hint = self.leader
        self.world.may_lose_together = self.outlives
        self.world.holds_what_is_believed = self.holds_what_is_believed
        await self.world.wait_ready()
        if self.world.options.replace_after_s:
            Replacing(self.world, self).begin()

    def _start_tserver(self, name: str) -> None:
        self.world.start(
            name, self._tserver(name), kind="tserver", fixed_port=False, exits=(GivenUp, Replaced)
        )

    def add_tserver(self) -> str:
        """Start one more; its name."""
        name = f"tserver-{len(self.tservers) + 1}"
        self.tservers.append(name)
        self._start_tserver(name)
        return name

    def _start_backup(self, name: str) -> None:
        self.world.start(
            name, self._backup(name), kind="backup", fixed_port=False, exits=(Replaced,)
        )

    def add_backup(self) -> str:
        """Start one more; its name."""
        name = f"backup-{len(self.backups) + 1}"
        self.backups.append(name)
        self._start_backup(name)
        return name

    def _start_safekeeper(self, name: str) -> None:
        self.world.start(
            name, self._safekeeper(name), kind="safekeeper", fixed_port=False, exits=(Replaced,)
        )

    def add_safekeeper(self) -> str:
        """Start one more; its name."""
        name = f"safekeeper-{len(self.safekeepers) + 1}"
        self.safekeepers.append(name)
        self._start_safekeeper(name)
        return name

    def start_master(self, name: str) -> None:
        """Start a further master, which waits to be added; it is not among ``masters`` yet."""
        self.world.start(name, self._master(name, joining=True), kind="master")

    def _master(self, name: str, *, joining: bool = False) -> Factory:
        masters = {each: self.world.address(each) for each in dict.fromkeys([*self.masters, name])}

        def make(runtime: Runtime) -> Master:
            return Master(
                runtime,
                name=name,
                cluster=CLUSTER,
                masters=masters,
                settings=self.settings,
                joining=joining or self.world.nodes[name].disks_lost > 0,
                has_cas_store=self.cas_store is not None,
                migrations=self._migrations,
            )

        return make

    def _backup(self, name: str) -> Factory:
        def make(runtime: Runtime) -> Backup:
            return Backup(
                runtime,
                name=name,
                cluster=CLUSTER,
                masters=list(self.addresses.values()),
                settings=self.settings,
                media=self._media,
            )

        return make

    def _safekeeper(self, name: str) -> Factory:
        def make(runtime: Runtime) -> Safekeeper:
            return Safekeeper(
                runtime,
                name=name,
                cluster=CLUSTER,
                masters=list(self.addresses.values()),
                settings=self.settings,
                file_bytes=WAL_FILE_BYTES,
            )

        return make

    def _cas_store(self, name: str) -> Factory:
        def make(runtime: Runtime) -> CasStore:
            return CasStore(
                runtime,
                FilesBackend(runtime.disk),
                name=name,
                cluster=CLUSTER,
                masters=list(self.addresses.values()),
                settings=self.settings,
            )

        return make

    def _tserver(self, name: str) -> Factory:
        def make(runtime: Runtime) -> TabletServer:
            return TabletServer(
                runtime,
                name=name,
                cluster=CLUSTER,
                masters=list(self.addresses.values()),
                settings=self.settings,
                memory_limit_bytes=self._memory_limit_bytes,
            )

        return make

    def database(self, client: str) -> AsyncDatabase:
        """A client's process, with a connection to the cluster."""
        runtime = self.world.client(client)
        return AsyncDatabase(runtime, list(self.addresses.values()), self.settings)

    def leader(self) -> str | None:
        """The master that coordinates right now, if one does."""
        for name in self.masters:
            server = self.world.server(name)
            if server is not None and server.coordinator is not None:
                return name
        return None

    def is_whole(self, tablets: int, replicas: int) -> bool:
        """Whether so many tablets are served, every segment truly on so many running backups.

        Backups are known by the UUIDs of the processes that run: one that has just lost its disk
        has a new one, whatever the tservers still believe.
        """
        running = {
            server.info.uuid
            for name in self.backups
            if (server := self.world.server(name)) is not None and hasattr(server, "info")
        }
        served: dict[str, bool] = {}
        for name in self.tservers:
            server = self.world.server(name)
            if server is None:
                continue
            for tablet_id, segments in server.holders().items():
                held = (sum(1 for uuid in set(uuids) if uuid in running) for uuids in segments)
                served[tablet_id] = all(count >= replicas for count in held)
        return len(served) == tablets and all(served.values())

    def holds_what_is_believed(self) -> bool:
        """Whether each backup has as many segments of each tablet as the tablet's owner believes.

        What a server has is asked of itself: an owner may have put it somewhere else.
        """
        backups = [self.world.server(name) for name in self.backups]
        held = {server.info.uuid: server._holdings for server in backups if server is not None}
        for name in self.tservers:
            owner = self.world.server(name)
            for tablet_id, segments in {} if owner is None else owner.holders().items():
                believed = Counter(uuid for uuids in segments for uuid in set(uuids))
                for uuid, count in believed.items():
                    if uuid not in held or len(held[uuid].segments(tablet_id)) < count:
                        return False
        return True

    def outlives(self, lost: Collection[str]) -> bool:
        """Whether of everything a copy, or a majority of members, is on running servers that are
        not among ``lost``: what was placed for want of another node may all be on one."""
        world = self.world
        names = [*self.tservers, *self.backups, *self.safekeepers]
        if not all(world.nodes[name].ready for name in names):
            return False
        there = {name: world.server(name) for name in names if name not in lost}
        uuids = {server.info.uuid for server in there.values()}
        keepers = {there[name].safekeeper_id for name in self.safekeepers if name in there}
        for name in self.tservers:
            for segments in world.server(name).holders().values():
                if any(uuids.isdisjoint(held) for held in segments):
                    return False
        leader = self.leader()
        if leader is None:
            return False
        for tablet in world.server(leader).catalog.live_tablets():
            voters = () if tablet.configuration is None else tablet.configuration.voters
            if voters and 2 * sum(uuid in uuids for uuid in voters) <= len(voters):
                return False
            if tablet.timeline is not None and not tablet.timeline.agreed(keepers):
                return False
        return True
