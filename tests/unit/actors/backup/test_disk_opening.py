"""What the start of a backup makes of a frame file that has decayed, or that a crash has torn."""

from __future__ import annotations

import msgspec
import pytest

from stelae.actors.backup.disk_opening import open_frame_medium
from stelae.actors.backup.frames import (
    BLOCK_BYTES,
    EXTENT_FRAMES,
    RECORD_BYTES,
    SUPERBLOCKS_BYTES,
    decode_record,
    encode_record,
)
from stelae.core.ids import ServerUuid
from stelae.simulation import Options, World
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.backup.backup_world import LOG, MEDIA, SEGMENT, Owner, Rows, make_image, run

FILE = "disk/frames"


def place(owner: Owner, segment_id: int) -> tuple[int, tuple[int, int]]:
    """The first frame of a replica, and where the two blocks of its record lie in the file."""
    server = owner.world.server(owner.backup)
    frame = server._holdings.find(LOG, segment_id).frames[0]
    layout = server._media["disk"].layout
    return frame, (layout.record_offset(frame, 0), layout.record_offset(frame, 1))


def put(owner: Owner, offset: int, data: bytes) -> None:
    """Have other durable bytes in the frame file."""
    content = owner.world.nodes[owner.backup].disk._files[FILE]
    for held in (content.live, content.durable):
        held[offset : offset + len(data)] = data


def block(owner: Owner, offset: int) -> bytes:
    """The record block that is durable at a place of the frame file."""
    return owner.world.nodes[owner.backup].disk.durable(FILE)[offset : offset + RECORD_BYTES]


def test_a_file_whose_superblocks_both_decayed_is_not_begun_again() -> None:
    """It would be taken for an empty one, and its replicas would be overwritten."""

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows())
        for side in (0, 1):
            owner.world.nodes["b1"].disk.corrupt(FILE, side * BLOCK_BYTES + 20)
        await owner.restart()

    with pytest.raises(SimulationFailure, match="records of frames of no known extent"):
        run(scenario)


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup with one frame file: opening the next one syncs the whole disk."""
    for name in ("flash", "tiny"):
        monkeypatch.delitem(MEDIA, name)


def note_syncs(owner: Owner, found: list[list[int]]) -> None:
    """Note of each sync, until the next crash, which superblocks it covers: all may be torn."""
    disk = owner.world.nodes["b1"].disk

    def look(_: float) -> None:
        written = {each.offset for each in disk._files[FILE].pending if each.data}
        found.append(sorted(written & {0, BLOCK_BYTES}))
        disk.on_sync = look

    disk.on_sync = look


@pytest.mark.usefixtures("one_file")
def test_no_crash_tears_both_superblocks() -> None:
    """They are never written in one sync: when a file grows, nor when a start writes one again."""

    async def scenario(owner: Owner) -> None:
        rows, disk = Rows(), owner.world.nodes["b1"].disk
        found = list[list[int]]()
        note_syncs(owner, found)
        for number in range(2 * EXTENT_FRAMES):  # all: the first write after a start grows it
            await owner.write(rows, segment_id=SEGMENT + number)
        for decayed in (0, 1, 1, 0):
            disk.corrupt(FILE, decayed * BLOCK_BYTES + 20)
            owner.world.crash("b1")
            note_syncs(owner, found)
            await owner.world.wait_ready()
            await owner.write(rows, segment_id=SEGMENT + 1000 + len(found))
        assert [0] in found
        assert [BLOCK_BYTES] in found
        assert [0, BLOCK_BYTES] not in found

    run(scenario)


def test_a_superblock_that_does_not_know_the_last_extent_is_refused() -> None:
    """The replicas of that extent would be gone, and its frames be given out again."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        old = owner.world.nodes["b1"].disk.durable(FILE)[:SUPERBLOCKS_BYTES]
        for number in range(1, EXTENT_FRAMES + 1):
            await owner.write(rows, segment_id=SEGMENT + number)
        put(owner, 0, old)
        await owner.restart()

    with pytest.raises(SimulationFailure, match="records of frames of no known extent"):
        run(scenario)


def test_a_frame_that_two_replicas_claim_is_refused() -> None:
    """What one of them has would be given out as the other's."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1)
        first, _ = place(owner, SEGMENT)
        second, sides = place(owner, SEGMENT + 1)
        for offset in sides:
            record = decode_record(block(owner, offset), second)
            if record is not None:
                put(owner, offset, encode_record(msgspec.structs.replace(record, runs=(first, 1))))
        await owner.restart()

    with pytest.raises(SimulationFailure, match="is claimed twice"):
        run(scenario)


def test_the_record_that_holds_stays_when_a_torn_append_is_repaired() -> None:
    """The repair goes over the record that was rejected: a crash may tear the repair as well."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        length = len(rows.data)
        frame, sides = place(owner, SEGMENT)
        (held,) = [side for side in sides if decode_record(block(owner, side), frame)]
        before = block(owner, held)
        rows.add(1, pad=100)
        await owner.write(rows, length)
        assert block(owner, held) == before
        disk = owner.world.nodes["b1"].disk
        disk.corrupt(FILE, disk.durable(FILE).index(rows.data) + len(rows.data) - 1)
        await owner.restart()
        assert [info.length for info in await owner.inventory()] == [length]
        assert block(owner, held) == before
        assert await owner.read() == rows.data[:length]

    run(scenario)


