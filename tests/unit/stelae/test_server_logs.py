"""Logs of servers by name: the right files, the right lines, on all nodes, also while they grow."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stelae.actors.ray_host.own_log import link_log, link_name
from stelae.cli.cluster.server_logs import (
    Found,
    Read,
    Wanted,
    place_of,
    read_log,
    server_log,
    time_of,
)
from stelae.core.errors import InvalidArgument
from stelae.deploy.nodes import Told

WANTED = Wanted("demo", "tserver-1", 100)
AT_S = 1_800_000_000.0


def entry(number: int, message: str = "") -> str:
    """A line that was written so many seconds after `AT_S`."""
    minutes, seconds = divmod(number, 60)
    time = f"2027-01-15T08:{minutes:02}:{seconds:02}.000+00:00"
    return json.dumps({"time": time, "message": message or f"m{number}"}, separators=(",", ":"))


def make_log(
    folder: Path, server: str, process: int, *lines: str, cluster: str = "demo", at_s: int = 0
) -> Path:
    """A server's process with its log, started at a time."""
    log = folder / f"worker-w{process}-01000000-{process}.err"
    log.write_text("".join([f"{line}\n" for line in lines]))
    name = link_name(cluster, server, process)
    link_log(folder, f"w{process}", name, process)
    os.utime(folder / name, (at_s, at_s), follow_symlinks=False)
    return log


def messages(lines: tuple[str, ...]) -> list[str]:
    return [json.loads(line)["message"] for line in lines]


def test_times_are_read_off_lines_of_both_formats() -> None:
    """JSON for programs, and the console's; what has no time is none."""
    assert time_of(entry(7)) == AT_S + 7
    assert time_of("2027-01-15T08:00:07.000+00:00 INFO    tserver-1 stelae: x") == AT_S + 7
    assert time_of("  File x.py, line 3") is None
    assert time_of("2026-02-30T00:00:00+00:00 x") is None
    assert time_of('{"time":"2026-01-01T1.2:3+00:00"') is None


def test_all_processes_of_a_server_are_read_oldest_first_and_no_others(tmp_path: Path) -> None:
    """Ray's own notes are left out, older parts of a rotated file are not, and a file that is gone
    is no error."""
    make_log(tmp_path, "tserver-1", 20, entry(3), at_s=2)
    older = make_log(tmp_path, "tserver-1", 30, ":actor_name:Stelae(tserver-1)", entry(2), at_s=1)
    older.with_name(f"{older.name}.1").write_text(entry(1) + "\n")
    older.with_name(f"{older.name}.2").write_text(entry(0) + "\n")
    make_log(tmp_path, "tserver-10", 40, entry(9))
    make_log(tmp_path, "tserver-1", 50, entry(9), cluster="other")
    make_log(tmp_path, "tserver-1", 60, entry(9)).unlink()
    found = read_log(tmp_path, WANTED)
    assert messages(found.lines) == ["m0", "m1", "m2", "m3"]
    assert set(found.read) == {link_name("demo", "tserver-1", n) for n in (20, 30)}
    assert found.servers == ("tserver-1", "tserver-10")
    assert messages(read_log(tmp_path, replace(WANTED, lines=2)).lines) == ["m2", "m3"]
    assert read_log(tmp_path, replace(WANTED, lines=0)).lines == ()


def test_a_process_without_a_file_of_rays_makes_no_link(tmp_path: Path) -> None:
    """Where workers write to a terminal there is none; a link of a former process is replaced."""
    link_log(tmp_path, "w1", link_name("demo", "tserver-1", 1), 1)
    assert list(tmp_path.iterdir()) == []
    make_log(tmp_path, "tserver-1", 1, entry(1))
    (tmp_path / "worker-w2-01000000-1.err").write_text(entry(2) + "\n")
    link_log(tmp_path, "w2", link_name("demo", "tserver-1", 1), 1)
    assert messages(read_log(tmp_path, WANTED).lines) == ["m2"]


def test_lines_are_chosen_by_age_and_text(tmp_path: Path) -> None:
    """A line of a traceback is as old as the line before it."""
    make_log(
        tmp_path, "tserver-1", 1, entry(1, "a"), "  old", entry(2, "b"), "  new", entry(3, "c")
    )
    since = replace(WANTED, since=AT_S + 2)
    assert read_log(tmp_path, since).lines == (entry(2, "b"), "  new", entry(3, "c"))
    assert read_log(tmp_path, replace(since, text='"c"')).lines == (entry(3, "c"),)
    assert read_log(tmp_path, replace(WANTED, text="old")).lines == ("  old",)


