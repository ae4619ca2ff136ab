"""What every `Disk` must do, as rules that can be run against any implementation.

A rule takes a fresh, empty disk and raises AssertionError where the disk breaks it. Tests run
`DISK_RULES` against the real disk and the simulated one, so that servers meet the same disk in both
worlds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pyarrow as pa

from stelae.core.runtime import Disk

DiskRule = Callable[[Disk], Awaitable[None]]


async def writes_are_seen_by_reads_at_once(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(0, b"hello")
    assert (file.size, file.read_at(0, 5)) == (5, b"hello")
    assert await disk.read("a") == b"hello"
    await file.sync()
    assert file.read_at(1, 3) == b"ell"
    file.close()


async def buffers_of_any_kind_are_written_one_after_the_other(disk: Disk) -> None:
    file = await disk.open("a")
    words = memoryview(bytearray(b"three__")).toreadonly()[:5]
    file.write_at(2, b"one", b"", bytearray(b"two"), words, pa.py_buffer(b"four"))
    assert file.read_at(0, 100) == b"\0\0onetwothreefour"
    file.close()


async def thousands_of_buffers_are_written_in_order(disk: Disk) -> None:
    file = await disk.open("a")
    pieces = [b"%05d" % number for number in range(3000)]
    file.write_at(0, *pieces)
    assert file.read_at(0, file.size) == b"".join(pieces)
    file.close()


async def a_read_ends_at_the_end_of_the_file(disk: Disk) -> None:
    file = await disk.open("a")
    assert (file.size, file.read_at(0, 10)) == (0, b"")
    file.write_at(0, b"abc")
    assert (file.read_at(1, 10), file.read_at(3, 1), file.read_at(99, 1)) == (b"bc", b"", b"")
    assert file.read_at(0, 0) == b""
    into = bytearray(4)
    assert (file.read_into(1, memoryview(into)), bytes(into)) == (2, b"bc\0\0")
    assert (file.read_into(0, memoryview(into)[2:]), bytes(into)) == (2, b"bcab")
    assert (file.read_into(3, memoryview(into)), bytes(into)) == (0, b"bcab")
    file.close()


async def a_write_past_the_end_leaves_zeros(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(4, b"x")
    assert (file.size, file.read_at(0, 5)) == (5, b"\0\0\0\0x")
    file.close()


async def overwriting_keeps_the_rest(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(0, b"abcdef")
    file.write_at(2, b"XY")
    assert (file.size, file.read_at(0, 6)) == (6, b"abXYef")
    file.close()


async def truncate_cuts_and_extends_with_zeros(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(0, b"abcdef")
    file.truncate(2)
    assert (file.size, file.read_at(0, 9)) == (2, b"ab")
    file.truncate(4)
    assert (file.size, file.read_at(0, 9)) == (4, b"ab\0\0")
    file.close()


async def preallocate_reads_as_zeros_and_never_shrinks(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(0, b"ab")
    file.preallocate(5)
    assert (file.size, file.read_at(0, 9)) == (5, b"ab\0\0\0")
    file.preallocate(1)
    assert (file.size, file.read_at(0, 9)) == (5, b"ab\0\0\0")
    file.close()


async def a_file_tells_what_its_disk_has_left(disk: Disk) -> None:
    file = await disk.open("a")
    assert 1 << 20 < file.space.free_bytes <= file.space.total_bytes
    file.close()


async def open_makes_the_file_and_its_folders(disk: Disk) -> None:
    file = await disk.open("x/y/z")
    assert await disk.list("x/y") == ["z"]
    assert await disk.read("x/y/z") == b""
    file.close()


async def a_file_opened_again_has_its_content(disk: Disk) -> None:
    file = await disk.open("a")
    file.write_at(0, b"kept")
    await file.sync()
    file.close()
    again = await disk.open("a")
    assert (again.size, again.read_at(0, 9)) == (4, b"kept")
    again.close()


async def replace_sets_the_whole_content(disk: Disk) -> None:
    await disk.replace("deep/er/a", b"a longer first content")
    await disk.replace("deep/er/a", b"second")
    assert await disk.read("deep/er/a") == b"second"
    assert await disk.list("deep/er") == ["a"]
    file = await disk.open("deep/er/a")
    assert (file.size, file.read_at(0, 99)) == (6, b"second")
    file.close()


async def write_sets_the_whole_content(disk: Disk) -> None:
    await disk.write("deep/er/a", b"a longer first content")
    for data in (bytearray(b"2nd"), memoryview(b"third"), pa.py_buffer(b"last")):
        await disk.write("deep/er/a", data)
        assert await disk.read("deep/er/a") == bytes(memoryview(data))
    assert await disk.list("deep/er") == ["a"]
    await disk.write("deep/er/b", b"", named=False)
    await disk.sync_folder("deep/er")
    await disk.sync_folder("no/such/folder")
    assert await disk.read("deep/er/b") == b""


async def read_into_fills_a_buffer_as_far_as_the_file_goes(disk: Disk) -> None:
    await disk.write("deep/er/a", b"content")
    for size, filled in ((4, b"cont"), (7, b"content"), (9, b"content\0\0")):
        buffer = bytearray(size)
        assert await disk.read_into("deep/er/a", memoryview(buffer)) == min(size, 7)
        assert buffer == filled


async def reading_an_absent_file_says_so(disk: Disk) -> None:
    for path in ("absent", "no/such/folder"):
        for read in (disk.read(path), disk.read_into(path, memoryview(bytearray(1)))):
            try:
                await read
            except FileNotFoundError:
                continue
            raise AssertionError(f"{path} was read")
    assert await disk.list("") == []


async def list_gives_sorted_names_of_files_only(disk: Disk) -> None:
    assert await disk.list("") == []
    assert await disk.list("absent") == []
    for path in ("b", "a", "c", "folder/d", "folder/deeper/e"):
        await disk.replace(path, b"")
    assert await disk.list("") == ["a", "b", "c"]
    assert await disk.list("folder") == ["d"]


async def a_removed_file_is_gone(disk: Disk) -> None:
    await disk.replace("folder/a", b"1")
    await disk.replace("folder/b", b"2")
    await disk.remove("folder/a")
    await disk.remove("folder/a")
    await disk.remove("no/such/file")
    assert await disk.list("folder") == ["b"]
    file = await disk.open("folder/a")
    assert file.size == 0
    file.close()


async def folders_are_those_that_hold_a_file(disk: Disk) -> None:
    assert await disk.folders("") == []
    assert await disk.folders("absent") == []
    for path in ("b/file", "a/deep/er/file", "file", "emptied/file"):
        await disk.replace(path, b"1")
    await disk.remove("emptied/file")
    assert await disk.folders("") == ["a", "b"]
    assert await disk.folders("a") == ["deep"]
    assert await disk.folders("b") == []


async def a_folder_moves_with_all_that_is_in_it(disk: Disk) -> None:
    for path in ("old/a", "old/deep/er/b", "older/c"):
        await disk.replace(path, path.encode())
    file = await disk.open("old/a")
    assert await disk.move("old", "new/place")
    assert await disk.folders("") == ["new", "older"]
    assert await disk.list("new/place") == ["a"]
    assert await disk.read("new/place/deep/er/b") == b"old/deep/er/b"
    assert file.read_at(0, 9) == b"old/a", "whoever has a file open goes on reading it"
    file.close()
    assert not await disk.move("old", "new/place"), "there is nothing left to move"
    await disk.replace("old/again", b"")
    try:
        await disk.move("old", "new/place")
    except FileExistsError:
        assert await disk.list("old") == ["again"]
    else:
        raise AssertionError("a move replaced a folder that holds files")


async def an_emptied_folder_is_no_folder(disk: Disk) -> None:
    for path in ("old/a", "new/b"):
        await disk.replace(path, b"")
    await disk.remove("new/b")
    assert not await disk.move("new", "elsewhere")
    assert await disk.move("old", "new")
    assert await disk.list("new") == ["a"]


async def a_removed_folder_is_gone_with_all_that_is_in_it(disk: Disk) -> None:
    for path in ("old/a", "old/deep/er/b", "older/c"):
        await disk.replace(path, b"")
    await disk.remove_folder("old")
    await disk.remove_folder("old")
    assert await disk.folders("") == ["older"]
    assert await disk.list("old/deep/er") == []
    assert await disk.list("older") == ["c"]


async def settling_changes_nothing_that_is_read(disk: Disk) -> None:
    await disk.settle()
    file = await disk.open("folder/a")
    file.write_at(0, b"unsynced")
    await disk.settle()
    await disk.settle()
    assert file.read_at(0, 100) == await disk.read("folder/a") == b"unsynced"
    file.close()


async def a_replacement_that_was_begun_is_carried_through(disk: Disk) -> None:
    """Who is cancelled waits for it, so that the next replacement is the last."""
    begun = asyncio.Event()

    async def replace() -> None:
        begun.set()
        await disk.replace("a", b"begun" * 100_000)

    for _ in range(5):
        begun.clear()
        replacing = asyncio.ensure_future(replace())
        await begun.wait()
        replacing.cancel()
        await asyncio.wait([replacing])
        assert await disk.read("a") == b"begun" * 100_000
        await disk.replace("a", b"new")
        assert await disk.read("a") == b"new"


DISK_RULES: tuple[DiskRule, ...] = (
    writes_are_seen_by_reads_at_once,
    settling_changes_nothing_that_is_read,
    buffers_of_any_kind_are_written_one_after_the_other,
    thousands_of_buffers_are_written_in_order,
    a_read_ends_at_the_end_of_the_file,
    a_write_past_the_end_leaves_zeros,
    overwriting_keeps_the_rest,
    truncate_cuts_and_extends_with_zeros,
    preallocate_reads_as_zeros_and_never_shrinks,
    a_file_tells_what_its_disk_has_left,
    open_makes_the_file_and_its_folders,
    a_file_opened_again_has_its_content,
    replace_sets_the_whole_content,
    write_sets_the_whole_content,
    read_into_fills_a_buffer_as_far_as_the_file_goes,
    reading_an_absent_file_says_so,
    list_gives_sorted_names_of_files_only,
    a_removed_file_is_gone,
    folders_are_those_that_hold_a_file,
    a_folder_moves_with_all_that_is_in_it,
    an_emptied_folder_is_no_folder,
    a_removed_folder_is_gone_with_all_that_is_in_it,
    a_replacement_that_was_begun_is_carried_through,
)
