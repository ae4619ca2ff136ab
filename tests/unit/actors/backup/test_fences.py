"""The file of a backup's promises: one that has decayed is refused, and none is read from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stelae.actors.backup.fences import FENCES_FILE, Fences
from stelae.core.errors import CorruptData
from stelae.runtime.files import LocalDisk
from stelae.simulation.world.node import SimulationFailure
from tests.unit.actors.backup.backup_world import LOG, SEGMENT, Owner, run

MAGIC_BYTES = 8


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[LocalDisk]:
    """A real folder with a file of promises that is as it was written."""
    disk = LocalDisk(tmp_path)
    fences = Fences(disk)
    await fences.promise([(LOG, 9)])
    assert await fences.close_heads(LOG, SEGMENT)
    read = Fences(disk)
    await read.load()
    assert (read.term(LOG), read.heads_from(LOG)) == (9, SEGMENT)
    yield disk
    disk.close()


async def refused(disk: LocalDisk, data: bytes) -> None:
    """Have ``data`` in the file: it is found to be damaged, and no promise is taken from it."""
    (disk.root / FENCES_FILE).write_bytes(data)
    fences = Fences(disk)
    with pytest.raises(CorruptData, match="file fences, offset 0: bad checksum"):
        await fences.load()
    assert (fences.term(LOG), fences.heads_from(LOG)) == (0, 0)


async def test_promises_that_decayed_are_not_believed(disk: LocalDisk) -> None:
    """Every flipped bit of the checksum, or of what follows it, is found, also where the rest can
    be decoded: as a lower term, or as the term of another log."""
    whole = await disk.read(FENCES_FILE)
    for place in range(MAGIC_BYTES, len(whole)):
        for bit in range(8):
            decayed = bytearray(whole)
            decayed[place] ^= 1 << bit
            await refused(disk, bytes(decayed))


async def test_promises_that_were_cut_short_are_not_believed(disk: LocalDisk) -> None:
    """Wherever the cut is, also where only the magic is left, or nothing."""
    whole = await disk.read(FENCES_FILE)
    for length in range(len(whole)):
        await refused(disk, whole[:length])


def test_a_backup_whose_promises_decayed_does_not_start() -> None:
    """It would accept writes of terms that it has promised to refuse."""

    async def scenario(owner: Owner) -> None:
        await owner.fence((LOG, 9))
        disk = owner.world.nodes["b1"].disk
        disk.corrupt(FENCES_FILE, len(disk.durable(FENCES_FILE)) - 1)
        await owner.restart()

    with pytest.raises(SimulationFailure, match="file fences, offset 0: bad checksum"):
        run(scenario)
