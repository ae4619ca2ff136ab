"""Archives on file systems that fail or stop anywhere: what is listed is whole, always."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.archive import folder as archive_folder
from stelae.archive.care import kept_of, list_all, prune
from stelae.archive.folder import BACKUP, PRUNE, RESTORE, Archive
from stelae.archive.format import Backup, id_of
from stelae.archive.restore import verify
from stelae.core.errors import (
    ArchiveBusy,
    BackupNotFound,
    CorruptData,
    InvalidArgument,
    NoSpace,
    Unavailable,
)
from stelae.database.backups import list_backups, prune_backups, verify_backups
from tests.archive_doubles import Faults, Stopped, Tablet, content, disk, save, store

Opened = Callable[[Faults], Archive]


@pytest.fixture(params=["disk", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Opened]:
    """Makes new archives, each to be opened as often as wanted."""
    numbers = itertools.count()

    def new() -> Opened:
        if request.param == "disk":
            path = tmp_path / str(next(numbers))
            return lambda faults: disk(path, faults)
        memory = MemoryFileSystem()
        memory.store, memory.pseudo_dirs = {}, [""]
        return lambda faults: store(memory, faults)

    return new


def new_tablets() -> list[Tablet]:
    tablets = [Tablet("one"), Tablet("two")]
    tablets[0].put(range(300), "first")
    tablets[1].put(range(1000, 1100), "first")
    return tablets


def work(opened: Opened, faults: Faults, expected: list[dict[int, str]]) -> None:
    """Two backups, and the first goes. ``expected``: what each listed one may have."""
    tablets = new_tablets()
    expected.append(tablets[0].content | tablets[1].content)
    save(opened(faults), tablets)
    tablets[0].put(range(0, 300, 3), "second")
    tablets[1].drop(range(1000, 1060))
    expected.append(tablets[0].content | tablets[1].content)
    save(opened(faults), tablets)
    prune(opened(faults), 1, orphans_s=0.0)


def check_all(opened: Opened, expected: list[dict[int, str]]) -> list[Backup]:
    archive = opened(Faults())
    found = [archive.backup(backup_id) for backup_id in archive.ids()]
    damaged, _ = verify(archive, found)
    assert not damaged
    for backup in found:
        assert content(archive, backup) in expected
    return found


@pytest.mark.parametrize("error", [Stopped, OSError])
def test_what_is_listed_is_whole_wherever_it_stops(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Ended or failing at each operation in turn; then it is done again, to the end."""
    strike_everywhere(opened, monkeypatch, error)


