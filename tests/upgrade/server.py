"""One server as a process of its own, without Ray; from the checkout or from an older tree.

    python -m tests.upgrade.server PLAN.json

SIGTERM has it hand over what it leads, stop in order, and end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.master.server import Master
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.tserver.server import TabletServer
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime, end_process_on_broken_invariant
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

SECRET = bytes(range(32))
HAND_OVER_S = 5.0


def runtime_of(cluster: str, folder: Path, port: int = 0, *, threads: bool = True) -> RealRuntime:
    """A runtime on this folder that listens on this port of the loopback address; 0: any."""
    peers = TcpPeers(
        Credentials(cluster, SECRET), on_failure=end_process_on_broken_invariant, port=port
    )
    return RealRuntime(peers, LocalDisk(folder, sync_in_thread=threads))


def server_of(plan: dict[str, Any], runtime: RealRuntime) -> Any:
    """The server of a plan."""
    masters = {name: Address(address) for name, address in plan["masters"].items()}
    settings = Settings(**plan["settings"])
    common: dict[str, Any] = {
        "name": plan["name"],
        "cluster": plan["cluster"],
        "settings": settings,
    }
    match plan["kind"]:
        case "master":
            return Master(runtime, masters=masters, engine="native", **common)
        case "backup":
            media = {"disk": MediumSpec(name="disk", path="disk")}
            return Backup(runtime, masters=tuple(masters.values()), media=media, **common)
        case "safekeeper":
            return Safekeeper(runtime, masters=tuple(masters.values()), **common)
        case "tserver":
            for kernels in ("compiled", "index_compiled"):  # loaded before it serves
                importlib.import_module(f"stelae.storage.kernels.{kernels}")
            common["memory_limit_bytes"] = 256 << 20
            return TabletServer(runtime, masters=tuple(masters.values()), **common)
        case kind:
            raise ValueError(kind)


async def serve(plan: dict[str, Any]) -> None:
    """Run until SIGTERM, or until a background task of the server fails."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    runtime = runtime_of(plan["cluster"], Path(plan["folder"]), plan["port"])
    server = server_of(plan, runtime)
    await server.start()
    failing = asyncio.create_task(server.tasks.wait_failed())
    ending = asyncio.create_task(told.wait())
    await asyncio.wait([failing, ending], return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise failing.result()
    if plan["kind"] in ("master", "tserver"):
        await server.hand_over(HAND_OVER_S)
    await server.stop()
    await runtime.close()
    failing.cancel()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
