"""The backup server: every promise of its messages, in a calm simulated world."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.actors.backup import Backup
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    NoSpace,
    OutcomeUnknown,
    Overloaded,
    StaleTerm,
    StelaeError,
)
from stelae.core.ids import Address, TabletId
from stelae.core.messages import (
    DROP_LOGS,
    FENCE_LOGS,
    FREE_REPLICAS,
    HEARTBEAT,
    INVENTORY,
    READ_REPLICA,
    READ_SUMMARIES,
    SEAL_REPLICA,
    WRITE_REPLICA,
    Certified,
    DropLogs,
    FenceLogs,
    FreeReplicas,
    Heartbeat,
    HeartbeatReply,
    Inventory,
    LogInventory,
    ReadReplica,
    ReadSummaries,
    ReplicaInfo,
    ReplicaState,
    SealReplica,
    WriteReplica,
)
from stelae.core.rpc import Call, Reply
from stelae.core.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.instance import SimRuntime
from stelae.storage import frame_medium
from stelae.storage.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    encode_entry,
    encode_prologue,
    encode_rows,
)
from stelae.storage.frame_medium import FrameMedium
from stelae.storage.frames import MediumSpec
from stelae.storage.image import ImageMeta, build_image, read_tail
from stelae.storage.keys import KeyCodec
from stelae.storage.replicas import Replica

LOG = TabletId("a" * 32)
OTHER = TabletId("b" * 32)
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

    async def free(self, *segments: int, term: int = 1, log: TabletId = LOG) -> None:
        await self.call(FREE_REPLICAS, FreeReplicas(log, term, segments))

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

    async def restart(self) -> None:
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


@pytest.mark.parametrize("medium", ["disk", "flash", "ram"])
def test_what_was_acknowledged_can_be_read(medium: str) -> None:
    """Bytes up to the certificate come back, and the inventory says what they are."""

    async def scenario(owner: Owner) -> None:
        rows = Rows(digest=(7, SEGMENT))
        await owner.write(rows, medium=medium)
        start = len(rows.data)
        rows.add(1)
        await owner.write(rows, start, medium=medium)
        assert await owner.read() == rows.data
        (info,) = await owner.inventory()
        assert info == ReplicaInfo(
            SEGMENT,
            1,
            0,
            ReplicaState.OPEN,
            medium,
            rows.certificate.length,
            rows.certificate.crc,
            (7, SEGMENT),
        )

    run(scenario)


def test_acknowledged_appends_outlive_a_crash() -> None:
    """After a crash that keeps nothing unsynced, the replica is there up to its certificate."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        for value in range(20):
            start = len(rows.data)
            rows.add(value)
            await owner.write(rows, start)
        await owner.restart()
        assert await owner.read() == rows.data
        start = len(rows.data)
        rows.add(99)
        await owner.write(rows, start)
        await owner.restart()
        assert await owner.read() == rows.data

    run(scenario)


def test_memory_is_lost_with_the_process() -> None:
    """A replica in memory is gone after a restart, and the inventory does not claim it."""

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows(), medium="ram")
        await owner.restart()
        assert await owner.inventory() == ()

    run(scenario)


def test_repeated_and_overlapping_writes_change_nothing() -> None:
    """A late or repeated write is acknowledged, and the content stays."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        first = rows.certificate
        start = len(rows.data)
        rows.add(1)
        await owner.write(rows, start)
        await owner.write(rows, start)  # the answer was lost
        await owner.write(rows, 0, start, certificate=first)  # an old one comes late
        rows.add(2)
        await owner.write(rows, start)  # overlaps what is there
        assert await owner.read() == rows.data

    run(scenario)


def test_a_gap_is_refused() -> None:
    """Bytes that would leave a hole are refused, and so is a replica that does not begin at 0."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        before = rows.data
        rows.add(1)
        start = len(rows.data)
        rows.add(2)
        with pytest.raises(InvalidArgument, match="gap"):
            await owner.write(rows, start)
        with pytest.raises(InvalidArgument, match="no replica"):
            await owner.write(rows, start, segment_id=SEGMENT + 1, create=True)
        with pytest.raises(InvalidArgument, match="no replica"):
            await owner.write(rows, 0, segment_id=SEGMENT + 1, create=False)
        assert await owner.read() == before

    run(scenario)


