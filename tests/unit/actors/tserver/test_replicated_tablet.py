"""A tablet with replicas on three real servers: TCP, files, threads; no masters, no Ray."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver.server import TabletServer
from stelae.core.config.settings import Settings
from stelae.core.errors import NotLeader, TooStale
from stelae.core.ids import Address, ClientId, OpId, RequestId
from stelae.core.messages.replicas import CREATE_REPLICA, CreateReplica
from stelae.core.messages.rows import GET, GET_MANY, SCAN, WRITE, Get, GetMany, Scan, Write, WriteOp
from stelae.core.records.replication import Configuration, Peer
from stelae.core.schema.values import rows_to_batch
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from stelae.storage.entries.entry import encode_batch
from tests.simulation.replicated.tablet_group import SCHEMA, TABLE, TABLET
from tests.until import until_async

SETTINGS = Settings(raft_tick_s=0.02, segment_bytes=20_000)


class Three:
    """Three servers in this process, and a client."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[BaseException] = []
        self.disks = [LocalDisk(folder / f"t{n}", sync_in_thread=True) for n in range(3)]
        self.client = self.runtime(LocalDisk(folder / "client"))
        self.runtimes: list[RealRuntime] = []
        self.servers: list[TabletServer] = []

    def runtime(self, disk: LocalDisk) -> RealRuntime:
        peers = TcpPeers(Credentials("test", bytes(32)), on_failure=self.failures.append)
        return RealRuntime(peers, disk)

    async def start(self) -> None:
        self.runtimes = [self.runtime(disk) for disk in self.disks]
        self.servers = [
            TabletServer(
                runtime,
                name=f"t{n}",
                cluster="test",
                masters=[Address("127.0.0.1:1")],
                settings=SETTINGS,
                memory_limit_bytes=1 << 30,
            )
            for n, runtime in enumerate(self.runtimes)
        ]
        for server in self.servers:
            await server.start()
        for server in self.servers:  # as the masters' answers to heartbeats do
            server.members.update([other.info for other in self.servers])

    async def stop(self) -> None:
        for server, runtime in zip(self.servers, self.runtimes, strict=True):
            await server.stop()
            await runtime.close()
        assert not self.failures, self.failures

    async def create(self) -> None:
        infos = sorted([server.info for server in self.servers], key=lambda info: info.uuid)
        peers = tuple([Peer(info.uuid, info.address, True, info.name) for info in infos])
        order = CreateReplica(TABLET, TABLE, Configuration(OpId(0, 0), peers))
        for info in infos:
            await self.call(info.address, CREATE_REPLICA, order)

    async def call(self, address: Address, method: Any, request: Any, blobs: Any = ()) -> Any:
        (to,) = [s.info.uuid for s in self.servers if s.info.address == address]
        return await self.client.peers.call(
            address, method, request, timeout_s=10.0, blobs=blobs, destination=to
        )

    async def leader(self) -> TabletServer:
        found: list[TabletServer] = []

        def leads() -> bool:
            for server in self.servers:
                tablet = server.replicas.tablet(TABLET)
                if tablet is not None and tablet.replica.leader_ready:
                    found.append(server)
            return any(s.replicas.serving(TABLET).machine.is_founded for s in found)

        await until_async(leads, 20.0, "a leader whose tablet is founded", poll_s=0.01)
        return found[-1]

    async def follower_reads(self, server: TabletServer, key: tuple[Any, ...]) -> Any:
        """The row of a key at a follower, once the follower has heard of its leader."""
        old = Get(TABLET, (key,), max_staleness_s=5.0)
        found: list[Any] = []

        async def is_read() -> bool:
            with suppress(TooStale):
                reply = await self.call(server.info.address, GET, old)
                found.append(reply.body.rows)
            return bool(found) and found[-1] != (None,)

        await until_async(is_read, 20.0, "a read of a follower", poll_s=0.01)
        return found[-1]


def write(sequence: int, rows: tuple[Any, ...] = ()) -> Write:
    request = RequestId(ClientId("client"), sequence, sequence)
    return Write(TABLET, 1, WriteOp.UPSERT, request, rows)


@pytest.mark.parametrize("rows", [3, 2000])
def test_rows_are_written_read_flushed_and_there_again(tmp_path: Path, rows: int) -> None:
    """Single rows and Arrow, through real connections, and after a restart of all servers."""

    async def story() -> None:
        three = Three(tmp_path)
        await three.start()
        await three.create()
        leader = await three.leader()
        address = leader.info.address
        batch = pa.record_batch(
            [pa.array(range(rows), pa.int64()), pa.array(["x" * 50] * rows)], schema=SCHEMA.arrow
        )
        await three.call(address, WRITE, write(1), [encode_batch(batch)])
        reply = await three.call(address, WRITE, write(2, ((1, "one"),)))
        assert reply.body.first_version == rows + 1
        found = await three.call(address, GET, Get(TABLET, ((1,), (-1,))))
        assert found.body.rows == (((1, "one"), rows + 1), None)
        other = next(server for server in three.servers if server is not leader)
        assert await three.follower_reads(other, (1,)) == (((1, "one"), rows + 1),)
        with pytest.raises(NotLeader) as told:
            await three.call(other.info.address, GET, Get(TABLET, ((1,),)))
        assert told.value.leader == address
        for server in three.servers:
            await server.replicas.serving(TABLET).flush()
        await three.stop()
        await three.start()
        address = (await three.leader()).info.address
        keys = encode_batch(rows_to_batch([(n,) for n in range(rows)], SCHEMA.key_schema))
        many = await three.call(address, GET_MANY, GetMany(TABLET), [keys])
        assert many.body.row_count == rows
        scan = await three.call(address, SCAN, Scan(TABLET))
        assert scan.body.row_count == rows
        await three.stop()
        await three.client.close()

    asyncio.run(story())
