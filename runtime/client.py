"""The Runtime of a process that only calls others: no server, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.rpc import Blob
from stelae.core.runtime import File, NearFile
from stelae.runtime.near_files import open_near
from stelae.runtime.real import RealRuntime, end_process_on_broken_invariant
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers


class NoDisk:
    """The disk of a process that has none: to use it is a bug. Those of others it may read."""

    @property
    def boot(self) -> str:
        raise AssertionError("a client has no disk")

    async def settle(self) -> None:
        raise AssertionError("a client has no disk")

    async def open(self, path: str) -> File:
        raise AssertionError(f"a client has no disk for {path}")

    def open_near(self, place: str) -> NearFile | None:
        return open_near(place)

    async def read(self, path: str) -> bytes:
        raise AssertionError(f"a client has no disk for {path}")

    async def replace(self, path: str, data: bytes) -> None:
        raise AssertionError(f"a client has no disk for {path}")

    async def read_into(self, path: str, buffer: memoryview) -> int:
        raise AssertionError(f"a client has no disk for {path}")

    async def write(self, path: str, data: Blob, *, named: bool = True) -> None:
        raise AssertionError(f"a client has no disk for {path}")

    async def sync_folder(self, folder: str) -> None:
        raise AssertionError(f"a client has no disk for {folder}")

    async def list(self, folder: str) -> list[str]:
        raise AssertionError(f"a client has no disk for {folder}")

    async def remove(self, path: str) -> None:
        raise AssertionError(f"a client has no disk for {path}")

    async def folders(self, folder: str) -> Sequence[str]:
        raise AssertionError(f"a client has no disk for {folder}")

    async def move(self, source: str, target: str) -> bool:
        raise AssertionError(f"a client has no disk for {source}")

    async def remove_folder(self, folder: str) -> None:
        raise AssertionError(f"a client has no disk for {folder}")


def client_runtime(cluster: str, secret: bytes, *, tls: PeerTls = OFF) -> RealRuntime:
    """A runtime for calls to the servers of a cluster. Make it on the loop that will use it."""
    credentials = Credentials(cluster, secret, tls=tls)
    peers = TcpPeers(credentials, on_failure=end_process_on_broken_invariant)
    return RealRuntime(peers, NoDisk())