def test_a_certificate_must_fit_the_bytes() -> None:
    """A certificate over other, cut or missing entries is refused, and changes nothing."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        good = rows.certificate
        start = len(rows.data)
        rows.add(1)
        for wrong in (
            Certified(rows.certificate.length, 1),
            Certified(rows.certificate.length - 8, rows.certificate.crc),
            Certified(rows.certificate.length + 8, rows.certificate.crc),
            Certified(good.length, 1),
        ):
            with pytest.raises(InvalidArgument):
                await owner.write(rows, start, certificate=wrong)
        (info,) = await owner.inventory()
        assert (info.length, info.crc) == (good.length, good.crc)
        await owner.write(rows, start)
        assert await owner.read() == rows.data

    run(scenario)


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_a_copy_does_not_exist_before_its_last_piece(medium: str) -> None:
    """Pieces without certificate are in no inventory; the last one makes the replica whole."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for value in range(30):
            rows.add(value, pad=300)
        cut = len(rows.data) // 3
        await owner.write(rows, 0, cut, certificate=None, medium=medium)
        await owner.write(rows, cut, 2 * cut, certificate=None, medium=medium)
        assert await owner.inventory() == ()
        with pytest.raises(InvalidArgument):
            await owner.read()
        with pytest.raises(InvalidArgument, match="certificate"):
            await owner.write(
                rows, 2 * cut, certificate=Certified(len(rows.data), 5), medium=medium
            )
        await owner.write(rows, 0, 2 * cut, certificate=None, medium=medium)
        await owner.write(rows, 2 * cut, medium=medium, close=True)
        assert await owner.read() == rows.data
        (info,) = await owner.inventory()
        assert info.state is ReplicaState.CLOSED
        assert info.digest == ()

    run(scenario)


def test_half_a_copy_is_garbage_after_a_restart() -> None:
    """The frames of a copy that got no certificate are free again after a restart."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        rows.add(1, pad=9000)
        await owner.write(rows, 0, 8000, certificate=None)
        await owner.restart()
        assert await owner.inventory() == ()
        with pytest.raises(InvalidArgument, match="no replica"):
            await owner.write(rows, 8000)
        await owner.write(rows)
        assert await owner.read() == rows.data

    run(scenario)


def test_epochs_rise_with_a_certificate_only() -> None:
    """A lower epoch is refused; a higher one counts, but not by half of a copy."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, epoch=3)
        with pytest.raises(StaleTerm, match="epoch"):
            await owner.write(rows, epoch=2)
        old = rows.certificate
        rows.add(1)
        await owner.write(rows, 0, old.length + 8, epoch=4, certificate=None)
        assert (await owner.inventory())[0].epoch == 3
        await owner.write(rows, 0, 0, epoch=5, certificate=old, create=False)
        await owner.restart()
        assert (await owner.inventory())[0].epoch == 5
        with pytest.raises(StaleTerm, match="epoch"):
            await owner.seal(make_image(), epoch=4)

    run(scenario)


def test_a_closed_replica_takes_a_repeated_close_only() -> None:
    """After the close nothing is appended; the same close again is acknowledged."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        end = len(rows.data)
        await owner.write(rows, end, close=True)
        await owner.write(rows, end, close=True)
        await owner.write(rows, end, close=True, epoch=1)
        rows.add(1)
        with pytest.raises(InvalidArgument, match="closed"):
            await owner.write(rows, end, epoch=1)
        with pytest.raises(InvalidArgument, match="closed"):
            await owner.write(rows, end, epoch=1, close=True)
        await owner.restart()
        (info,) = await owner.inventory()
        assert (info.state, info.length, info.epoch) == (ReplicaState.CLOSED, end, 1)

    run(scenario)


@pytest.mark.parametrize("medium", ["disk", "flash", "ram"])
def test_a_seal_replaces_the_rows_in_one_step(medium: str) -> None:
    """The image takes the place of the rows; sealing again, or where nothing was, works too."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium=medium)
        await owner.write(rows, len(rows.data), medium=medium, close=True)
        image = make_image()
        await owner.seal(image, medium=medium)
        await owner.seal(image, medium=medium)
        other = make_image(SEGMENT + 1, rows=50)
        await owner.seal(other, segment_id=SEGMENT + 1, medium=medium)
        with pytest.raises(InvalidArgument):
            await owner.write(rows, len(rows.data), medium=medium, close=True)
        if medium != "ram":
            await owner.restart()
        assert await owner.read() == image
        assert await owner.read(SEGMENT + 1) == other
        states = [info.state for info in await owner.inventory()]
        assert states == [ReplicaState.SEALED, ReplicaState.SEALED]

    run(scenario)


