"""A whole cluster in one event loop: real servers over real TCP and real files, without Ray."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.cas_store.opening import open_backend
from stelae.actors.cas_store.server import CasStore
from stelae.actors.master.server import Master
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.tserver.server import TabletServer
from stelae.client.database import AsyncDatabase
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.recovery.engine import EnginePolicy
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from tests.until import until_async

CLUSTER = "test"
SECRET = bytes(range(32))
MIB = 1 << 20
SETTINGS = Settings(
    heartbeat_s=0.05, lease_s=2.0, dead_after_s=3.0, raft_tick_s=0.02, segment_bytes=MIB
)
MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "ram": MediumSpec(name="ram", size_bytes=64 * MIB),
}


class LocalCluster:
    """Its servers by kind, and one open client. ``failures`` are handlers' unexpected errors."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        masters: int,
        engine: EnginePolicy,
        memory_limit_bytes: int,
        cas_store_url: str = "",
        tls: PeerTls = OFF,
    ) -> None:
        self.engine = engine
        self.tls = tls
        self.cas_store_url = cas_store_url
        self.cas_store: tuple[CasStore, RealRuntime, LocalDisk] | None = None
        """While it runs."""
        self.memory_limit_bytes = memory_limit_bytes
        self.root = root
        self.settings = settings
        self.failures: list[BaseException] = []
        self.masters: list[Master] = []
        self.tservers: list[TabletServer] = []
        self.backups: list[Backup] = []
        self.safekeepers: list[Safekeeper] = []
        self.addresses = {
            f"master-{n}": Address(f"127.0.0.1:{port}")
            for n, port in enumerate(free_ports(masters))
        }
        self._stack = AsyncExitStack()

    @property
    def master_addresses(self) -> tuple[Address, ...]:
        return tuple(self.addresses.values())

    def client_runtime(self, name: str, port: int = 0, *, threads: bool = False) -> RealRuntime:
        """A runtime with a data directory of its own, closed with the cluster."""
        credentials = Credentials(CLUSTER, SECRET, tls=self.tls)
        peers = TcpPeers(credentials, on_failure=self.failures.append, port=port)
        disk = LocalDisk(self.root / name, sync_in_thread=threads)
        self._stack.callback(disk.close)  # so that another cluster can start on the folder
        runtime = RealRuntime(peers, disk)
        self._stack.push_async_callback(runtime.close)
        return runtime

    def connect(self, name: str = "client") -> AsyncDatabase:
        """One more client."""
        return AsyncDatabase(self.client_runtime(name), self.master_addresses, self.settings)

    async def start(self, tservers: int, backups: int, safekeepers: int) -> None:
        for name, address in self.addresses.items():
            runtime = self.client_runtime(name, int(address.rpartition(":")[2]))
            master = Master(
                runtime,
                name=name,
                cluster=CLUSTER,
                masters=self.addresses,
                settings=self.settings,
                engine=self.engine,
                has_cas_store=bool(self.cas_store_url),
                is_encrypted=self.tls.is_on,
            )
            await self._start_server(master)
            self.masters.append(master)
        for n in range(backups):
            name = f"backup-{n}"
            backup = Backup(
                self.client_runtime(name),
                name=name,
                cluster=CLUSTER,
                masters=self.master_addresses,
                settings=self.settings,
                media=MEDIA,
            )
            await self._start_server(backup)
            self.backups.append(backup)
        for n in range(safekeepers):
            name = f"safekeeper-{n}"
            keeper = Safekeeper(
                self.client_runtime(name, threads=True),
                name=name,
                cluster=CLUSTER,
                masters=self.master_addresses,
                settings=self.settings,
            )
            await self._start_server(keeper)
            self.safekeepers.append(keeper)
        if self.cas_store_url:
            await self.start_cas_store()
            self._stack.push_async_callback(self.stop_cas_store)
        for n in range(tservers):
            name = f"tserver-{n}"
            tserver = TabletServer(
                self.client_runtime(name),
                name=name,
                cluster=CLUSTER,
                masters=self.master_addresses,
                settings=self.settings,
                memory_limit_bytes=self.memory_limit_bytes,
            )
            await self._start_server(tserver)
            self.tservers.append(tserver)
        self.database = self.connect()
        stores = int(bool(self.cas_store_url))
        await self._wait_live(len(self.masters) + backups + tservers + safekeepers + stores)

    async def start_cas_store(self) -> None:
        """Start the configuration store, on its folder, on any free port."""
        disk = LocalDisk(self.root / "cas_store-1")
        credentials = Credentials(CLUSTER, SECRET, tls=self.tls)
        peers = TcpPeers(credentials, on_failure=self.failures.append)
        runtime = RealRuntime(peers, disk)
        store = CasStore(
            runtime,
            open_backend(self.cas_store_url, runtime, disk.root, CLUSTER),
            name=disk.root.name,
            cluster=CLUSTER,
            masters=self.master_addresses,
            settings=self.settings,
        )
        await store.start()
        self.cas_store = store, runtime, disk

    async def stop_cas_store(self) -> None:
        """Stop it, if it runs."""
        if self.cas_store is not None:
            store, runtime, disk = self.cas_store
            self.cas_store = None
            await store.stop()
            await runtime.close()
            disk.close()

    async def _wait_live(self, count: int) -> None:
        """Wait until the leader has heard every server, so that tablets spread over all."""

        async def enough() -> bool:
            servers = (await self.database.status())["servers"]
            return bool(sum(server["state"] == "live" for server in servers) >= count)

        await until_async(enough, 20.0, f"{count} live servers", poll_s=0.01)

    async def _start_server(self, server: Master | Backup | Safekeeper | TabletServer) -> None:
        await server.start()
        self._stack.push_async_callback(server.stop)

    async def safekeepers_by_id(self) -> dict[int, Safekeeper]:
        """As operators call them: whoever is heard first has the first id."""
        servers = {f"safekeeper-{n}": server for n, server in enumerate(self.safekeepers)}
        views = await self.database.safekeepers()
        return {view.record.safekeeper_id: servers[view.record.name] for view in views}

    async def stop(self) -> None:
        await self._stack.aclose()
        assert not self.failures, self.failures


@asynccontextmanager
async def local_cluster(
    root: Path,
    *,
    masters: int = 1,
    tservers: int = 2,
    backups: int = 2,
    safekeepers: int = 0,
    settings: Settings = SETTINGS,
    engine: EnginePolicy = "native",
    memory_limit_bytes: int = 256 * MIB,
    cas_store_url: str = "",
    tls: PeerTls = OFF,
) -> AsyncIterator[LocalCluster]:
    """A cluster that serves, and is stopped in order at the end."""
    cluster = LocalCluster(root, settings, masters, engine, memory_limit_bytes, cas_store_url, tls)
    try:
        await cluster.start(tservers, backups, safekeepers)
        yield cluster
    finally:
        await cluster.stop()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
