"""What a backup does besides taking writes: fences, freeing, reading, syncing, heartbeats."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from stelae.core.errors import (
    CorruptData,
    NoSpace,
    OutcomeUnknown,
    Overloaded,
    StaleTerm,
    StelaeError,
)
from stelae.core.ids import Address, TabletId
from stelae.core.messages import (
    DROP_LOGS,
    FULL,
    HEARTBEAT,
    NO_REPORT,
    READ_SUMMARIES,
    DropLogs,
    Heartbeat,
    HeartbeatReply,
    LogInventory,
    ReadSummaries,
    ReplicaState,
)
from stelae.core.rpc import Call, Reply
from stelae.core.tasks import Tasks
from stelae.simulation import Options
from stelae.simulation.disk import ROOM_BYTES
from stelae.simulation.instance import SimRuntime
from stelae.storage import frame_medium
from stelae.storage.frame_medium import FrameMedium
from stelae.storage.frames import RECORD_BLOCKS_BYTES, frame_bytes_for
from stelae.storage.image import read_tail
from stelae.storage.replicas import Replica
from tests.unit.actors.backup_world import LOG, SEGMENT, SETTINGS, Owner, Rows, make_image, run

OTHER = TabletId("b" * 32)


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


def test_a_late_write_does_not_open_a_head_again_that_was_freed() -> None:
    """With its old digest, a recovery would look for segments that are gone. One that is closed may
    come back, to replace a replica, and what belongs to another log is not meant."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1)
        await owner.free(SEGMENT, heads_from=SEGMENT + 1)
        await owner.free(SEGMENT)
        with pytest.raises(StaleTerm, match=r"^an open replica"):
            await owner.write(rows)
        await owner.write(rows, log=OTHER)
        await owner.write(rows, segment_id=SEGMENT + 2)
        held = [info.segment_id for info in await owner.inventory()]
        assert held == [SEGMENT + 1, SEGMENT + 2]
        await owner.write(rows, close=True)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT, *held]

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
        leads = self._is_leader
        reply = HeartbeatReply(leads, 1, call.body.sent, drop=self._drop, processed=leads)
        return Reply(reply)


@pytest.mark.parametrize("is_leader", [False, True])
def test_heartbeats_tell_what_is_held_and_obey_the_leader(is_leader: bool) -> None:
    """The leader hears what is held, by changes, and what it says is dropped goes; a follower hears
    of life and load only."""

    async def scenario(owner: Owner) -> None:
        world = owner.world
        world.start("m1", lambda runtime: Master(runtime, is_leader, (LOG,)), kind="master")
        await world.wait_ready()
        await owner.write(Rows())
        await owner.write(Rows(), log=OTHER, medium="ram")
        await owner.runtime.clock.sleep(5 * SETTINGS.heartbeat_s)
        master: Any = world.server("m1")
        newest = master.heard[-1]
        first, *later = master.heard
        assert (first.since, first.logs) == (FULL, (LOG, OTHER))
        assert [logs for beat in later if (logs := beat.logs)] == []
        if is_leader:
            assert [beat.since for beat in later] == [b.number for b in master.heard[:-1]]
            assert [gone for beat in later for gone in beat.removed] == [LOG]
        else:
            assert [beat.since for beat in later] == [NO_REPORT] * len(later)
        assert newest.server == world.server("b1").info
        assert newest.server.media == ("disk", "flash", "ram", "tiny")
        assert newest.memory_bytes == len(Rows().data)
        assert newest.memory_limit_bytes == 1 << 16
        frame_bytes = frame_bytes_for(SETTINGS.segment_bytes)
        frames = ROOM_BYTES // (frame_bytes + RECORD_BLOCKS_BYTES)
        room_bytes = 2 * frames * frame_bytes  # of disk and flash; tiny is bounded
        assert room_bytes <= newest.free_bytes <= room_bytes + (1 << 20)

    run(scenario, masters=[Address("m1:7000")])
