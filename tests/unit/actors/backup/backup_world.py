"""A simulated backup, and an owner's side of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, TabletId
from stelae.core.messages.backups import (
    FENCE_LOGS,
    FREE_REPLICAS,
    INVENTORY,
    READ_REPLICA,
    SEAL_REPLICA,
    WRITE_REPLICA,
    Certified,
    FenceLogs,
    FreeReplicas,
    Inventory,
    LogInventory,
    ReadReplica,
    ReplicaInfo,
    SealReplica,
    WriteReplica,
)
from stelae.core.rpc import Reply
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.simulation import Options, World
from stelae.simulation.world.instance import SimRuntime
from stelae.storage.entries.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    encode_entry,
    encode_prologue,
    encode_rows,
)
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.segments.image import ImageMeta, build_image

LOG = TabletId("a" * 32)
SEGMENT = 1 << 32 | 1
SCHEMA = TableSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
SETTINGS = Settings(segment_bytes=4096, queue_bytes=1 << 16)
MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "flash": MediumSpec(name="flash", path="media/flash", sync="on_seal"),
    "ram": MediumSpec(name="ram", size_bytes=1 << 16),
    "tiny": MediumSpec(name="tiny", path="tiny", size_bytes=60_000),
}


class Rows:
    """A segment as its owner has it: entries, and the certificate after each of them."""

    def __init__(self, segment_id: int = SEGMENT, digest: Sequence[int] = (SEGMENT,)) -> None:
        prologue = Prologue(
            "t", LOG, segment_id, 1, tuple(digest), safe_version=1, schema=SCHEMA, results=()
        )
        self.data = b""
        self.certificates: list[Certified] = []
        self._builder = CertificateBuilder()
        self._add(Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), encode_prologue(prologue)))

    def _add(self, entry: Entry) -> Certified:
        data = b"".join(bytes(memoryview(part)) for part in encode_entry(entry))
        self.certificates.append(self._builder.extend(data, len(data)))
        self.data += data
        return self.certificates[-1]

    def add(self, value: int, pad: int = 0) -> Certified:
        index = len(self.certificates)
        payload = encode_rows(b"\0", [(value, "x" * pad)])
        return self._add(Entry(1, index, EntryKind.ROWS, index, 1, (), payload))

    @property
    def certificate(self) -> Certified:
        return self.certificates[-1]


def make_image(segment_id: int = SEGMENT, rows: int = 3) -> bytes:
    """A sealed segment of ``rows`` rows."""
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(rows), pa.int64()),
            OP_COLUMN: pa.array([0] * rows, pa.uint8()),
            VERSION_COLUMN: pa.array(range(1, rows + 1), pa.uint64()),
        },
        schema=SCHEMA.stored,
    )
    meta = ImageMeta("t", LOG, segment_id, 1, 1, rows, rows, rows + 1, SCHEMA.version)
    return bytes(memoryview(build_image(batch, meta, KeyCodec(SCHEMA))))


class Owner:
    """Calls of a tablet's owner (or of a master) to one backup."""

    def __init__(self, world: World, backup: str = "b1") -> None:
        self.world = world
        self.backup = backup
        self.runtime = world.client(f"owner-of-{backup}")

    async def call(self, method: Any, body: msgspec.Struct, *blobs: bytes) -> Reply[Any]:
        return await self.runtime.peers.call(
            self.world.address(self.backup), method, body, timeout_s=5.0, blobs=blobs
        )

    async def write(
        self,
        rows: Rows,
        start: int = 0,
        end: int | None = None,
        *,
        log: TabletId = LOG,
        segment_id: int = SEGMENT,
        term: int = 1,
        epoch: int = 0,
        medium: str = "disk",
        certificate: Certified | str | None = "newest",
        create: bool | None = None,
        close: bool = False,
    ) -> None:
        end = len(rows.data) if end is None else end
        certified = rows.certificate if isinstance(certificate, str) else certificate
        made = start == 0 if create is None else create
        body = WriteReplica(
            log, term, segment_id, epoch, medium, start, certified, create=made, close=close
        )
        await self.call(WRITE_REPLICA, body, rows.data[start:end])

    async def seal(
        self,
        image: bytes,
        *,
        log: TabletId = LOG,
        segment_id: int = SEGMENT,
        term: int = 1,
        epoch: int = 0,
        medium: str = "disk",
    ) -> None:
        await self.call(SEAL_REPLICA, SealReplica(log, term, segment_id, epoch, medium), image)

    async def free(
        self,
        *segments: int,
        term: int = 1,
        log: TabletId = LOG,
        heads_from: int = 0,
        epochs: tuple[int, ...] = (),
    ) -> None:
        body = FreeReplicas(log, term, segments, heads_from, epochs)
        await self.call(FREE_REPLICAS, body)

    async def fence(self, *logs: tuple[TabletId, int]) -> tuple[LogInventory, ...]:
        found: tuple[LogInventory, ...] = (await self.call(FENCE_LOGS, FenceLogs(logs))).body.logs
        return found

    async def inventory(self, log: TabletId = LOG) -> tuple[ReplicaInfo, ...]:
        reply = await self.call(INVENTORY, Inventory((log,)))
        replicas: tuple[ReplicaInfo, ...] = reply.body.logs[0].replicas
        return replicas

    async def read(self, segment_id: int = SEGMENT, offset: int = 0, length: int = 0) -> bytes:
        body = ReadReplica(LOG, segment_id, offset, length)
        return bytes((await self.call(READ_REPLICA, body)).blobs[0])

    async def restart(self, *, loses_all: bool = False) -> None:
        """Crash and come back; ``loses_all``: of what was not synced nothing is left by chance."""
        if loses_all:
            self.world.nodes[self.backup].disk.lose_power(drop_all=True)
        self.world.crash(self.backup)
        await self.world.wait_ready()


def run(
    scenario: Callable[[Owner], Coroutine[Any, Any, None]],
    *,
    options: Options | None = None,
    settings: Settings = SETTINGS,
    masters: Sequence[Address] = (),
) -> World:
    """Run a scenario against one backup; returns its world."""
    world = World(1, options or Options(keep_unsynced_rate=0.0))

    async def body() -> None:
        def make(runtime: SimRuntime) -> Backup:
            return Backup(
                runtime,
                name="b1",
                cluster="demo",
                masters=masters,
                settings=settings,
                media=MEDIA,
            )

        world.start("b1", make, kind="backup")
        await world.wait_ready()
        await scenario(Owner(world))

    world.run(body())
    return world
