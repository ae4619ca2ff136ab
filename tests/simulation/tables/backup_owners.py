"""Owners who write, copy, close, seal and free segments of one backup, and know what it must hold.

Meanwhile the backup crashes, also in the midst of a sync, and its disk tears, fails and fills up.
After each restart it must hold exactly what it had acknowledged, or what was being written when it
died: whole, and nothing in between."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from stelae.actors.backup.disk_medium import FrameMedium
from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryLater, StaleTerm
from stelae.core.ids import TabletId
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
    ReadReplica,
    ReplicaInfo,
    ReplicaState,
    SealReplica,
    WriteReplica,
)
from stelae.core.rpc import Reply
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
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

SCHEMA = TableSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "flash": MediumSpec(name="flash", path="flash", sync="on_seal"),
    "small": MediumSpec(name="small", path="small", size_bytes=150_000),
}
LOGS = tuple(TabletId(f"{number:032x}") for number in range(3))
UNSURE = (OutcomeUnknown, RetryLater)


@dataclass
class Segment:
    """A segment as its owner has it, and what the backup has said of its replica."""

    log: TabletId
    segment_id: int
    medium: str
    data: bytes = b""
    certificates: list[Certified] = field(default_factory=list)
    builder: CertificateBuilder = field(default_factory=CertificateBuilder)
    image: bytes = b""
    acked: int = 0
    """Certificates acknowledged; the others were perhaps written, perhaps not."""
    tried: int = 0
    acked_epoch: int = 0
    epoch: int = 0
    close_tried: bool = False
    close_acked: bool = False
    seal_tried: bool = False
    seal_acked: bool = False
    free_tried: bool = False
    lost: bool = False
    """Of a medium that does not sync appends: a crash may have taken the open replica."""

    def add(self, rng: random.Random) -> None:
        index = len(self.certificates)
        if index == 0:
            digest = (self.segment_id,)
            prologue = Prologue("t", self.log, self.segment_id, 1, digest, 1, SCHEMA, ())
            entry = Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), encode_prologue(prologue))
        else:
            text = "x" * rng.choice([1, 30, 700, 5000])
            payload = encode_rows(b"\0", [(rng.getrandbits(40), text)])
            entry = Entry(1, index, EntryKind.ROWS, index, 1, (), payload)
        data = b"".join(bytes(memoryview(part)) for part in encode_entry(entry))
        self.data += data
        self.certificates.append(self.builder.extend(data, len(data)))

    def length(self, count: int) -> int:
        return self.certificates[count - 1].length if count else 0

    @property
    def where(self) -> str:
        return f"segment {self.segment_id} of {self.log[-2:]} on {self.medium}"


class Owner:
    """Works on the segments of one log, one call at a time, and keeps account."""

    def __init__(self, world: World, log: TabletId) -> None:
        self.log = log
        self.segments: list[Segment] = []
        self.term = 1
        self._world = world
        self._rng = world.rng(f"owner-{log}")
        self._late_rng = world.rng(f"late-{log}")
        self._heads_from = 0
        self._passed: list[Segment] = []
        """Freed, with word that heads up to them are closed for good."""
        self._runtime = world.client(f"owner-{log[-2:]}")

    async def call(self, method: Any, body: msgspec.Struct, *blobs: bytes) -> Reply[Any]:
        address = self._world.address("b1")
        return await self._runtime.peers.call(address, method, body, timeout_s=1.0, blobs=blobs)

    async def work(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
            await self._runtime.clock.sleep(self._rng.expovariate(50.0))

    async def _step(self) -> None:
        rng = self._rng
        alive = [s for s in self.segments if not (s.free_tried or s.lost)]
        if not alive or (len(alive) < 6 and rng.random() < 0.2):
            medium = rng.choice(["disk", "disk", "flash", "small"])
            number = len(self.segments) + 1
            self.segments.append(Segment(self.log, 1 << 32 | number, medium))
            alive = self.segments[-1:]
        segment = rng.choice(alive)
        todo = rng.choices(
            [self._append, self._copy, self._close, self._seal, self._free, self._raise_epoch],
            [24, 2, 4, 3, 1, 2],
        )[0]
        try:
            await todo(segment)
        except UNSURE:
            return
        except StaleTerm as error:
            self._require("epoch of" not in str(error), segment, error)
            if "an open replica" in str(error):
                self._require(segment.segment_id < self._heads_from, segment, error)
                segment.free_tried = True  # it is too late for it
        except InvalidArgument as error:
            may_be_lost = segment.medium == "flash" and not segment.close_acked
            self._require(segment.acked == 0 or may_be_lost, segment, error)
            segment.lost = may_be_lost
        if rng.random() < 0.05:
            await self._fence()
        if self._passed and self._late_rng.random() < 0.1:
            await self._write_late(self._late_rng.choice(self._passed))
        if rng.random() < 0.2:
            await self.check()

    def _require(self, condition: bool, segment: Segment, error: Exception) -> None:
        if not condition:
            raise AssertionError(segment.where) from error

    async def _write(self, segment: Segment, count: int, *, close: bool = False) -> None:
        """Send what is not acknowledged of the first ``count`` entries, or more than that."""
        start = segment.length(self._rng.choice([0, segment.acked, segment.acked]))
        segment.tried = max(segment.tried, count)
        segment.close_tried |= close
        epoch = segment.epoch
        certificate = segment.certificates[count - 1]
        request = self._request(segment, start, certificate, close=close)
        await self.call(WRITE_REPLICA, request, segment.data[start : certificate.length])
        segment.acked = max(segment.acked, count)
        segment.acked_epoch = max(segment.acked_epoch, epoch)
        segment.close_acked |= close

    def _request(
        self, segment: Segment, start: int, certificate: Certified | None, *, close: bool = False
    ) -> WriteReplica:
        return WriteReplica(
            self.log,
            self.term,
            segment.segment_id,
            segment.epoch,
            segment.medium,
            start,
            certificate,
            create=start == 0,
            close=close,
        )

    async def _append(self, segment: Segment) -> None:
        if segment.close_tried or segment.seal_tried:
            return
        if segment.tried == len(segment.certificates):
            segment.add(self._rng)
        await self._write(segment, len(segment.certificates))

    async def _copy(self, segment: Segment) -> None:
        """Bring a new replica in pieces, without a certificate until the last."""
        if segment.tried or segment.seal_tried:
            return
        for _ in range(self._rng.randrange(2, 12)):
            segment.add(self._rng)
        last = segment.certificates[-1]
        start = 0
        while last.length - start > 3000:
            end = start + self._rng.randrange(1, 3000)
            await self.call(
                WRITE_REPLICA, self._request(segment, start, None), segment.data[start:end]
            )
            start = end
        segment.tried = len(segment.certificates)
        await self.call(WRITE_REPLICA, self._request(segment, start, last), segment.data[start:])
        segment.acked = segment.tried

    async def _close(self, segment: Segment) -> None:
        if segment.acked and not segment.seal_tried:
            await self._write(segment, len(segment.certificates), close=True)

    async def _seal(self, segment: Segment) -> None:
        if not segment.seal_tried:
            rows = self._rng.choice([1, 50, 400])
            batch = pa.RecordBatch.from_pydict(
                {
                    "id": pa.array([self._rng.getrandbits(40) for _ in range(rows)], pa.int64()),
                    OP_COLUMN: pa.array([0] * rows, pa.uint8()),
                    VERSION_COLUMN: pa.array(range(1, rows + 1), pa.uint64()),
                },
                schema=SCHEMA.stored,
            )
            meta = ImageMeta("t", self.log, segment.segment_id, 1, 1, rows, rows, rows + 1, 1)
            segment.image = bytes(memoryview(build_image(batch, meta, KeyCodec(SCHEMA))))
        segment.seal_tried = True
        body = SealReplica(self.log, self.term, segment.segment_id, segment.epoch, segment.medium)
        await self.call(SEAL_REPLICA, body, segment.image)
        segment.seal_acked = True

    async def _free(self, segment: Segment) -> None:
        segment.free_tried = True
        ids = (segment.segment_id,)
        is_passed = segment.close_acked or segment.seal_acked
        heads_from = segment.segment_id + 1 if is_passed else 0
        self._heads_from = max(self._heads_from, heads_from)
        await self.call(FREE_REPLICAS, FreeReplicas(self.log, self.term, ids, heads_from))
        if is_passed and segment.certificates:
            self._passed.append(segment)

    async def _write_late(self, segment: Segment) -> None:
        """What was on its way before the segment was closed opens nothing, however late it is."""
        request = self._request(segment, 0, segment.certificates[0])
        try:
            await self.call(WRITE_REPLICA, request, segment.data[: segment.length(1)])
        except (*UNSURE, StaleTerm, InvalidArgument):
            return  # (invalid: the crash came before the freeing was on the disk)
        if not self._world.metrics["b1"].counts.get("backup_heads_not_noted"):
            raise AssertionError(f"{segment.where} was opened again")

    async def _raise_epoch(self, segment: Segment) -> None:
        if segment.acked and not segment.seal_tried and not segment.close_tried:
            segment.epoch += 1
            await self._write(segment, segment.acked)

    async def _fence(self) -> None:
        old, self.term = self.term, self.term + 1
        try:
            reply = await self.call(FENCE_LOGS, FenceLogs(((self.log, self.term),)))
        except UNSURE:
            return
        assert reply.body.logs[0].fence == self.term
        stale = Segment(self.log, 1 << 40, "disk")
        stale.add(self._rng)
        request = msgspec.structs.replace(self._request(stale, 0, stale.certificates[0]), term=old)
        try:
            await self.call(WRITE_REPLICA, request, stale.data)
        except (*UNSURE, StaleTerm):
            return
        raise AssertionError(f"term {old} was accepted after a fence of {self.term}")

    async def check(self) -> None:
        """Compare the backup's inventory, and what can be read, with the account."""
        try:
            reply = await self.call(INVENTORY, Inventory((self.log,)))
        except UNSURE:
            return
        found = {info.segment_id: info for info in reply.body.logs[0].replicas}
        for segment in self.segments:
            info = found.pop(segment.segment_id, None)
            if info is None:
                sure = segment.acked > 0 and segment.medium != "flash"
                sure = sure or segment.close_acked or segment.seal_acked
                assert not sure or segment.free_tried, f"{segment.where} is lost"
                continue
            try:
                data = await self._read(segment)
            except UNSURE:
                return
            except InvalidArgument:
                assert segment.medium == "flash" or segment.free_tried, segment.where
                continue
            self._check_replica(segment, *data)
        assert not found, f"replicas that nobody wrote: {sorted(found)}"

    async def _read(self, segment: Segment) -> tuple[ReplicaInfo, bytes]:
        reply = await self.call(READ_REPLICA, ReadReplica(self.log, segment.segment_id))
        return reply.body.info, bytes(reply.blobs[0])

    def _check_replica(self, segment: Segment, info: ReplicaInfo, data: bytes) -> None:
        where = f"{segment.where}: {info}"
        assert info.length == len(data), where
        if info.state is ReplicaState.SEALED:
            assert segment.seal_tried, where
            assert data == segment.image, where
            return
        assert not segment.seal_acked or segment.free_tried, where
        lengths = [certificate.length for certificate in segment.certificates]
        count = lengths.index(info.length) + 1
        assert Certified(info.length, info.crc) == segment.certificates[count - 1], where
        assert count <= segment.tried, where
        assert data == segment.data[: info.length], where
        if segment.free_tried:
            return  # and half forgotten
        if info.state is ReplicaState.CLOSED:
            assert segment.close_tried or count == segment.tried, where
        if segment.medium != "flash":
            assert count >= segment.acked, f"{where}: {segment.acked} entries were acknowledged"
            assert segment.acked_epoch <= info.epoch <= segment.epoch, where
        assert info.state is ReplicaState.CLOSED or not segment.close_acked, where