def strike_everywhere(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    done = list[dict[int, str]]()
    work(opened(), Faults(), done)
    # Several threads store files, and the number of operations varies with their order: the loop
    # ends with the first run that has fewer operations than the one it would strike.
    for at in itertools.count(1):
        place, expected, strike = opened(), list[dict[int, str]](), Faults(at, error)
        try:
            work(place, strike, expected)
        except (Stopped, Unavailable):
            pass
        else:
            if strike.count < at:
                break
            assert error is OSError, f"nothing happened at {at}"  # a mark that stays is no matter
        check_all(place, expected)
        with monkeypatch.context() as later:
            later.setattr(archive_folder, "MARK_S", 1e-9)
            later.setattr(archive_folder.Marked, "check", lambda self: None)
            work(place, Faults(), expected)
        [last] = check_all(place, expected)
        assert content(place(Faults()), last) == done[-1]
    assert at > 40


def test_a_prune_in_the_wrong_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: files go first, and the backups that need them when all is done."""
    late, forget, unmark = list[str](), Archive.forget, Archive.unmark

    def at_the_end(self: Archive, name: str) -> None:
        while late:
            forget(self, late.pop())
        unmark(self, name)

    def new() -> Opened:
        late.clear()
        memory = MemoryFileSystem()
        memory.store, memory.pseudo_dirs = {}, [""]
        return lambda faults: store(memory, faults)

    monkeypatch.setattr(Archive, "forget", lambda self, backup_id: late.append(backup_id))
    monkeypatch.setattr(Archive, "unmark", at_the_end)
    with pytest.raises(AssertionError, match="missing"):
        strike_everywhere(new, monkeypatch, Stopped)


def test_a_second_run_picks_up_what_is_stored(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off before its own file was written: nothing of it is stored twice."""
    place, tablets = opened(), new_tablets()
    broken = place(Faults())

    def stop(*_: Any) -> None:
        raise Stopped

    monkeypatch.setattr(broken._root, "write", stop)
    with pytest.raises(Stopped):
        save(broken, tablets)
    assert not place(Faults()).ids()
    archive = place(Faults())
    save(archive, tablets)
    assert broken.stored_bytes > 0
    assert archive.stored_bytes == 0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_chain_of_backups_has_what_there_was(data: Any) -> None:
    """Against a dict: rows put, written over, dropped; backups pruned; files that went missing."""
    memory = MemoryFileSystem()
    memory.store, memory.pseudo_dirs = {}, [""]
    tablet, expected = Tablet(), dict[str, dict[int, str]]()
    for step in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 3))):
            first, count = data.draw(st.tuples(st.integers(0, 400), st.integers(0, 200)))
            stride = data.draw(st.integers(1, 5))
            keys = range(first, first + count, stride)
            if data.draw(st.booleans()):
                tablet.put(keys, f"v{step}")
            else:
                tablet.drop(keys)
        if data.draw(st.integers(0, 4)) == 0 and expected:
            lost = data.draw(st.sampled_from(sorted(store(memory, Faults()).sizes())))
            memory.rm(f"/archive/data/{lost}")
            expected = {}  # the older ones are hurt; the next one is not
        backup = save(store(memory, Faults()), [tablet])
        expected[backup.id] = tablet.content
        if data.draw(st.booleans()) and len(expected) == len(store(memory, Faults()).ids()):
            keep = data.draw(st.integers(1, 3))
            prune(store(memory, Faults()), keep, orphans_s=0.0)
            expected = dict(sorted(expected.items())[-keep:])
        archive = store(memory, Faults())
        for backup_id, rows in expected.items():
            assert content(archive, archive.backup(backup_id)) == rows