def test_an_image_may_move_to_another_medium() -> None:
    """A seal on another medium frees the rows on the first, also in the eyes of a restart."""

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows(), medium="disk")
        image = make_image()
        await owner.seal(image, medium="flash")
        await owner.restart()
        (info,) = await owner.inventory()
        assert (info.state, info.medium) == (ReplicaState.SEALED, "flash")
        assert await owner.read() == image

    run(scenario)


def test_what_is_no_image_is_not_sealed() -> None:
    """An image without a whole trailer is refused, and the rows stay."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        for wrong in (b"", b"short", make_image()[:-1], make_image() + b"x"):
            with pytest.raises(InvalidArgument):
                await owner.seal(wrong)
        assert await owner.read() == rows.data

    run(scenario)


def test_a_fence_is_durable_and_complete() -> None:
    """Lower terms are refused, also after a restart; logs that are not held are answered too."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        end = len(rows.data)
        mine, other = await owner.fence((LOG, 5), (OTHER, 2))
        assert (mine.tablet_id, mine.fence, len(mine.replicas)) == (LOG, 5, 1)
        assert other == LogInventory(OTHER, 2, ())
        await owner.restart()
        rows.add(1)
        for stale in (
            owner.write(rows, end),
            owner.write(rows, term=4, segment_id=SEGMENT + 1),
            owner.seal(make_image(), term=4),
            owner.free(SEGMENT, term=4),
            owner.write(rows, term=1, log=OTHER),
        ):
            with pytest.raises(StaleTerm, match=r"^term"):
                await stale
        (again,) = await owner.fence((LOG, 3))
        assert again.fence == 5
        assert again.replicas[0].length == end
        await owner.write(rows, end, term=5)

    run(scenario)


def test_nothing_is_between_accepted_and_fenced() -> None:
    """A write, a copy's end or a seal that races with a fence is in its answer, or is refused."""
    outcomes: dict[str, int] = {}

    async def scenario(owner: Owner) -> None:
        for number in range(60):
            segment_id, delay_s = SEGMENT + number, number % 12 * 0.0003
            rows = Rows(segment_id)
            await owner.write(rows, segment_id=segment_id, term=number + 1)
            start = len(rows.data)
            rows.add(number, pad=9000)

            async def change(number: int = number, rows: Rows = rows, start: int = start) -> None:
                if number % 2:
                    await owner.seal(
                        make_image(rows=300), segment_id=SEGMENT + number, term=number + 1
                    )
                else:
                    await owner.write(rows, start, segment_id=SEGMENT + number, term=number + 1)

            writing = asyncio.create_task(change())
            await owner.runtime.clock.sleep(delay_s)
            (log,) = await owner.fence((LOG, number + 2))
            info = next(info for info in log.replicas if info.segment_id == segment_id)
            changed = info.state is ReplicaState.SEALED or info.length > start
            try:
                await writing
            except StaleTerm:
                assert not changed, number
                outcomes["refused"] = outcomes.get("refused", 0) + 1
            else:
                assert changed, number
                outcomes["accepted"] = outcomes.get("accepted", 0) + 1

    uneven = Options(sync_min_s=0.00002, sync_mean_s=0.01)  # a fence may be faster than a write
    run(scenario, options=uneven, settings=msgspec.structs.replace(SETTINGS, queue_bytes=1 << 20))
    assert outcomes["refused"] > 5
    assert outcomes["accepted"] > 5


def test_a_higher_term_raises_the_fence() -> None:
    """Who writes in a higher term shuts out the lower ones, across a restart as well."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, term=1)
        await owner.write(rows, term=3)
        for _ in range(2):
            with pytest.raises(StaleTerm):
                await owner.write(rows, term=2)
            await owner.restart()

    run(scenario)


def test_freed_frames_are_used_again_and_nothing_comes_back() -> None:
    """Freeing is idempotent; a full medium takes new replicas once old ones are freed."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        count = 3  # frames of 8 KiB, with 8 KiB of records each: there is no room for a fourth
        for number in range(count):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + number)
        with pytest.raises(NoSpace):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + count)
        for turn in range(1, 5):
            first = SEGMENT + (turn - 1) * count
            await owner.free(*range(first, first + count))
            await owner.free(*range(first, first + count))
            for number in range(count):
                await owner.write(rows, medium="tiny", segment_id=first + count + number)
        await owner.restart()
        held = [info.segment_id for info in await owner.inventory()]
        assert held == [*range(first + count, first + 2 * count)]

    run(scenario)


