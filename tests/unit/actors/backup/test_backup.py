"""A backup's replicas: appends, copies, certificates, epochs, seals."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.backup.disk_medium import FrameMedium
from stelae.core.errors import InvalidArgument, NoSpace, StaleTerm, StelaeError
from stelae.core.messages.backups import Certified, ReplicaInfo, ReplicaState
from tests.unit.actors.backup.backup_world import SEGMENT, Owner, Rows, make_image, run


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
        beyond = Certified(rows.certificate.length + 8, rows.certificate.crc)
        with pytest.raises(InvalidArgument, match=f"over {beyond.length} bytes, of which"):
            await owner.write(rows, start, certificate=beyond)
        (info,) = await owner.inventory()
        assert (info.length, info.crc) == (good.length, good.crc)
        await owner.write(rows, start)
        assert await owner.read() == rows.data

    run(scenario)


def test_a_replica_is_not_closed_before_the_end_of_what_it_was_acknowledged_for() -> None:
    """A late close, with the certificate of an earlier end, would cut off what followed."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        end, early = len(rows.data), rows.certificate
        rows.add(1)
        await owner.write(rows, end)
        with pytest.raises(InvalidArgument, match="closed before the end of what is held"):
            await owner.write(rows, 0, end, certificate=early, close=True)
        (info,) = await owner.inventory()
        assert (info.state, info.length) == (ReplicaState.OPEN, len(rows.data))

    run(scenario)


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_pieces_that_are_not_what_was_certified_were_never_received(medium: str) -> None:
    """What follows them is a gap: the owner begins again where the last certificate ends, and not
    after bytes of which nobody knows which of them are wrong."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium=medium)
        base = len(rows.data)
        rows.add(1, pad=300)
        cut = len(rows.data)
        rows.add(2, pad=300)
        wrong = Certified(len(rows.data), 1)
        await owner.write(rows, base, cut, certificate=None, medium=medium)
        with pytest.raises(InvalidArgument, match="certificate"):
            await owner.write(rows, cut, certificate=wrong, medium=medium)
        with pytest.raises(InvalidArgument, match=f"a gap from {base} to {cut}"):
            await owner.write(rows, cut, medium=medium)
        await owner.write(rows, base, medium=medium)
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


def test_a_stale_head_gives_way_to_one_on_another_medium() -> None:
    """Else no replica could be made there, on the medium that the segment's log asks for: only of
    an older epoch, and only to one that comes whole."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="disk", epoch=3)
        with pytest.raises(InvalidArgument, match="on medium 'disk' here"):
            await owner.write(rows, medium="flash", epoch=3)
        assert [info.medium for info in await owner.inventory()] == ["disk"]
        await owner.write(rows, medium="flash", epoch=4)
        await owner.restart()
        (info,) = await owner.inventory()
        assert (info.state, info.medium, info.epoch) == (ReplicaState.OPEN, "flash", 4)
        assert await owner.read() == rows.data
        await owner.write(rows, len(rows.data), medium="flash", epoch=4, close=True)
        with pytest.raises(InvalidArgument, match="on medium 'flash' here"):
            await owner.write(rows, medium="disk", epoch=5)

    run(scenario)


@pytest.mark.parametrize(("old", "new"), [("disk", "flash"), ("flash", "disk")])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_what_gives_way_stays_until_the_new_one_is_durable(
    old: str, new: str, is_sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while a replica goes to another medium finds the old one, or the new one; also if all
    that the old medium was told by then is durable, and what the new one was told is not."""
    sync = FrameMedium._sync

    async def scenario(owner: Owner) -> None:
        freed = asyncio.Event()

        async def sync_of_old(self: FrameMedium) -> None:
            if self.name == new:
                await freed.wait()
            await sync(self)

        rows, image = Rows(), make_image()
        await owner.write(rows, medium=old)
        monkeypatch.setattr(FrameMedium, "_sync", sync_of_old)
        if is_sealed:
            moving = owner.seal(image, medium=new, epoch=1)
        else:
            moving = owner.write(rows, medium=new, epoch=1)
        task = asyncio.ensure_future(moving)
        await asyncio.sleep(0.1)
        await owner.write(Rows(SEGMENT + 1), segment_id=SEGMENT + 1, medium=old)
        assert [info.medium for info in await owner.inventory()] == [old, old]
        assert await owner.read() == rows.data
        await owner.restart()
        with pytest.raises(StelaeError):
            await task
        (info, _) = await owner.inventory()
        assert (info.medium, info.epoch, info.state) == (old, 0, ReplicaState.OPEN)
        assert await owner.read() == rows.data
        freed.set()
        if is_sealed:
            await owner.seal(image, medium=new, epoch=1)
        else:
            await owner.write(rows, medium=new, epoch=1)
        for _ in range(2):  # the old one's record is there yet at first
            await owner.restart()
            (info, _) = await owner.inventory()
            assert (info.medium, info.epoch) == (new, 1)
            assert await owner.read() == (image if is_sealed else rows.data)

    run(scenario)


def test_a_head_that_gives_way_stays_also_where_the_new_one_needs_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other medium is in use, and its file long enough: the bytes are written at once, and are
    durable later. Until then whoever looks finds the former replica."""
    sync = FrameMedium._sync

    async def scenario(owner: Owner) -> None:
        may_sync = asyncio.Event()

        async def slow_sync(self: FrameMedium) -> None:
            if self.name == "disk":
                await may_sync.wait()
            await sync(self)

        async def media() -> list[str]:
            held = await owner.inventory()
            return [info.medium for info in held if info.segment_id == SEGMENT]

        rows = Rows()
        await owner.write(Rows(SEGMENT + 1), segment_id=SEGMENT + 1, medium="disk")
        await owner.write(rows, medium="flash")
        monkeypatch.setattr(FrameMedium, "_sync", slow_sync)
        task = asyncio.ensure_future(owner.write(rows, medium="disk", epoch=1))
        await asyncio.sleep(0.1)
        assert await media() == ["flash"]
        assert not task.done()
        may_sync.set()
        await task
        assert await media() == ["disk"]
        assert await owner.read() == rows.data

    run(scenario)


def test_what_finds_no_room_lets_nothing_go() -> None:
    """A head that is asked for on a full medium stays where it is, whole."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="disk")
        for number in range(SEGMENT + 1, SEGMENT + 4):
            await owner.write(Rows(number), medium="tiny", segment_id=number)
        with pytest.raises(NoSpace):
            await owner.write(rows, medium="tiny", epoch=1)
        found = {info.segment_id: info for info in await owner.inventory()}
        assert (found[SEGMENT].medium, found[SEGMENT].epoch) == ("disk", 0)
        assert await owner.read() == rows.data

    run(scenario)


def test_what_lasts_does_not_give_way_to_what_does_not() -> None:
    """An owner that had given up all replicas makes one in memory where one on a disk is left: that
    one goes on where it is, open or sealed, and outlives the process."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="disk")
        await owner.write(rows, medium="ram", epoch=1)
        start = len(rows.data)
        rows.add(1)
        await owner.write(rows, start, medium="ram", epoch=1)
        await owner.restart()
        (info,) = await owner.inventory()
        assert (info.medium, info.epoch) == ("disk", 1)
        assert await owner.read() == rows.data
        image = make_image()
        await owner.seal(image, medium="ram", epoch=1)
        await owner.seal(image, medium="ram", epoch=1)
        await owner.restart()
        (info,) = await owner.inventory()
        assert (info.state, info.medium) == (ReplicaState.SEALED, "disk")
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
