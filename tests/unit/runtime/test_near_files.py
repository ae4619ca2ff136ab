"""Files of other servers on this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stelae.runtime.files import LocalDisk
from stelae.runtime.near_files import open_near
from tests.own_files import of_files_in


def test_a_file_is_read_from_its_place_while_its_server_writes(tmp_path: Path) -> None:
    """Another server sees what was written last, and nothing past the end."""

    async def check() -> None:
        disk, other = LocalDisk(tmp_path / "a"), LocalDisk(tmp_path / "b")
        file = await disk.open("disk/frames")
        file.write_at(0, b"x" * 5000)
        near = other.open_near(file.place)
        assert near is not None
        assert near.read_cached(10, 20) in (b"x" * 20, None)
        file.write_at(10, b"yy")
        assert near.read_cached(9, 4) in (b"xyyx", None)
        assert near.read_cached(4990, 20) is None
        near.close()
        assert near.read_cached(0, 1) is None

    asyncio.run(check())


def test_what_lies_at_the_place_of_another_file_is_not_read(tmp_path: Path) -> None:
    """Of another boot, of another file by that name, of none, of no file; or no place at all."""

    async def check() -> None:
        disk = LocalDisk(tmp_path / "a")
        place = (await disk.open("frames")).place
        boot, device, number, path = place.split(" ", 3)
        (tmp_path / "link").symlink_to(path)
        for wrong in (
            f"other {device} {number} {path}",
            f"{boot} {device} {int(number) + 1} {path}",
            f"{boot} {device} {number} {path}x",
            f"{boot} {device} {number} {tmp_path / 'link'}",
            f"{boot} {device} {os.stat(tmp_path).st_ino} {tmp_path}",
            "",
            "nonsense",
        ):
            assert open_near(wrong) is None, wrong

    asyncio.run(check())


def test_nothing_is_read_where_it_cannot_be_told_what_lies_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot read without a wait does not read; nor past a disk's error."""

    async def check() -> None:
        file = await LocalDisk(tmp_path).open("frames")
        file.write_at(0, b"x" * 100)
        near = open_near(file.place)
        assert near is not None

        def refused(*given: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "preadv", of_files_in(tmp_path, os.preadv, refused))
        assert near.read_cached(0, 10) is None

    asyncio.run(check())