@pytest.mark.usefixtures("one_file")
def test_what_a_start_has_repaired_is_durable_before_it_is_told() -> None:
    """Also if only the process had ended: the next start may follow a loss of power."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        length = len(rows.data)
        rows.add(1, pad=100)
        await owner.write(rows, length)
        disk = owner.world.nodes["b1"].disk
        disk.corrupt(FILE, disk.durable(FILE).index(rows.data) + len(rows.data) - 1)
        await owner.restart()
        assert disk.is_settled
        assert [info.length for info in await owner.inventory()] == [length]
        await owner.restart(loses_all=True)
        assert [info.length for info in await owner.inventory()] == [length]

    run(scenario, options=Options(keep_unsynced_rate=1.0))


def test_what_a_start_has_found_is_durable_before_it_is_told() -> None:
    """An append that waited for no sync is there after its process has ended, and stays."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="flash")
        length = len(rows.data)
        rows.add(1, pad=100)
        await owner.write(rows, length, medium="flash")
        disk = owner.world.nodes["b1"].disk
        assert not disk.is_settled
        for loses_all in (False, True):
            await owner.restart(loses_all=loses_all)
            assert [info.length for info in await owner.inventory()] == [len(rows.data)]

    run(scenario, options=Options(keep_unsynced_rate=1.0))


def test_a_frame_file_whose_name_is_not_durable_is_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process had ended before it had synced the folder. What is acknowledged in the file later
    must not be lost with its name."""
    monkeypatch.setattr(SimDisk, "is_unnamed", lambda *_: False)  # as a real disk, which opens it
    world = World(1, Options())
    runtime = world.client("b1")

    async def opened() -> None:
        medium, _ = await open_frame_medium(
            MEDIA["disk"],
            runtime,
            runtime.disk,
            server=ServerUuid("u" * 32),
            server_name="b1",
            cluster="demo",
            segment_bytes=4096,
            unsynced_bytes_max=1 << 16,
        )
        medium.close()

    async def main() -> None:
        await opened()
        disk = world.nodes["b1"].disk
        disk._unnamed.append(((FILE, disk._named.pop(FILE)),))
        await opened()
        disk.lose_power(drop_all=True)
        assert disk.paths() == [FILE]

    world.run(main())


def test_a_head_whose_machine_lost_its_power_says_that_it_may_be_short() -> None:
    """Where appends wait for no sync, from then on at every start; a closed one and those of other
    media are whole."""

    async def short(owner: Owner) -> list[int]:
        return [i.segment_id - SEGMENT for i in await owner.inventory() if i.may_be_short]

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows())
        await owner.write(Rows(), segment_id=SEGMENT + 1, medium="flash")
        await owner.write(Rows(), segment_id=SEGMENT + 2, medium="flash", close=True)
        await owner.restart()
        assert await short(owner) == [], "only the process had ended"
        await owner.restart(loses_all=True)
        assert await short(owner) == [1]
        await owner.restart()
        assert await short(owner) == [1]

    run(scenario, options=Options(keep_unsynced_rate=1.0))


def test_an_image_without_its_trailer_gives_way_to_the_rows() -> None:
    """Both are there where a seal was under way. The rows are served, and the image is freed."""

    async def scenario(owner: Owner) -> None:
        rows, image = Rows(), make_image()
        await owner.write(rows)
        disk = owner.world.nodes["b1"].disk
        with_rows = disk.durable(FILE)
        frame, sides = place(owner, SEGMENT)
        await owner.seal(image)
        for offset in sides:  # as before the seal freed it
            put(owner, offset, with_rows[offset : offset + RECORD_BYTES])
        assert place(owner, SEGMENT)[0] != frame
        disk.corrupt(FILE, disk.durable(FILE).index(image) + len(image) - 1)
        await owner.restart()
        assert await owner.read() == rows.data

    run(scenario)


def test_a_freed_frame_is_given_out_once_its_record_is_durable() -> None:
    """Else a crash leaves the former replica's record, over bytes of another one."""
    free: list[int] = []

    async def scenario(owner: Owner) -> None:
        for number in range(3):  # all that there is room for
            await owner.write(Rows(), medium="tiny", segment_id=SEGMENT + number)
        medium = owner.world.server("b1")._media["tiny"]
        disk = owner.world.nodes["b1"].disk
        disk.on_sync = lambda _: free.append(len(medium.allocator))
        await owner.free(SEGMENT)
        await medium.settle()
        free.append(len(medium.allocator))

    run(scenario)
    assert free == [0, 1]
