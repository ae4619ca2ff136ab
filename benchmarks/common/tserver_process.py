"""One tserver in a process of its own, for benchmarks: the plain class on the real runtime.

Each line on standard input is answered with one line of JSON: what the server holds just then.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.common.master_process import CLUSTER, SECRET
from stelae.actors.tserver.server import TabletServer
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

MEMORY_BYTES = 4 << 30


def state_of(server: TabletServer) -> dict[str, Any]:
    """Its replicas, by role, and of whom each that follows knows that it leads."""
    groups = [report.group for report in server.replicas.reports()]
    roles = Counter(group.role.value for group in groups if group is not None)
    leaders = Counter(group.leader for group in groups if group is not None)
    return {
        "uuid": server.info.uuid,
        "address": server.info.address,
        "replicas": len(groups),
        "roles": dict(roles),
        "leaders": dict(leaders),
        "pid": os.getpid(),
    }


async def serve(name: str, folder: str, masters: list[Address]) -> None:
    """Run until standard input ends."""
    peers = TcpPeers(Credentials(CLUSTER, SECRET), on_failure=_fail)
    runtime = RealRuntime(peers, LocalDisk(Path(folder), sync_in_thread=True))
    server = TabletServer(
        runtime,
        name=name,
        cluster=CLUSTER,
        masters=masters,
        settings=Settings(),
        memory_limit_bytes=MEMORY_BYTES,
    )
    await server.start()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(json.dumps(state_of(server)), flush=True)


def _fail(error: BaseException) -> None:
    print(f"a handler failed: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