def check_frames(backup: Backup) -> None:
    """Every frame has one place: in one replica, or among those that are or will be free."""
    for name, medium in backup._media.items():
        assert isinstance(medium, FrameMedium)
        frames = [*medium.allocator._free, *medium._freed]
        for log in backup._holdings.logs:
            for segment_id in backup._holdings.segments(log):
                replica = backup._holdings.find(log, segment_id)
                if replica is not None and replica.medium == name:
                    frames.extend(replica.frames)
        assert sorted(frames) == [*range(medium.layout.frame_count)], f"frames of {name}"


async def scenario(world: World, duration_s: float = 10.0) -> None:
    settings = Settings(segment_bytes=world.options.limits.segment_size_bytes, queue_bytes=1 << 18)
    world.start(
        "b1",
        lambda runtime: Backup(
            runtime, name="b1", cluster="demo", masters=(), settings=settings, media=MEDIA
        ),
        kind="backup",
    )
    owners = [Owner(world, log) for log in LOGS]
    nemesis = Nemesis.begin(world, duration_s)
    await asyncio.gather(*(owner.work(200) for owner in owners))
    await nemesis.finish()
    for _ in range(2):
        await world.wait_ready()
        for owner in owners:
            await owner.check()
        world.crash("b1")
        await world.wait_ready()
        server: Any = world.server("b1")
        check_frames(server)


def options(seed: int) -> Options:
    """Drawn, but with crashes in every world: they are what this is about."""
    drawn = Options.draw(seed)
    rng = random.Random(f"{seed}/backup")
    return drawn.but(
        crash_every_s=rng.choice([0.0, 1.0, 3.0]),
        crash_in_sync_every_s=rng.choice([0.3, 1.0]),
        pause_every_s=0.0,
        restart_min_s=0.02,
        restart_mean_s=0.05,
        keep_unsynced_rate=rng.choice([0.0, 0.3]),
    )


def run(seed: int) -> World:
    world = World(seed, options(seed))
    world.run(scenario(world))
    return world
