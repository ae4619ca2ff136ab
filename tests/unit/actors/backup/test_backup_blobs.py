"""Blobs on a backup: what is taken, what is given out, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from crc32c import crc32c

from stelae.actors.backup import blobs as backup_blobs
from stelae.actors.backup.blobs import BackupBlobs
from stelae.core.errors import CorruptData, InvalidArgument, NoSpace, TooLarge
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import (
    DELETE_BLOBS,
    GET_BLOB,
    LIST_BLOBS,
    PUT_BLOB,
    BlobFound,
    BlobNames,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
)
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import Call, Method
from stelae.simulation import Options, World

NAME = "1/tablet/3/wal-1"
OTHER = "1/tablet/4/wal-1"
DATA = b"entries of a log"


class BlobFixture:
    """One backup's blobs in a world, through several lives of its process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runtime = world.client("b1")
        self.blobs = BackupBlobs(self.runtime, "backup b1")

    async def start_again(self) -> None:
        """The same disk, and nothing else."""
        self.blobs = BackupBlobs(self.runtime, "backup b1")
        await self.blobs.load()

    async def call(self, method: Method[Any, Any], body: msgspec.Struct, *blobs: bytes) -> Any:
        handler = self.blobs.handlers()[method]
        return await handler(Call(body, tuple(map(memoryview, blobs)), 1.0))

    async def put(self, name: str = NAME, data: bytes = DATA, crc: int | None = None) -> None:
        await self.call(PUT_BLOB, PutBlob(name, crc32c(data) if crc is None else crc), data)

    async def get(self, name: str = NAME) -> bytes | None:
        reply = await self.call(GET_BLOB, GetBlob(name))
        assert isinstance(reply.body, BlobFound)
        return bytes(reply.blobs[0]) if reply.body.is_here else None

    async def names(self, safekeeper: int = 1, after: str = "", **bound: int) -> BlobNames:
        body = ListBlobs(SafekeeperId(safekeeper), after, **bound)
        reply = await self.call(LIST_BLOBS, body)
        assert isinstance(reply.body, BlobNames)
        return reply.body

    def files(self) -> list[str]:
        return sorted(self.world.nodes["b1"].disk.paths())


def run(scenario: Callable[[BlobFixture], Awaitable[None]]) -> None:
    world = World(1, Options())

    async def main() -> None:
        await scenario(BlobFixture(world))

    world.run(main())


def test_a_blob_is_there_once_it_was_put_and_after_a_restart() -> None:
    """Put again, it is what it was; another content under the same name is refused."""

    async def scenario(here: BlobFixture) -> None:
        assert await here.get() is None
        await here.put()
        await here.put()
        assert await here.get() == DATA
        with pytest.raises(InvalidArgument, match="another content"):
            await here.put(data=b"something else")
        assert await here.get() == DATA
        assert len(here.files()) == 1, "nothing is left of what came again"
        await here.start_again()
        assert await here.get() == DATA
        assert here.blobs.tablets == [TabletId("tablet")]

    run(scenario)


def test_what_arrived_damaged_or_in_pieces_is_refused() -> None:
    """By the checksum of whoever sent it; of nothing that is refused a file stays."""

    async def scenario(here: BlobFixture) -> None:
        with pytest.raises(InvalidArgument, match="not those of its checksum"):
            await here.put(crc=1)
        for pieces in ((), (DATA, DATA)):
            with pytest.raises(InvalidArgument, match="pieces"):
                await here.call(PUT_BLOB, PutBlob(NAME, crc32c(DATA)), *pieces)
        with patch.object(backup_blobs, "BLOB_BYTES_MAX", len(DATA) - 1), pytest.raises(TooLarge):
            await here.put()
        assert not here.files()
        assert not here.blobs.count

    run(scenario)