def test_memory_that_is_full_refuses() -> None:
    """A write past the size of a medium in memory is NoSpace, and the replica is as before."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="ram")
        end = len(rows.data)
        rows.add(1, pad=1 << 16)
        with pytest.raises(NoSpace):
            await owner.write(rows, end, medium="ram")
        assert await owner.read() == rows.data[:end]
        await owner.free(SEGMENT)
        other = Rows()
        other.add(2, pad=60_000)
        await owner.write(other, medium="ram")

    run(scenario)


def test_jumbo_segments_take_several_frames() -> None:
    """A replica larger than a frame, and one that grows past its frame, are kept whole."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1)  # takes the frame next to it
        for value in range(8):
            start = len(rows.data)
            rows.add(value, pad=3000)
            await owner.write(rows, start)
        big = make_image(SEGMENT + 2, rows=3000)
        await owner.seal(big, segment_id=SEGMENT + 2)
        await owner.restart()
        assert await owner.read() == rows.data
        assert await owner.read(offset=4000, length=9000) == rows.data[4000:13000]
        assert await owner.read(SEGMENT + 2) == big

    run(scenario, settings=msgspec.structs.replace(SETTINGS, queue_bytes=1 << 20))


def test_summaries_are_served_without_their_rows() -> None:
    """Of an image the tail comes, of rows the rows up to the certificate."""

    async def scenario(owner: Owner) -> None:
        rows = Rows(SEGMENT + 1)
        image = make_image(rows=500)
        await owner.seal(image)
        await owner.write(rows, segment_id=SEGMENT + 1)
        reply = await owner.call(READ_SUMMARIES, ReadSummaries(LOG, (SEGMENT, SEGMENT + 1)))
        tail, plain = (bytes(blob) for blob in reply.blobs)
        assert image.endswith(tail)
        assert len(tail) < len(image)
        assert read_tail(tail, "test").meta.row_count == 500
        assert plain == rows.data
        assert [info.state for info in reply.body.infos] == [
            ReplicaState.SEALED,
            ReplicaState.OPEN,
        ]

    run(scenario)


