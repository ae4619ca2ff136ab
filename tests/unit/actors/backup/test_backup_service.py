"""What a backup does besides taking writes: fences, late writes, summaries, syncing, heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stelae.actors.backup.disk_medium import room_beside_others
from stelae.actors.backup.frames import (
    RECORD_BLOCKS_BYTES,
    TABLET_ID_BYTES_MAX,
    frame_bytes_for,
)
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    StaleTerm,
    StelaeError,
)
from stelae.core.ids import Address, TabletId
from stelae.core.messages.backups import (
    ANY_EPOCH,
    DROP_LOGS,
    READ_SUMMARIES,
    DropLogs,
    LogInventory,
    ReadSummaries,
    ReplicaState,
)
from stelae.core.messages.servers import FULL, HEARTBEAT, NO_REPORT, Heartbeat, HeartbeatReply
from stelae.core.rpc import Call, Reply
from stelae.core.runtime import Space
from stelae.core.tasks import Tasks
from stelae.simulation import Options
from stelae.simulation.world.disk import ROOM_BYTES
from stelae.simulation.world.instance import SimRuntime
from stelae.storage.segments.image import read_tail
from tests.unit.actors.backup.backup_world import (
    LOG,
    SEGMENT,
    SETTINGS,
    Owner,
    Rows,
    make_image,
    run,
)

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
            owner.free(term=4, heads_from=SEGMENT + 9),
            owner.write(rows, term=1, log=OTHER),
        ):
            with pytest.raises(StaleTerm, match=r"^term"):
                await stale
        (again,) = await owner.fence((LOG, 3))
        assert again.fence == 5
        assert again.replicas[0].length == end
        await owner.write(rows, end, term=5)

    run(scenario)


def test_what_names_no_tablet_is_refused() -> None:
    """An id that is empty, or longer than the fences have room for."""

    async def scenario(owner: Owner) -> None:
        for wrong in (TabletId(""), TabletId("x" * (TABLET_ID_BYTES_MAX + 1))):
            with pytest.raises(InvalidArgument, match="is no tablet id"):
                await owner.free(SEGMENT, log=wrong)

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


def test_a_late_write_does_not_open_a_head_again_that_was_freed() -> None:
    """With its old digest, a recovery would look for what is gone; so it is after restarts
    too. One that is closed may come back, to replace a replica, at once or in pieces, and what
    belongs to another log is not meant."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1)
        await owner.free(SEGMENT, heads_from=SEGMENT + 1)
        await owner.free(SEGMENT)
        for _ in range(3):
            with pytest.raises(StaleTerm, match=r"^an open replica"):
                await owner.write(rows)
            await owner.restart()
        (told,) = await owner.fence((LOG, 1))
        assert told.heads_from == SEGMENT + 1, "also after restarts"
        await owner.write(rows, log=OTHER)
        await owner.write(rows, segment_id=SEGMENT + 2)
        held = [info.segment_id for info in await owner.inventory()]
        assert held == [SEGMENT + 1, SEGMENT + 2]
        await owner.write(rows, close=True)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT, *held]
        await owner.free(SEGMENT, heads_from=SEGMENT + 1)
        await owner.write(rows, end=20, certificate=None)
        with pytest.raises(StaleTerm, match=r"^an open replica"):
            await owner.write(rows, 20)
        await owner.write(rows, 20, close=True)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT, *held]

    run(scenario)


def test_a_late_order_to_free_a_replica_frees_no_later_one() -> None:
    """One that was made again there has a higher epoch, or none yet; without a certificate it has
    none. What has no epoch in the order is freed whatever its epoch is."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for segment_id in (SEGMENT, SEGMENT + 1, SEGMENT + 2):
            await owner.write(rows, segment_id=segment_id, epoch=3)
        with pytest.raises(InvalidArgument, match="an epoch is needed for each segment"):
            await owner.free(SEGMENT, SEGMENT + 1, epochs=(9,))
        await owner.free(SEGMENT, SEGMENT + 1, SEGMENT + 2, epochs=(2, 3, ANY_EPOCH))
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT]
        await owner.write(rows, segment_id=SEGMENT + 1, epoch=4, end=20, certificate=None)
        await owner.free(SEGMENT + 1, epochs=(3,))
        await owner.write(rows, 20, segment_id=SEGMENT + 1, epoch=4)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT, SEGMENT + 1]
        await owner.free(SEGMENT)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT + 1]

    run(scenario)


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
        on_disk = 0 if is_leader else frame_bytes
        assert newest.media_used_bytes == (on_disk, 0, len(Rows().data), 0)
        assert sum(newest.media_free_bytes) >= newest.free_bytes
        room = room_beside_others(Space(ROOM_BYTES, ROOM_BYTES))
        frames = room // (frame_bytes + RECORD_BLOCKS_BYTES)
        room_bytes = 2 * frames * frame_bytes  # of disk and flash; tiny is bounded
        assert room_bytes <= newest.free_bytes <= room_bytes + (1 << 20)

    run(scenario, masters=[Address("m1:7000")])
