"""The instance file: a server keeps its identity, and never takes another's directory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stelae.actors.server.instance import INSTANCE_FILE, Instance, load_or_create_instance
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.runtime.files import LocalDisk


class FixedClock:
    def now(self) -> float:
        return 1234.5

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, duration_s: float) -> None:
        raise AssertionError("nothing here sleeps")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    disk = LocalDisk(tmp_path)
    yield disk
    disk.close()


async def start(
    disk: LocalDisk, seed: int, cluster: str = "demo", kind: str = "tserver", name: str = "t-1"
) -> Instance:
    return await load_or_create_instance(
        disk, random.Random(seed), FixedClock(), cluster, kind, name
    )


async def test_a_new_directory_gets_an_identity_from_the_seed(disk: LocalDisk) -> None:
    """The UUID comes from the rng alone, so that a seed replays a run."""
    first = await start(disk, seed=7)
    assert (first.cluster, first.kind, first.name) == ("demo", "tserver", "t-1")
    assert (first.created, first.incarnation) == (1234.5, 1)
    await disk.remove(INSTANCE_FILE)
    assert (await start(disk, seed=7)).server_uuid == first.server_uuid
    await disk.remove(INSTANCE_FILE)
    assert (await start(disk, seed=8)).server_uuid != first.server_uuid


async def test_each_start_keeps_the_uuid_and_counts_one_more_incarnation(disk: LocalDisk) -> None:
    """Peers tell a restarted server from a new one by its UUID, and starts by the incarnation."""
    first = await start(disk, seed=1)
    second = await start(disk, seed=2, name="renamed")
    third = await start(disk, seed=3)
    assert first.server_uuid == second.server_uuid == third.server_uuid
    assert [first.incarnation, second.incarnation, third.incarnation] == [1, 2, 3]
    assert second.name == "renamed"


@pytest.mark.parametrize(
    ("cluster", "kind", "text"),
    [("other", "tserver", "cluster 'demo'"), ("demo", "backup", "kind 'tserver'")],
)
async def test_a_directory_of_another_cluster_or_kind_is_refused(
    disk: LocalDisk, cluster: str, kind: str, text: str
) -> None:
    """A wrong data_dir is named in plain words, and left as it is."""
    await start(disk, seed=1)
    before = await disk.read(INSTANCE_FILE)
    with pytest.raises(InvalidArgument, match=text):
        await start(disk, seed=2, cluster=cluster, kind=kind)
    assert await disk.read(INSTANCE_FILE) == before


async def test_any_flipped_bit_of_the_instance_file_is_noticed(disk: LocalDisk) -> None:
    """A damaged identity stops the server; it never starts under a wrong one."""
    await start(disk, seed=1)
    good = await disk.read(INSTANCE_FILE)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        (disk.root / INSTANCE_FILE).write_bytes(bad)
        with pytest.raises(CorruptData):
            await start(disk, seed=1)


async def test_a_short_instance_file_is_corrupt(disk: LocalDisk) -> None:
    """An empty or cut file is damage, not a new directory."""
    await start(disk, seed=1)
    good = await disk.read(INSTANCE_FILE)
    for size in range(len(good)):
        (disk.root / INSTANCE_FILE).write_bytes(good[:size])
        with pytest.raises(CorruptData):
            await start(disk, seed=1)