@pytest.mark.parametrize(
    "name",
    [
        "1/../3/wal",
        "1/tablet/3/..",
        "1/tablet/3/.wal",
        "1/tablet/3/a..b",
        "1/tablet/3/a/b",
        "x/tablet/3/wal",
        "/1/tablet/3/wal",
        "1/tablet/3/",
        "",
    ],
)
def test_a_name_leads_to_no_other_folder(name: str) -> None:
    """Whoever sends it: the other server's name becomes a path here."""

    async def scenario(here: BlobFixture) -> None:
        for refused in (here.put(name), here.call(DELETE_BLOBS, DeleteBlobs((name,)))):
            with pytest.raises(InvalidArgument, match="no name of a blob"):
                await refused
        assert not here.files()

    run(scenario)


@pytest.mark.parametrize("damage", ["content", "head", "end", "short", "gone"])
def test_a_damaged_blob_is_not_given_out(damage: str) -> None:
    """It is checked at each read, whatever became of its file."""

    async def scenario(here: BlobFixture) -> None:
        await here.put()
        disk = here.runtime.disk
        (path,) = here.files()
        content = await disk.read(path)
        changed = {
            "content": content[:-1] + b"?",
            "head": b"x" + content[1:],
            "end": content[:-1],
            "short": content[:5],
        }
        if damage == "gone":
            await disk.remove(path)
        else:
            await disk.replace(path, changed[damage])
        with pytest.raises(CorruptData):
            await here.get()

    run(scenario)


def test_what_did_not_arrive_whole_is_gone_after_a_restart() -> None:
    """It lies aside until it is durable, and nobody was told of it."""

    async def scenario(here: BlobFixture) -> None:
        disk = here.runtime.disk

        async def never(*given: Any) -> None:
            await asyncio.Event().wait()

        with patch.object(type(disk), "move", never):
            putting = asyncio.ensure_future(here.put())
            await asyncio.sleep(1.0)
            assert not putting.done()
            assert here.files()
            putting.cancel()
        await here.start_again()
        assert not here.files()
        assert await here.get() is None

    run(scenario)


def test_a_full_disk_refuses_and_keeps_no_part_of_it() -> None:
    """The safekeeper asks another backup."""

    async def scenario(here: BlobFixture) -> None:
        disk = here.runtime.disk
        write = disk.write

        async def half(path: str, content: bytes) -> None:
            await write(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "no space left on device")

        with (
            patch.object(type(disk), "write", staticmethod(half)),
            pytest.raises(NoSpace, match="backup b1"),
        ):
            await here.put()
        assert not here.files()
        await here.put()
        assert await here.get() == DATA

    run(scenario)


def test_lists_are_of_one_safekeeper_and_come_in_pages() -> None:
    """A safekeeper deletes what it does not know: it must not be told of another one's."""

    async def scenario(here: BlobFixture) -> None:
        mine = [NAME, OTHER, "1/tablet/5/wal-1"]
        for name in [*mine, "11/tablet/3/wal-1", "2/tablet/3/wal-1"]:
            await here.put(name)
        assert (await here.names()).names == tuple(mine)
        assert (await here.names(2)).names == ("2/tablet/3/wal-1",)
        for limit in (-1, 0, 1):
            page = await here.names(limit=limit)
            assert (page.names, page.more) == ((NAME,), True)
        with patch.object(backup_blobs, "LIST_MAX", 2):
            page = await here.names(limit=1000)
        assert (page.names, page.more) == ((NAME, OTHER), True)
        last = await here.names(after=OTHER)
        assert (last.names, last.more) == (tuple(mine[2:]), False)

    run(scenario)


def test_what_is_deleted_is_gone_and_the_rest_stays() -> None:
    """One by one, or with the tablet; also after a restart."""

    async def scenario(here: BlobFixture) -> None:
        for name in (NAME, OTHER, "1/another/3/wal-1"):
            await here.put(name)
        await here.call(DELETE_BLOBS, DeleteBlobs((NAME, "1/unknown/1/wal-1")))
        await here.blobs.drop(TabletId("tab"))
        assert len(here.files()) == 2
        assert await here.get() is None
        assert await here.get(OTHER) == DATA
        await here.blobs.drop(TabletId("tablet"))
        for _ in range(2):
            assert await here.get(OTHER) is None
            assert await here.get("1/another/3/wal-1") == DATA
            assert len(here.files()) == 1
            await here.start_again()

    run(scenario)
