"""The real disk: the rules of every disk, the order of its syncs, its lock, its leftovers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.runtime.conformance import DISK_RULES, DiskRule
from stelae.runtime.files import LocalDisk
from tests.own_files import of_files_in, path_of


@pytest.mark.parametrize("rule", DISK_RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("sync_in_thread", [False, True], ids=["inline", "thread"])
async def test_the_real_disk_keeps_every_rule(
    tmp_path: Path, rule: DiskRule, sync_in_thread: bool
) -> None:
    """A server sees the same disk here as in the simulator."""
    disk = LocalDisk(tmp_path / "data", sync_in_thread=sync_in_thread)
    await rule(disk)
    disk.close()


class Recorder:
    """Notes calls of ``os`` functions by what they act on, and passes them on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._folder = str(folder)
        fsync, rename, unlink = os.fsync, os.rename, Path.unlink

        def noted_fsync(descriptor: int) -> None:
            self.note("fsync", path_of(descriptor))
            fsync(descriptor)

        def noted_rename(old: Path, new: Path) -> None:
            self.note("rename", str(new))
            rename(old, new)

        def noted_unlink(path: Path, missing_ok: bool = False) -> None:
            self.note("unlink", str(path))
            unlink(path, missing_ok)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)
        monkeypatch.setattr(Path, "unlink", noted_unlink)

    def note(self, what: str, path: str) -> None:
        if path.startswith(self._folder):  # a cluster may run beside this test
            self.calls.append((what, Path(path).name))


async def test_replace_syncs_the_content_then_renames_then_syncs_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any other order a crash could leave a name without its content, or lose the name."""
    disk = LocalDisk(tmp_path / "data")
    await disk.replace("f/a", b"1")
    seen = Recorder(tmp_path, monkeypatch)
    await disk.replace("f/a", b"2")
    assert seen.calls == [("fsync", "a.tmp"), ("rename", "a"), ("fsync", "f")]


async def test_a_new_file_is_durably_named_in_each_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents of all that is new are synced, outermost first; nothing is for what exists."""
    disk = LocalDisk(tmp_path / "data")
    seen = Recorder(tmp_path, monkeypatch)
    (await disk.open("f/g/a")).close()
    assert seen.calls == [("fsync", "data"), ("fsync", "f"), ("fsync", "g")]
    seen.calls.clear()
    (await disk.open("f/g/a")).close()
    assert seen.calls == []


async def test_remove_syncs_the_folder_after_the_unlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed file does not come back after a crash."""
    disk = LocalDisk(tmp_path / "data")
    await disk.replace("a", b"1")
    seen = Recorder(tmp_path, monkeypatch)
    await disk.remove("a")
    assert seen.calls == [("unlink", "a"), ("fsync", "data")]


async def test_a_move_is_one_rename_and_then_both_parents_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rename is atomic; the new name is made durable before the old one is surely gone."""
    disk = LocalDisk(tmp_path / "data")
    await disk.replace("wals/a/log", b"1")
    await disk.replace("kept/a/superblock", b"2")
    seen = Recorder(tmp_path, monkeypatch)
    assert await disk.move("wals/a", "kept/a/wals")
    assert seen.calls == [("rename", "wals"), ("fsync", "a"), ("fsync", "wals")]


async def test_a_removed_folder_is_synced_out_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed folder does not come back after a crash."""
    disk = LocalDisk(tmp_path / "data")
    await disk.replace("f/g/a", b"1")
    seen = Recorder(tmp_path, monkeypatch)
    await disk.remove_folder("f/g")
    assert seen.calls == [("fsync", "f")]
    assert not (disk.root / "f" / "g").exists()


async def test_a_replace_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space is an OSError, and neither the old content nor the listing changes."""
    disk = LocalDisk(tmp_path / "data")
    await disk.replace("a", b"old")

    def no_space(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", of_files_in(tmp_path, os.write, no_space))
        with pytest.raises(OSError, match="no space"):
            await disk.replace("a", b"new")
    assert await disk.read("a") == b"old"
    assert sorted(path.name for path in disk.root.iterdir()) == ["a", "instance.lock"]


async def test_short_writes_of_the_kernel_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pwritev that takes only some bytes loses none."""
    disk = LocalDisk(tmp_path / "data")
    file = await disk.open("a")

    def three_bytes(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:3], offset)

    monkeypatch.setattr(os, "pwritev", of_files_in(tmp_path, os.pwritev, three_bytes))
    file.write_at(1, b"ab", b"cdefg", b"hi")
    assert file.read_at(0, 99) == b"\0abcdefghi"
    assert file.size == 10


async def test_after_a_failed_sync_no_later_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel forgets pages it could not write, so a second sync would lie."""
    disk = LocalDisk(tmp_path / "data")
    file = await disk.open("a")
    file.write_at(0, b"x")

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", of_files_in(tmp_path, os.fdatasync, broken))
        with pytest.raises(OSError, match="broken"):
            await file.sync()
    with pytest.raises(OSError, match="an earlier sync failed"):
        await file.sync()


@pytest.mark.parametrize("sync_in_thread", [False, True])
async def test_a_sync_that_lacks_space_is_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_in_thread: bool
) -> None:
    """Pages that were not written may be gone: nobody may try it again as with a refused write."""
    file = await LocalDisk(tmp_path / "data", sync_in_thread=sync_in_thread).open("a")
    file.write_at(0, b"x")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", of_files_in(tmp_path, os.fdatasync, full))
    with pytest.raises(OSError, match="No space left") as failed:
        await file.sync()
    assert failed.value.errno == errno.EIO


def test_a_directory_in_use_is_refused_by_name(tmp_path: Path) -> None:
    """Two servers never share a data directory; the lock ends with its holder."""
    disk = LocalDisk(tmp_path)
    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}\).*{tmp_path.name}"):
        LocalDisk(tmp_path)
    disk.close()
    LocalDisk(tmp_path).close()


def test_a_directory_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    """The lock holds between processes too."""
    disk = LocalDisk(tmp_path)
    code = f"from stelae.runtime.files import LocalDisk; LocalDisk({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AlreadyRunning: another process" in done.stderr
    disk.close()


async def test_leftovers_of_an_interrupted_replace_are_removed_at_start(tmp_path: Path) -> None:
    """What a crash left behind neither fills the disk nor is taken for data."""
    (tmp_path / "f").mkdir()
    for name in ("a.tmp", "f/b.tmp", "f/b"):
        (tmp_path / name).write_bytes(b"half")
    disk = LocalDisk(tmp_path)
    assert not (tmp_path / "a.tmp").exists()
    assert not (tmp_path / "f/b.tmp").exists()
    assert await disk.read("f/b") == b"half"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../a", "a//b", "a/./b", "a\0b"])
async def test_paths_that_leave_the_directory_are_refused(tmp_path: Path, path: str) -> None:
    """Names have parts that came over the network: the check is there also under ``python -O``."""
    disk = LocalDisk(tmp_path / "data")
    with pytest.raises(InvalidArgument, match="bad path"):
        await disk.open(path)


async def test_temporary_names_are_a_broken_invariant(tmp_path: Path) -> None:
    """Only the disk itself gives them."""
    disk = LocalDisk(tmp_path / "data")
    path = "a.tmp"
    with pytest.raises(AssertionError):
        await disk.open(path)