def test_a_look_that_follows_reads_whole_new_lines_of_old_and_new_files(tmp_path: Path) -> None:
    """What is half written comes with the next look; a file that Ray began anew is read anew."""
    log = make_log(tmp_path, "tserver-1", 1, entry(1))
    first = read_log(tmp_path, WANTED)
    later = replace(WANTED, is_first=False, read=first.read)
    with log.open("a") as file:
        file.write(entry(2) + "\n" + entry(3)[:10])
    second = read_log(tmp_path, later)
    assert messages(second.lines) == ["m2"]
    with log.open("a") as file:
        file.write(entry(3)[10:] + "\n")
    make_log(tmp_path, "tserver-1", 2, entry(4), at_s=1 << 40)
    third = read_log(tmp_path, replace(later, read=second.read))
    assert messages(third.lines) == ["m3", "m4"]
    log.write_text(entry(5) + "\n")
    fourth = read_log(tmp_path, replace(later, read=third.read))
    assert messages(fourth.lines) == ["m5"]


def on_folders(folders: Mapping[str, Path], silent: Mapping[str, str] | None = None) -> Read:
    def read(wanted: Mapping[str, Wanted]) -> Told[Found]:
        answers = {
            n: replace(read_log(folders[n], each), place=place_of(folders[n]))
            for n, each in wanted.items()
            if n in folders and n not in (silent or {})
        }
        return Told(answers, silent or {})

    return read


def test_a_server_that_has_moved_has_one_log_in_the_order_of_time(tmp_path: Path) -> None:
    """The last lines are those of all machines together; who did not answer is told."""
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        folder.mkdir()
    make_log(folders["b"], "tserver-1", 1, entry(1), entry(2), "  more")
    make_log(folders["a"], "tserver-1", 1, entry(3), entry(4))
    make_log(folders["a"], "master-1", 2, entry(9))
    read = on_folders(folders, {"c": "no answer"})
    (found,) = server_log(
        replace(WANTED, lines=4), follow=False, read=read, nodes_now=lambda: ["a", "b", "c"]
    )
    assert found.lines == (entry(2), "  more", entry(3), entry(4))
    assert found.silent == {"c": "no answer"}
    none = server_log(
        replace(WANTED, server="nobody"), follow=False, read=read, nodes_now=lambda: ["a", "b"]
    )
    with pytest.raises(InvalidArgument, match="those that have one are master-1, tserver-1"):
        next(none)


def test_a_log_is_followed_to_a_node_that_comes_later(tmp_path: Path) -> None:
    """Each look asks the nodes that there are, each for what it has not told yet."""
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        folder.mkdir()
    log = make_log(folders["a"], "tserver-1", 1, entry(1))
    looks = itertools.count()

    def pause(_: float) -> None:
        if next(looks) == 0:
            with log.open("a") as file:
                file.write(entry(2) + "\n")
        else:
            make_log(folders["b"], "tserver-1", 2, entry(3))

    followed = server_log(
        WANTED,
        follow=True,
        read=on_folders(folders),
        nodes_now=lambda: [name for name in folders if any(folders[name].iterdir())],
        pause=pause,
    )
    found = [messages(each.lines) for each in itertools.islice(followed, 3)]
    assert found == [["m1"], ["m2"], ["m3"]]


def test_nodes_that_share_a_folder_tell_it_once(tmp_path: Path) -> None:
    """Several nodes of Ray on one machine; also if one goes and another comes meanwhile."""
    log = make_log(tmp_path, "tserver-1", 1, entry(1))
    now = [["a", "b"], ["a", "b"], ["b", "c"], ["c"], ["c", "d"]]
    looks = itertools.count(1)

    def pause(_: float) -> None:
        with log.open("a") as file:
            file.write(entry(next(looks) + 1) + "\n")

    found = server_log(
        WANTED,
        follow=True,
        read=on_folders(dict.fromkeys("abcd", tmp_path)),
        nodes_now=lambda: now.pop(0),
        pause=pause,
    )
    shown = [messages(each.lines) for each in itertools.islice(found, 5)]
    assert shown == [["m1"], ["m2"], ["m3"], ["m4"], ["m5"]]


def test_a_node_that_was_silent_at_first_tells_what_was_asked_for(tmp_path: Path) -> None:
    """Its lines are old ones: as many, and as young, as those of the nodes that answered."""
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        folder.mkdir()
    make_log(folders["a"], "tserver-1", 1, entry(1), entry(2), entry(3))
    late = make_log(folders["b"], "tserver-1", 2, *[entry(n) for n in range(10, 20)])
    silent = {"b": "no answer"}
    looks = itertools.count()

    def pause(_: float) -> None:
        silent.clear()
        if next(looks) == 1:
            with late.open("a") as file:
                file.write(entry(20) + "\n" + entry(21) + "\n" + entry(22) + "\n")

    found = server_log(
        replace(WANTED, lines=2, since=AT_S + 3),
        follow=True,
        read=on_folders(folders, silent),
        nodes_now=lambda: ["a", "b"],
        pause=pause,
    )
    shown = [messages(each.lines) for each in itertools.islice(found, 3)]
    assert shown == [["m3"], ["m18", "m19"], ["m20", "m21", "m22"]]
