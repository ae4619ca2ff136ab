"""What every `Disk` must do, as rules that can be run against any implementation.

A rule takes a fresh, empty disk and raises AssertionError where the disk breaks it. Tests run
`DISK_RULES` against the real disk and the simulated one, so that servers meet the same disk in both
worlds.
"""

from __future__ import annotations

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
    assert file.room_bytes > 1 << 20
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


async def reading_an_absent_file_says_so(disk: Disk) -> None:
    for path in ("absent", "no/such/folder"):
        try:
            await disk.read(path)
        except FileNotFoundError:
            continue
        raise AssertionError(f"{path} was read")


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


DISK_RULES: tuple[DiskRule, ...] = (
    writes_are_seen_by_reads_at_once,
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
    reading_an_absent_file_says_so,
    list_gives_sorted_names_of_files_only,
    a_removed_file_is_gone,
)