@pytest.mark.parametrize("durability", ["segments('disk')", "segments()"])
def test_rows_with_versions_that_were_given_twice_are_not_taken_for_others(
    durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tablet that was recovered empty begins anew, under its id; without replicas also where it
    has come further by now than it was."""
    memory, tablet = MemoryFileSystem(), Tablet()
    memory.store, memory.pseudo_dirs = {}, [""]
    tablet.put(range(100), "before")
    save(store(memory, Faults()), [tablet], durability=durability)
    tablet.found, tablet.next_version = {}, 1
    tablet.put(range(200 if durability == "segments()" else 50), "after")
    archive = store(memory, Faults())
    backup = save(archive, [tablet], durability=durability)
    assert content(archive, backup) == tablet.content
    assert ("is stored anew" in caplog.text) == (durability != "segments()")


def test_little_is_read_and_stored_when_little_has_changed() -> None:
    """Of a tablet that nobody wrote to, nothing; rows that went cost nothing to read."""
    memory, tablet = MemoryFileSystem(), Tablet()
    memory.store, memory.pseudo_dirs = {}, [""]
    tablet.put(range(50_000), "first")
    first = save(store(memory, Faults()), [tablet])
    assert tablet.rows_read == 50_000
    again = store(memory, Faults())
    assert save(again, [tablet]).tables[0].tablets == first.tables[0].tablets
    assert again.stored_bytes == 0
    tablet.put(range(10, 50_000, 100), "second")
    third = store(memory, Faults())
    save(third, [tablet])
    assert tablet.rows_read == 50_500
    assert third.stored_bytes < first.stored_bytes / 4
    tablet.drop(range(20_000))
    save(store(memory, Faults()), [tablet])
    assert tablet.rows_read < 51_000


def test_a_prune_keeps_the_newest_of_each_table() -> None:
    """A backup of one table is not pushed out by newer ones of another."""
    memory = MemoryFileSystem()
    memory.store, memory.pseudo_dirs = {}, [""]
    tablets = {name: [Tablet(name)] for name in "ab"}
    backups = []
    for name in "aabbb":
        tablets[name][0].put(range(10), name)
        backups.append(save(store(memory, Faults()), tablets[name], name))
        time.sleep(0.002)
    assert kept_of(backups, 1) == {backups[1].id, backups[4].id}
    dry = prune(store(memory, Faults()), 2, dry_run=True)
    assert dry["dropped"] == [backups[2].id]
    assert len(store(memory, Faults()).ids()) == 5
    done = prune(store(memory, Faults()), 1)
    assert done["dropped"] == [backups[0].id, backups[2].id, backups[3].id]
    assert done["files"] > 0
    check_all(lambda faults: store(memory, faults), [t[0].content for t in tablets.values()])
    with pytest.raises(InvalidArgument, match="keep=0"):
        prune(store(memory, Faults()), 0)


def test_a_prune_and_a_backup_are_never_together(opened: Callable[[], Opened]) -> None:
    """Two backups may be; a mark of a process that is gone counts for a while only."""
    place = opened()
    with place(Faults()).at_work(BACKUP) as first, place(Faults()).at_work(BACKUP):
        with pytest.raises(ArchiveBusy, match="a backup is being made by process"):
            prune(place(Faults()), 1)
        first.check()
    with place(Faults()).at_work(PRUNE), pytest.raises(ArchiveBusy, match="being pruned"):
        save(place(Faults()), new_tablets())
    assert not place(Faults()).marks()


def test_a_table_that_is_made_anew_each_night_is_the_same(opened: Callable[[], Opened]) -> None:
    """It has another id each time; what is kept is told by its name."""
    place, backups = opened(), list[Backup]()
    for night in range(4):
        backup = save(place(Faults()), new_tablets())
        [table] = backup.tables
        anew = msgspec.structs.replace(table, table_id=f"id-{night}")
        backups.append(msgspec.structs.replace(backup, tables=(anew,)))
    assert kept_of(backups, 2) == {backups[2].id, backups[3].id}


def test_the_newest_backup_has_the_highest_id(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the one before was made where the clock was ahead."""
    place, tablets = opened(), new_tablets()
    real = archive_folder.new_id
    with monkeypatch.context() as ahead:
        ahead.setattr(archive_folder, "new_id", lambda *_: "20991231T235959.999Z-ffff")
        save(place(Faults()), tablets)
    made = [save(place(Faults()), tablets).id for _ in range(3)]
    assert place(Faults()).ids() == ["20991231T235959.999Z-ffff", *made]
    assert made[0].startswith("21000101T000000.000Z-")
    assert real("named by hand") < made[0]


def test_a_prune_that_was_suspended_deletes_nothing_more(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark is old by another's clock, which takes it away and makes a backup; or by its own."""
    place, tablets = opened(), new_tablets()
    orphans = [place(Faults()).put(b"%d" % n, 1, ".rows") for n in range(3)]
    slow, real, deleted = place(Faults()), Archive.delete, list[str]()

    def sleeping(self: Archive, name: str) -> None:
        real(self, name)
        if self is slow:
            deleted.append(name)
            with monkeypatch.context() as ahead:
                ahead.setattr(archive_folder, "_now", lambda: time.time() + archive_folder.MARK_S)
                save(place(Faults()), tablets)

    monkeypatch.setattr(Archive, "delete", sleeping)
    with pytest.raises(ArchiveBusy, match="silent for so long"):
        prune(slow, 1, orphans_s=0.0)
    assert len(deleted) == 1
    assert sum(place(Faults()).has(orphan) for orphan in orphans) == 2
    with place(Faults()).at_work(PRUNE) as marked:
        clock = archive_folder._awake_or_not() + archive_folder.MARK_S
        monkeypatch.setattr(archive_folder, "_awake_or_not", lambda: clock)
        with pytest.raises(ArchiveBusy, match="silent"):
            marked.check()


def test_a_restore_is_alone_with_its_tables(opened: Callable[[], Opened]) -> None:
    """Others may be restored, and backups made; one whose process has ended here is no matter."""
    place = opened()
    with place(Faults()).at_work(RESTORE, ("one", "two")):
        with pytest.raises(ArchiveBusy, match=r"one, two is being restored by process"):
            place(Faults()).at_work(RESTORE, ("two", "three")).__enter__()
        with place(Faults()).at_work(RESTORE, ("four",)), place(Faults()).at_work(BACKUP):
            pass
        with pytest.raises(ArchiveBusy, match="is being restored"):
            prune(place(Faults()), 1)
    ended = subprocess.Popen(["true"])
    ended.wait()
    mark = archive_folder.Mark(RESTORE, socket.gethostname(), ended.pid, time.time(), ("one",))
    place(Faults()).mark("restore-x.json", mark)
    with place(Faults()).at_work(RESTORE, ("one",)):
        assert not place(Faults()).is_marked("restore-x.json")
    place(Faults()).mark("restore-x.json", msgspec.structs.replace(mark, host="another"))
    with pytest.raises(ArchiveBusy):
        place(Faults()).at_work(RESTORE, ("one",)).__enter__()


def test_who_was_silent_for_too_long_has_made_no_backup(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune has taken its mark away, and files that it counted on."""
    place = opened()
    save(place(Faults()), new_tablets())
    slow = place(Faults())
    with slow.at_work(BACKUP) as marked:
        backup = slow.backup()
        with monkeypatch.context() as later:
            later.setattr(archive_folder, "MARK_S", 1e-9)
            later.setattr(archive_folder.Marked, "check", lambda self: None)
            prune(place(Faults()), 1)
        with pytest.raises(ArchiveBusy, match="silent for so long"):
            slow.commit(backup, marked)
    with place(Faults()).at_work(BACKUP) as marked:
        marked._renewed -= archive_folder.MARK_S
        with pytest.raises(ArchiveBusy, match="silent"):
            place(Faults()).commit(backup, marked)


def test_files_that_nobody_needs_stay_for_a_day(opened: Callable[[], Opened]) -> None:
    """They may be of a backup that broke off, and that is made again."""
    place, tablets = opened(), new_tablets()
    save(place(Faults()), tablets)
    orphan = place(Faults()).put(b"of one that broke off", 1, ".rows")
    assert prune(place(Faults()), 1)["files"] == 0
    assert place(Faults()).has(orphan)
    assert prune(place(Faults()), 1, orphans_s=0.0)["files"] == 1
    assert not place(Faults()).has(orphan)


def test_damage_is_found_and_told_and_mended_by_the_next_backup(tmp_path: Path) -> None:
    """A flipped bit, a cut, a missing file, list or manifest: who needs it, and what helps."""
    tablets = new_tablets()
    url = str(tmp_path)
    first = save(Archive.at(url), tablets)
    time.sleep(0.002)
    tablets[0].put(range(300, 400), "more")
    second = save(Archive.at(url), tablets)
    sound = verify_backups(url)
    assert sound["damaged"] == []
    assert sound["backups"] == [first.id, second.id]
    rows = sorted((tmp_path / "data").glob("*.rows"))
    shared = next(
        r for r in rows if r.stat().st_mtime_ns == min(x.stat().st_mtime_ns for x in rows)
    )
    whole = shared.read_bytes()
    for damage, reason in [
        (whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], "checksum"),
        (whole[:-1], "bytes"),
        (None, "missing"),
    ]:
        shared.unlink() if damage is None else shared.write_bytes(damage)
        [found] = verify_backups(url)["damaged"]
        assert reason in found["reason"]
        assert found["file"] == str(shared)
        assert found["backups"] == [first.id, second.id]
        assert found["tables"] == ["t"]
        assert str(shared) in found["hint"]
    third = save(Archive.at(url), tablets)
    assert verify_backups(url, third.id)["damaged"] == []
    manifest = tmp_path / f"backup-{third.id}.json"
    manifest.write_text(manifest.read_text()[:-20])
    assert id_of(manifest.name) == third.id
    [*_, broken] = sorted(
        verify_backups(url)["damaged"], key=lambda each: each["file"] == str(manifest)
    )
    assert broken["file"] == str(manifest)
    assert "backup-" in list_backups(url)[0]["problem"]
    with pytest.raises(CorruptData, match="backup-") as refused:
        prune_backups(url, 1)
    assert "nothing was deleted" in refused.value.__notes__[0]
    assert save(Archive.at(url), tablets).rows == third.rows


def test_a_list_that_is_damaged_is_made_anew_and_stops_a_prune(tmp_path: Path) -> None:
    """Which files a backup needs stands there."""
    tablets, url = [Tablet("one")], str(tmp_path)
    tablets[0].put(range(100), "x")
    save(Archive.at(url), tablets)
    [found] = (tmp_path / "data").glob("*.list")
    whole = found.read_bytes()
    found.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert [d["file"] for d in verify_backups(url)["damaged"]] == [str(found)]
    with pytest.raises(CorruptData, match="checksum"):
        prune_backups(url, 1)
    found.unlink()
    save(Archive.at(url), tablets)
    assert verify_backups(url)["damaged"] == []


@pytest.mark.parametrize("kind", ["list", "rows"])
def test_what_is_damaged_and_as_long_as_before_is_written_anew(tmp_path: Path, kind: str) -> None:
    """Lists by the next backup, which reads them; rows by one that trusts nothing unread."""
    tablets, url = new_tablets(), str(tmp_path)
    save(Archive.at(url), tablets)
    for found in (tmp_path / "data").glob(f"*.{kind}"):
        whole = found.read_bytes()
        found.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert verify_backups(url)["damaged"]
    archive = Archive.at(url)
    save(archive, tablets, full=kind == "rows")
    assert archive.stored_bytes > 0
    assert verify_backups(url)["damaged"] == []
    archive = Archive.at(url)
    save(archive, tablets, full=True)
    assert archive.stored_bytes == 0


def test_what_is_wrong_with_a_place_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No backup, no such one, a file, no permission, a full disk, no such scheme or format."""
    archive = Archive.at(str(tmp_path / "none"))
    assert list_all(archive) == []
    with pytest.raises(InvalidArgument, match="stelae backup create"):
        archive.backup()
    backup = save(archive, new_tablets())
    with pytest.raises(BackupNotFound, match=backup.id):
        archive.backup("another")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidArgument, match="is a file"):
        Archive.at(str(tmp_path / "file")).ids()
    with pytest.raises(InvalidArgument, match="nonsense"):
        Archive.at("nonsense://x")
    for error, kind, text in [
        (PermissionError(13, "Permission denied"), InvalidArgument, "AWS_ACCESS_KEY_ID"),
        (FileNotFoundError(2, "Bucket 'b' not found"), InvalidArgument, "make it first"),
        (OSError(28, "No space left on device"), NoSpace, "what is stored counts"),
        (OSError(5, "Input/output error"), Unavailable, "Input/output"),
        (OSError("AWS Error ACCESS_DENIED during PutObject"), InvalidArgument, "no permission"),
    ]:

        def failing(*_: Any, error: OSError = error) -> None:
            raise error

        with monkeypatch.context() as here:
            here.setattr(archive._root, "write", failing)
            here.setattr(archive._busy, "write", failing)
            with pytest.raises(kind, match=text):
                save(archive, new_tablets())
    path = tmp_path / "none" / f"backup-{backup.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": "stelae-backup/9"}))
    with pytest.raises(InvalidArgument, match="stelae-backup/9"):
        archive.backup()