def test_dropped_logs_are_gone() -> None:
    """All replicas of a deleted tablet are freed, those of others stay."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1, medium="ram")
        await owner.write(rows, log=OTHER)
        await owner.call(DROP_LOGS, DropLogs((LOG,)))
        await owner.call(DROP_LOGS, DropLogs((LOG,)))
        assert await owner.inventory() == ()
        assert len(await owner.inventory(OTHER)) == 1

    run(scenario)


def test_a_decayed_image_is_not_served() -> None:
    """A flipped byte in an image is found by its checksum when it is read."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=100)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(image)
        disk.corrupt("disk/frames", at + len(image) // 3)
        with pytest.raises(CorruptData):
            await owner.read()

    run(scenario)


def test_a_decayed_prologue_makes_an_open_replica_lost() -> None:
    """An open replica whose prologue cannot be read is not offered to a recovery."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(rows.data)
        disk.corrupt("disk/frames", at + 80)
        assert await owner.inventory() == ()

    run(scenario)


def test_small_appends_are_written_ahead_of_once_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each first write to a block costs a commit of the file system's journal: zeros go before,
    a good piece at a time, never over what was written, never beyond the frames."""
    written: list[tuple[int, int]] = []
    real = FrameMedium._write_ahead

    def noted(self: FrameMedium, replica: Replica) -> None:
        before = replica.written
        real(self, replica)
        written.append((before, replica.ready))
        assert replica.ready <= len(replica.frames) * self.layout.frame_bytes

    monkeypatch.setattr(FrameMedium, "_write_ahead", noted)
    monkeypatch.setattr(frame_medium, "AHEAD_BYTES", 1000)

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        for value in range(20):
            start = len(rows.data)
            rows.add(value)
            await owner.write(rows, start)
        assert 2 <= len(written) <= 1 + len(rows.data) // 1000
        for (start, ready), (following, _) in itertools.pairwise(written):
            assert ready == start + 1000
            assert following > ready
        content = owner.world.nodes["b1"].disk.durable("disk/frames")
        at = content.index(rows.data)
        end, ready = at + len(rows.data), at + written[-1][1]
        assert content[end:ready] == bytes(ready - end)

    run(scenario)


def test_concurrent_appends_share_a_sync() -> None:
    """Appends of many replicas that arrive together are synced together (group commit)."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await asyncio.gather(*(owner.write(rows, segment_id=SEGMENT + n) for n in range(8)))
        start = len(rows.data)
        rows.add(1)
        syncs = owner.world.metrics["b1"].observations
        before = syncs["backup_sync_s"]
        await asyncio.gather(*(owner.write(rows, start, segment_id=SEGMENT + n) for n in range(8)))
        assert syncs["backup_sync_s"] - before <= 3

    run(scenario, options=Options(sync_min_s=0.01, latency_mean_s=0.0005))


def test_too_much_unsynced_is_refused() -> None:
    """A backup whose disk does not keep up answers Overloaded rather than take it all."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        rows.add(1, pad=20_000)
        owner.world.nodes["b1"].disk.slowness = 1000.0
        results = await asyncio.gather(
            *(owner.write(rows, segment_id=SEGMENT + n) for n in range(6)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, Overloaded)]
        owner.world.nodes["b1"].disk.slowness = 1.0
        assert 0 < len(refused) < 6
        assert all(r is None or isinstance(r, Overloaded | OutcomeUnknown) for r in results)

    run(scenario)


def test_a_failed_sync_ends_the_server() -> None:
    """Nothing is acknowledged after a failed sync: the process ends, and starts anew."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        end = len(rows.data)
        rows.add(1)
        owner.world.nodes["b1"].disk.fail_next_sync = True
        with pytest.raises(StelaeError):
            await owner.write(rows, end)
        await owner.world.wait_until(
            lambda: owner.world.nodes["b1"].lives == 2, timeout_s=30, what="a restart"
        )
        await owner.world.wait_ready()
        assert (await owner.inventory())[0].length in (end, len(rows.data))

    run(scenario)


def test_a_frame_file_of_another_server_is_refused() -> None:
    """A backup that lost its instance file does not take over the frames of who it was."""

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows())
        node = owner.world.nodes["b1"]
        node.auto_restart = False
        owner.world.crash("b1")
        del node.disk._files["instance"], node.disk._named["instance"]
        owner.world.restart("b1")
        await owner.world.wait_ready()

    with pytest.raises(Exception, match="belongs to"):
        run(scenario)


class Master:
    """Answers heartbeats as a leader or a follower that wants ``drop`` dropped."""

    def __init__(self, runtime: SimRuntime, is_leader: bool, drop: tuple[TabletId, ...]) -> None:
        self.tasks = Tasks()
        self.heard: list[Heartbeat] = []
        self._runtime = runtime
        self._is_leader = is_leader
        self._drop = drop

    async def start(self) -> None:
        await self._runtime.peers.listen("m" * 32, {HEARTBEAT: self._heartbeat})  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.tasks.close()

    async def _heartbeat(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        self.heard.append(call.body)
        return Reply(HeartbeatReply(self._is_leader, 1, call.body.sent, drop=self._drop))


@pytest.mark.parametrize("is_leader", [False, True])
def test_heartbeats_tell_what_is_held_and_obey_the_leader(is_leader: bool) -> None:
    """Every master hears of the logs held; what the leader (no follower) says is dropped, goes."""

    async def scenario(owner: Owner) -> None:
        world = owner.world
        world.start("m1", lambda runtime: Master(runtime, is_leader, (LOG,)), kind="master")
        await world.wait_ready()
        await owner.write(Rows())
        await owner.write(Rows(), log=OTHER, medium="ram")
        await owner.runtime.clock.sleep(5 * SETTINGS.heartbeat_s)
        master: Any = world.server("m1")
        newest = master.heard[-1]
        assert newest.logs == ((OTHER,) if is_leader else (LOG, OTHER))
        assert newest.server == world.server("b1").info
        assert newest.server.media == ("disk", "flash", "ram", "tiny")
        assert newest.memory_bytes == len(Rows().data)
        assert newest.memory_limit_bytes == 1 << 16
        assert newest.free_bytes > 0

    run(scenario, masters=[Address("m1:7000")])
