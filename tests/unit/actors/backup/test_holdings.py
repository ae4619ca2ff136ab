"""What a backup gives out of a replica that has decayed, and of bytes that the replica has not."""

from __future__ import annotations

import pytest

from stelae.actors.backup import holdings
from stelae.core.errors import CorruptData, InvalidArgument, TooLarge
from stelae.core.messages.backups import (
    INVENTORY,
    LOCATE_REPLICAS,
    READ_REPLICA,
    Inventory,
    LocatedReplica,
    LocateReplicas,
    LogInventory,
    ReadReplica,
)
from tests.unit.actors.backup.backup_world import LOG, SEGMENT, Owner, Rows, make_image, run


def decay(owner: Owner, held: bytes, place: int) -> None:
    """Flip a bit of bytes that the backup holds on its disk."""
    disk = owner.world.nodes[owner.backup].disk
    disk.corrupt("disk/frames", disk.durable("disk/frames").index(held) + place)


async def told(owner: Owner) -> LogInventory:
    """What the backup says it holds of the log."""
    (log,) = (await owner.call(INVENTORY, Inventory((LOG,)))).body.logs
    assert isinstance(log, LogInventory)
    return log


async def located(owner: Owner) -> tuple[LocatedReplica, ...]:
    """The replicas that may be read past the backup."""
    found = await owner.call(LOCATE_REPLICAS, LocateReplicas(LOG, (SEGMENT,)))
    replicas: tuple[LocatedReplica, ...] = found.body.replicas
    return replicas


def test_an_image_that_decayed_is_not_given_out_and_offered_no_more() -> None:
    """A reader of the whole image gets an error, and the master hears that the replica is damaged.
    What the owner seals again in its place counts, also if it is the same image."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image)
        assert await owner.read() == image
        assert len(await located(owner)) == 1
        decay(owner, image, 100)
        with pytest.raises(CorruptData, match="bad checksum of what is sealed"):
            await owner.read()
        found = await told(owner)
        assert (found.replicas, found.damaged) == ((), (SEGMENT,))
        assert await located(owner) == ()
        await owner.seal(image)
        found = await told(owner)
        assert ([info.segment_id for info in found.replicas], found.damaged) == ([SEGMENT], ())
        assert await owner.read() == image

    run(scenario)


def test_rows_that_decayed_are_looked_for_when_their_reader_found_damage() -> None:
    """A reader checks entries by itself; when it asks to verify, the backup offers them no more."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        rows.add(1, pad=100)
        await owner.write(rows)
        verify = ReadReplica(LOG, SEGMENT, verify=True)
        assert (await owner.call(READ_REPLICA, verify)).blobs[0] == rows.data
        decay(owner, rows.data, len(rows.data) - 1)
        assert len(await owner.read()) == len(rows.data)
        assert (await told(owner)).damaged == ()
        with pytest.raises(CorruptData, match="bad checksum of what is open"):
            await owner.call(READ_REPLICA, verify)
        found = await told(owner)
        assert (found.replicas, found.damaged) == ((), (SEGMENT,))

    run(scenario)


@pytest.mark.parametrize("medium", ["disk", "ram"])
def test_bytes_past_the_end_of_a_replica_are_not_given_out(medium: str) -> None:
    """Its last frame may have bytes of another replica behind them. Nor are bytes before it."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image, medium=medium)
        assert await owner.read(offset=len(image) - 10, length=10) == image[-10:]
        for offset, length in ((len(image) - 10, 11), (len(image) + 1, 1), (-1, 2), (10, -1)):
            with pytest.raises(InvalidArgument, match=f"bytes {offset}\\+{length} of {len(image)}"):
                await owner.read(offset=offset, length=length)

    run(scenario)


def test_more_than_fits_a_reply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is read: a reader asks for ranges."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=250)
        await owner.seal(image)
        monkeypatch.setattr(holdings, "REPLY_BYTES_MAX", 1000)
        assert await owner.read(length=1000) == image[:1000]
        with pytest.raises(TooLarge, match="read of"):
            await owner.read(length=1001)

    run(scenario)
